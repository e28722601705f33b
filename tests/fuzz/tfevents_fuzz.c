/* tests/fuzz/tfevents_fuzz.c - any bytes as one Event of TensorBoard's, and as an event file
 *
 * The checksums would keep a fuzzer out, so the bytes are first a message by themselves, then a file.
 */
#include "server/tfevents.h"

#include <assert.h>
#include <stdint.h>

static void each(void *arg, const struct tfevents_scalar *s)
{
    volatile char last = s->tag[s->tag_n - 1];
    (void)last;
    ++*(long *)arg;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    long scalars = 0;
    tfevents_read_event(bytes, n, each, &scalars);
    int64_t used = tfevents_read(bytes, n, each, &scalars);
    assert(used >= -1 && used <= (int64_t)n);
    return 0;
}
