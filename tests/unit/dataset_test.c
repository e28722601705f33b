#include "data/dataset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "data/example_write.h"
#include "tests/check.h"
#include "tests/quoted.h"

/* Everything happens in a folder of its own, which is left empty. */
static char folder[] = "dataset-test-XXXXXX";

static void put(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct dataset *open_part(const char *data, enum dataset_part part,
                                 const struct dataset *train)
{
    struct err err = { 0 };
    struct dataset *d = NULL;
    OWN_JSON json_t *j = json_quoted(data);
    assert_ok(dataset_open(j, ".", part, train, 1, 4, &d, &err));
    return d;
}

/* Opening the training part fails and says so. */
static void refuses(const char *data, const char *says)
{
    struct err err = { 0 };
    struct dataset *d = NULL;
    OWN_JSON json_t *j = json_quoted(data);
    int rc = dataset_open(j, ".", DATASET_TRAIN, NULL, 1, 4, &d, &err);
    struct stretch s;
    if (rc == 0)                        /* a stream finds it on the way */
        while ((rc = dataset_stretch(d, &s, &err)) == 0 && s.n && !s.last)
            ;
    dataset_free(d);
    if (rc >= 0)
        fail_msg("%s: was accepted, not refused with \"%s\"", data, says);
    if (!strstr(err.text, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", data, err.text, says);
}

static const struct field *field(const struct stretch *s, const char *name)
{
    for (int i = 0; i < s->n_fields; i++)
        if (!strcmp(s->field[i].name, name))
            return &s->field[i];
    fail_msg("no field %s", name);
    return NULL;
}

static float number(const struct stretch *s, const char *name, long position, int c)
{
    const struct field *f = field(s, name);
    assert_int_equal(f->type, DTYPE_F32);
    assert_in_range(c, 0, f->c - 1);
    return ((const float *)((const char *)f->base + s->order[position] * f->stride))[c];
}

static int id(const struct stretch *s, const char *name, long position)
{
    const struct field *f = field(s, name);
    assert_int_equal(f->type, DTYPE_I32);
    return *(const int32_t *)((const char *)f->base + s->order[position] * f->stride);
}

static struct stretch all(struct dataset *d)
{
    struct err err = { 0 };
    struct stretch s;
    assert_ok(dataset_rewind(d, 0, 0, &err));
    assert_ok(dataset_stretch(d, &s, &err));
    assert_true(s.last);
    return s;
}

static void numbers_are_standardised_over_the_training_rows(void **state)
{
    (void)state;
    put("n.csv", "a,b,y\n1,10,0\n3,10,1\n5,10,2\n7,10,3\n100,11,4\n");
    static const char data[] =
        "{'train': {'csv': 'n.csv'}, 'split': {'test': 0.2, 'by': 'range'}, 'target': 'y',"
        "'shuffle': false}";
    struct dataset *d = open_part(data, DATASET_TRAIN, NULL);
    struct stretch s = all(d);
    assert_int_equal(dataset_rows(d), 4);
    assert_int_equal(s.n, 4);
    for (int i = 0; i < 4; i++) {
        assert_float_equal(number(&s, "numeric", i, 0), (2 * i - 3) / sqrt(5), 1e-6);
        assert_true(number(&s, "numeric", i, 1) == 0);  /* all the same: no division by 0 */
        assert_true(number(&s, "target", i, 0) == i);
    }
    struct dataset *t = open_part(data, DATASET_TEST, d);
    s = all(t);
    assert_int_equal(s.n, 1);
    assert_float_equal(number(&s, "numeric", 0, 0), 96 / sqrt(5), 1e-4);
    assert_true(number(&s, "numeric", 0, 1) == 1);
    dataset_free(d);                    /* the test part outlives it */
    assert_true(number(&s, "target", 0, 0) == 4);
    dataset_free(t);
}

static void scaling_can_be_by_range_given_none_or_of_the_log(void **state)
{
    (void)state;
    put("s.csv", "a,b,c,d,y\n0,1,2,0,0\n10,2,4,1,1\n20,3,6,2,2\n");
    put("t.csv", "a,b,c,d,y\n-10,2,4,1,1\n");
    static const char data[] =
        "{'train': {'csv': 's.csv'}, 'test': {'csv': 't.csv'}, 'target': 'y', 'shuffle': false, "
        "'scale_over': '%s',"
        "'features': {'a': {'numeric': {'scale': 'range'}}, 'b': {'numeric': {'mean': 1, "
        "'variance': 4}},"
        "'c': {'numeric': {'scale': 'none'}}, 'd': {'numeric': {'log': true, 'scale': 'none'}}}}";
    char text[600];
    snprintf(text, sizeof text, data, "train");
    struct dataset *d = open_part(text, DATASET_TRAIN, NULL);
    struct stretch s = all(d);
    assert_true(number(&s, "numeric", 0, 0) == -0.5f);
    assert_true(number(&s, "numeric", 1, 1) == 0.5f);
    assert_true(number(&s, "numeric", 2, 2) == 6);
    assert_float_equal(number(&s, "numeric", 2, 3), log(3), 1e-6);
    dataset_free(d);
    snprintf(text, sizeof text, data, "all");
    d = open_part(text, DATASET_TRAIN, NULL);   /* mean 5, range 30 */
    s = all(d);
    assert_float_equal(number(&s, "numeric", 0, 0), -5.0 / 30, 1e-7);
    struct dataset *t = open_part(text, DATASET_TEST, d);
    s = all(t);
    assert_true(number(&s, "numeric", 0, 0) == -0.5f);
    dataset_free(t);
    dataset_free(d);
}

static void categories_become_ids_and_the_last_is_for_the_rest(void **state)
{
    (void)state;
    put("c.csv", "v,w,i,h,n,y\n"
                 "a,x,0,one,5,1\n"
                 "b,y,2,two,6,2\n"
                 "b,z,3,one,7.5,3\n"
                 ",q,,,,4\n"
                 "c,x,-1,two,99,5\n");
    static const char data[] =
        "{'train': {'csv': 'c.csv'}, 'target': 'y', 'shuffle': false, 'features': {"
        "'v': {'vocabulary': 'auto'}, 'w': {'vocabulary': ['z', 'y']}, 'i': {'identity': 3}, 'h': "
        "{'hash': 10},"
        "'band': {'bucketize': 'n', 'boundaries': [6, 10]}, 'vxb': {'cross': ['v', 'band'], "
        "'buckets': 97}}}";
    struct dataset *d = open_part(data, DATASET_TRAIN, NULL);
    struct stretch s = all(d);
    static const struct { const char *name; int ids, want[5]; } cases[] = {
        { "v", 4, { 1, 0, 0, 3, 2 } },          /* by count, then by name */
        { "w", 3, { 2, 1, 0, 2, 2 } },
        { "i", 4, { 0, 2, 3, 3, 3 } },
        { "band", 4, { 0, 1, 1, 3, 2 } },
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        assert_int_equal(field(&s, cases[k].name)->ids, cases[k].ids);
        for (int i = 0; i < 5; i++)
            assert_int_equal(id(&s, cases[k].name, i), cases[k].want[i]);
    }
    assert_int_equal(field(&s, "h")->ids, 11);
    assert_int_equal(id(&s, "h", 0), id(&s, "h", 2));
    assert_int_equal(id(&s, "h", 3), 10);
    assert_int_equal(id(&s, "h", 0), 1);        /* FNV-1a of "one" modulo 10, for all time */
    assert_int_equal(field(&s, "vxb")->ids, 97);
    assert_int_not_equal(id(&s, "vxb", 0), id(&s, "vxb", 1));
    assert_int_equal(id(&s, "vxb", 1), id(&s, "vxb", 2));
    dataset_free(d);
}

static void classes_are_labels_numbers_or_the_column_s_own(void **state)
{
    (void)state;
    put("l.csv", "x,y\n1,cat\n2,dog\n3,cat\n4,ant\n");
    struct dataset *d =
        open_part("{'train': {'csv': 'l.csv'}, 'target': 'y', 'labels': ['dog', 'cat', 'ant'],"
                  "'shuffle': false}",
                  DATASET_TRAIN, NULL);
    struct stretch s = all(d);
    assert_int_equal(dataset_classes(d), 3);
    assert_string_equal(dataset_label(d, 0), "dog");
    assert_int_equal(id(&s, "target", 0), 1);
    assert_int_equal(id(&s, "target", 3), 2);
    dataset_free(d);
    d = open_part(
        "{'train': {'csv': 'l.csv'}, 'target': 'y', 'task': 'classification', 'shuffle': false}",
        DATASET_TRAIN, NULL);
    s = all(d);
    assert_int_equal(dataset_classes(d), 3);
    assert_string_equal(dataset_label(d, 0), "ant");
    assert_int_equal(id(&s, "target", 1), 2);
    dataset_free(d);
    put("m.csv", "x,y\n1,3\n2,0\n3,2.0\n");
    d = open_part(
        "{'train': {'csv': 'm.csv'}, 'target': 'y', 'task': 'classification', 'shuffle': false}",
        DATASET_TRAIN, NULL);
    s = all(d);
    assert_int_equal(dataset_classes(d), 4);
    assert_null(dataset_label(d, 0));
    assert_int_equal(id(&s, "target", 0), 3);
    assert_int_equal(id(&s, "target", 2), 2);
    dataset_free(d);
    refuses("{'train': {'csv': 'm.csv'}, 'target': 'y', 'labels': ['a', 'b', 'c']}",
            "m.csv: row 1: label 3 is outside 0..2");
    refuses("{'train': {'csv': 'l.csv'}, 'target': 'y', 'labels': ['cat', 'dog']}",
            "l.csv: row 4: label \"ant\" is not one of the 2 in data.labels");
    refuses("{'train': {'csv': 'l.csv'}, 'target': 'y'}", "\"cat\" is not a number");
}

static void a_wrong_row_stops_or_is_skipped_or_filled(void **state)
{
    (void)state;
    put("e.csv", "x,z,y\n1,1,1\n,2,2\nnan,3,3\nabc,4,4\n3,5,\n5,6,6\n7,7\n");
    char data[300];
    static const char text[] =
        "{'train': {'csv': 'e.csv', 'rows': [%d, 99]}, 'target': 'y', 'shuffle': false,"
        "'on_error': '%s'}";
    static const struct { int from; const char *says; } cases[] = {
        { 1, "e.csv: row 7 (line 8) has 2 fields" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(data, sizeof data, text, cases[i].from, "stop");
        refuses(data, cases[i].says);
    }
    snprintf(data, sizeof data, text, 0, "skip");
    struct dataset *d = open_part(data, DATASET_TRAIN, NULL);
    assert_int_equal(dataset_rows(d), 2);
    assert_int_equal(dataset_skipped(d), 5);
    dataset_free(d);
    snprintf(data, sizeof data, text, 0, "fill");
    d = open_part(data, DATASET_TRAIN, NULL);
    struct stretch s = all(d);
    assert_int_equal(dataset_rows(d), 5);
    assert_int_equal(dataset_skipped(d), 2);    /* a target is not made up */
    assert_true(number(&s, "numeric", 1, 0) == 0 && number(&s, "numeric", 3, 0) == 0);
    assert_float_equal(number(&s, "numeric", 0, 0), -1, 1e-6);  /* of 1 and 5 alone */
    dataset_free(d);

    put("e1.csv", "x,z,y\n1,1,1\n,2,2\n");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'y'}",
            "e1.csv: row 2, column \"x\" has no value (correct the row, or set data.on_error to "
            "skip or fill)");
    put("e1.csv", "x,z,y\n1,1,1\n2,inf,2\n");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'y'}",
            "row 2 (line 3), column \"z\": \"inf\" is");
    put("e1.csv", "x,z,y\n1,1,1\n2,2,\n");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'y'}", "row 2, column \"y\" has no value");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'q', 'derived': {'q': 'x / (z - 1)'}}",
            "row 1, column \"q\" is not finite: x / (z - 1)");
    put("e1.csv", "x,w,y\n1,1,1\n2,-2,5\n");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'y', 'weight': 'w'}",
            "row 2, column \"w\" is no weight");
    put("e1.csv", "x,z,y\n");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'y'}", "e1.csv");
    put("e1.csv", "");
    refuses("{'train': {'csv': 'e1.csv'}, 'target': 'y'}", "e1.csv");
    put("e1.json", "{\"x\": 1, \"y\": 1}\n{\"x\": 2\n");
    refuses("{'train': {'json': 'e1.json'}, 'target': 'y', 'features': {'x': 'numeric'}}",
            "e1.json: line 2");
    refuses("{'train': {'csv': 'none.csv'}, 'target': 'y'}", "none.csv");
    refuses("{'train': {'csv': 'c.csv'}, 'target': 'yy', 'features': {'i': 'numeric'}}",
            "data.target: ./c.csv: has no column \"yy\"");
    refuses("{'train': {'csv': 'c.csv'}, 'target': 'y', 'derived': {'d': 'n + nn'},"
            "'features': {'d': 'numeric'}}",
            "data.derived.d: ./c.csv: has no column \"nn\"");
}

