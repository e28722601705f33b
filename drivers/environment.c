/* drivers/environment.c - Python environments, found by what is in them */
#include "drivers/environment.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/own.h"
#include "base/sha256.h"
#include "base/tree.h"
#include "drivers/index.h"
#include "drivers/journal.h"

enum {
    BUILD_SECONDS = 3600,       /* of one step: a large wheel over a slow line */
    LOCK_WAIT_US = 50000,
    REQUIREMENT_MAX = 300,
};

/* ------------------------------------------------------------------ keys */

static int digest_file(struct sha256 *sum, const char *path, struct err *err)
{
    char block[64 << 10];
    ssize_t n;
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_set(err, ERR_MISSING, "package %s: %s", path, strerror(errno));
    while ((n = read(fd, block, sizeof block)) > 0)
        sha256_add(sum, block, (size_t)n);
    return n < 0 ? err_set(err, ERR_IO, "package %s: %s", path, strerror(errno)) : 0;
}

static int base_key(const struct environment_request *r, char out[SHA256_HEX], struct err *err)
{
    struct stat st = { 0 };
    stat(r->runtime->python, &st);      /* another interpreter under the same name is another one */
    OWN_JSON json_t *all = json_pack("{s:i, s:s, s:I, s:I, s:b, s:O}", "layout", 1, "python",
                                     r->runtime->python, "size", (json_int_t)st.st_size, "time",
                                     (json_int_t)st.st_mtime, "system", r->runtime->system,
                                     "requirements", r->requirements);
    OWN_MEM char *text = all ? json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for an environment");
    sha256_hex_of(text, strlen(text), out);
    return 0;
}

static int top_key(const struct environment_request *r, const char *base, char out[SHA256_HEX],
                   struct err *err)
{
    struct sha256 sum;
    size_t i;
    json_t *path;

    sha256_start(&sum);
    sha256_add(&sum, base, strlen(base));
    json_array_foreach((json_t *)r->packages, i, path)
        if (digest_file(&sum, json_string_value(path), err) < 0)
            return -(int)err->code;
    sha256_finish_hex(&sum, out);
    return 0;
}

int environment_check_requirement(const char *text, struct err *err)
{
    if (!isalnum((unsigned char)text[0]))
        return err_set(err, ERR_INVALID, "requirement \"%.80s\": is not the name of a package",
                       text);
    if (strchr(text, '@') || strstr(text, "://") || strlen(text) > REQUIREMENT_MAX)
        return err_set(err, ERR_INVALID,
                       "requirement \"%.80s\": names an address; only names of the package "
                       "index are taken",
                       text);
    return 0;
}

/* ------------------------------------------------------------------ steps */

struct layer {
    const struct environment_request *r;
    const struct index *index;  /* while it is built */
    const char *base;           /* of a top layer; NULL: this is the base */
    char path[PATH_MAX];        /* where it will be, and is for the builder */
    char tmp[PATH_MAX];         /* where it is until it is whole */
    char uv[PATH_MAX];          /* "": none */
};

void environment_expose_python(struct task *t, const struct runtime *r)
{
    char prefix[PATH_MAX];
    snprintf(prefix, sizeof prefix, "%s", r->python);
    for (int i = 0; i < 2; i++)
        if (strrchr(prefix, '/'))
            *strrchr(prefix, '/') = '\0';
    if (*prefix && strcmp(prefix, "/usr") && strcmp(prefix, "/usr/local"))
        task_expose(t, prefix, false);
}

/* A variable of pip's or uv's, and the files that it names. */
static void set_index(void *arg, const char *name, const char *value)
{
    struct task *t = arg;

    task_set(t, name, value);
    for (const char *p = value; *p; p += strcspn(p, " ,"), p += strspn(p, " ,")) {
        OWN_MEM char *path = *p == '/' ? strndup(p, strcspn(p, " ,")) : NULL;
        if (path)
            task_expose(t, path, false);
    }
}

