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
#include "base/files.h"
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
    for (int i = 0; i < 400; i++) {
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

static char kept_text[64];

static int first(void *arg, const struct log_line *l)
{
    struct log_line *out = arg;
    if (out->t == 0) {
        *out = *l;
        snprintf(kept_text, sizeof kept_text, "%.*s", (int)l->n, l->text);
    }
    return 0;
}

/* A line of the file, as the keeper writes it: one in ten with a full head, others near or none. */
static void put(FILE *f, int i)
{
    long us = 1000000000L + i / 3 * 1000000L, base = 1000000000L + i / 30 * 10 * 1000000L;

    if (i % 30 == 0)
        fprintf(f, "\1o0 %ld.%06ld line %d\n", us / 1000000, us % 1000000, i);
    else if (i % 3 == 0)
        fprintf(f, "\2o%c%c%c%cline %d\n", (int)('0' + ((us - base) >> 18 & 63)),
                (int)('0' + ((us - base) >> 12 & 63)), (int)('0' + ((us - base) >> 6 & 63)),
                (int)('0' + ((us - base) & 63)), i);
    else
        fprintf(f, "line %d\n", i);
}

static void a_time_finds_the_first_line_from_then_on(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    struct log_cursor c;
    char path[100];

    journal_free(j);
    for (int file = 0; file < 2; file++) {
        snprintf(path, sizeof path, "%s/log.%d", dir, file);
        FILE *f = fopen(path, "w");
        fprintf(f, "\3%d\n", file * 30000);
        for (int i = 30000 * file; i < 30000 * (file + 1); i++)
            put(f, i);
        fclose(f);
    }
    for (int t = 900; t < 21100; t += t < 1100 || t > 20900 || (t > 10900 && t < 11100) ? 1 : 97) {
        struct log_line l = { 0 };
        char text[32];
        assert_ok(logs_seek_time(dir, t, &c, &err));
        assert_true(logs_read(dir, &c, NULL, first, &l, &err) >= 0);
        int want = t < 1000 ? 1000 : t > 20999 ? 0 : t;
        assert_int_equal(l.t, want);
        if (want)
            assert_memory_equal(kept_text, text,
                                snprintf(text, sizeof text, "line %d", (want - 1000) * 3));
    }
    away();
}

/* Any place of a file is one to begin at, and gives the lines that begin from there on. */
static void a_cursor_may_point_anywhere(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    char path[100], *text;
    size_t n;

    for (int i = 0; i < 40; i++) {
        feed(j, i % 3 ? 'o' : 'e', "a\nbb\n");
        if (i % 7 == 0)
            journal_flush(j);
    }
    journal_free(j);
    snprintf(path, sizeof path, "%s/log.0", dir);
    assert_ok(files_read(path, 1 << 20, &text, &n, &err));
    long before = 81;
    for (size_t at = 0; at <= n; at++) {
        struct log_cursor c = { 0, (int64_t)at };
        size_t sum = 0;
        long lines = logs_read(dir, &c, NULL, pieces, &sum, &err);
        assert_true(lines <= before && lines >= before - 1);
        before = lines;
        assert_int_equal(c.offset, n);
    }
    assert_int_equal(before, 0);
    free(text);
    away();
}

/* A million of the shortest lines: twice their bytes at most, in one read or each in its own. */
static void short_lines_are_kept_in_little(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    struct log_cursor c = { 0 };
    size_t sum = 0;
    static char lines[200000];

    for (size_t i = 0; i < sizeof lines; i++)
        lines[i] = i % 2 ? '\n' : 'x';
    for (int i = 0; i < 10; i++)
        journal_feed(j, 'o', lines, sizeof lines);
    journal_free(j);
    assert_true(logs_size(dir) < 2100000);
    assert_int_equal(logs_read(dir, &c, NULL, pieces, &sum, &err), 1000000);
    assert_int_equal(sum, 1000000);
    away();
    j = fresh();
    for (int i = 0; i < 100000; i++)
        journal_feed(j, i % 2 ? 'e' : 'o', "x\n", 2);
    journal_free(j);
    assert_true(logs_size(dir) < 850000);
    c = (struct log_cursor){ 0 };
    assert_int_equal(logs_read(dir, &c, NULL, pieces, &sum, &err), 100000);
    away();
}

static void beyond_its_limit_a_log_loses_its_oldest_lines_and_says_how_many(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = fresh();
    struct log_cursor c = { 0 }, slow = { 0 };
    char line[64];
    long next = 0, dropped = 0, lines = 100000;

    journal_limit(j, 1 << 20);
    for (long i = 0; i < lines; i++) {
        journal_feed(j, 'o', line, (size_t)snprintf(line, sizeof line, "line %ld %030d\n", i, 0));
        if (i % 1000 == 0)
            journal_flush(j);
        if (i == 5000)          /* a reader that comes back late finds what is left */
            assert_true(logs_read(dir, &slow, NULL, count_in_order, &next, &err) == 5001);
    }
    journal_free(j);
    assert_true(logs_size(dir) <= 1 << 20);
    assert_true(logs_size(dir) > 1 << 19);
    for (int i = 0; i < 2; i++) {
        char *text = all(i ? &slow : &c, NULL);
        assert_int_equal(sscanf(text, "m %ld lines were dropped here", &dropped), 1);
        assert_true(dropped > 50000 && dropped < lines);
        const char *after = strchr(text, '|');
        snprintf(line, sizeof line, "|o line %ld 0", dropped);
        assert_memory_equal(after, line, strlen(line));
        assert_non_null(strstr(after, "|o line 99999 0"));
        free(text);
    }
    /* The last ones are found without the notice; more than there are, with it. */
    assert_ok(logs_seek_tail(dir, 10, &c, &err));
    next = lines - 10;
    assert_int_equal(logs_read(dir, &c, NULL, count_in_order, &next, &err), 10);
    assert_ok(logs_seek_tail(dir, lines, &c, &err));
    char *text = all(&c, "DROPPED");
    assert_int_equal(sscanf(text, "m %ld lines", &dropped), 1);
    free(text);
    /* Another keeper goes on with the same count. */
    assert_ok(journal_open(dir, &j, &err));
    journal_limit(j, 1 << 20);
    for (int i = 0; i < 30000; i++)
        journal_feed(j, 'o', line, (size_t)snprintf(line, sizeof line, "line %ld\n", lines + i));
    journal_free(j);
    c = (struct log_cursor){ 0 };
    text = all(&c, NULL);
    assert_int_equal(sscanf(text, "m %ld lines", &dropped), 1);
    snprintf(line, sizeof line, "|o line %ld", dropped);
    assert_memory_equal(strchr(text, '|'), line, strlen(line));
    free(text);
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
    struct rlimit none, small = { 100, RLIM_INFINITY };
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

/* The same in all files, as bytes: no way of reading finds what is not there. */
static bool is_on_disk(const char *word)
{
    struct err err = { 0 };
    bool found = false;
    for (int i = 0; i < 10; i++) {
        char path[100], *text = NULL;
        size_t n = 0;
        snprintf(path, sizeof path, "%s/log.%d", dir, i);
        if (access(path, F_OK) == 0)
            assert_ok(files_read(path, 64 << 20, &text, &n, &err));
        found |= text && memmem(text, n, word, strlen(word));
        free(text);
    }
    return found;
}

static void a_secret_is_masked_wherever_reads_and_pieces_cut_it(void **state)
{
    (void)state;
    enum { LONG = 65536 };
    OWN(mask) m = mask_new();
    struct log_cursor c = { 0 };
    char *line = malloc(2 * LONG);

    assert_true(mask_add(m, "swordfish\nsecond line\r\nabc\n") && mask_add(m, "sword"));
    struct journal *j = fresh();
    journal_mask(j, m);
    feed(j, 'o', "abc swordfish, sword and swordswordfish.\nsw");
    feed(j, 'o', "ordfish\nsecond");
    feed(j, 'e', "sec");
    feed(j, 'o', " line\n");
    feed(j, 'e', "ond line\n");
    journal_say(j, "installing %s", "swordfish");
    journal_flush(j);
    char *text = all(&c, NULL);
    assert_string_equal(text, "o abc ***, *** and ******.|o ***|o ***|e ***|m installing ***|");
    free(text);
    journal_free(j);
    away();
    /* Around the end of a piece, whatever the reads are. */
    for (int at = LONG - 24; at < LONG + 24; at++) {
        struct journal *k = fresh();
        journal_mask(k, m);
        memset(line, 'x', 2 * LONG);
        memcpy(line + at, "swordfish", 9);
        line[2 * LONG - 1] = '\n';
        journal_feed(k, 'o', line, (size_t)at + 4);
        journal_feed(k, 'o', line + at + 4, (size_t)(2 * LONG - at - 4));
        journal_free(k);
        assert_false(is_on_disk("fish"));
        assert_true(is_on_disk("*"));     /* three of them, perhaps in two pieces */
        away();
    }
    free(line);
}

CHECK_MAIN(a_secret_is_masked_wherever_reads_and_pieces_cut_it, lines_are_put_together_from_any_pieces, what_is_no_text_does_no_harm,
           a_line_without_end_is_cut_into_pieces, nothing_is_lost_where_files_change,
           a_time_finds_the_first_line_from_then_on, a_cursor_may_point_anywhere,
           short_lines_are_kept_in_little,
           beyond_its_limit_a_log_loses_its_oldest_lines_and_says_how_many, a_search_finds_words_in_either_case,
           a_full_disk_costs_lines_and_says_so)
