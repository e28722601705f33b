/* tests/unit/scalars_test.c - numbers are taken out of what a job writes, as it writes it */
#include "server/scalars.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/own.h"
#include "base/proto.h"
#include "runtime/scalars.h"
#include "tests/check.h"

static char dir[64], work[80];

static void fresh(void)
{
    snprintf(dir, sizeof dir, "/tmp/muster-scalars-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(work, sizeof work, "%s/work", dir);
    assert_int_equal(mkdir(work, 0700), 0);
    scalars_forget();
}

static void away(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void append(const char *name, const void *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", work, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

static json_t *read_all(void)
{
    struct err err = { 0 };
    json_t *all = NULL;
    assert_ok(scalars_read(dir, &all, &err));
    return all;
}

static double value_at(const json_t *all, const char *tag, int i)
{
    return json_number_value(json_array_get(json_array_get(json_object_get(all, tag), (size_t)i), 2));
}

static size_t count(const json_t *all, const char *tag)
{
    return json_array_size(json_object_get(all, tag));
}

static void lines_of_metrics_become_points(void **state)
{
    (void)state;
    fresh();
    OWN_JSON json_t *none = read_all();
    assert_int_equal(json_object_size(none), 0);

    static const char first[] = "{\"step\": 1, \"loss\": 0.5, \"name\": \"x\"}\n{\"step\": 2, \"lo";
    append("metrics.jsonl", first, sizeof first - 1);
    OWN_JSON json_t *one = read_all();
    assert_int_equal(count(one, "loss"), 1);
    static const char rest[] = "ss\": 0.25, \"t\": 1000}\nnot json\n{\"step\": 3, \"loss\": NaN}\n";
    append("metrics.jsonl", rest, sizeof rest - 1);
    OWN_JSON json_t *two = read_all();
    assert_int_equal(count(two, "loss"), 2);
    assert_true(value_at(two, "loss", 1) == 0.25);
    assert_int_equal(json_object_size(two), 1);
    away();
}

static void a_file_that_was_cut_back_is_read_anew(void **state)
{
    (void)state;
    char path[256];
    fresh();
    static const char lines[] = "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n";
    append("metrics.jsonl", lines, sizeof lines - 1);
    OWN_JSON json_t *two = read_all();
    assert_int_equal(count(two, "loss"), 2);
    snprintf(path, sizeof path, "%s/metrics.jsonl", work);
    assert_int_equal(truncate(path, 23), 0);
    OWN_JSON json_t *one = read_all();
    assert_int_equal(count(one, "loss"), 1);
    away();
}

static void event_files_are_read_as_they_grow(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[256];
    struct scalars *s = NULL;

    fresh();
    snprintf(path, sizeof path, "%s/logs", work);
    mkdir(path, 0700);
    assert_ok(scalars_open(path, &s, &err));
    for (int i = 0; i < 10; i++)
        assert_ok(scalars_add(s, "loss", i, i * 0.5, &err));
    assert_ok(scalars_flush(s, &err));
    OWN_JSON json_t *ten = read_all();
    assert_int_equal(count(ten, "logs/loss"), 10);
    assert_true(value_at(ten, "logs/loss", 9) == 4.5);
    for (int i = 10; i < 50000; i++)
        assert_ok(scalars_add(s, "loss", i, i * 0.5, &err));
    scalars_free(s);
    OWN_JSON json_t *many = read_all();
    size_t n = count(many, "logs/loss");
    assert_true(n >= SCALARS_POINTS / 2 && n <= SCALARS_POINTS + 1);
    assert_true(value_at(many, "logs/loss", (int)n - 1) == 49999 * 0.5);
    double before = -1;
    for (size_t i = 0; i < n; i++) {
        assert_true(value_at(many, "logs/loss", (int)i) > before);
        before = value_at(many, "logs/loss", (int)i);
    }
    away();
}

static void put_record(struct buf *to, const struct buf *event)
{
    uint8_t head[12] = { 0 }, tail[4];
    uint64_t n = event->n;
    memcpy(head, &n, 8);
    uint32_t crc = crc32c_masked(head, 8);
    memcpy(head + 8, &crc, 4);
    crc = crc32c_masked(event->data, event->n);
    memcpy(tail, &crc, 4);
    buf_append(to, head, 12);
    buf_append(to, event->data, event->n);
    buf_append(to, tail, 4);
}

/* As TensorFlow 2 writes a scalar: a tensor with one number. */
static void tensors_with_one_number_count(void **state)
{
    (void)state;
    OWN_BUF tensor = BUF_INIT, value = BUF_INIT, summary = BUF_INIT, event = BUF_INIT, file = BUF_INIT;
    float x = 0.75f;

    fresh();
    proto_int(&tensor, 1, 1);
    proto_bytes(&tensor, 4, &x, 4);
    proto_text(&value, 1, "epoch_loss");
    proto_message(&value, 8, &tensor);
    proto_message(&summary, 1, &value);
    proto_message(&event, 5, &summary);
    proto_double(&event, 1, 1000.5);
    proto_int(&event, 2, 7);
    put_record(&file, &event);
    append("events.out.tfevents.1.host", file.data, file.n - 3);
    OWN_JSON json_t *half = read_all();
    assert_int_equal(json_object_size(half), 0);
    append("events.out.tfevents.1.host", file.data + file.n - 3, 3);
    OWN_JSON json_t *whole = read_all();
    assert_true(value_at(whole, "epoch_loss", 0) == 0.75);
    assert_int_equal(json_integer_value(json_array_get(json_array_get(
        json_object_get(whole, "epoch_loss"), 0), 1)), 7);
    append("events.out.tfevents.1.host", "garbage garbage garbage", 23);
    append("events.out.tfevents.1.host", file.data, file.n);
    OWN_JSON json_t *after = read_all();
    assert_int_equal(count(after, "epoch_loss"), 1);
    away();
}

static void links_and_pipes_are_passed_over(void **state)
{
    (void)state;
    char path[256], outside[128];
    static const char line[] = "{\"step\": 1, \"secret\": 42}\n";

    fresh();
    append("../metrics.jsonl", line, sizeof line - 1);
    snprintf(outside, sizeof outside, "%s/metrics.jsonl", dir);
    snprintf(path, sizeof path, "%s/metrics.jsonl", work);
    assert_int_equal(symlink(outside, path), 0);
    snprintf(path, sizeof path, "%s/up", work);
    assert_int_equal(symlink(dir, path), 0);
    snprintf(path, sizeof path, "%s/events.out.tfevents.1.pipe", work);
    assert_int_equal(mkfifo(path, 0600), 0);
    OWN_JSON json_t *all = read_all();
    assert_int_equal(json_object_size(all), 0);
    away();
}

static void a_flood_of_tags_is_bounded(void **state)
{
    (void)state;
    OWN_BUF lines = BUF_INIT;
    fresh();
    for (int i = 0; i < 5000; i++)
        buf_printf(&lines, "{\"step\": %d, \"tag%d\": 1}\n", i, i);
    append("metrics.jsonl", lines.data, lines.n);
    OWN_JSON json_t *all = read_all();
    assert_int_equal(json_object_size(all), SCALARS_TAGS_MAX);
    away();
}

CHECK_MAIN(lines_of_metrics_become_points, a_file_that_was_cut_back_is_read_anew,
           event_files_are_read_as_they_grow, tensors_with_one_number_count,
           links_and_pipes_are_passed_over, a_flood_of_tags_is_bounded)
