/* tests/unit/parts_test.c - do files that are read by part keep their headers' word? */
#include "data/parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/dataset.h"
#include "engine/plan.h"
#include "tests/check.h"

enum { HEAD = 16 };

/* A file in memory that counts how it is read. */
struct shelf {
    uint8_t *file;
    size_t size;
    int reads, slow, broken;
    struct { uint64_t at; size_t n; } read[256];
};

static int take(void *arg, uint64_t at, void *to, size_t n, struct err *err)
{
    struct shelf *s = arg;

    assert_true(at + n <= s->size);
    if (s->broken)
        return err_set(err, ERR_AGAIN, "the shelf is out of reach");
    if (s->slow)
        usleep(200);
    if (s->reads < 256)
        s->read[s->reads].at = at, s->read[s->reads].n = n;
    s->reads++;
    memcpy(to, s->file + at, n);
    return 0;
}

static uint8_t byte_of(size_t i) { return (uint8_t)(i * 2654435761u >> 13); }

static void put_number(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* An IDX file of n images, each side x side. */
static void shelf_fill(struct shelf *s, uint32_t n, uint32_t side)
{
    *s = (struct shelf){ .size = HEAD + (size_t)n * side * side };
    s->file = malloc(s->size);
    assert_non_null(s->file);
    memcpy(s->file, (uint8_t[]){ 0, 0, 8, 3 }, 4);
    put_number(s->file + 4, n);
    put_number(s->file + 8, side);
    put_number(s->file + 12, side);
    for (size_t i = HEAD; i < s->size; i++)
        s->file[i] = byte_of(i);
}

static struct part *part_on(struct shelf *s, uint32_t row)
{
    struct err err = { 0 };
    struct blocks *b = NULL;
    struct part *p = NULL;

    assert_ok(blocks_of(s->file, s->size, HEAD, row, NULL, &b, &err));
    assert_ok(part_new("shelf", b, &(struct part_source){ take, NULL, NULL, s }, &p, &err));
    return p;
}

static void a_list_comes_back_as_it_was_packed(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;
    OWN(blocks) b = NULL;
    OWN(blocks) again = NULL;
    OWN_BUF packed = BUF_INIT;
    const uint8_t labels[5] = { 1, 2, 3, 4, 5 };
    size_t used = 0;

    shelf_fill(&s, 5, 200);
    assert_ok(blocks_of(s.file, s.size, HEAD, 40000, labels, &b, &err));
    blocks_pack(b, &packed);
    buf_text(&packed, "what follows");
    assert_ok(blocks_unpack(packed.data, packed.n, &used, &again, &err));
    assert_int_equal(used, packed.n - 12);
    assert_int_equal(again->size, b->size);
    assert_int_equal(again->n, 5);
    assert_memory_equal(again->labels, b->labels, sizeof b->labels);
    assert_memory_equal(again->sum, b->sum, 6 * sizeof *b->sum);
    struct blocks *none = NULL;
    for (size_t n = 0; n < used; n++)
        assert_fails(blocks_unpack(packed.data, n, &used, &none, &err), ERR_INVALID);
    assert_null(none);
    free(s.file);
}

static void a_large_row_is_a_block_and_small_rows_share_one(void **state)
{
    (void)state;
    static const struct { uint32_t side, in_block; } cases[] = {
        { 200, 1 }, { 182, 1 }, { 181, 2 }, { 128, 2 }, { 28, 42 },
    };
    struct err err = { 0 };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shelf s;
        OWN(blocks) b = NULL;
        uint64_t at, last = 0;
        shelf_fill(&s, 43, cases[i].side);
        assert_ok(blocks_of(s.file, s.size, HEAD, cases[i].side * cases[i].side, NULL, &b, &err));
        assert_int_equal(b->rows_in_block, cases[i].in_block);
        assert_int_equal(b->n, (43 + cases[i].in_block - 1) / cases[i].in_block);
        for (long k = 0; k < b->n; k++) {
            size_t n = blocks_place(b, k, &at);
            assert_true(blocks_match(b, k, s.file + at));
            last = at + n;
        }
        assert_int_equal(last, s.size);
        free(s.file);
    }
}

static void only_the_blocks_of_the_rows_are_read_and_neighbours_at_once(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;
    const uint32_t rows[] = { 7, 2, 8, 3, 2 };

    shelf_fill(&s, 20, 200);
    OWN(part) p = part_on(&s, 40000);
    s.reads = 0;
    assert_ok(part_need(p, rows, 5, &err));
    assert_int_equal(s.reads, 2);
    assert_int_equal(s.read[0].at, HEAD + 2 * 40000);
    assert_int_equal(s.read[0].n, 80000);
    assert_int_equal(s.read[1].at, HEAD + 7 * 40000);
    assert_int_equal(s.read[1].n, 80000);
    for (int i = 0; i < 5; i++)
        assert_memory_equal(part_data(p) + HEAD + rows[i] * 40000, s.file + HEAD + rows[i] * 40000,
                            40000);
    assert_ok(part_need(p, rows, 5, &err));
    assert_int_equal(s.reads, 2);
    free(s.file);
}