static void weights_derived_columns_and_gzip_do_not_disturb_each_other(void **state)
{
    (void)state;
    put("d.csv", "tips,fare,w\n3,10,1\n1,10,0.5\n2,10,2\n");
    struct dataset *d =
        open_part("{'train': {'csv': 'd.csv'}, 'target': 'tip', 'weight': 'w', 'shuffle': false,"
                  "'derived': {'tip': 'tips > 0.2 * fare', 'double': 'fare * 2'},"
                  "'features': {'double': {'numeric': {'scale': 'none'}}}}",
                  DATASET_TRAIN, NULL);
    struct stretch s = all(d);
    assert_int_equal(dataset_classes(d), 2);
    assert_true(number(&s, "numeric", 0, 0) == 20);
    assert_int_equal(id(&s, "target", 0), 1);
    assert_int_equal(id(&s, "target", 2), 0);
    assert_true(number(&s, "weight", 1, 0) == 0.5f);
    int n;
    const struct field *f = dataset_fields(d, &n);
    assert_int_equal(n, 3);
    assert_string_equal(f[1].name, "target");
    assert_string_equal(f[2].name, "weight");
    dataset_free(d);
}

/* Writes `n` rows; every 17th has a value that is not a number. */
static void put_many(const char *name, int n)
{
    FILE *f = fopen(name, "w");
    fprintf(f, "x,c,y\n");
    for (int i = 0; i < n; i++)
        if (i % 17 == 3)
            fprintf(f, "bad,v%d,%d\n", i % 7, i);
        else
            fprintf(f, "%d.25,v%d,%d\n", i * 37 % 1001, i % 7, i);
    fclose(f);
}

