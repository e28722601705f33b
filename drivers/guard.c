/* drivers/guard.c - how much of the disk a job takes, and when it is too much */
#include "drivers/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/room.h"
#include "base/tree.h"
#include "drivers/limits.h"

enum { FOLDERS_MAX = 64, OPEN_MAX = 1024, PROCESSES_MAX = 65536 };
/* Of the disk, what is left to others: 128 MB of a large one, an eighth of a small one. Uploads and
 * logs stop at half of that (server/objects_sweep.c), records at nothing. */
enum { KEPT = 8 };
/* What one who writes little may still write on a disk that is nearly full; of a small one a part. */
static const int64_t LITTLE_BYTES = 16 << 20;
enum { LITTLE_PART = 64 };
/* No disk here takes more in a second. */
static const double RATE = 2.0 * (1 << 30);
static const double LOOK_MIN_S = 0.02, LOOK_MAX_S = 2, QUIET_MAX_S = 1;
/* A walk may take a twentieth of the time; one that is made only because something was written since
 * the last, a hundredth, and not within so many seconds. */
enum { WALK_PART = 20, IDLE_PART = 100, IDLE_S = 10 };

struct folder { char path[PATH_MAX]; int64_t before; };

struct guard {
    char dir[PATH_MAX];
    int fd;
    int64_t limit;
    struct folder *folders;
    int n_folders;
    int64_t taken;              /* by the job, when its tree was walked last */
    int64_t used_then;          /* of the file system, at the same time */
    int64_t used_before;        /* at the last look */
    int64_t short_taken, short_used;    /* both, when the disk became short; short_used -1: it is not */
    double next, pause;
    double walk_at, idle_at;    /* not before: a walk that has a reason, and one to be sure */
};

void guard_free(struct guard *g)
{
    if (!g)
        return;
    if (g->fd >= 0)
        close(g->fd);
    free(g->folders);
    free(g);
}

static void add_folder(struct guard *g, const char *folder)
{
    size_t n = strlen(g->dir);
    char real[PATH_MAX];
    struct stat st;

    if (!realpath(folder, real) || stat(real, &st) < 0 || !S_ISDIR(st.st_mode) ||
        (!strncmp(real, g->dir, n) && (!real[n] || real[n] == '/')) || g->n_folders == FOLDERS_MAX)
        return;
    struct folder *more = realloc(g->folders, (size_t)(g->n_folders + 1) * sizeof *more);
    if (!more)
        return;
    g->folders = more;
    snprintf(more[g->n_folders++].path, sizeof more->path, "%s", real);
}

void guard_add(struct guard *g, const json_t *paths)
{
    const json_t *path;
    size_t i;

    json_array_foreach((json_t *)paths, i, path) {
        const char *from = json_string_value(json_object_get(path, "from"));
        const int fd = (int)json_integer_value(json_object_get(path, "fd"));
        char open_as[40];
        snprintf(open_as, sizeof open_as, "/proc/self/fd/%d", fd);
        if (json_is_true(json_object_get(path, "writable")))
            add_folder(g, fd > 0 ? open_as
                                 : from ? from : json_string_value(json_object_get(path, "path")));
    }
}

/* ------------------------------------------------------------------ files without a name */

struct tree_process { pid_t pid, parent; bool ours; };

static int list_processes(struct tree_process **out)
{
    int n = 0, cap = 256;
    struct tree_process *list = malloc((size_t)cap * sizeof *list);
    DIR *d = list ? opendir("/proc") : NULL;

    for (struct dirent *e; d && (e = readdir(d)) && n < PROCESSES_MAX;) {
        char path[300], text[512];
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid <= 0)
            continue;
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        text[got > 0 ? got : 0] = '\0';
        const char *after = strrchr(text, ')');
        int parent;
        if (!after || sscanf(after + 1, " %*c %d", &parent) != 1)
            continue;
        if (n == cap) {
            struct tree_process *more = realloc(list, (size_t)(cap * 2) * sizeof *list);
            if (!more)
                break;
            list = more;
            cap *= 2;
        }
        list[n++] = (struct tree_process){ .pid = pid, .parent = (pid_t)parent };
    }
    if (d)
        closedir(d);
    *out = list;
    return n;
}

