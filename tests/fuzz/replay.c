/* tests/fuzz/replay.c - runs a fuzz target over files and folders that were found before
 *
 * Stands in for libFuzzer's main, so that `make test` replays every corpus under any compiler. Each
 * input is copied into memory of its exact size: the address sanitizer sees a read past its end.
 */
#include <dirent.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { INPUT_MAX = 64 << 20 };

static int replay_file(const char *path)
{
    struct err err = { 0 };
    OWN_MEM char *text = NULL;
    size_t n;

    if (files_read(path, INPUT_MAX, &text, &n, &err) < 0) {
        fprintf(stderr, "replay: %s\n", err.text);
        return -1;
    }
    OWN_MEM uint8_t *exact = malloc(n ? n : 1);
    if (!exact)
        return -1;
    memcpy(exact, text, n);
    LLVMFuzzerTestOneInput(exact, n);
    return 1;
}

/* The number of inputs run, or -1. */
static int replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        fprintf(stderr, "replay: there is no %s\n", path);
        return -1;
    }
    if (!S_ISDIR(st.st_mode))
        return replay_file(path);

    DIR *dir = opendir(path);
    int sum = dir ? 0 : -1;
    for (struct dirent *e; sum >= 0 && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        OWN_MEM char *inner = NULL;
        int n = asprintf(&inner, "%s/%s", path, e->d_name) < 0 ? -1 : replay(inner);
        sum = n < 0 ? -1 : sum + n;
    }
    if (dir)
        closedir(dir);
    return sum;
}

int main(int argc, char **argv)
{
    int sum = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay(argv[i]);
        if (n < 0)
            return 1;
        sum += n;
    }
    printf("replayed %d inputs\n", sum);
    return sum == 0;            /* a corpus that went missing must not pass */
}