/* Every record of an epoch in order, as bytes. Caller frees. */
static char *walk(struct dataset *d, int epoch, long from, long *out_n, long batch)
{
    struct err err = { 0 };
    struct stretch s;
    char *bytes = NULL;
    long n = 0;
    assert_ok(dataset_rewind(d, epoch, from, &err));
    for (;;) {
        assert_ok(dataset_stretch(d, &s, &err));
        if (!s.n)
            break;
        if (!s.last)
            assert_int_equal(s.n % batch, 0);
        bytes = realloc(bytes, (size_t)(n + s.n) * 12);
        for (long i = 0; i < s.n; i++, n++)
            memcpy(bytes + 12 * n, (const char *)s.field[0].base + s.order[i] * s.field[0].stride,
                   12);
        if (s.last) {
            assert_ok(dataset_stretch(d, &s, &err));
            assert_int_equal(s.n, 0);
            break;
        }
    }
    *out_n = n;
    return bytes;
}

static void a_stream_gives_what_resident_rows_give(void **state)
{
    (void)state;
    put_many("many.csv", 20000);
    static const char *const shuffles[] = { "false", "1", "10", "700", "5000", "60000" };
    static const char *const splits[] = {
        "'limit': 100000}", "'rows': [11, 15000]}", "'limit': 9000}",
        "'limit': 1000000}, 'split': {'test': 0.3, 'by': 'range'}",
        "'limit': 1000000}, 'split': {'test': 0.3, 'by': 'random'}"
    };
    static const int batches[] = { 1, 3, 64, 9001 };
    for (size_t k = 0; k < 6 * 5; k++) {
        char text[2][500];
        for (int stream = 0; stream < 2; stream++)
            snprintf(text[stream], sizeof text[0],
                     "{'train': {'csv': 'many.csv', %s, 'target': 'y', 'shuffle': %s, 'stream': "
                     "%s, 'on_error': 'skip',"
                     "'features': {'x': 'numeric', 'c': {'vocabulary': 'auto'}}}",
                     splits[k / 6], shuffles[k % 6], stream ? "true" : "false");
        int batch = batches[k % 4];
        struct err err = { 0 };
        struct dataset *d[2];
        for (int i = 0; i < 2; i++) {
            OWN_JSON json_t *j = json_quoted(text[i]);
            assert_ok(dataset_open(j, ".", DATASET_TRAIN, NULL, 7, batch, &d[i], &err));
        }
        for (int epoch = 0; epoch < 2; epoch++) {
            long n[2], from = epoch ? 1234 : 0;
            char *rows[2];
            for (int i = 0; i < 2; i++)
                rows[i] = walk(d[i], epoch, from, &n[i], batch);
            assert_int_equal(n[0], n[1]);
            assert_true(n[0] > 1000);
            if (memcmp(rows[0], rows[1], (size_t)n[0] * 12))
                fail_msg("the stream differs: %s, batch %d, epoch %d", text[1], batch, epoch);
            free(rows[0]);
            free(rows[1]);
        }
        assert_int_equal(dataset_rows(d[0]), dataset_rows(d[1]));
        assert_int_equal(dataset_skipped(d[0]), dataset_skipped(d[1]));
        OWN_JSON json_t *a = dataset_describe(d[0]);
        OWN_JSON json_t *b = dataset_describe(d[1]);
        assert_true(json_equal(a, b));
        for (int i = 0; i < 2 && k >= 18; i++) {
            OWN_JSON json_t *j = json_quoted(text[i]);
            struct dataset *t = NULL;
            long n;
            assert_ok(dataset_open(j, ".", DATASET_TEST, d[i], 7, batch, &t, &err));
            free(walk(t, 0, 0, &n, batch));
            assert_int_equal(n, dataset_rows(t));
            assert_int_equal(n + dataset_rows(d[i]), 20000 - 20000 / 17 - 1);
            dataset_free(t);
        }
        dataset_free(d[0]);
        dataset_free(d[1]);
    }
}

