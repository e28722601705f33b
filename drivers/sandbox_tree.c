/* drivers/sandbox_tree.c - the descendants of a process, where no namespace holds them */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/sandbox_int.h"

enum { TREE_MAX = 32768 };

struct tree {
    pid_t pid[TREE_MAX], parent[TREE_MAX];
    int n;
};

static pid_t parent_of(const char *pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    OWN_FILE FILE *f = fopen(path, "re");
    if (!f || !fgets(line, sizeof line, f))
        return -1;
    const char *end = strrchr(line, ')');       /* the name before it may hold anything */
    char state;
    int parent;
    return end && sscanf(end + 1, " %c %d", &state, &parent) == 2 && state != 'Z' ? parent : -1;
}

static void read_all(struct tree *t)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;

    t->n = 0;
    while (proc && (e = readdir(proc)) && t->n < TREE_MAX) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        t->parent[t->n] = parent_of(e->d_name);
        t->pid[t->n++] = (pid_t)strtol(e->d_name, NULL, 10);
    }
    if (proc)
        closedir(proc);
}

static int index_of(const struct tree *t, pid_t pid)
{
    for (int i = 0; i < t->n; i++)
        if (t->pid[i] == pid)
            return i;
    return -1;
}

int tree_signal_below(pid_t root, int signal)
{
    struct tree *t = malloc(sizeof *t);
    int found = 0;

    if (!t)
        return 0;
    read_all(t);
    for (int i = 0; i < t->n; i++) {
        int at = i;
        for (int up = 0; at >= 0 && up < 10000 && t->parent[at] != root; up++)
            at = t->parent[at] > 0 ? index_of(t, t->parent[at]) : -1;
        if (at >= 0 && t->parent[at] == root) {
            kill(t->pid[i], signal);
            found++;
        }
    }
    free(t);
    return found;
}

void tree_kill_below(pid_t root)
{
    while (tree_signal_below(root, SIGKILL) > 0) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        usleep(1000);
    }
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}
