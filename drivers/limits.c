/* drivers/limits.c - memory, processors and processes that a job may use */
#include "drivers/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum controller { MEMORY, CPU, PIDS, N_CONTROLLERS };
static const char *const controllers[] = { "memory", "cpu", "pids" };

enum { PERIOD_US = 100000 };    /* of processor shares: the kernel's own default */

static const char *root = "/sys/fs/cgroup", *self = "/proc/self/cgroup";

void limits_set_tree(const char *groups, const char *own)
{
    root = groups;
    self = own;
}

struct limits_group {
    struct limits limits;
    int version;                /* 0: rlimits */
    char path[N_CONTROLLERS][512];      /* "": not limited by a group; version 2: [0] alone */
    int join[N_CONTROLLERS];    /* open `tasks`, -1: none */
    int cgroup;                 /* version 2: the group's directory; -1: none */
    const char *below;          /* limits_parent: in `path`; NULL: nobody asked */
};

/* ------------------------------------------------------------------ small files */

static int put(const char *dir, const char *name, const char *text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    OWN_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    size_t n = strlen(text);
    return fd >= 0 && write(fd, text, n) == (ssize_t)n ? 0 : -1;
}

static int put_number(const char *dir, const char *name, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    return put(dir, name, text);
}

static int get(const char *dir, const char *name, char *out, size_t size)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    return n > 0 ? 0 : -1;
}

/* The number after `key` in lines of "key number"; -1: none. */
static long long number_of(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (!strncmp(line, key, n) && line[n] == ' ')
            return strtoll(line + n, NULL, 10);
    return -1;
}

/* ------------------------------------------------------------------ where groups are made */

/* The path of this process in a hierarchy: "name" of version 1, or "" of version 2. */
static int own_path(const char *name, char *out, size_t size)
{
    OWN_FILE FILE *f = fopen(self, "re");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool found = !*name && !list[1];
        char *save = NULL;
        for (char *c = strtok_r(list + 1, ",", &save); c && !found; c = strtok_r(NULL, ",", &save))
            found = !strcmp(c, name);
        if (found)
            return snprintf(out, size, "%s", path) < (int)size ? 0 : -1;
    }
    return -1;
}

/* Empty or left over: whatever is in it belongs to nobody. */
static void remove_group(const char *path, const char *list)
{
    char pids[4096];
    for (int tries = 0; rmdir(path) < 0 && errno == EBUSY && tries < 100; tries++) {
        if (get(path, list, pids, sizeof pids) == 0)
            for (char *p = pids, *next; *p; p = next) {
                long pid = strtol(p, &next, 10);
                if (next == p)
                    break;
                kill((pid_t)pid, SIGKILL);
                next += strspn(next, "\n");
            }
        usleep(1000);
    }
}

/* A group and those in it, which are empty: what made them is dead. */
static void remove_nested(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char inner[800];
        snprintf(inner, sizeof inner, "%.500s/%.255s", path, e->d_name);
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            remove_nested(inner);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

/* Of version 1 in every hierarchy: who was told of a parent makes it in all of them. */
static void remove_everywhere(const char *below)
{
    DIR *d = opendir(root);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char path[800];
        snprintf(path, sizeof path, "%.100s/%.255s%.400s", root, e->d_name, below);
        if (e->d_name[0] != '.')
            remove_nested(path);
    }
    if (d)
        closedir(d);
}

static bool make_v1(struct limits_group *g, enum controller c, const char *name)
{
    char own[300];
    const char *const roots[] = { own, "" };
    if (own_path(controllers[c], own, sizeof own) < 0)
        return false;
    /* A parent of groups has the same path in every hierarchy; our own may differ. */
    for (int i = g->limits.nested || !strcmp(own, "/"); i < 2; i++) {
        char *path = g->path[c];
        snprintf(path, sizeof g->path[c], "%s/%s%s/%s", root, controllers[c], roots[i], name);
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            continue;
        char tasks[600];
        snprintf(tasks, sizeof tasks, "%s/tasks", path);
        g->join[c] = open(tasks, O_WRONLY | O_CLOEXEC);
        if (g->join[c] >= 0)
            return true;
        rmdir(path);
    }
    g->path[c][0] = '\0';
    return false;
}

