/* bench/predict.c - latency of one prediction in process, through muster.h
 *
 * predict MODEL IMAGES ROUNDS: IMAGES is an uncompressed IDX file. Each call is timed alone, over the
 * first images in turn; the first tenth of the calls warm up. Prints the median and the 99th
 * percentile in microseconds, then the class of the first image as a check that work was done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "muster.h"

enum { PIXELS = 28 * 28, IMAGES = 64, HEADER = 16, OUTPUTS_MAX = 64 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int fail(const char *what)
{
    fprintf(stderr, "predict: %s\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    static unsigned char image[IMAGES][PIXELS];
    float out[OUTPUTS_MAX];
    int best = 0;

    if (argc != 4)
        return fail("usage: predict MODEL IMAGES ROUNDS");
    FILE *f = fopen(argv[2], "rb");
    if (!f || fseek(f, HEADER, SEEK_SET) < 0 || fread(image, PIXELS, IMAGES, f) != IMAGES)
        return fail("the images cannot be read");
    fclose(f);
    struct muster_model *model = muster_load(argv[1]);
    if (!model || muster_model_outputs(model) > OUTPUTS_MAX)
        return fail(muster_error());

    long rounds = strtol(argv[3], NULL, 10), warm = rounds / 10;
    double *us = malloc((size_t)rounds * sizeof *us);
    for (long i = -warm; us && i < rounds; i++) {
        double start = now_us();
        if (muster_infer_image(model, image[(i + warm) % IMAGES], PIXELS, out) < 0)
            return fail(muster_error());
        if (i >= 0)
            us[i] = now_us() - start;
    }
    if (!us || muster_infer_image(model, image[0], PIXELS, out) < 0)
        return fail("no memory");
    for (int i = 1; i < muster_model_outputs(model); i++)
        best = out[i] > out[best] ? i : best;
    qsort(us, (size_t)rounds, sizeof *us, by_value);
    printf("%.3f %.3f %d\n", us[rounds / 2], us[rounds * 99 / 100], best);
    free(us);
    muster_model_free(model);
    return 0;
}
