/* drivers/gpus.c - which graphics processors a job has */
#include "drivers/gpus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"

const char *gpus_root(void)
{
    const char *root = getenv("MUSTER_GPU_ROOT");
    return root ? root : "";
}

static bool has_node(const char *root, int minor)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/dev/nvidia%d", root, minor);
    return access(path, F_OK) == 0;
}

/* "GPU UUID:  \t GPU-1b2c...": the words behind the colon. */
static bool value_of(const char *line, const char *key, char *out, size_t size)
{
    size_t n = strlen(key);

    if (strncmp(line, key, n) || line[n] != ':')
        return false;
    line += n + 1;
    line += strspn(line, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(line, "\r\n"), line);
    return true;
}

/* False: the driver does not say which node it has. */
static bool read_gpu(const char *root, const char *bus, struct gpu *out)
{
    char path[PATH_MAX], line[256], minor[16] = "", *end = minor;
    struct gpu g = { .minor = -1 };

    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, bus);
    OWN_FILE FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        value_of(line, "GPU UUID", g.uuid, sizeof g.uuid);
        value_of(line, "Device Minor", minor, sizeof minor);
    }
    g.minor = (int)strtol(minor, &end, 10);
    snprintf(g.bus, sizeof g.bus, "%.23s", bus);
    *out = g;
    return end != minor;
}

static int by_place(const void *a, const void *b)
{
    const struct gpu *x = a, *y = b;
    int bus = strcmp(x->bus, y->bus);
    return bus ? bus : x->minor - y->minor;
}

void gpus_list(const char *root, struct gpus *out)
{
    char path[PATH_MAX];
    struct gpu g;

    *out = (struct gpus){ 0 };
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && out->n < GPUS_MAX && (e = readdir(d));)
        if (e->d_name[0] != '.' && read_gpu(root, e->d_name, &g) && has_node(root, g.minor))
            out->at[out->n++] = g;
    if (d)
        closedir(d);
    for (int i = 0; !d && i < GPUS_MAX; i++)
        if (has_node(root, i))
            out->at[out->n++] = (struct gpu){ .minor = i };
    qsort(out->at, (size_t)out->n, sizeof out->at[0], by_place);
}

const char *gpus_node(const struct gpus *g, int i)
{
    static const char *const shared[] = { "/dev/nvidiactl", "/dev/nvidia-uvm",
                                          "/dev/nvidia-uvm-tools" };
    static char path[32];

    if (!g || !g->n || i >= g->n + (int)(sizeof shared / sizeof shared[0]))
        return NULL;
    if (i >= g->n)
        return shared[i - g->n];
    snprintf(path, sizeof path, "/dev/nvidia%d", g->at[i].minor);
    return path;
}

int gpus_take(const char *root, const char *data_dir, int n, struct gpus *out, struct err *err)
{
    struct gpus all, mine = { 0 };
    char path[PATH_MAX];

    gpus_list(root, &all);
    if (snprintf(path, sizeof path, "%s/gpus", data_dir) >= (int)sizeof path)
        return err_set(err, ERR_INVALID, "%s: the path is too long", data_dir);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < all.n && mine.n < n; i++) {
        if (snprintf(path, sizeof path, "%s/gpus/%d", data_dir, all.at[i].minor) >=
            (int)sizeof path)
            break;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            mine.at[mine.n] = all.at[i];
            mine.index[mine.n] = i;
            mine.lock[mine.n++] = fd;
        } else if (fd >= 0) {
            close(fd);
        }
    }
    if (mine.n < n) {
        int found = mine.n;
        gpus_release(&mine);
        return err_set(err, ERR_AGAIN, "it asks for %d GPU%s, and %d of %d %s free now", n,
                       n == 1 ? "" : "s", found, all.n, found == 1 ? "is" : "are");
    }
    *out = mine;
    return 0;
}

void gpus_release(struct gpus *g)
{
    for (int i = 0; i < g->n; i++)
        close(g->lock[i]);
    g->n = 0;
}
