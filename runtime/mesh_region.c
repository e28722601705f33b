/* runtime/mesh_region.c - memory that one worker writes and the others read
 *
 * A region is a memfd that cannot shrink, so that no reader of ours is hurt by what its owner does.
 * Others find it as /proc/PID/fd/N: nothing has a name that a kill could leave behind. In another
 * pid namespace that path is missing, or leads to something else: the nonce tells.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "runtime/mesh_int.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

int region_new(struct region_shape shape, struct region **out, struct region_name *out_name,
               struct err *err)
{
    size_t bytes = region_bytes(shape);
    OWN_FD int fd = memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        return err_set(err, ERR_IO, "shared memory of %zu bytes: %s", bytes, strerror(errno));
    struct region *r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (r == MAP_FAILED)
        return err_set(err, ERR_NOMEM, "shared memory of %zu bytes: %s", bytes, strerror(errno));
    if (getrandom(r->nonce, MESH_NONCE, 0) != MESH_NONCE) {
        munmap(r, bytes);
        return err_set(err, ERR_IO, "random numbers: %s", strerror(errno));
    }
    r->bytes = bytes;
    r->floats = (uint64_t)shape.floats;
    r->board = (uint64_t)shape.board;
    *out_name = (struct region_name){ .pid = getpid(), .fd = fd };
    memcpy(out_name->nonce, r->nonce, MESH_NONCE);
    *out = r;
    fd = -1;
    return 0;
}

struct region *region_open(const struct region_name *name, struct region_shape shape)
{
    size_t bytes = region_bytes(shape);
    char path[64];
    struct stat st;

    if (name->fd < 0 || name->pid <= 0)
        return NULL;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", name->pid, name->fd);
    /* Without blocking: what is found there may be anything. */
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (size_t)st.st_size != bytes)
        return NULL;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return NULL;
    struct region *r = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (r == MAP_FAILED)
        return NULL;
    if (memcmp(r->nonce, name->nonce, MESH_NONCE) != 0 || r->floats != (uint64_t)shape.floats ||
        r->board != (uint64_t)shape.board) {
        munmap(r, bytes);
        return NULL;
    }
    return r;
}

struct region *region_mirror(struct region_shape shape)
{
    struct region *r = mmap(NULL, region_bytes(shape), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return r == MAP_FAILED ? NULL : r;
}

void region_close(struct region *r, struct region_shape shape)
{
    if (r)
        munmap(r, region_bytes(shape));
}

/* The futex is the half of the word that changes with each post. */
static const void *futex_of(const _Atomic uint64_t *word)
{
    return (const char *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0);
}

void word_store(_Atomic uint64_t *at, uint64_t word)
{
    atomic_store_explicit(at, word, memory_order_release);
    syscall(SYS_futex, futex_of(at), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A reader's mapping is read only, so that it cannot say that it sleeps; the owner wakes without
 * asking (0.2 us). The time-out bounds what a loss or an abort can cost. */
void word_wait(const _Atomic uint64_t *at, uint64_t seen)
{
    struct timespec ms = { .tv_nsec = 1000000 };
    syscall(SYS_futex, futex_of(at), FUTEX_WAIT, (uint32_t)seen, &ms, NULL, 0);
}

void region_post(struct region *r, uint64_t word)
{
    word_store(&r->word, word);
}

void region_wait(const struct region *r, uint64_t seen)
{
    word_wait(&r->word, seen);
}