static int begin_step(const struct layer *l, struct task *t, struct err *err)
{
    char place[PATH_MAX + 16];
    size_t i;
    json_t *path;

    if (task_init_step(t, l->r->order, err) < 0)
        return -(int)err->code;
    snprintf(place, sizeof place, "%s/.tmp", l->path);
    task_set(t, "HOME", place);
    task_set(t, "TMPDIR", place);
    task_set(t, "UV_CACHE_DIR", place);
    index_settings(l->index, set_index, t);
    snprintf(t->cwd, sizeof t->cwd, "%s", l->path);
    t->time_limit_s = BUILD_SECONDS;
    /* The index; the job's own wish is for the job's own program. */
    t->network = l->r->order->net ? NETWORK_OUTSIDE : NETWORK_HOST;
    task_expose_at(t, l->tmp, l->path, true);
    if (l->base)
        task_expose(t, l->base, false);
    environment_expose_python(t, l->r->runtime);
    json_array_foreach((json_t *)l->r->packages, i, path)
        task_expose(t, json_string_value(path), false);
    if (l->uv[0])
        task_expose(t, l->uv, false);
    return 0;
}

/* Runs it and takes it away. */
static int run_step(const struct layer *l, struct task *t, const char *what, struct err *err)
{
    int code = 0, rc = l->r->step(l->r->step_arg, t, &code, err);
    task_done(t);
    if (rc < 0)
        return rc;
    return code == 0 ? 0
                     : err_set(err, ERR_INVALID,
                               "its environment could not be built: %s ended with exit "
                               "code %d (its last lines in the log say why)",
                               what, code);
}

static int make_venv(const struct layer *l, struct err *err)
{
    struct task t;
    if (begin_step(l, &t, err) < 0)
        return -(int)err->code;
    if (l->uv[0]) {
        task_arg(&t, "%s", l->uv);
        task_arg(&t, "venv");
        task_arg(&t, "--allow-existing");
        task_arg(&t, "--python");
        task_arg(&t, "%s", l->r->runtime->python);
    } else {
        task_arg(&t, "%s", l->r->runtime->python);
        task_arg(&t, "-m");
        task_arg(&t, "venv");
    }
    if (l->r->runtime->system)
        task_arg(&t, "--system-site-packages");
    task_arg(&t, "%s", l->path);
    return run_step(l, &t, "making a virtual environment", err);
}

static void add_pip(const struct layer *l, struct task *t, const char *base)
{
    if (l->uv[0]) {
        task_arg(t, "%s", l->uv);
        task_arg(t, "pip");
        task_arg(t, "install");
        task_arg(t, "--python");
        task_arg(t, "%s/bin/python", base);
        return;
    }
    static const char *const words[] = { "-m", "pip", "install", "--no-input", "--no-cache-dir",
                                         "--disable-pip-version-check", "--progress-bar", "off",
                                         "--no-warn-script-location" };
    task_arg(t, "%s/bin/python", base);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        task_arg(t, "%s", words[i]);
}

/* Those that end in ENVIRONMENT_ALONE, or those that do not. */
static int install_some(const struct layer *l, bool alone, struct err *err)
{
    struct task t;
    OWN_BUF names = BUF_INIT;
    size_t i, n = strlen(ENVIRONMENT_ALONE);
    json_t *name;

    json_array_foreach(l->r->requirements, i, name) {
        size_t m = json_string_length(name);
        if ((m > n && !strcmp(json_string_value(name) + m - n, ENVIRONMENT_ALONE)) != alone)
            continue;
        if (!names.n) {
            if (begin_step(l, &t, err) < 0)
                return -(int)err->code;
            add_pip(l, &t, l->path);
            if (alone)
                task_arg(&t, "--no-deps");
        }
        task_arg(&t, "%.*s", (int)(alone ? m - n : m), json_string_value(name));
        buf_printf(&names, "%s%s", names.n ? ", " : "", json_string_value(name));
    }
    if (!names.n)
        return 0;
    journal_say(l->r->order->journal, "installing %.900s", names.data ? names.data : "");
    return run_step(l, &t, "installing what it requires", err);
}