static void an_epoch_can_be_left_and_a_stream_closed_at_any_time(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stretch s;
    put_many("many.csv", 20000);
    struct dataset *d =
        open_part("{'train': {'csv': 'many.csv'}, 'target': 'y', 'shuffle': 100, 'stream': true,"
                  "'on_error': 'skip', 'features': {'x': {'numeric': {'mean': 0, 'variance': 1}}}}",
                  DATASET_TRAIN, NULL);
    assert_int_equal(dataset_rows(d), -1);      /* nothing had to be read yet */
    for (int i = 0; i < 20; i++) {
        assert_ok(dataset_rewind(d, i, i * 100, &err));
        for (int k = 0; k < i % 4; k++)
            assert_ok(dataset_stretch(d, &s, &err));
    }
    dataset_free(d);
    refuses("{'train': {'csv': 'many.csv'}, 'target': 'y', 'shuffle': 100, 'stream': true,"
            "'features': {'x': {'numeric': {'mean': 0, 'variance': 1}}}}",
            "row 4 (line 5), column \"x\": \"bad\"");
    refuses("{'train': {'csv': 'many.csv'}, 'target': 'y', 'stream': true}",
            "data.shuffle: a stream");
}

static void an_order_file_replaces_the_shuffle(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stretch s;
    put("o.csv", "x,y\n1,0\n2,1\n3,2\n4,3\n");
    struct dataset *d = open_part("{'train': {'csv': 'o.csv', 'rows': [1, 4]}, 'target': 'y'}",
                                  DATASET_TRAIN, NULL);
    static const uint8_t order[] = { 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0 };
    assert_ok(files_write("order.bin", order, sizeof order, &err));
    assert_ok(dataset_set_order(d, "order.bin", &err));
    assert_ok(dataset_rewind(d, 0, 1, &err));
    assert_ok(dataset_stretch(d, &s, &err));
    assert_int_equal(s.n, 2);
    assert_true(number(&s, "target", 0, 0) == 1 && number(&s, "target", 1, 0) == 2);
    assert_ok(dataset_rewind(d, 1, 0, &err));
    assert_ok(dataset_stretch(d, &s, &err));
    assert_int_equal(s.n, 1);           /* where the file ends, the run may too */
    assert_true(number(&s, "target", 0, 0) == 2);
    assert_fails(dataset_rewind(d, 2, 0, &err), ERR_INVALID);
    assert_ok(files_write("order.bin", "\3\0\0\0", 4, &err));
    assert_fails(dataset_set_order(d, "order.bin", &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "entry 0 is row 3, the training set has rows 0..2"));
    assert_ok(files_write("order.bin", "\3\0\0", 3, &err));
    assert_fails(dataset_set_order(d, "order.bin", &err), ERR_INVALID);
    dataset_free(d);
}

