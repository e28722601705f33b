/* tests/fuzz/json_fuzz.c - any bytes as JSON lines
 *
 * The bytes are a file that is read as rows, and each line of them an object. Values that are given
 * must lie in the line; a row that is accepted has what its columns say.
 */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/own.h"
#include "data/json.h"
#include "data/rows.h"

struct line {
    const char *first, *end;
};

static int member(void *ctx, const char *key, size_t key_n, const struct json_value *v,
                  struct err *err)
{
    const struct line *l = ctx;
    double x[4];
    (void)err;
    assert(key >= l->first && key + key_n <= l->end);
    assert(v->text >= l->first && v->text + v->n <= l->end);
    if (v->kind == JSON_KIND_LIST)
        json_list_numbers(v->text, v->n, x, 4);
    return 0;
}

static void read_rows(const char *path)
{
    struct err err = { 0 };
    OWN(rows) r = NULL;
    struct csv_options o = { 0 };
    const struct rows_block *b;
    long n[2] = { 0, 0 };
    if (rows_open(ROWS_JSON, &path, 1, &o, &r, &err) < 0)
        return;
    if (rows_select(r, "x", ROWS_NUMBER, &err) < 0 || rows_select(r, "s", ROWS_TEXT, &err) < 0 ||
        rows_select(r, "b", ROWS_NUMBER | ROWS_TEXT, &err) < 0 ||
        rows_select_list(r, "l", 3, &err) < 0)
        return;
    for (int pass = 0; pass < 2; pass++) {
        int rc;
        while ((rc = rows_next(r, &b, &err)) == 0 && b)
            for (long i = 0; i < b->n; i++, n[pass]++) {
                assert(csv_bit(b->column[0].missing, i) == !!isnan(b->column[0].number[i]));
                assert(isnan(b->column[2].number[i]) || isfinite(b->column[2].number[i]));
                volatile char last =
                    b->column[1].text[i].n ? b->column[1].text[i].p[b->column[1].text[i].n - 1] : 0;
                (void)last;
                if (csv_bit(b->bad, i))
                    assert(rows_say(r, b, i, &err) < 0 && err.text[0]);
            }
        if (rc < 0 || rows_rewind(r, &err) < 0)
            return;
    }
    assert(n[0] == n[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    OWN_MEM char *text = malloc(n ? n : 1);
    if (n)
        memcpy(text, bytes, n);
    struct line l = { text, text + n };
    if (json_object_read(text, n, member, &l, &err) < 0)
        assert(err.text[0]);

    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("json", 0);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ftruncate(fd, 0) == 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n)
        read_rows(path);
    return 0;
}
