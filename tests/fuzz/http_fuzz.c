/* tests/fuzz/http_fuzz.c - any bytes as a Content-Range, and as a URL that nobody is asked about */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    OWN_MEM char *text = strndup((const char *)bytes, n);
    struct http_range r = http_parse_range(text);

    (void)http_is_url(text);
    if (r.first >= 0) {
        assert(r.last >= r.first);
        assert(r.total == -1 || r.total > r.last);
    } else {
        assert(r.first == r.last);
        assert(r.first == -1 ? r.total >= 0 : r.total == -2);
    }
    return 0;
}