static int by_pid(const void *a, const void *b)
{
    const struct tree_process *x = a, *y = b;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

/* Marks init and all below it. */
static void mark_ours(struct tree_process *list, int n, pid_t init)
{
    bool more = n > 0;

    if (n > 0)
        qsort(list, (size_t)n, sizeof *list, by_pid);
    for (int i = 0; i < n; i++)
        list[i].ours = list[i].pid == init;
    while (more) {
        more = false;
        for (int i = 0; i < n; i++) {
            const struct tree_process key = { .pid = list[i].parent };
            const struct tree_process *parent =
                list[i].ours ? NULL : bsearch(&key, list, (size_t)n, sizeof *list, by_pid);
            if (parent && parent->ours)
                list[i].ours = more = true;
        }
    }
}

struct nameless { dev_t dev; int64_t bytes; ino_t seen[OPEN_MAX]; int n; };

static void add_open(struct nameless *u, pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        int i = 0;
        if (fstatat(dirfd(d), e->d_name, &st, 0) < 0 || !S_ISREG(st.st_mode) || st.st_nlink ||
            st.st_dev != u->dev)
            continue;
        while (i < u->n && u->seen[i] != st.st_ino)
            i++;
        if (i < u->n || u->n == OPEN_MAX)
            continue;
        u->seen[u->n++] = st.st_ino;
        u->bytes += (int64_t)st.st_blocks * 512;
    }
    if (d)
        closedir(d);
}

static int64_t nameless_bytes(const struct guard *g, pid_t init)
{
    OWN_MEM struct nameless *u = calloc(1, sizeof *u);
    struct tree_process *raw = NULL;
    struct stat st;

    if (init <= 0 || !u || fstat(g->fd, &st) < 0)
        return 0;
    u->dev = st.st_dev;
    int n = list_processes(&raw);
    OWN_MEM struct tree_process *list = raw;
    mark_ours(list, n, init);
    for (int i = 0; i < n; i++)
        if (list[i].ours)
            add_open(u, list[i].pid);
    return u->bytes;
}

/* ------------------------------------------------------------------ looking */

