/* tests/fuzz/index_fuzz.c - any bytes as a page of a package index */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "drivers/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* What a link leads to is a URL of http, without a way up. */
static void look(void *arg, const char *url, struct buf *out)
{
    (void)arg;
    assert(!strncasecmp(url, "http://", 7) || !strncasecmp(url, "https://", 8));
    OWN_MEM char *path = strndup(url, strcspn(url, "?"));
    const char *host = path ? strstr(path, "://") : NULL;
    assert(!host || !strstr(host + 3, "/../"));
    buf_text(out, "/f/x");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    OWN_BUF out = BUF_INIT;
    index_rewrite((const char *)bytes, n, "https://h.example/simple/p/", look, NULL, &out);
    return 0;
}