static size_t pages_in(const uint8_t *data, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), count = n / page;
    unsigned char in[4096];
    size_t sum = 0;

    assert_true(count <= sizeof in);
    assert_int_equal(mincore((void *)data, n, in), 0);
    for (size_t i = 0; i < count; i++)
        sum += in[i] & 1;
    return sum * page;
}

static void memory_of_rows_that_nobody_read_is_not_touched(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;

    shelf_fill(&s, 100, 200);
    OWN(part) p = part_on(&s, 40000);
    for (uint32_t row = 0; row < 100; row += 4)
        assert_ok(part_need(p, &row, 1, &err));
    assert_in_range(pages_in(part_data(p), s.size), 900000, 1400000);   /* of 4,000,016 */
    free(s.file);
}

static void what_was_read_ahead_is_not_read_again(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;
    const uint32_t now[] = { 0, 1 }, then[] = { 4, 6, 8, 10, 12 };

    shelf_fill(&s, 20, 200);
    OWN(part) p = part_on(&s, 40000);
    s.reads = 0;
    s.slow = 1;
    assert_ok(part_need(p, now, 2, &err));
    part_ahead(p, then, 5);
    assert_ok(part_need(p, then, 5, &err));
    part_ahead(p, then, 5);
    part_ahead(p, now, 2);
    for (int i = 0; i < 5; i++)
        assert_memory_equal(part_data(p) + HEAD + then[i] * 40000, s.file + HEAD + then[i] * 40000,
                            40000);
    part_free(TAKE(p));
    assert_int_equal(s.reads, 6);
    free(s.file);
}

static void many_needs_beside_a_reader_all_get_their_rows_once(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;
    uint32_t row[32], next = 1;

    shelf_fill(&s, 200, 182);
    OWN(part) p = part_on(&s, 182 * 182);
    s.reads = 0;
    s.slow = 1;
    for (int turn = 0; turn < 100; turn++) {
        for (int i = 0; i < 32; i++)
            row[i] = (next = next * 1664525 + 1013904223) >> 8, row[i] %= 200;
        part_ahead(p, row + 8, 24);
        assert_ok(part_need(p, row, 16, &err));
        for (int i = 0; i < 16; i++)
            assert_memory_equal(part_data(p) + HEAD + (size_t)row[i] * 182 * 182,
                                s.file + HEAD + (size_t)row[i] * 182 * 182, 182 * 182);
    }
    part_free(TAKE(p));
    size_t bytes = 0;
    for (int i = 0; i < s.reads && i < 256; i++)
        bytes += s.read[i].n;
    assert_true(s.reads <= 200 && bytes <= s.size);
    free(s.file);
}

static void a_changed_row_is_refused_and_read_again_when_it_is_back(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;
    const uint32_t row = 11, good = 3;

    shelf_fill(&s, 20, 200);
    struct parts parts = { .n = 1, .file = { { strdup("f"), part_on(&s, 40000) } } };
    struct part *p = parts_find(&parts, "f");
    assert_null(parts_find(&parts, "g"));
    assert_null(parts_find(NULL, "f"));
    s.file[HEAD + 11 * 40000 + 39999] ^= 1;
    assert_ok(part_need(p, &good, 1, &err));
    assert_int_equal(parts_bytes(&parts), HEAD + 40000);
    assert_false(parts_failed(&parts));
    assert_fails(part_need(p, &row, 1, &err), ERR_CONFLICT);
    assert_string_equal(err.text, "shelf: its rows from 12 on are not those of the job's file (it "
                                  "was changed: put it back, or start the job again)");
    assert_true(parts_failed(&parts));
    s.file[HEAD + 11 * 40000 + 39999] ^= 1;
    assert_ok(part_need(p, &row, 1, &err));
    parts_done(&parts);
    free(s.file);
}

static void a_source_that_fails_is_a_row_that_cannot_be_had(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct shelf s;
    const uint32_t row = 1;

    shelf_fill(&s, 4, 200);
    OWN(part) p = part_on(&s, 40000);
    s.broken = 1;
    part_ahead(p, &row, 1);
    assert_fails(part_need(p, &row, 1, &err), ERR_MISSING);
    assert_string_equal(err.text, "the shelf is out of reach");
    free(s.file);
}

/* ------------------------------------------------------------------ data sets */

