/* runtime/group_orphans.c - what a worker started and left its process group (setsid, daemons)
 *
 * DESIGN. The group's process is a subreaper: whatever loses its parent below it becomes its child,
 * wherever it went, and is found by that. Killed ones hand on their own children, so one looks
 * until there is none. When the group's process is itself killed its orphans are init's; the keeper
 * finds them by the run in their environment.
 */
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/own.h"
#include "runtime/group_int.h"

/* One that the kernel does not let go of (a disk that hangs) is left to it. */
static const double KILL_SECONDS = 2;
enum { ENVIRONMENT_MAX = 1 << 22, ROUNDS = 8 };

static void close_dir(DIR **d)
{
    if (*d)
        closedir(*d);
}

/* Calls `is_one` with each process and kills those that are; how many. */
static int kill_those(bool (*is_one)(pid_t pid, const void *arg), const void *arg)
{
    __attribute__((cleanup(close_dir))) DIR *all = opendir("/proc");
    int n = 0;

    for (struct dirent *e; all && (e = readdir(all));) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid != getpid() && is_one(pid, arg))
            n += kill(pid, SIGKILL) == 0;
    }
    return n;
}

static bool is_orphan(pid_t pid, const void *arg)
{
    const pid_t *keeper = arg;
    char path[64];
    OWN_MEM char *text = NULL;
    struct err ignored;
    int parent;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (pid == *keeper || files_read(path, 4096, &text, NULL, &ignored) < 0)
        return false;
    const char *rest = strrchr(text, ')');      /* a name may have brackets in it */
    return rest && sscanf(rest, ") %*c %d", &parent) == 1 && parent == (int)getpid();
}

void orphans_reap(const struct member *member, int n)
{
    for (;;) {
        siginfo_t info = { 0 };
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || !info.si_pid)
            return;
        for (int i = 0; i < n; i++)
            if (member[i].alive && member[i].pid == info.si_pid)
                return;         /* its end is looked at first; what is behind it waits */
        waitpid(info.si_pid, NULL, 0);
    }
}

void orphans_end(pid_t keeper)
{
    double until = clock_seconds() + KILL_SECONDS;

    while (kill_those(is_orphan, &keeper) > 0 && clock_seconds() < until) {
        orphans_reap(NULL, 0);
        usleep(1000);
    }
    orphans_reap(NULL, 0);
}

static bool is_of_run(pid_t pid, const void *arg)
{
    char path[64];
    OWN_MEM char *text = NULL;
    struct err ignored;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    if (files_read(path, ENVIRONMENT_MAX, &text, &n, &ignored) < 0)
        return false;
    for (const char *at = text; at < text + n; at += strlen(at) + 1)
        if (strncmp(at, "MUSTER_RUN=", 11) == 0 && strcmp(at + 11, arg) == 0)
            return true;
    return false;
}

void orphans_find(const char *run)
{
    for (int i = 0; i < ROUNDS && kill_those(is_of_run, run) > 0; i++)
        usleep(1000);           /* one may have been about to start another */
}
