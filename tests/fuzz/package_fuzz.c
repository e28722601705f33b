/* tests/fuzz/package_fuzz.c - any bytes as a package, as one of a pipeline, as metadata of one */
#include "drivers/archive.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    struct archive_facts facts = { 0 };
    struct buf lines = BUF_INIT;

    if (n == 0)
        return 0;
    if (archive_check_bytes(bytes, n, "package", &facts, &err) < 0)
        assert(err.text[0]);
    free(facts.requirements);
    err = (struct err){ 0 };
    if (archive_take_bytes(bytes, n, "package", "pipeline.yaml", 1 << 20, &lines, &err) < 0)
        assert(err.text[0]);
    buf_clear(&lines);
    char *text = malloc(n + 1);
    memcpy(text, bytes, n);
    text[n] = '\0';
    archive_read_requires(text, &lines);
    archive_read_metadata(text, &lines);
    buf_done(&lines);
    free(text);
    return 0;
}