static char dir[] = "/tmp/muster-parts-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[2][128];
    static int turn;

    if (strstr(dir, "XXXXXX"))
        assert_non_null(mkdtemp(dir));
    turn = !turn;
    snprintf(path[turn], sizeof path[0], "%s/%s", dir, name);
    return path[turn];
}

static void put_file(const char *name, const void *bytes, size_t n)
{
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static void put_images(uint32_t n, uint32_t side)
{
    struct shelf s;
    uint8_t labels[8 + 256] = { 0, 0, 8, 1 };

    shelf_fill(&s, n, side);
    put_file("images", s.file, s.size);
    put_number(labels + 4, n);
    for (uint32_t i = 0; i < n; i++)
        labels[8 + i] = (uint8_t)(i % 7);
    put_file("labels", labels, 8 + n);
    free(s.file);
}

/* "limit": 31 and the like are `more` of the training part, or `split`s it. */
static json_t *section(const char *more, const char *split)
{
    char text[256];

    snprintf(text, sizeof text, "{\"train\": {\"idx\": [\"images\", \"labels\"]%s}%s}", more,
             split);
    json_t *data = json_loads(text, 0, NULL);
    assert_non_null(data);
    return data;
}

/* Opens the set whole, and by part over the same file. */
static void open_both(json_t *data, struct dataset **whole, struct dataset **part,
                      struct parts *parts, int batch)
{
    struct err err = { 0 };
    struct part_source source;
    struct blocks *b = NULL;

    assert_ok(dataset_open(data, dir, DATASET_TRAIN, NULL, 5, batch, whole, &err));
    assert_ok(dataset_blocks(*whole, &b, &err));
    assert_non_null(b);
    assert_ok(part_source_open(path_of("images"), b->size, &source, &err));
    parts->n = 1;
    parts->file[0].path = strdup(path_of("images"));
    assert_ok(part_new("images", b, &source, &parts->file[0].part, &err));
    assert_ok(dataset_open_parts(data, dir, DATASET_TRAIN, NULL, 5, batch, parts, part, &err));
}

/* One epoch from position `at` on: the order is the whole set's, own rows are there. Returns how
 * many rows were this worker's. */
static long walk(struct dataset *whole, struct dataset *part, int epoch, long at, int batch,
                 int shards, int from, int to)
{
    struct err err = { 0 };
    struct stretch all, some;
    long seen = 0, own = 0;

    dataset_share(part, shards, from, to);
    assert_ok(dataset_rewind(whole, epoch, at, &err));
    assert_ok(dataset_rewind(part, epoch, at, &err));
    assert_ok(dataset_stretch(whole, &all, &err));
    do {
        assert_ok(dataset_stretch(part, &some, &err));
        assert_true(some.last || some.n % batch == 0);
        assert_memory_equal(some.order, all.order + seen, (size_t)some.n * sizeof *some.order);
        for (long pos = 0; pos < some.n; pos += batch) {
            int n = some.n - pos < batch ? (int)(some.n - pos) : batch;
            for (int i = shard_first(n, shards, from); i < shard_first(n, shards, to); i++, own++) {
                const size_t slot = some.order[pos + i], row = all.field[0].stride;
                assert_memory_equal((const char *)some.field[0].base + slot * row,
                                    (const char *)all.field[0].base + slot * row, row);
            }
        }
        seen += some.n;
    } while (some.n && !some.last);
    assert_int_equal(seen, all.n);
    return own;
}

static void a_worker_finds_the_rows_of_its_shards_and_reads_no_others(void **state)
{
    (void)state;
    static const char *const kinds[] = { "", ", \"limit\": 31", ", \"rows\": [9, 60]" };

    put_images(61, 200);
    for (int k = 0; k < 3; k++)
        for (int from = 0; from < 8; from++) {
            struct dataset *whole, *part;
            struct parts parts = { 0 };
            const int to = from + 1 + (from * 5) % (8 - from);
            json_t *data = section(kinds[k], "");
            open_both(data, &whole, &part, &parts, 6);
            assert_int_equal(dataset_rows(whole), dataset_rows(part));
            long own = walk(whole, part, 0, 0, 6, 8, from, to);
            assert_int_equal(parts_bytes(&parts), HEAD + own * 40000);
            walk(whole, part, 1, 12, 6, 8, 0, 3);
            walk(whole, part, 1, 24, 6, 8, 8, 8);       /* one that stands by */
            walk(whole, part, 0, 0, 6, 1, 0, 1);
            assert_int_equal(parts_bytes(&parts), HEAD + dataset_rows(part) * 40000);
            dataset_free(part);
            dataset_free(whole);
            parts_done(&parts);
            json_decref(data);
        }
}

static void the_test_rows_of_the_same_file_are_read_by_who_tests(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct dataset *whole, *part, *test, *test_part;
    struct parts parts = { 0 };

    put_images(61, 200);
    json_t *data = section("", ", \"split\": {\"test\": 0.3, \"by\": \"random\"}");
    open_both(data, &whole, &part, &parts, 6);
    assert_ok(dataset_open(data, dir, DATASET_TEST, whole, 5, 6, &test, &err));
    assert_ok(dataset_open_parts(data, dir, DATASET_TEST, part, 5, 6, &parts, &test_part, &err));
    assert_int_equal(parts_bytes(&parts), HEAD);
    long own = walk(whole, part, 0, 0, 6, 4, 1, 2);
    assert_int_equal(parts_bytes(&parts), HEAD + own * 40000);
    for (int pass = 0; pass < 2; pass++) {
        walk(test, test_part, 0, 0, 6, 1, 0, 1);
        assert_int_equal(parts_bytes(&parts), HEAD + (own + dataset_rows(test)) * 40000);
    }
    dataset_free(test_part);
    dataset_free(test);
    dataset_free(part);
    dataset_free(whole);
    parts_done(&parts);
    json_decref(data);
}

static void small_rows_are_there_when_the_set_is_open(void **state)
{
    (void)state;
    struct dataset *whole, *part;
    struct parts parts = { 0 };

    put_images(200, 28);
    json_t *data = section("", "");
    open_both(data, &whole, &part, &parts, 4);
    assert_int_equal(parts_bytes(&parts), HEAD + 200 * 784);
    walk(whole, part, 0, 0, 4, 4, 1, 3);
    assert_int_equal(parts_bytes(&parts), HEAD + 200 * 784);
    dataset_free(part);
    dataset_free(whole);
    parts_done(&parts);
    json_decref(data);
}

static void other_labels_and_files_of_another_length_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct dataset *whole, *part, *none = NULL;
    struct part_source source;
    struct parts parts = { 0 };

    put_images(20, 200);
    json_t *data = section("", "");
    open_both(data, &whole, &part, &parts, 4);
    put_file("labels", (uint8_t[8 + 20]){ 0, 0, 8, 1, 0, 0, 0, 20 }, 28);
    assert_fails(dataset_open_parts(data, dir, DATASET_TRAIN, NULL, 5, 4, &parts, &none, &err),
                 ERR_CONFLICT);
    assert_non_null(strstr(err.text, "its labels are not the job's"));
    json_decref(data);
    assert_fails(part_source_open(path_of("images"), 12, &source, &err), ERR_CONFLICT);
    assert_non_null(strstr(err.text, "has 800016 bytes, the job's has 12"));
    assert_fails(part_source_open(path_of("nowhere"), 12, &source, &err), ERR_MISSING);
    assert_int_equal(truncate(path_of("images"), 100000), 0);
    assert_fails(part_need(parts.file[0].part, &(uint32_t){ 15 }, 1, &err), ERR_CONFLICT);
    assert_non_null(strstr(err.text, "is shorter than it was"));
    dataset_free(part);
    dataset_free(whole);
    parts_done(&parts);
}

