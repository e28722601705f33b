/* tests/faults/spec_memory_test.c - for every n, the n-th allocation of reading a spec fails
 *
 * Stands before the C library's allocator, for libyaml and jansson too. Every failure has to be
 * said as ERR_NOMEM, and everything given back. Sanitizers bring an allocator of their own: there
 * the test is left out.
 */
#include "spec/spec.h"
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "base/own.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_ALLOCATOR 0
#elif defined(__has_feature)
#define OWN_ALLOCATOR                                                                   \
    !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||            \
      __has_feature(memory_sanitizer))
#else
#define OWN_ALLOCATOR 1
#endif

#if OWN_ALLOCATOR

/* The build hides what is not marked, and the libraries would keep the C library's own. */
#define SEEN_BY_LIBRARIES __attribute__((visibility("default")))

static int counting;            /* within the call under test */
static long until_failure;      /* allocations; 0: none fails any more */
static long live;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static int fails(void)
{
    return counting && until_failure > 0 && --until_failure == 0;
}

SEEN_BY_LIBRARIES void *malloc(size_t n)
{
    void *p = fails() ? NULL : __libc_malloc(n);
    live += counting && p;
    return p;
}

SEEN_BY_LIBRARIES void *calloc(size_t n, size_t size)
{
    void *p = fails() ? NULL : __libc_calloc(n, size);
    live += counting && p;
    return p;
}

SEEN_BY_LIBRARIES void *realloc(void *old, size_t n)
{
    void *p = fails() ? NULL : __libc_realloc(old, n);
    live += counting && p && !old;
    return p;
}

SEEN_BY_LIBRARIES void free(void *p)
{
    live -= counting && p;
    __libc_free(p);
}

static const char text[] =
    "data: {train: {csv: [a, b], rows: 0..9}, split: 0.2, target: y, features: {a: numeric, "
    "b: {vocabulary: [x, y]}, c: {bucketize: a, boundaries: [1, 2]}}, derived: {d: a > 1}}\n"
    "model: [&c {linear: 3}, relu, *c, maxpool: 2]\n"
    "loss: huber\noptimizer: {adam: {betas: [0.9, 0.99]}}\nclip: {norm: 1}\nschedule: cosine\n"
    "metrics: [auc]\nstop: {test_auc: {above: 0.9}, patience: 3}\nworkers: 1..4\n";

static const char *const sets[] = { "epochs=3", "model[0].linear.bias=false", "loss.l1=",
                                    "data.labels=[a, b]", "clip=null" };

/* 1: read; 0: no memory. */
static int read_with_failure_at(long n)
{
    struct err err = { 0 };
    struct job_spec *s = NULL;

    until_failure = n;
    live = 0;
    counting = 1;
    int rc = spec_parse(text, sizeof text - 1, "t.yaml", sets, 5, &s, &err);
    if (rc == 0) {
        free(spec_print(s));
        json_decref(spec_identity(s));
    }
    spec_free(s);
    counting = 0;
    if (rc < 0 && rc != -ERR_NOMEM)
        fail_msg("allocation %ld: %s", n, err.text);
    if (live != 0)
        fail_msg("allocation %ld: %ld pieces of memory were not given back", n, live);
    return rc == 0 && until_failure > 0;
}

static void every_failed_allocation_is_said_and_leaves_nothing(void **state)
{
    (void)state;
    long n = 1;

    while (!read_with_failure_at(n))
        n++;
    assert_true(n > 500);
}

#else

static void every_failed_allocation_is_said_and_leaves_nothing(void **state)
{
    (void)state;
    skip();
}

#endif

CHECK_MAIN(every_failed_allocation_is_said_and_leaves_nothing)
