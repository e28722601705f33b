/* tests/unit/tar_test.c - what was packed comes out of the system's own tar as it was */
#include "base/tar.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "tests/check.h"

static int keep(void *arg, const void *bytes, size_t n, struct err *err)
{
    if (bytes)
        buf_append(arg, bytes, n);
    return ((struct buf *)arg)->failed ? err_set(err, ERR_NOMEM, "no memory") : 0;
}

static int refuse(void *arg, const void *bytes, size_t n, struct err *err)
{
    (void)bytes;
    (void)n;
    return --*(int *)arg < 0 ? err_set(err, ERR_IO, "full") : 0;
}

static char folder[64];

static void run(const char *command)
{
    char line[2048];
    snprintf(line, sizeof line, "cd %s && %s", folder, command);
    if (system(line) != 0)
        fail_msg("%s", line);
}

static void pack(const char *name, struct buf *out)
{
    char path[256];
    struct err err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    OWN_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_ok(tar_write(fd, keep, out, &err));
    assert_int_equal(out->n % 512, 0);
}

static void what_goes_in_comes_out(void **state)
{
    (void)state;
    OWN_BUF bytes = BUF_INIT, again = BUF_INIT;
    struct err err;
    char path[256];

    snprintf(folder, sizeof folder, "/tmp/tar_test.XXXXXX");
    assert_non_null(mkdtemp(folder));
    run("mkdir -p a/empty a/deep/er && echo one >a/one && head -c 70000 /dev/urandom >a/deep/big && "
        "printf x >a/deep/er/x && ln -s ../one a/deep/link && chmod 755 a/one && mkfifo a/pipe && "
        "n=$(printf '%0120d' 7) && mkdir a/$n && echo long >a/$n/$n && ln -s $n/$n a/far && "
        "touch 'a/with space' && : >a/-dash");
    pack("a", &bytes);
    snprintf(path, sizeof path, "%s/a.tar", folder);
    assert_ok(files_write(path, bytes.data, bytes.n, &err));
    run("mkdir b && tar -xf a.tar -C b && rm a/pipe && diff -r --no-dereference a b && test -x b/one");
    pack("b", &again);
    assert_int_equal(bytes.n, again.n);
    assert_memory_equal(bytes.data, again.data, bytes.n);
    run("rm -rf a b a.tar && mkdir e");
    OWN_BUF empty = BUF_INIT;
    pack("e", &empty);
    assert_int_equal(empty.n, 3 * 512);
    for (int n = 0; n < 2; n++) {
        int left = n;
        snprintf(path, sizeof path, "%s/e", folder);
        OWN_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_fails(tar_write(fd, refuse, &left, &err), ERR_IO);
    }
    rmdir(path);
    rmdir(folder);
}

CHECK_MAIN(what_goes_in_comes_out)