static void enable(const char *base)
{
    for (int c = 0; c < N_CONTROLLERS; c++) {
        char word[16];
        snprintf(word, sizeof word, "+%s", controllers[c]);
        put(base, "cgroup.subtree_control", word);
    }
}

/* Groups with limits can be made in it, and processes put there. Whoever moves a process must be
 * able to write to the group that both its old and its new one are in. */
static bool is_parent(const char *base)
{
    char have[256], procs[700];

    snprintf(procs, sizeof procs, "%s/cgroup.procs", base);
    return get(base, "cgroup.subtree_control", have, sizeof have) == 0 && strstr(have, "memory") &&
           strstr(have, "pids") && access(procs, W_OK) == 0;
}

/* Our own group of version 2; false: there is no such hierarchy here. */
static bool own_v2(char *base, size_t size)
{
    char own[300], path[400];

    snprintf(path, sizeof path, "%s/cgroup.controllers", root);
    if (own_path("", own, sizeof own) < 0 || access(path, F_OK) < 0)
        return false;
    snprintf(base, size, "%s%s", root, strcmp(own, "/") ? own : "");
    return true;
}

/* In our own group, or beside it: one that holds processes may not hand controllers down. */
static bool make_v2(struct limits_group *g, const char *name)
{
    char base[400], path[600];
    if (!own_v2(base, sizeof base))
        return false;
    for (int up = 0; up < 2; up++) {
        enable(base);
        snprintf(path, sizeof path, "%s/%s", base, name);
        if (is_parent(base) && (mkdir(path, 0755) == 0 || errno == EEXIST)) {
            g->cgroup = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
            if (g->cgroup >= 0) {
                snprintf(g->path[0], sizeof g->path[0], "%.*s", (int)sizeof g->path[0] - 1, path);
                return true;
            }
            rmdir(path);
        }
        char *slash = strrchr(base, '/');
        if (!strcmp(base, root) || !slash)
            break;
        *slash = '\0';
    }
    return false;
}

/* Are we alone in it? */
static bool holds_us_alone(const char *base)
{
    char text[256], *end;

    return get(base, "cgroup.procs", text, sizeof text) == 0 &&
           strtol(text, &end, 10) == (long)getpid() && (!*end || !strcmp(end, "\n"));
}

void limits_delegate(void)
{
    char base[400], parent[400], leaf[500];

    if (!own_v2(base, sizeof base))
        return;
    snprintf(parent, sizeof parent, "%s", base);
    if (strrchr(parent, '/') && strcmp(base, root))
        *strrchr(parent, '/') = '\0';
    enable(base);
    if (is_parent(base) || is_parent(parent) || !holds_us_alone(base))
        return;
    snprintf(leaf, sizeof leaf, "%s/server", base);
    if ((mkdir(leaf, 0755) < 0 && errno != EEXIST) || put(leaf, "cgroup.procs", "0") < 0)
        return;
    enable(base);
    if (!is_parent(base)) {     /* it has no controllers to hand down */
        put(base, "cgroup.procs", "0");
        rmdir(leaf);
    }
}

/* ------------------------------------------------------------------ life cycle */

static void set_memory(struct limits_group *g)
{
    const char *dir = g->version == 2 ? g->path[0] : g->path[MEMORY];
    if (!*dir || !g->limits.memory)
        return;
    if (g->version == 1) {
        put_number(dir, "memory.limit_in_bytes", g->limits.memory);
        if (!g->limits.unasked)         /* absent without swap */
            put_number(dir, "memory.memsw.limit_in_bytes", g->limits.memory);
    } else {
        put_number(dir, "memory.max", g->limits.memory);
        if (!g->limits.unasked)
            put_number(dir, "memory.swap.max", 0);
        put_number(dir, "memory.oom.group", 1);
    }
}

int limits_set_cpu(struct limits_group *g, double cpu)
{
    const char *dir = g->version == 2 ? g->path[0] : g->path[CPU];
    if (!*dir || cpu <= 0)
        return -1;
    long long quota = (long long)(cpu * PERIOD_US);
    if (quota < 1000)
        quota = 1000;           /* the least that the kernel takes */
    g->limits.cpu = cpu;
    if (g->version == 1)
        return put_number(dir, "cpu.cfs_quota_us", quota);
    char text[64];
    snprintf(text, sizeof text, "%lld %d", quota, PERIOD_US);
    return put(dir, "cpu.max", text);
}

