/* bench/csv_read.c - muster's side of bench/csv.py: a CSV file to columns in memory
 *
 * csv_read FILE TYPES THREADS: a letter of TYPES a column, as in tests/csv_dump.h (d double, f
 * float, i 64-bit integer, c category, t text, - skipped). Says "ready", then for each line on its
 * standard input reads the file once, from open to the last value, and prints MB a second. The
 * whole table is then in memory, in blocks as pyarrow and polars have it: numbers with a bitmap of
 * missing ones, categories as 32-bit codes with one dictionary, texts as views and their bytes.
 */
#include <sys/stat.h>

#include "data/csv.h"
#include "tests/csv_dump.h"

enum { BLOCKS_MAX = 1 << 20 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int read_once(const char *path, const char *types, int threads, struct err *err)
{
    struct csv_options o = { .threads = threads };
    OWN_MEM struct csv_block **block = malloc(BLOCKS_MAX * sizeof *block);
    struct stat st;
    OWN(csv) c = NULL;
    double start = now();
    long n = 0;
    int rc;

    if (!block || stat(path, &st) < 0)
        return err_set(err, ERR_MISSING, "%s: no such file", path);
    if (csv_open(&path, 1, &o, &c, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < csv_columns(c); i++)
        csv_select(c, i, csv_dump_type(types[(size_t)i % strlen(types)]));
    while ((rc = csv_next(c, &block[n], err)) == 0 && block[n] && n < BLOCKS_MAX - 1)
        if (block[n++]->n_errors) {
            rc = csv_error_say(c, block[n - 1], &block[n - 1]->error[0], err);
            break;
        }
    double seconds = now() - start;
    if (rc == 0)
        printf("%.1f\n", (double)st.st_size / 1e6 / seconds);
    while (n > 0)
        csv_block_free(c, block[--n]);
    return rc;
}

int main(int argc, char **argv)
{
    struct err err = { 0 };
    char line[64];

    if (argc != 4) {
        fprintf(stderr, "usage: csv_read FILE TYPES THREADS\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin))
        if (read_once(argv[1], argv[2], (int)strtol(argv[3], NULL, 10), &err) < 0) {
            fprintf(stderr, "csv_read: %s\n", err.text);
            return err_exit(err.code);
        }
    return 0;
}
