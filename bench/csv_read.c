/* bench/csv_read.c - muster's side of bench/csv.py: a CSV file to columns in memory
 *
 * csv_read FILE TYPES THREADS: a letter of TYPES a column, as in tests/csv_dump.h (d double, f
 * float, i 64-bit integer, c category, t text, - skipped). Says "ready", then for each line on its
 * standard input reads the file once, from open to the last value, and prints MB a second. All values end in
 * one array a column: numbers with a bitmap of missing ones; categories as 32-bit codes with their
 * dictionary; texts as 64-bit offsets and bytes, the layout of Arrow.
 *
 * Blocks are copied out by the calling thread while the reader's threads fill the next.
 */
#include <sys/mman.h>
#include <sys/stat.h>

#include "data/csv.h"
#include "tests/csv_dump.h"

/* Grows without moving: the address space is taken at once, pages come as they are written. */
struct array {
    char *base;
    size_t n, room;
};

struct column {
    struct array value, bytes, missing;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void array_take(struct array *a, size_t room)
{
    a->n = 0;
    a->room = room;
    a->base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (a->base == MAP_FAILED) {
        perror("csv_read");
        exit(8);
    }
    madvise(a->base, room, MADV_HUGEPAGE);
}

static void array_add(struct array *a, const void *p, size_t n)
{
    memcpy(a->base + a->n, p, n);
    a->n += n;
}

/* Appends `count` bits at bit `at`. */
static void add_bits(struct array *a, long at, const uint64_t *bits, long count)
{
    uint64_t *to = (uint64_t *)a->base + at / 64;
    int shift = (int)(at % 64);

    for (long i = 0; i < (count + 63) / 64; i++) {
        to[i] |= bits[i] << shift;
        if (shift)
            to[i + 1] |= bits[i] >> (64 - shift);
    }
}

static void add_texts(struct column *k, const struct csv_text *text, long rows)
{
    int64_t *offset = (int64_t *)(k->value.base + k->value.n);

    for (long r = 0; r < rows; r++) {
        offset[r] = (int64_t)k->bytes.n;
        array_add(&k->bytes, text[r].p, text[r].n);
    }
    k->value.n += (size_t)rows * sizeof *offset;
}

static void add_block(struct column *to, const struct csv_block *b)
{
    static const size_t bytes[] = { [CSV_F64] = 8, [CSV_F32] = 4, [CSV_I64] = 8, [CSV_DICT] = 4 };

    for (int i = 0; i < b->n_columns; i++) {
        const struct csv_column *k = &b->column[i];
        if (k->type == CSV_SKIP)
            continue;
        if (k->type == CSV_TEXT)
            add_texts(&to[i], k->text, b->rows);
        else
            array_add(&to[i].value, k->f64, (size_t)b->rows * bytes[k->type]);
        add_bits(&to[i].missing, b->first, k->missing, b->rows);
    }
}

static int read_once(const char *path, const char *types, int threads, struct err *err)
{
    struct csv_options o = { .threads = threads };
    struct csv_block *b = NULL;
    struct stat st;
    OWN(csv) c = NULL;
    double start = now();

    if (stat(path, &st) < 0)
        return err_set(err, ERR_MISSING, "%s: no such file", path);
    if (csv_open(&path, 1, &o, &c, err) < 0)
        return -(int)err->code;
    int n = csv_columns(c);
    OWN_MEM struct column *column = calloc((size_t)n, sizeof *column);
    /* A row has at least a byte a column. */
    size_t rows = (size_t)st.st_size / (size_t)n + 64;
    for (int i = 0; i < n; i++) {
        csv_select(c, i, csv_dump_type(types[(size_t)i % strlen(types)]));
        array_take(&column[i].value, rows * 8);
        array_take(&column[i].bytes, (size_t)st.st_size);
        array_take(&column[i].missing, rows / 8 + 64);
    }
    int rc;
    while ((rc = csv_next(c, &b, err)) == 0 && b) {
        if (b->n_errors)
            return csv_error_say(c, b, &b->error[0], err);
        add_block(column, b);
        csv_block_free(c, b);
    }
    if (rc < 0)
        return rc;
    printf("%.1f\n", (double)st.st_size / 1e6 / (now() - start));
    for (int i = 0; i < n; i++) {
        munmap(column[i].value.base, column[i].value.room);
        munmap(column[i].bytes.base, column[i].bytes.room);
        munmap(column[i].missing.base, column[i].missing.room);
    }
    return 0;
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
