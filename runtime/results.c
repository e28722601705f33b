/* runtime/results.c - results of steps and tests on their way from a worker to the coordinator */
#include "runtime/results.h"

#include <stdlib.h>
#include <string.h>

/* On the wire: machines of one job may pad a struct in other ways. */
struct packed {
    int64_t step, n;
    double loss, reported;
    uint64_t chain;
};

void results_clear(struct results *r) { r->first = r->next = r->tests = 0; }

/* A step that follows, that is done again, or anything else after a state was copied. */
static void add(struct results *r, const struct step_result *result)
{
    if (result->step < r->first || result->step > r->next)
        r->first = result->step;
    r->kept[result->step % RESULTS_KEPT] = *result;
    r->next = result->step + 1;
    if (r->next - r->first > RESULTS_KEPT)
        r->first = r->next - RESULTS_KEPT;
}

void results_add(struct results *r, const struct step_result *result, long n)
{
    for (long i = 0; i < n; i++)
        add(r, &result[i]);
}

static const struct told_test *kept_test(const struct results *r, long number)
{
    return &r->test[number % TESTS_KEPT];
}

static long first_test(const struct results *r)
{
    return r->tests > TESTS_KEPT ? r->tests - TESTS_KEPT : 0;
}

/* One that follows, or that is done again. */
void results_add_test(struct results *r, const struct told_test *test)
{
    const long first = first_test(r);

    while (r->tests > first && kept_test(r, r->tests - 1)->step >= test->step)
        r->tests--;
    r->test[r->tests++ % TESTS_KEPT] = *test;
}

int results_tests_after(const struct results *r, long step)
{
    long number = r->tests;

    while (number > first_test(r) && kept_test(r, number - 1)->step > step)
        number--;
    return (int)(r->tests - number);
}

const struct told_test *results_test_after(const struct results *r, long step)
{
    int n = results_tests_after(r, step);
    return n ? kept_test(r, r->tests - n) : NULL;
}

void results_pack_tests(const struct results *r, struct buf *out)
{
    for (long i = first_test(r); i < r->tests; i++)
        buf_append(out, kept_test(r, i), sizeof(struct told_test));
}

int results_unpack_tests(struct results *r, const void *bytes, size_t n, struct err *err)
{
    const char *at = bytes;
    struct told_test test;

    if (n % sizeof test || n / sizeof test > TESTS_KEPT)
        return err_set(err, ERR_INVALID, "tests of %zu bytes are none", n);
    for (; n; at += sizeof test, n -= sizeof test) {
        memcpy(&test, at, sizeof test);
        if (test.step < 0 || test.n < 0 || test.n > METRICS_MAX)
            return err_set(err, ERR_INVALID, "a damaged test");
        results_add_test(r, &test);
    }
    return 0;
}

long results_pack(const struct results *r, long from, long until, const struct results_place *place,
                  struct buf *out)
{
    long step = from > r->first ? from : r->first;
    long end = until < r->next ? until : r->next;

    if (end - step > RESULTS_SENT)
        end = step + RESULTS_SENT;

    buf_append(out, place, sizeof *place);
    for (; step < end; step++) {
        const struct step_result *k = &r->kept[step % RESULTS_KEPT];
        struct packed p = { k->step, k->n, k->loss, k->reported, k->chain };
        buf_append(out, &p, sizeof p);
    }
    return step > from ? step : from;
}

int results_unpack(const void *bytes, size_t n, struct results_place *place,
                   struct step_result **out, long *out_n, struct err *err)
{
    if (n < sizeof *place || (n - sizeof *place) % sizeof(struct packed))
        return err_set(err, ERR_INVALID, "results of %zu bytes are none", n);
    const size_t count = (n - sizeof *place) / sizeof(struct packed);
    struct step_result *r = calloc(count + 1, sizeof *r);
    if (!r)
        return err_set(err, ERR_NOMEM, "no memory for %zu results", count);
    memcpy(place, bytes, sizeof *place);
    for (size_t i = 0; i < count; i++) {
        struct packed p;
        memcpy(&p, (const char *)bytes + sizeof *place + i * sizeof p, sizeof p);
        if (p.step < 0 || p.n < 0 || p.n > 1 << 30 || (i && p.step != r[i - 1].step + 1)) {
            free(r);
            return err_set(err, ERR_INVALID, "results that are out of order");
        }
        r[i] = (struct step_result){ .step = p.step, .n = (int)p.n, .loss = p.loss,
                                     .reported = p.reported, .chain = p.chain };
    }
    *out = r;
    *out_n = (long)count;
    return 0;
}