static void what_is_packed_has_no_list_and_can_be_dropped(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct dataset *d = NULL;
    struct blocks *b = NULL;
    char command[256];

    put_images(20, 28);
    snprintf(command, sizeof command, "gzip -kf %s/images", dir);
    assert_int_equal(system(command), 0);
    json_t *data = json_loads("{\"train\": {\"idx\": [\"images.gz\", \"labels\"]}}", 0, NULL);
    assert_ok(dataset_open(data, dir, DATASET_TRAIN, NULL, 5, 4, &d, &err));
    assert_ok(dataset_blocks(d, &b, &err));
    assert_null(b);
    dataset_drop_rows(d);
    assert_int_equal(dataset_rows(d), 20);
    json_t *description = dataset_describe(d);
    assert_non_null(description);
    json_decref(description);
    dataset_free(d);
    json_decref(data);
    for (int i = 0; i < 3; i++)
        unlink(path_of((const char *[]){ "images", "images.gz", "labels" }[i]));
    rmdir(dir);
}

CHECK_MAIN(a_list_comes_back_as_it_was_packed, a_large_row_is_a_block_and_small_rows_share_one,
           only_the_blocks_of_the_rows_are_read_and_neighbours_at_once,
           memory_of_rows_that_nobody_read_is_not_touched, what_was_read_ahead_is_not_read_again,
           many_needs_beside_a_reader_all_get_their_rows_once,
           a_changed_row_is_refused_and_read_again_when_it_is_back,
           a_source_that_fails_is_a_row_that_cannot_be_had,
           a_worker_finds_the_rows_of_its_shards_and_reads_no_others,
           the_test_rows_of_the_same_file_are_read_by_who_tests,
           small_rows_are_there_when_the_set_is_open,
           other_labels_and_files_of_another_length_are_refused,
           what_is_packed_has_no_list_and_can_be_dropped)
