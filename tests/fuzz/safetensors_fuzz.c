/* tests/fuzz/safetensors_fuzz.c - any bytes as weights or a checkpoint */
#include <stddef.h>
#include <stdint.h>

#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What is accepted must be readable to its last value. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    OWN(safetensors) s = NULL;
    struct err err;
    static volatile float sum;          /* read, so that the loop is kept */

    if (safetensors_parse(data, n, "fuzz", &s, &err) < 0)
        return 0;
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct saved_tensor *t = safetensors_at(s, i);
        for (long k = 0; k < t->count; k++)
            sum = sum + t->data[k];
        safetensors_find(s, t->name);
    }
    safetensors_note(s, "step");
    return 0;
}