/* Of the logs of all attempts, which have a limit of their own (drivers/journal.h). */
static int64_t log_bytes(const struct guard *g)
{
    int64_t all = 0;
    char path[PATH_MAX + 300];
    struct stat st;

    for (int attempt = 1;; attempt++) {
        snprintf(path, sizeof path, "%s/%d", g->dir, attempt);
        DIR *d = opendir(path);
        if (!d)
            return all;
        for (struct dirent *e; (e = readdir(d));)
            if (!strncmp(e->d_name, "log.", 4) &&
                fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                all += (int64_t)st.st_blocks * 512;
        closedir(d);
    }
}

static int64_t measure(struct guard *g, pid_t init, bool *out_whole)
{
    bool whole = true;
    int64_t all = tree_bytes(g->dir, &whole) - log_bytes(g) + nameless_bytes(g, init);

    *out_whole = whole;
    for (int i = 0; i < g->n_folders; i++) {
        int64_t now = tree_bytes(g->folders[i].path, &whole);
        all += now > g->folders[i].before ? now - g->folders[i].before : 0;
        *out_whole &= whole;
    }
    return all;
}

static bool used_of(const struct guard *g, int64_t *out_used, int64_t *out_little)
{
    struct statvfs fs;

    if (g->fd < 0 || fstatvfs(g->fd, &fs) < 0)
        return false;
    *out_used = (int64_t)(fs.f_blocks - fs.f_bfree) * (int64_t)fs.f_frsize;
    int64_t part = (int64_t)fs.f_blocks * (int64_t)fs.f_frsize / LITTLE_PART;
    *out_little = part < LITTLE_BYTES ? part : LITTLE_BYTES;
    return true;
}

/* A part of the tree that is closed to us holds what the disk has grown by, as far as we know. */
static void walk(struct guard *g, pid_t init, int64_t used, double now)
{
    const double began = clock_seconds();
    bool whole;
    int64_t taken = measure(g, init, &whole);

    if (!whole && used > g->used_then && taken < g->taken + used - g->used_then)
        taken = g->taken + used - g->used_then;
    g->taken = taken;
    g->used_then = used;
    const double took = clock_seconds() - began;
    g->walk_at = now + took * WALK_PART;
    g->idle_at = now + (took * IDLE_PART > IDLE_S ? took * IDLE_PART : IDLE_S);
}

struct guard *guard_new(const char *job_dir, long long limit)
{
    struct guard *g = calloc(1, sizeof *g);
    int64_t little;
    bool whole;

    if (!g)
        return NULL;
    snprintf(g->dir, sizeof g->dir, "%s", job_dir);
    g->limit = limit;
    g->short_used = -1;
    g->fd = open(job_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (used_of(g, &g->used_then, &little))
        g->taken = measure(g, 0, &whole);
    g->used_before = g->used_then;
    return g;
}

void guard_begin(struct guard *g, double now)
{
    for (int i = 0; i < g->n_folders; i++)
        g->folders[i].before = tree_bytes(g->folders[i].path, NULL);
    g->idle_at = now + IDLE_S;
    g->next = now + LOOK_MIN_S;
}

double guard_next(const struct guard *g)
{
    return g->next;
}

static bool read_full(char *reason, size_t size)
{
    OWN_FD int fd = open("full", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = fd < 0 ? -1 : read(fd, reason, size - 1);

    if (n > 0)
        reason[n] = '\0';
    return n > 0;
}

static bool over_limit(struct guard *g, char *reason, size_t size)
{
    char limit[32], taken[32];

    if (!g->limit || g->taken <= g->limit)
        return false;
    limits_print_bytes(g->limit, limit, sizeof limit);
    limits_print_bytes(g->taken, taken, sizeof taken);
    snprintf(reason, size, "killed: wrote more than its %s of disk (%s)", limit, taken);
    return true;
}

/* The disk is nearly full: is it this job that fills it? */
static bool fills_disk(struct guard *g, pid_t init, int64_t used, int64_t little, double now,
                       char *reason, size_t size)
{
    char wrote[32];
    int64_t mine;

    if (g->short_used < 0) {
        const int64_t taken = g->taken, all = used - g->used_then;
        walk(g, init, used, now);
        g->short_used = used;
        g->short_taken = g->taken;
        mine = g->taken - taken;
        /* Much was written just now, and most of what was written is this job's. */
        if (used - g->used_before < little || mine < little || mine < all / 2)
            return false;
    } else {
        if (used - g->used_then < little / 4 || now < g->walk_at)
            return false;
        walk(g, init, used, now);
        mine = g->taken - g->short_taken;
        if (mine < little || mine < (used - g->short_used) / 4)
            return false;
    }
    limits_print_bytes(mine, wrote, sizeof wrote);
    snprintf(reason, size, "killed: the disk is full but for what the server keeps, and the job wrote "
             "%s more (make room, then submit it again)", wrote);
    return true;
}

/* How long until it could matter, at the rate of a fast disk. While nothing is written the limit is
 * looked at less and less often; the end of the disk is not. */
static void plan_next(struct guard *g, int64_t used, int64_t room, double now)
{
    const bool quiet = used == g->used_before;
    double to_end = (double)room / RATE, to_limit = LOOK_MAX_S;

    if (g->limit)
        to_limit = (double)(g->limit - g->taken - (used - g->used_then)) / RATE;
    to_limit = to_limit < LOOK_MIN_S ? LOOK_MIN_S : to_limit > LOOK_MAX_S ? LOOK_MAX_S : to_limit;
    if (g->short_used >= 0)
        to_end = LOOK_MIN_S;
    to_end = to_end < LOOK_MIN_S ? LOOK_MIN_S : to_end > LOOK_MAX_S ? LOOK_MAX_S : to_end;
    double pause = to_limit < to_end ? to_limit : to_end;
    if (quiet && g->pause > 0) {
        double longer = g->pause * 2 < QUIET_MAX_S ? g->pause * 2 : QUIET_MAX_S;
        double most = g->short_used >= 0 || to_end > longer ? longer : to_end;
        pause = pause > most ? pause : most;
    }
    g->pause = pause;
    g->next = now + pause;
}

bool guard_look(struct guard *g, pid_t init, double now, char *reason, size_t size)
{
    int64_t used, little;

    if (read_full(reason, size))
        return true;
    if (!used_of(g, &used, &little)) {
        g->next = now + LOOK_MAX_S;
        return false;
    }
    int64_t room = room_left(g->fd, KEPT);
    /* Others may have removed as much as the job wrote: from time to time the sum is not believed. */
    bool near = g->limit && g->taken + used - g->used_then > g->limit && now >= g->walk_at;
    bool unsure = g->limit && used != g->used_then && now >= g->idle_at;
    if (near || unsure) {
        walk(g, init, used, now);
        if (over_limit(g, reason, size))
            return true;
    }
    if (room > 0)
        g->short_used = -1;
    else if (fills_disk(g, init, used, little, now, reason, size))
        return true;
    plan_next(g, used, room, now);
    g->used_before = used;
    return false;
}
