/* tests/fuzz/cron_fuzz.c - any bytes as a cron line; a time that it gives is later, and ends */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"
#include "pipelines/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    OWN_MEM char *text = strndup((const char *)data, n);
    struct err err = { 0 };
    struct cron c;

    if (!text || cron_parse(text, &c, &err) < 0)
        return 0;
    int64_t t = 1700000000;
    for (int i = 0; i < 3; i++) {
        int64_t next = cron_next(&c, t);
        assert(next == 0 || next > t);
        if (next == 0)
            break;
        t = next;
    }
    return 0;
}
