/* tests/fuzz/job_fuzz.c - any bytes as a job document, and any order of events after it
 *
 * The first line is the document; each byte after it picks an event. A job that has ended stays as it
 * is, an event that says nothing new changes nothing, and a second fold of the same log is equal.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/own.h"
#include "server/jobs_int.h"

static const struct { const char *type, *body; } events[] = {
    { "job.cancel_requested", "{\"by\": \"me\"}" },
    { "job.preparing", "{\"attempt\": 1, \"workers\": 2}" },
    { "job.preparing", "{\"attempt\": 2}" },
    { "job.preparing", "{\"what\": \"installing\"}" },
    { "attempt.started", "{\"attempt\": 1, \"pid\": 3, \"workers\": 1}" },
    { "attempt.started", "{\"attempt\": 2}" },
    { "worker.joined", "{\"workers\": 3}" },
    { "worker.left", "{\"workers\": 1}" },
    { "job.scaled", "{\"workers\": 2}" },
    { "job.resized", "{\"workers\": {\"min\": 1, \"max\": 5}}" },
    { "attempt.ended", "{\"attempt\": 1, \"code\": 1, \"reason\": \"exit code 1\"}" },
    { "attempt.ended", "{\"attempt\": 2, \"code\": 0}" },
    { "job.retrying", "{\"at\": 5}" },
    { "job.ended", "{\"state\": \"failed\", \"reason\": \"no\"}" },
    { "job.ended", "{\"state\": \"running\"}" },
    { "job.patched", "{\"labels\": {\"a\": \"b\"}}" },
};
enum { N_EVENTS = sizeof events / sizeof events[0], MAX_EVENTS = 64 };

static void fold_all(struct job_row *r, const json_t *body, const uint8_t *picks, size_t n)
{
    assert(job_fold(r, 1, "job.submitted", body));
    for (size_t i = 0; i < n && i < MAX_EVENTS; i++) {
        OWN_JSON json_t *e = json_loads(events[picks[i] % N_EVENTS].body, 0, NULL);
        const char *type = events[picks[i] % N_EVENTS].type;
        struct job_row before = *r;
        before.labels = r->labels ? strdup(r->labels) : NULL;
        bool news = job_fold(r, 2 + (double)i, type, e);
        assert(!job_state_ended(before.state) || !news || !strcmp(type, "job.patched"));
        assert(news || job_row_equal(&before, r));
        assert(!r->live || !job_state_ended(r->state));
        assert(r->live || r->now == 0);
        job_row_done(&before);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *end = n ? memchr(data, '\n', n) : NULL;
    size_t first = end ? (size_t)(end - data) : n;
    struct err err = { 0 };
    OWN_JSON json_t *spec = json_loadb((const char *)data, first, 0, NULL);

    if (!spec || job_spec_check(spec, &err) < 0) {
        assert(!spec || *err.text);
        return 0;
    }
    OWN_JSON json_t *body = json_pack("{s:s, s:s, s:O}", "project", "p", "name", "n", "spec", spec);
    OWN_ROW a = { .id = 1 };
    OWN_ROW b = { .id = 1 };
    fold_all(&a, body, data + first, n - first);
    fold_all(&b, body, data + first, n - first);
    assert(job_row_equal(&a, &b));
    assert(a.min >= 1 && a.max >= a.min && a.cpu > 0 && a.memory >= 0);
    return 0;
}