int limits_open(const char *name, const struct limits *l, struct limits_group **out,
                struct err *err)
{
    OWN(limits_group) g = calloc(1, sizeof *g);
    const bool wanted[] = { l->memory > 0, l->cpu > 0, l->pids > 0 };
    if (!g)
        return err_set(err, ERR_NOMEM, "no memory for the limits of a job");
    g->limits = *l;
    g->cgroup = -1;
    for (int c = 0; c < N_CONTROLLERS; c++)
        g->join[c] = -1;
    if (make_v2(g, name)) {
        g->version = 2;
    } else {
        for (int c = 0; c < N_CONTROLLERS; c++)
            if (wanted[c] && make_v1(g, c, name))
                g->version = 1;
    }
    set_memory(g);
    limits_set_cpu(g, l->cpu);
    const char *pids = g->version == 2 ? g->path[0] : g->path[PIDS];
    if (*pids && l->pids)
        put_number(pids, "pids.max", l->pids);
    *out = TAKE(g);
    return 0;
}

void limits_free(struct limits_group *g)
{
    if (!g)
        return;
    if (g->cgroup >= 0)
        close(g->cgroup);
    if (g->below && g->version == 1)
        remove_everywhere(g->below);
    for (int c = 0; c < N_CONTROLLERS; c++) {
        if (g->join[c] >= 0)
            close(g->join[c]);
        if (g->path[c][0] && g->below && g->version == 2)
            remove_nested(g->path[c]);
        if (g->path[c][0])
            remove_group(g->path[c], g->version == 2 ? "cgroup.procs" : "tasks");
    }
    free(g);
}

/* ------------------------------------------------------------------ what was left */

static void sweep_folder(const char *base)
{
    DIR *d = opendir(base);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        const char *number = strrchr(e->d_name, '-');
        char path[700];
        if (strncmp(e->d_name, "muster-", 7) || !number)
            continue;
        long pid = strtol(number + 1, NULL, 10);
        snprintf(path, sizeof path, "%.400s/%.255s", base, e->d_name);
        if (pid > 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH)
            remove_nested(path);        /* refused while anything is in it */
    }
    if (d)
        closedir(d);
}

void limits_sweep(void)
{
    char own[300], base[800];

    DIR *d = opendir(root);
    for (struct dirent *e; d && (e = readdir(d));) {    /* containers have them everywhere */
        snprintf(base, sizeof base, "%s/%.255s", root, e->d_name);
        if (e->d_name[0] != '.')
            sweep_folder(base);
    }
    if (d)
        closedir(d);
    for (int c = 0; c < N_CONTROLLERS; c++) {
        if (own_path(controllers[c], own, sizeof own) == 0 && strcmp(own, "/")) {
            snprintf(base, sizeof base, "%s/%s%s", root, controllers[c], own);
            sweep_folder(base);
        }
    }
    if (own_path("", own, sizeof own) == 0) {
        snprintf(base, sizeof base, "%s%s", root, strcmp(own, "/") ? own : "");
        sweep_folder(base);
        char *slash = strrchr(base, '/');
        if (slash && strlen(base) > strlen(root)) {
            *slash = '\0';
            sweep_folder(base);
        }
    }
}

/* ------------------------------------------------------------------ verbs */

static void lower(int what, rlim_t to)
{
    struct rlimit r;
    if (getrlimit(what, &r) == 0 && (r.rlim_max == RLIM_INFINITY || r.rlim_max > to)) {
        r.rlim_cur = r.rlim_max = to;
        setrlimit(what, &r);
    }
}

int limits_cgroup(const struct limits_group *g)
{
    return g->cgroup;
}

int limits_join(const struct limits_group *g)
{
    bool grouped[N_CONTROLLERS];
    for (int c = 0; c < N_CONTROLLERS; c++) {
        grouped[c] = g->version == 2 || g->join[c] >= 0;
        if (g->join[c] >= 0 && write(g->join[c], "0", 1) != 1)
            return -1;
    }
    /* Data, not address space: programs map far more than they touch. */
    if (g->limits.memory && !g->limits.unasked && !grouped[MEMORY])
        lower(RLIMIT_DATA, (rlim_t)g->limits.memory);
    if (g->limits.pids && !grouped[PIDS] && geteuid() != 0)
        lower(RLIMIT_NPROC, (rlim_t)g->limits.pids);
    return 0;
}

