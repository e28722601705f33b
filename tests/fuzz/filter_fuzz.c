/* tests/fuzz/filter_fuzz.c - any bytes as a filter; what is accepted is asked about everything */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "protocols/filter.h"
#include "protocols/stamp.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void get(void *arg, const char *path, struct filter_value *out)
{
    int64_t *t = arg;
    *out = (struct filter_value){
        .kind = (enum filter_kind)(strlen(path) % 5), .text = path, .number = 200, .time = *t
    };
    if (!strcmp(path, "timestamp"))
        out->kind = FILTER_TIME;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    OWN(filter) f = NULL;
    OWN_MEM char *text = strndup((const char *)bytes, n);
    int64_t t = 0, from, to;
    bool part;

    if (stamp_parse(text, &t) == 0) {
        char again[STAMP_SIZE];
        int64_t u;
        stamp_format(t, again);
        assert(stamp_parse(again, &u) == 0 && u <= t && t - u < 1000);
    }
    if (filter_parse(text, &f, &err) < 0) {
        assert(!f && err.text[0]);
        return 0;
    }
    filter_times(f, "timestamp", &from, &to);
    /* Bounds are true of what matches, whatever else it says. */
    for (int64_t at = -1; at <= 1; at++) {
        t = from == INT64_MIN ? at : from + at;
        if (filter_match(f, get, &t))
            assert(t >= from && (t < to || to == INT64_MAX));
    }
    const char *want = filter_wants(f, "jobId", &part);
    assert(!want || *want);
    return 0;
}
