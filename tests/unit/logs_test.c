/* tests/unit/logs_test.c - what the keeper writes, readers find: whole, in order, by time, from the end */
#include "server/logs.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "drivers/journal.h"
#include "tests/check.h"

static char dir[] = "/tmp/muster-logs-XXXXXX";

static struct journal *fresh(void)
{
    struct err err = { 0 };
    struct journal *j = NULL;
    memcpy(dir + sizeof dir - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(dir));
    assert_ok(journal_open(dir, &j, &err));
    return j;
}

static void feed(struct journal *j, char stream, const char *text)
{
    journal_feed(j, stream, text, strlen(text));
}

static void away(void)
{
    char path[100];
    for (int i = 0; i < 40; i++) {
        snprintf(path, sizeof path, "%s/log.%d", dir, i);
        unlink(path);
    }
    rmdir(dir);
}

/* Lines as "o text|e text|". */
static int gather(void *arg, const struct log_line *l)
{
    buf_printf(arg, "%c %.*s|", l->stream, (int)l->n, l->text);
    return 0;
}

static char *all(struct log_cursor *c, const char *search)
{
    struct err err = { 0 };
    struct buf b = BUF_INIT;
    buf_text(&b, "");
    assert_true(logs_read(dir, c, search, gather, &b, &err) >= 0);
    return buf_take(&b);
}

static void lines_are_put_together_from_any_pieces(void **state)
{
    (void)state;
    struct journal *j = fresh();
    struct log_cursor c = { 0 };

    feed(j, 'o', "one\ntw");
    feed(j, 'e', "err");
    feed(j, 'o', "o\r\nthree\r");
    feed(j, 'o', "\nfour\rfive");
    journal_flush(j);
    char *text = all(&c, NULL);
    assert_string_equal(text, "o one|o two|o three|o four|");
    free(text);
    feed(j, 'e', "or\n\n");
    journal_free(j);
    text = all(&c, NULL);
    assert_string_equal(text, "e error|e |o five|");
    free(text);
    away();
}

static void what_is_no_text_does_no_harm(void **state)
{
    (void)state;
    struct journal *j = fresh();
    struct log_cursor c = { 0 };

    journal_feed(j, 'o', "a\0b\xff\xc3\xa9\tc\x01\n", 10);
    journal_free(j);
    char *text = all(&c, NULL);
    assert_string_equal(text, "o a?b\xef\xbf\xbd\xc3\xa9\tc?|");
    free(text);
    away();
}

static int pieces(void *arg, const struct log_line *l)
{
    size_t *sum = arg;
    *sum += l->n - (l->n && l->text[l->n - 1] == '\\');
    return 0;
}

static void a_line_without_end_is_cut_into_pieces(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    struct log_cursor c = { 0 };
    size_t sum = 0, n = 300000;
    char *long_line = malloc(n);

    memset(long_line, 'x', n);
    journal_feed(j, 'o', long_line, n);
    journal_free(j);
    assert_int_equal(logs_read(dir, &c, NULL, pieces, &sum, &err), 5);
    assert_int_equal(sum, n);
    free(long_line);
    away();
}

static int count_in_order(void *arg, const struct log_line *l)
{
    long *next = arg;
    assert_int_equal(strtol(l->text + 5, NULL, 10), *next);
    ++*next;
    return 0;
}