/* ------------------------------------------------------------------ is it kept? */

/* In the group a process ends at once; out of it nothing is known. */
static bool can_join(const struct limits_group *g)
{
    struct clone_args args = { .exit_signal = SIGCHLD };

    if (g->cgroup >= 0) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)g->cgroup;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        _exit(limits_join(g) < 0);
    int status = 1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && status == 0;
}

void limits_try(struct limits_kept *out)
{
    static const char *const files[2][N_CONTROLLERS] = {
        { "memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max" },
        { "memory.max", "cpu.max", "pids.max" } };
    const struct limits some = { .memory = 1 << 30, .cpu = 1, .pids = 100 };
    OWN(limits_group) g = NULL;
    struct err none;
    char name[64];
    bool kept[N_CONTROLLERS] = { false };

    *out = (struct limits_kept){ 0 };
    snprintf(name, sizeof name, "muster-try-%d", (int)getpid());
    if (limits_open(name, &some, &g, &none) < 0 || !g->version || !can_join(g))
        return;
    for (int c = 0; c < N_CONTROLLERS; c++) {
        const char *dir = g->version == 2 ? g->path[0] : g->path[c];
        char path[700];
        snprintf(path, sizeof path, "%s/%s", dir, files[g->version - 1][c]);
        kept[c] = *dir && access(path, F_OK) == 0;
    }
    *out = (struct limits_kept){ kept[MEMORY], kept[CPU], kept[PIDS] };
}

const char *limits_parent(struct limits_group *g)
{
    if (g->version == 2)
        return g->below = g->path[0] + strlen(root);
    for (int c = 0; c < N_CONTROLLERS; c++) {
        const char *below = g->path[c] + strlen(root) + 1 + strlen(controllers[c]);
        if (!g->path[c][0])
            continue;
        if (g->below && strcmp(g->below, below))
            return g->below = NULL;
        g->below = below;
    }
    return g->below;
}

/* Version 1 counts what it kills in the group that it lived in, and that is gone. What is left to
 * see is that there was no room; whether anything was killed the caller knows. */
static bool was_full(const struct limits_group *g)
{
    return g->limits.memory && limits_memory_peak(g) > g->limits.memory - (1 << 20);
}

bool limits_out_of_memory(const struct limits_group *g)
{
    char text[1024];
    if (g->version == 1 && g->below)
        return was_full(g);
    if (g->version == 2)
        return get(g->path[0], "memory.events", text, sizeof text) == 0 &&
               number_of(text, "oom_kill") > 0;
    return g->path[MEMORY][0] &&
           get(g->path[MEMORY], "memory.oom_control", text, sizeof text) == 0 &&
           number_of(text, "oom_kill") > 0;
}

long long limits_memory_peak(const struct limits_group *g)
{
    char text[64];
    const char *dir = g->version == 2 ? g->path[0] : g->path[MEMORY];
    const char *file = g->version == 2 ? "memory.peak" : "memory.max_usage_in_bytes";
    if (!*dir || get(dir, file, text, sizeof text) < 0)
        return -1;
    return strtoll(text, NULL, 10);
}

long long limits_machine_memory(void)
{
    static const char *const files[][2] = { { "/sys/fs/cgroup", "memory.max" },
                                            { "/sys/fs/cgroup/memory", "memory.limit_in_bytes" } };
    long long least = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    char text[64];

    for (int i = 0; i < 2; i++) {
        long long n = get(files[i][0], files[i][1], text, sizeof text) == 0
            ? strtoll(text, NULL, 10) : 0;      /* "max" is none */
        if (n > 0 && n < least)
            least = n;
    }
    return least;
}

void limits_print_bytes(long long bytes, char *out, size_t size)
{
    static const struct { long long one; const char *name; } units[] = {
        { 1LL << 30, "GB" }, { 1LL << 20, "MB" }, { 1LL << 10, "kB" }, { 1, "bytes" } };
    int i = 0;
    while (i < 3 && bytes < units[i].one)
        i++;
    double value = (double)bytes / (double)units[i].one;
    snprintf(out, size, value < 10 && value != (double)(long long)value ? "%.1f %s" : "%.0f %s",
             value, units[i].name);
}