static int install_requirements(const struct layer *l, struct err *err)
{
    return install_some(l, true, err) < 0 ? -(int)err->code : install_some(l, false, err);
}

static int fill_base(const struct layer *l, struct err *err)
{
    return make_venv(l, err) < 0 ? -(int)err->code : install_requirements(l, err);
}

static int fill_top(const struct layer *l, struct err *err)
{
    struct task t;
    size_t i;
    json_t *path;

    if (begin_step(l, &t, err) < 0)
        return -(int)err->code;
    add_pip(l, &t, l->base);
    if (l->r->layered)
        task_arg(&t, "--no-deps");
    if (!l->r->isolated)        /* setuptools of the base will do: nothing to fetch */
        task_arg(&t, "--no-build-isolation");
    task_arg(&t, "--target");
    task_arg(&t, "%s/site", l->path);
    json_array_foreach((json_t *)l->r->packages, i, path) {
        const char *text = json_string_value(path), *name = strrchr(text, '/');
        journal_say(l->r->order->journal, "installing %s", name ? name + 1 : text);
        task_arg(&t, "%s", text);
    }
    return run_step(l, &t, "installing its packages", err);
}

/* ------------------------------------------------------------------ one layer, once */

/* Another job may be building the same; waiting ends when this one is stopped. */
static int lock_layer(const struct layer *l, const char *key, int *out, struct err *err)
{
    char path[PATH_MAX + 16], stop[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s.lock", l->path);
    snprintf(stop, sizeof stop, "%s/stop", l->r->order->dir);
    OWN_FD int fd = -1;
    bool told = false;

    while ((fd = environment_lock(path, LOCK_EX | LOCK_NB)) < 0) {
        if (errno != EWOULDBLOCK)
            return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
        if (!told)
            journal_say(l->r->order->journal,
                        "another job is building the environment %.12s; waiting", key);
        journal_flush(l->r->order->journal);
        told = true;
        if (access(stop, F_OK) == 0)
            return err_set(err, ERR_CONFLICT, "stopped while its environment was being made");
        usleep(LOCK_WAIT_US);
    }
    *out = fd;
    fd = -1;
    return 0;
}

/* Where the builder finds packages: what the server's settings say, or the relay in front of them. */
static int open_index(const struct network *net, struct index **out, struct err *err)
{
    OWN(index) x = NULL;
    int port;

    if (index_new(environ, &x, err) < 0)
        return -(int)err->code;
    if (index_wants_relay(x)) {
        OWN_FD int listener = network_listen(net, &port);
        if (listener < 0)
            return err_set(err, ERR_AGAIN, "no socket for the package index: %s",
                           strerror(errno));
        if (index_serve(x, listener, port, err) < 0)
            return -(int)err->code;
    }
    *out = TAKE(x);
    return 0;
}

static bool has_built;          /* a keeper has one thread, and one job */

static int build(struct layer *l, int (*fill)(const struct layer *l, struct err *err),
                 struct err *err)
{
    char inside[PATH_MAX + 16];
    double t = clock_seconds();
    struct err none = { 0 };    /* a tree that stays fails at what is next */
    OWN(index) index = NULL;

    if (open_index(l->r->order->net, &index, err) < 0)
        return -(int)err->code;
    l->index = index;

    tree_remove(l->tmp, &none);         /* of a builder that was killed */
    snprintf(inside, sizeof inside, "%s/.tmp", l->tmp);
    if (mkdir(l->tmp, 0755) < 0 || mkdir(inside, 0755) < 0)
        return err_set(err, ERR_IO, "%s: %s", l->tmp, strerror(errno));
    if (geteuid() == 0 && l->r->order->confined &&
        (lchown(l->tmp, SANDBOX_USER, SANDBOX_USER) < 0 ||
         lchown(inside, SANDBOX_USER, SANDBOX_USER) < 0))
        return err_set(err, ERR_IO, "%s: %s", l->tmp, strerror(errno));
    chmod(l->tmp, 0755);
    chmod(inside, 0755);
    has_built = true;
    int rc = fill(l, err);
    if (rc < 0 && index_trouble(index))
        journal_say(l->r->order->journal, "package index: %s", index_trouble(index));
    tree_remove(inside, &none);
    if (rc == 0 && rename(l->tmp, l->path) < 0)
        rc = err_set(err, ERR_IO, "%s: %s", l->path, strerror(errno));
    if (rc < 0)
        tree_remove(l->tmp, &none);
    else
        journal_say(l->r->order->journal, "built %s in %.1f s",
                    l->base ? "its packages" : "an environment", clock_seconds() - t);
    journal_flush(l->r->order->journal);
    return rc;
}

void environment_done(const char *data_dir)
{
    struct err none;
    int removed;
    if (has_built)
        environment_collect(data_dir, &removed, &none);
}

static int make_layer(const struct environment_request *r, const char *key, const char *base,
                      int (*fill)(const struct layer *l, struct err *err), char *out,
                      struct err *err)
{
    OWN_MEM struct layer *l = calloc(1, sizeof *l);
    char envs[PATH_MAX];
    OWN_FD int lock = -1;

    if (!l)
        return err_set(err, ERR_NOMEM, "no memory for an environment");
    if (snprintf(envs, sizeof envs, "%s/envs", r->order->data_dir) >= PATH_MAX - 80)
        return err_set(err, ERR_INVALID, "%s: the path is too long", r->order->data_dir);
    l->r = r;
    l->base = base;
    snprintf(l->path, sizeof l->path, "%.*s/%s", PATH_MAX - 80, envs, key);
    snprintf(l->tmp, sizeof l->tmp, "%.*s/%s.tmp", PATH_MAX - 80, envs, key);
    /* uv does not see the packages of the system, and would fetch again what is there. */
    if (r->runtime->system || !runtimes_program("uv", l->uv))
        l->uv[0] = '\0';
    if (mkdir(envs, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: %s", envs, strerror(errno));
    if (environment_hold(l->path, err) < 0)
        return -(int)err->code;
    if (access(l->path, F_OK) < 0) {
        if (lock_layer(l, key, &lock, err) < 0)
            return -(int)err->code;
        if (access(l->path, F_OK) < 0 && build(l, fill, err) < 0)
            return -(int)err->code;
    }
    snprintf(out, PATH_MAX, "%s", l->path);
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(json_string_value(*(json_t *const *)a), json_string_value(*(json_t *const *)b));
}

/* The same set in another order is the same environment. */
static int sort_requirements(json_t *list, struct err *err)
{
    size_t n = json_array_size(list);
    OWN_MEM json_t **items = calloc(n + 1, sizeof *items);
    if (!items)
        return err_set(err, ERR_NOMEM, "no memory for an environment");
    for (size_t i = 0; i < n; i++) {
        items[i] = json_incref(json_array_get(list, i));
        if (environment_check_requirement(json_string_value(items[i]), err) < 0) {
            for (size_t k = 0; k <= i; k++)
                json_decref(items[k]);
            return -(int)err->code;
        }
    }
    qsort(items, n, sizeof *items, by_text);
    json_array_clear(list);
    for (size_t i = 0; i < n; i++) {
        if (!i || strcmp(json_string_value(items[i]), json_string_value(items[i - 1])))
            json_array_append(list, items[i]);
    }
    for (size_t i = 0; i < n; i++)
        json_decref(items[i]);
    return 0;
}

int environment_make(const struct environment_request *r, struct environment *out, struct err *err)
{
    char base[SHA256_HEX], top[SHA256_HEX];
    struct environment *e = out;

    e->top[0] = '\0';
    if (sort_requirements(r->requirements, err) < 0 || base_key(r, base, err) < 0 ||
        make_layer(r, base, NULL, fill_base, e->base, err) < 0)
        return -(int)err->code;
    if (!json_array_size(r->packages))
        return 0;
    if (top_key(r, base, top, err) < 0)
        return -(int)err->code;
    return make_layer(r, top, e->base, fill_top, e->top, err);
}