static void put_idx(const char *name, int n, int side, int label)
{
    FILE *f = fopen(name, "w");
    uint8_t head[16] = { 0, 0, 8, (uint8_t)(side ? 3 : 1), 0, 0, 0, (uint8_t)n,
                         0, 0, 0, (uint8_t)side,           0, 0, 0, (uint8_t)side };
    fwrite(head, 1, side ? 16 : 8, f);
    for (int i = 0; i < n * (side ? side * side : 1); i++)
        fputc(side ? i % 251 : i == n - 1 ? label : i % 3, f);
    fclose(f);
}

static void images_stay_bytes(void **state)
{
    (void)state;
    put_idx("i.idx", 10, 4, 0);
    put_idx("l.idx", 10, 0, 2);
    static const char data[] =
        "{'train': {'idx': ['i.idx', 'l.idx']}, 'split': {'test': 0.3, 'by': 'range'},"
        "'scale': {'mean': 0.5, 'std': [0.25]}, 'shuffle': false%s}";
    char text[300];
    snprintf(text, sizeof text, data, "");
    struct dataset *d = open_part(text, DATASET_TRAIN, NULL), *t = open_part(text, DATASET_TEST, d);
    struct stretch s = all(d);
    const struct field *f = field(&s, "image");
    assert_int_equal(f->type, DTYPE_U8);
    assert_int_equal(f->h * f->w * f->c, 16);
    assert_true(f->mean[0] == 0.5f && f->std[3] == 0.25f);
    assert_int_equal(((const uint8_t *)f->base)[s.order[3] * f->stride + 1], 49);
    assert_int_equal(id(&s, "target", 4), 1);
    assert_int_equal(dataset_classes(d), 3);
    struct stretch u = all(t);
    assert_int_equal(u.n, 3);
    assert_ptr_equal(field(&u, "image")->base, f->base);        /* one copy for both parts */
    assert_int_equal(id(&u, "target", 2), 2);
    dataset_free(t);
    dataset_free(d);
    put_idx("l.idx", 10, 0, 11);
    snprintf(text, sizeof text, data, ", 'labels': ['a', 'b', 'c']");
    d = open_part(text, DATASET_TRAIN, NULL);
    struct err err = { 0 };
    OWN_JSON json_t *j = json_quoted(text);
    assert_fails(dataset_open(j, ".", DATASET_TEST, d, 1, 4, &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "l.idx: row 10: label 11 is outside 0..2"));
    dataset_free(d);
    put_idx("l.idx", 9, 0, 1);
    refuses("{'train': {'idx': ['i.idx', 'l.idx']}}", "i.idx has 10 images, ./l.idx has 9 labels");
}

