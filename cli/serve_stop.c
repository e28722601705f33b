/* cli/serve_stop.c - muster serve --stop: ends the server of a data directory, and waits for it
 *
 * Who runs there is said by server.json, which a server that was killed leaves behind: the number
 * in it may be another process by now. It is the server's if it has the directory's lock.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/files.h"
#include "base/sealed.h"
#include "base/json.h"
#include "base/own.h"
#include "cli/serve_data.h"

/* Requests have 10 s to end; then the store closes. */
enum { WAIT_MS = 60000, LOOK_MS = 50, PATH_SIZE = 4096 };

static bool has_open(long pid, const struct stat *lock)
{
    char path[64], fd[PATH_SIZE + 64];
    struct stat st;
    bool found = false;

    snprintf(path, sizeof path, "/proc/%ld/fd", pid);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        snprintf(fd, sizeof fd, "%s/%s", path, e->d_name);
        found = stat(fd, &st) == 0 && st.st_dev == lock->st_dev && st.st_ino == lock->st_ino;
    }
    if (d)
        closedir(d);
    return found;
}

/* Whether the kernel names process `pid` as who has locked this file. An ordinary user does not see
 * what the server has open: its process is closed to others, also to its own user's. */
static bool has_locked(long pid, const struct stat *lock)
{
    char line[256];
    bool found = false;
    FILE *f = fopen("/proc/locks", "re");

    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned long long inode = 0;
        long owner = 0;
        found = sscanf(line, "%*d: FLOCK %*s WRITE %ld %*x:%*x:%llu", &owner, &inode) == 2 &&
                owner == pid && inode == lock->st_ino;
    }
    if (f)
        fclose(f);
    return found;
}

static long pid_of(const char *dir)
{
    char path[PATH_SIZE];
    OWN_JSON json_t *doc = NULL;
    struct err none = { 0 };

    snprintf(path, sizeof path, "%s/server.json", dir);
    return sealed_load(path, &doc, &none) < 0 ? 0 : whole_of(doc, "pid");
}

static int stopped(const char *dir)
{
    printf("the server of %s has stopped; jobs that run go on, and the next start finds them\n",
           dir);
    return 0;
}

static int end_process(int pidfd, long pid, const char *dir, struct err *err)
{
    struct pollfd gone = { .fd = pidfd, .events = POLLIN };

    if (syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) < 0 && errno != ESRCH)
        return err_set(err, ERR_DENIED, "the server of %s (process %ld) is not yours to stop: %s",
                       dir, pid, strerror(errno));
    if (poll(&gone, 1, WAIT_MS) <= 0)
        return err_set(err, ERR_AGAIN, "the server of %s (process %ld) was told to stop and still "
                       "runs after %d s", dir, pid, WAIT_MS / 1000);
    return stopped(dir);
}

int serve_stop(const char *dir, struct err *err)
{
    char path[PATH_SIZE];
    struct stat st;

    snprintf(path, sizeof path, "%s/server.lock", dir);
    OWN_FD int lock = open(path, O_RDWR | O_CLOEXEC);
    if (lock < 0 && errno != ENOENT)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) == 0 || fstat(lock, &st) < 0)
        return err_set(err, ERR_MISSING, "no server runs on %s", dir);
    /* One that starts has not said who it is yet, one that ends no longer does. */
    for (int ms = 0; ms < WAIT_MS; ms += LOOK_MS) {
        const long pid = pid_of(dir);
        OWN_FD int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
        if (pidfd >= 0 && (has_open(pid, &st) || has_locked(pid, &st)))
            return end_process(pidfd, pid, dir, err);
        usleep(1000 * LOOK_MS);
        if (flock(lock, LOCK_EX | LOCK_NB) == 0)
            return stopped(dir);
    }
    return err_set(err, ERR_AGAIN, "a server runs on %s, but as a process that is not seen from "
                   "here: stop it where it was started", dir);
}
