/* bench/sgemm.c - OpenBLAS's sgemm rate on this machine: what "all of the cores" means
 *
 * sgemm THREADS SECONDS prints the median GFLOP/s of 1024 x 1024 x 1024 products. The matrices fit
 * the last-level cache, so this is a rate of arithmetic, not of memory.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 1024, RUNS_MAX = 10000 };

void openblas_set_num_threads(int n);

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static float a[N * N], b[N * N], c[N * N];
    static double rate[RUNS_MAX];
    int runs = 0;

    if (argc != 3)
        return fprintf(stderr, "usage: sgemm THREADS SECONDS\n"), 2;
    openblas_set_num_threads((int)strtol(argv[1], NULL, 10));
    double until = now_s() + strtod(argv[2], NULL);
    for (long i = 0; i < (long)N * N; i++) {
        a[i] = (float)(i % 7) - 3;
        b[i] = (float)(i % 5) - 2;
    }
    for (int warm = 0; runs < RUNS_MAX && (runs == 0 || now_s() < until); warm++) {
        double start = now_s();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
        double s = now_s() - start;
        if (warm >= 3)
            rate[runs++] = 2.0 * N * N * N / s / 1e9;
    }
    qsort(rate, (size_t)runs, sizeof *rate, by_value);
    printf("%.1f\n", rate[runs / 2]);
    return 0;
}