static void put_tfrecord(const char *name, const float *x, const char *const *c, const int64_t *y,
                         int n)
{
    struct err err = { 0 };
    struct example_writer w;
    OWN_BUF out = BUF_INIT;
    example_writer_init(&w);
    for (int i = 0; i < n; i++) {
        example_begin(&w);
        example_add_floats(&w, "x", &x[i], 1);
        example_add_text(&w, "c", c[i], strlen(c[i]));
        if (y)
            example_add_ints(&w, "y", &y[i], 1);
        assert_ok(example_end(&w, &out, &err));
    }
    example_writer_done(&w);
    assert_ok(files_write(name, out.data, out.n, &err));
}

static void other_files_are_read_as_the_training_rows_were(void **state)
{
    (void)state;
    struct err err = { 0 };
    put("p.csv", "y,x,c\n0,1,a\n1,2,b\n2,4,a\n");
    struct dataset *d =
        open_part("{'train': {'csv': 'p.csv'}, 'target': 'y', 'task': 'classification',"
                  "'features': {'x': 'numeric', 'c': {'vocabulary': 'auto'}}, 'shuffle': false}",
                  DATASET_TRAIN, NULL);
    OWN_JSON json_t *description = dataset_describe(d);
    struct stretch want = all(d);

    put("q.csv", "c,x,y\na,1,0\nb,2,1\nnew,4,2\n");
    put("q.jsonl", "{\"x\":1,\"c\":\"a\",\"y\":0}\n{\"x\":2,\"c\":\"b\",\"y\":1}\n{\"c\":\"new\","
                   "\"x\":4,\"y\":2}\n");
    put_tfrecord("q.tfrecord", (const float[]){ 1, 2, 4 }, (const char *const[]){ "a", "b", "new" },
                 (const int64_t[]){ 0, 1, 2 }, 3);
    static const char *const files[] = { "q.csv", "q.jsonl", "q.tfrecord" };
    for (int k = 0; k < 6; k++) {
        struct dataset *q = NULL;
        assert_ok(dataset_open_like(description, files[k / 2], NULL, k % 2, &q, &err));
        struct stretch s = all(q);
        int n;
        dataset_fields(q, &n);
        assert_int_equal(n, k % 2 ? 3 : 2);
        for (int i = 0; i < 3; i++) {
            assert_true(number(&s, "numeric", i, 0) == number(&want, "numeric", i, 0));
            assert_int_equal(id(&s, "c", i), i < 2 ? id(&want, "c", i) : 2);
            if (k % 2)
                assert_int_equal(id(&s, "target", i), i);
        }
        dataset_free(q);
    }
    put("q2.csv", "c,x\na,1\n");
    struct dataset *q = NULL;
    assert_ok(dataset_open_like(description, "q2.csv", "csv", 0, &q, &err));
    dataset_free(q);
    assert_fails(dataset_open_like(description, "q2.csv", NULL, 1, &q, &err), ERR_MISSING);
    assert_fails(dataset_open_like(description, "q2.data", NULL, 1, &q, &err), ERR_INVALID);
    assert_fails(dataset_open_like(description, "q2.csv", "xml", 1, &q, &err), ERR_INVALID);
    put("q3.csv", "c,x,y\na,1,7\n");
    assert_fails(dataset_open_like(description, "q3.csv", NULL, 1, &q, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "row 1: label 7 is outside 0..2"));
    dataset_free(d);

    /* No header: the names are the spec's, and the target may be left out. */
    put("r.csv", "0,1,a\n1,2,b\n");
    d = open_part("{'train': {'csv': 'r.csv'}, 'target': 'y', 'header': ['y', 'x', 'c'], 'labels': "
                  "['u', 'v'],"
                  "'features': {'x': 'numeric', 'c': {'vocabulary': 'auto'}}}",
                  DATASET_TRAIN, NULL);
    OWN_JSON json_t *named = dataset_describe(d);
    put("r2.csv", "1,a\n2,b\n3,c\n");
    assert_ok(dataset_open_like(named, "r2.csv", NULL, 0, &q, &err));
    assert_int_equal(dataset_rows(q), 3);
    dataset_free(q);
    dataset_free(d);
}

