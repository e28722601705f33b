/* tests/fuzz/csv_fuzz.c - any bytes as a CSV file
 *
 * The first four bytes choose the options, the rest is the file. It is read several times: with the
 * plain scanner and with each vector one, in small and in large blocks, by one thread and by two.
 * All of them have to say the same, to the byte.
 */
#include <assert.h>
#include <stdint.h>
#include <sys/mman.h>

#include "tests/csv_dump.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static char path[64];
static int fd = -1;

static void make_file(const uint8_t *bytes, size_t n)
{
    if (fd < 0) {
        fd = memfd_create("csv", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert(fd >= 0 && ftruncate(fd, 0) == 0);
    assert(pwrite(fd, bytes, n, 0) == (ssize_t)n);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char delimiters[] = ",;\t|- .a";
    static const char *const types[] = { "d", "f", "i", "t", "c", "dfitc", "x", "cxd" };
    static const char *const missing[] = { "NA", "", "?", "1" };
    static const char *const isas[] = { "scalar", "avx2", "avx512" };

    if (n < 4)
        return 0;
    struct csv_options o = {
        .delimiter = delimiters[bytes[0] & 7],
        .no_header = bytes[0] >> 3 & 1,
        .allow_nonfinite = bytes[0] >> 4 & 1,
        .skip = bytes[0] >> 5 & 3,
        .missing = bytes[1] & 1 ? missing : NULL,
        .n_missing = bytes[1] >> 1 & 3,
    };
    const char *type = types[bytes[1] >> 3 & 7];
    const char *paths[] = { path };
    OWN_MEM char *want = NULL;
    int errors_cut = 0;

    make_file(bytes + 4, n - 4);
    for (int i = 0; i < 4; i++) {
        setenv("MUSTER_ISA", isas[i % 3], 1);
        o.threads = i == 3 && bytes[1] >> 6 == 3 ? 2 : 1;     /* starting threads is slow */
        o.block_bytes = i < 2 ? 0 : (size_t)bytes[i] + 1;
        char *got = csv_dump(paths, 1, &o, type);
        /* A block keeps its first errors only, so beyond that blocks do show. */
        int lines = 0;
        for (const char *at = got; (at = strstr(at, "\n! ")); at++)
            lines++;
        errors_cut |= lines >= CSV_ERRORS_MAX - 1;
        assert(got);
        if (!want)
            want = got;
        else {
            assert((errors_cut && i >= 2) || strcmp(got, want) == 0);
            free(got);
        }
    }
    return 0;
}
