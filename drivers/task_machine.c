/* drivers/task_machine.c - what of this machine a job sees beside its system */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/task.h"

static bool is_within(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return !strncmp(path, dir, n) && (!path[n] || path[n] == '/');
}

/* Would showing it show some of what is hidden, or is it hidden itself? */
static bool is_hidden(const char *path, const char *const hide[2])
{
    for (int i = 0; i < 2; i++)
        if (hide[i] && (is_within(path, hide[i]) || is_within(hide[i], path)))
            return true;
    return false;
}

/* A server that is root must not open a door that is closed to others. */
static bool is_open_to_all(const char *path)
{
    char part[PATH_MAX];
    struct stat st;

    if (geteuid() != 0)
        return true;
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + strlen(part); slash > part; slash = strrchr(part, '/')) {
        *slash = '\0';
        if (stat(part, &st) < 0 || !(st.st_mode & S_IXOTH))
            return false;
    }
    return true;
}

static bool is_there(const struct task *t, const char *path)
{
    const json_t *item;
    size_t i;

    json_array_foreach(t->paths, i, item)
        if (!strcmp(json_string_value(json_object_get(item, "path")), path))
            return true;
    return false;
}

static void show(struct task *t, const char *path, const char *const hide[2])
{
    OWN_MEM char *real = path[0] == '/' ? realpath(path, NULL) : NULL;

    if (real && strcmp(real, "/") && !sandbox_shows(real) && !is_hidden(real, hide) &&
        !is_there(t, real) && is_open_to_all(real))
        task_expose(t, real, false);
}

/* The folder of an installation, whose libraries are beside its programs: /srv/conda of
 * /srv/conda/bin. A folder in the root itself is too much: of /tools/bin that alone. */
static void show_programs(struct task *t, const char *dir, const char *const hide[2])
{
    static const char *const usual[] = { "/usr/bin", "/usr/sbin", "/usr/local/bin",
                                         "/usr/local/sbin", "/bin", "/sbin" };
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (!strcmp(dir, usual[i]))
            return;
    OWN_MEM char *real = dir[0] == '/' ? realpath(dir, NULL) : NULL;
    char *slash = real ? strrchr(real, '/') : NULL;

    if (!real || sandbox_shows(real))
        return;
    if (slash > real && (!strcmp(slash, "/bin") || !strcmp(slash, "/sbin"))) {
        *slash = '\0';
        if (strrchr(real, '/') == real || is_hidden(real, hide))
            *slash = '/';
    }
    show(t, real, hide);
}

/* `list`: as PATH is. */
static void show_each(struct task *t, const char *list, const char *const hide[2],
                      void (*one)(struct task *t, const char *path, const char *const hide[2]))
{
    for (const char *p = list ? list : ""; *p;) {
        char path[PATH_MAX];
        size_t n = strcspn(p, ":");
        if (snprintf(path, sizeof path, "%.*s", (int)n, p) < PATH_MAX && n)
            one(t, path, hide);
        p += n + (p[n] == ':');
    }
}

void task_expose_machine(struct task *t, const struct task_order *o, const char *const hide[2])
{
    static const char *const certificates[] = { "SSL_CERT_FILE", "SSL_CERT_DIR",
                                                "REQUESTS_CA_BUNDLE" };
    const json_t *path;
    size_t i;

    json_array_foreach((json_t *)o->expose, i, path)
        show(t, json_string_value(path), hide);
    show_each(t, getenv("PATH"), hide, show_programs);
    if (o->gpus)
        show_each(t, getenv("LD_LIBRARY_PATH"), hide, show);
    for (i = 0; i < sizeof certificates / sizeof certificates[0]; i++)
        show_each(t, getenv(certificates[i]), hide, show);
}