static void images_come_from_json_and_tfrecord_too(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *description =
        json_quoted("{'kind': 'image', 'classes': 3, 'image': {'h': 2, 'w': 2, 'c': 1},"
             "'scale': {'mean': [0.5], 'std': [0.5]}}");
    put("i.jsonl",
        "{\"image\": [[1, 2], [3, 255]], \"label\": 2}\n{\"image\": [4, 5, 6, 7], \"label\": 0}\n");
    struct example_writer w;
    OWN_BUF out = BUF_INIT;
    example_writer_init(&w);
    example_begin(&w);
    example_add_text(&w, "image", "\1\2\3\xff", 4);
    example_add_ints(&w, "label", (const int64_t[]){ 2 }, 1);
    assert_ok(example_end(&w, &out, &err));
    example_begin(&w);
    example_add_ints(&w, "image", (const int64_t[]){ 4, 5, 6, 7 }, 4);
    example_add_ints(&w, "label", (const int64_t[]){ 0 }, 1);
    assert_ok(example_end(&w, &out, &err));
    example_writer_done(&w);
    assert_ok(files_write("i.tfrecord", out.data, out.n, &err));
    static const char *const files[] = { "i.jsonl", "i.tfrecord" };
    for (int k = 0; k < 2; k++) {
        struct dataset *d = NULL;
        assert_ok(dataset_open_like(description, files[k], NULL, 1, &d, &err));
        struct stretch s = all(d);
        const struct field *f = field(&s, "image");
        assert_int_equal(s.n, 2);
        assert_memory_equal(f->base, "\1\2\3\xff\4\5\6\7", 8);
        assert_int_equal(id(&s, "target", 0), 2);
        dataset_free(d);
    }
    struct dataset *d = NULL;
    put("i.jsonl", "{\"image\": [1, 2, 3]}\n");
    assert_fails(dataset_open_like(description, "i.jsonl", NULL, 0, &d, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "\"image\" has 3 values, not 4"));
    put("i.jsonl", "{\"image\": [1, 2, 3, 256]}\n");
    assert_fails(dataset_open_like(description, "i.jsonl", NULL, 0, &d, &err), ERR_INVALID);
}