/* 60 MB in four files, read in several calls, while it is being written. */
static void nothing_is_lost_where_files_change(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    struct log_cursor c = { 0 };
    long next = 0, lines = 600000;
    char line[128];

    for (long i = 0; i < lines; i++) {
        int n = snprintf(line, sizeof line, "line %ld %070d\n", i, 0);
        journal_feed(j, 'o', line, (size_t)n);
        if (i % 50000 == 0)
            assert_true(logs_read(dir, &c, NULL, count_in_order, &next, &err) >= 0);
    }
    assert_int_equal(journal_dropped(j), 0);
    journal_free(j);
    for (long before = -1; before != next;) {
        before = next;
        assert_true(logs_read(dir, &c, NULL, count_in_order, &next, &err) >= 0);
    }
    assert_int_equal(next, lines);
    assert_true(c.file >= 3);

    for (long tail = 0; tail < lines; tail = tail * 3 + 7) {
        assert_ok(logs_seek_tail(dir, tail, &c, &err));
        next = lines - tail;
        for (int i = 0; i < 5; i++)
            assert_true(logs_read(dir, &c, NULL, count_in_order, &next, &err) >= 0);
        assert_int_equal(next, lines);
    }
    assert_ok(logs_seek_tail(dir, lines + 5, &c, &err));
    assert_int_equal(c.file, 0);
    assert_int_equal(c.offset, 0);
    away();
}

static int first(void *arg, const struct log_line *l)
{
    struct log_line *out = arg;
    if (out->t == 0)
        *out = *l;
    return 0;
}

static void a_time_finds_the_first_line_from_then_on(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    struct log_cursor c;
    char path[100];

    journal_free(j);
    snprintf(path, sizeof path, "%s/log.0", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 1000; i++)
        fprintf(f, "%d.%06d o 0 line %d\n", 1000 + i / 3, i % 3 * 100, i);
    fclose(f);
    snprintf(path, sizeof path, "%s/log.1", dir);
    f = fopen(path, "w");
    for (int i = 1000; i < 2000; i++)
        fprintf(f, "%d.%06d o 0 line %d\n", 1000 + i / 3, i % 3 * 100, i);
    fclose(f);
    for (int t = 990; t < 1700; t++) {
        struct log_line l = { 0 };
        assert_ok(logs_seek_time(dir, t, &c, &err));
        assert_true(logs_read(dir, &c, NULL, first, &l, &err) >= 0);
        double want = t < 1000 ? 1000 : t > 1666 ? 0 : t;
        assert_true(l.t == want);
    }
    away();
}

static void a_search_finds_words_in_either_case(void **state)
{
    (void)state;
    struct journal *j = fresh();
    struct log_cursor c = { 0 };

    feed(j, 'o', "Epoch 1\nloss 2\nlast epoch\nepoc\n");
    journal_free(j);
    char *text = all(&c, "EPOCH");
    assert_string_equal(text, "o Epoch 1|o last epoch|");
    free(text);
    away();
}

/* A limit on the size of files stands for a full disk: the write that passes it is short, the next fails. */
static void a_full_disk_costs_lines_and_says_so(void **state)
{
    (void)state;
    struct journal *j = fresh();
    struct log_cursor c = { 0 };
    struct rlimit none, small = { 200, RLIM_INFINITY };
    char line[64];

    getrlimit(RLIMIT_FSIZE, &none);
    small.rlim_max = none.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 20; i++) {
        int n = snprintf(line, sizeof line, "line %d\n", i);
        journal_feed(j, 'o', line, (size_t)n);
        if (i % 5 == 4)
            journal_flush(j);
    }
    assert_true(journal_dropped(j) > 0);
    assert_int_equal(journal_dropped(j) + journal_lines(j), 20);
    long long dropped = journal_dropped(j);
    setrlimit(RLIMIT_FSIZE, &none);
    feed(j, 'o', "room again\n");
    journal_free(j);
    char *text = all(&c, NULL), want[100];
    snprintf(want, sizeof want, "m %lld lines were lost here: the disk was full|o room again|", dropped);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "o line 0|o line 1|"));
    free(text);
    away();
}

CHECK_MAIN(lines_are_put_together_from_any_pieces, what_is_no_text_does_no_harm,
           a_line_without_end_is_cut_into_pieces, nothing_is_lost_where_files_change,
           a_time_finds_the_first_line_from_then_on, a_search_finds_words_in_either_case,
           a_full_disk_costs_lines_and_says_so)