static void the_digest_is_that_of_the_files(void **state)
{
    (void)state;
    struct err err = { 0 };
    put("g.csv", "x,y\n1,2\n3,4\n");
    struct dataset *d =
        open_part("{'train': {'csv': 'g.csv'}, 'target': 'y'}", DATASET_TRAIN, NULL);
    char a[65];
    assert_ok(dataset_digest(d, a, &err));
    assert_string_equal(a, "2a2b86e74ffd5e6a9b75e52a105cf9d02920837179f8e8961aa15411d380f7a3");
    dataset_free(d);
}

static void cleared(void **state)
{
    (void)state;
    static const char *const left[] = {
        "n.csv",  "s.csv",   "t.csv",   "c.csv",      "l.csv",      "m.csv",     "e.csv",
        "e1.csv", "e1.json", "d.csv",   "many.csv",   "o.csv",      "order.bin", "i.idx",
        "l.idx",  "p.csv",   "q.csv",   "q.jsonl",    "q.tfrecord", "q2.csv",    "q3.csv",
        "r.csv",  "r2.csv",  "i.jsonl", "i.tfrecord", "g.csv",
    };
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        unlink(left[i]);
    assert_int_equal(chdir(".."), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void own_folder(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
}

CHECK_MAIN(own_folder, numbers_are_standardised_over_the_training_rows,
           scaling_can_be_by_range_given_none_or_of_the_log,
           categories_become_ids_and_the_last_is_for_the_rest,
           classes_are_labels_numbers_or_the_column_s_own,
           a_wrong_row_stops_or_is_skipped_or_filled,
           weights_derived_columns_and_gzip_do_not_disturb_each_other,
           a_stream_gives_what_resident_rows_give,
           an_epoch_can_be_left_and_a_stream_closed_at_any_time, an_order_file_replaces_the_shuffle,
           images_stay_bytes, other_files_are_read_as_the_training_rows_were,
           images_come_from_json_and_tfrecord_too, the_digest_is_that_of_the_files, cleared)
