/* drivers/task.c - what a job document comes to: a program, its arguments, environment and files */
#include "drivers/task.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "drivers/container.h"
#include "drivers/gpus.h"
#include "drivers/index.h"
#include "drivers/journal.h"
#include "drivers/step.h"
#include "spec/spec.h"

/* Enough for any build or data loader, too few for a fork bomb to hurt. */
enum { PIDS_DEFAULT = 4096 };

/* ------------------------------------------------------------------ parts */

void task_arg(struct task *t, const char *fmt, ...)
{
    OWN_BUF text = BUF_INIT;
    char small[1024];
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    if (n >= (int)sizeof small) {
        char *to = buf_reserve(&text, (size_t)n + 1);
        va_start(args, fmt);
        if (to)
            vsnprintf(to, (size_t)n + 1, fmt, args);
        va_end(args);
        json_array_append_new(t->argv, json_string(to ? to : ""));
        return;
    }
    json_array_append_new(t->argv, json_string(small));
}

void task_set(struct task *t, const char *name, const char *value)
{
    json_object_set_new(t->env, name, json_string(value));
}

void task_expose(struct task *t, const char *path, bool writable)
{
    OWN_MEM char *real = realpath(path, NULL);
    if (real && strcmp(real, "/"))
        json_array_append_new(t->paths,
                              json_pack("{s:s, s:b}", "path", real, "writable", writable));
}

void task_expose_at(struct task *t, const char *from, const char *path, bool writable)
{
    json_array_append_new(
        t->paths, json_pack("{s:s, s:s, s:b}", "path", path, "from", from, "writable", writable));
}

void task_expose_fd(struct task *t, int fd, const char *path, bool writable)
{
    json_array_append_new(
        t->paths, json_pack("{s:s, s:i, s:b}", "path", path, "fd", fd, "writable", writable));
}

static void set_all(struct task *t, const json_t *env)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)env, name, value)
        if (json_is_string(value))
            json_object_set(t->env, name, value);
}

static double number_of(const json_t *object, const char *key, double otherwise)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static struct limits limits_of(const struct task_order *o)
{
    const json_t *resources = json_object_get(o->spec, "resources");
    int workers = o->workers > 0 ? o->workers : 1;
    int most = (int)number_of(json_object_get(o->spec, "workers"), "max", workers);
    double memory = number_of(resources, "memory", 0);
    double pids = number_of(resources, "processes",
                            number_of(o->limits, "processes", PIDS_DEFAULT));
    bool share = json_is_true(json_object_get(json_object_get(o->spec, "step"), "share"));

    /* Memory is for as many as there may ever be; processors follow each resize (keeper.c). */
    return (struct limits){ .memory = memory > 0
                                          ? (long long)memory * (most > workers ? most : workers)
                                          : (long long)number_of(o->limits, "memory", 0),
                            .unasked = memory <= 0,
                            .cpu = share ? 0 : number_of(resources, "cpu", 0) * workers,
                            .pids = (int)pids };
}

/* Nodes of the graphics processors that are its own, and of the driver. Inside there are no others,
 * so CUDA counts them from 0; where nothing is hidden each has its place among all, and a job that
 * has none is told so. */
static void expose_gpus(struct task *t, const struct task_order *o)
{
    const int n = o->gpus ? o->gpus->n : 0;
    char list[GPUS_MAX * 4] = "", from[PATH_MAX];
    const char *node;
    size_t at = 0;

    for (int i = 0; (node = gpus_node(o->gpus, i)); i++) {
        snprintf(from, sizeof from, "%s%s", gpus_root(), node);
        if (access(from, F_OK) == 0)
            task_expose_at(t, from, node, true);
    }
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", i ? "," : "",
                               o->confined ? i : o->gpus->index[i]);
    if (n || !o->confined)
        task_set(t, "CUDA_VISIBLE_DEVICES", list);
    if (!n)
        return;
    task_set(t, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    /* The driver's libraries may be where only this says. */
    if (getenv("LD_LIBRARY_PATH"))
        task_set(t, "LD_LIBRARY_PATH", getenv("LD_LIBRARY_PATH"));
}

static int init_empty(struct task *t, const struct task_order *o, struct err *err)
{
    const char *path = getenv("PATH");

    *t = (struct task){ .argv = json_array(), .env = json_object(), .paths = json_array(),
                        .network = o->network,
                        .limits = limits_of(o) };
    if (!t->argv || !t->env || !t->paths) {
        task_done(t);
        return err_set(err, ERR_NOMEM, "no memory for a job");
    }
    snprintf(t->cwd, sizeof t->cwd, "%s", o->work);
    task_set(t, "PATH", path && *path ? path : "/usr/local/bin:/usr/bin:/bin");
    task_set(t, "HOME", o->work);
    task_set(t, "USER", "nobody");
    task_set(t, "LOGNAME", "nobody");
    task_set(t, "LANG", "C.UTF-8");
    task_set(t, "TMPDIR", "/tmp");
    return 0;
}

/* Certificates and proxies are the machine's, not the server's, unless a proxy's URL has a user or
 * password in it. */
static void set_network(struct task *t)
{
    static const char *const names[] = { "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
                                         "http_proxy", "https_proxy", "no_proxy" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && !index_has_credentials(value))
            task_set(t, names[i], value);
    }
}

int task_init_step(struct task *t, const struct task_order *o, struct err *err)
{
    if (init_empty(t, o, err) < 0)
        return -(int)err->code;
    set_network(t);
    t->limits.memory = 0;       /* the job's own program is what it is meant for */
    return 0;
}

static int init_job(struct task *t, const struct task_order *o, struct err *err)
{
    if (init_empty(t, o, err) < 0)
        return -(int)err->code;
    set_network(t);
    if (!o->container || !o->container->run)
        expose_gpus(t, o);
    set_all(t, o->env);
    set_all(t, json_object_get(o->spec, "env"));
    t->time_limit_s = number_of(o->spec, "time_limit_s", 0);
    double asked = number_of(json_object_get(o->spec, "resources"), "disk", 0);
    double most = number_of(o->limits, "disk", 0);
    t->disk = (long long)(asked > 0 && (most <= 0 || asked < most) ? asked : most);
    task_expose(t, o->work, true);
    return 0;
}

static void free_list(char **list)
{
    for (char **p = list; p && *p; p++)
        free(*p);
    free(list);
}

void task_done(struct task *t)
{
    json_decref(t->argv);
    json_decref(t->env);
    json_decref(t->paths);
    free_list(t->argv_list);
    free_list(t->env_list);
    *t = (struct task){ 0 };
}

/* ------------------------------------------------------------------ kinds */

static int make_command(const struct task_order *o, task_step *step, void *arg, struct task *t,
                        struct err *err)
{
    const json_t *command = json_object_get(o->spec, "command"), *word;
    size_t i;

    if (!json_array_size(command) || json_is_true(json_object_get(o->spec, "entrypoint")))
        return err_set(err, ERR_INVALID, "command: say which program to run, as a list of words%s",
                       json_object_get(o->spec, "image")
                           ? " (its image, whose own program that would be, is not run here)" : "");
    json_array_foreach((json_t *)command, i, word) {
        if (!json_is_string(word))
            return err_set(err, ERR_INVALID, "command[%zu]: must be a text", i);
        json_array_append(t->argv, (json_t *)word);
    }
    return json_object_get(o->spec, "step") ? step_prepare(o, step, arg, t, err) : 0;
}

static bool is_within(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return !strcmp(dir, "/") || (!strncmp(path, dir, n) && (!path[n] || path[n] == '/'));
}

/* A file or folder that the job reads. What is in the data directory of the server is another job's
 * or its own, and so is what that lies in. Only for one whom this machine belongs to, but for
 * the data of the examples, which is everybody's. */
static int expose_host(struct task *t, const struct task_order *o, const char *path,
                       struct err *err)
{
    OWN_MEM char *real = realpath(path, NULL);
    OWN_MEM char *cache = files_resolve(NULL, "$MUSTER_DATA");
    OWN_MEM char *examples = cache ? realpath(cache, NULL) : NULL;

    if (!real)
        return 0;               /* training says that it is not there */
    if (is_within(real, o->data_dir) || is_within(o->data_dir, real))
        return err_set(err, ERR_DENIED,
                       "%s: is the server's own (put data into a bucket: gs://...)", path);
    if (!json_is_true(json_object_get(o->spec, "host_files")) &&
        !(examples && is_within(real, examples)))
        return err_set(err, ERR_DENIED,
                       "%s: a project's job does not read files of this machine (put "
                       "it into a bucket, gs://..., or submit with the server's own token)",
                       path);
    task_expose(t, real, false);
    return 0;
}

static int expose_data(struct task *t, const struct task_order *o, const json_t *value,
                       struct err *err)
{
    const char *text = json_string_value(value), *key;
    json_t *child;
    size_t i;

    if (text && text[0] == '/' && expose_host(t, o, text, err) < 0)
        return -(int)err->code;
    json_object_foreach((json_t *)value, key, child)
        if (expose_data(t, o, child, err) < 0)
            return -(int)err->code;
    json_array_foreach((json_t *)value, i, child)
        if (expose_data(t, o, child, err) < 0)
            return -(int)err->code;
    return 0;
}

static bool is_run(const char *dir)
{
    char metrics[PATH_MAX + 32];
    struct stat st;
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", dir);
    return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && lstat(metrics, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* What a writer that was killed in the middle of a checkpoint left (base/files.h). */
static void remove_halves(const char *run_dir)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/checkpoints", run_dir);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strstr(e->d_name, ".tmp-"))
            unlinkat(fd, e->d_name, 0);
    if (d)
        closedir(d);
}

/* Training that was lost or failed goes on where it was: the run of the last attempt that has one
 * becomes this one's, by one rename, so that whoever is killed loses nothing. */
static void take_run_of_before(const struct task_order *o, const char *run_dir)
{
    const char *number = strrchr(o->dir, '/');
    long n = number ? strtol(number + 1, NULL, 10) : 0;

    for (long i = n - 1; i >= 1 && access(run_dir, F_OK) < 0; i--) {
        char before[PATH_MAX + 64];
        snprintf(before, sizeof before, "%.*s/%ld/work/run", (int)(number - o->dir), o->dir, i);
        if (is_run(before) && rename(before, run_dir) == 0) {
            remove_halves(run_dir);
            journal_say(o->journal, "going on with the run of attempt %ld", i);
        }
    }
}

static int make_train(const struct task_order *o, task_step *step, void *arg, struct task *t,
                      struct err *err)
{
    const json_t *train = json_object_get(o->spec, "train");
    const char *text = json_string_value(json_object_get(train, "spec"));
    const json_t *workers = json_object_get(o->spec, "workers");
    int min = (int)number_of(workers, "min", 1), max = (int)number_of(workers, "max", 1);
    char path[PATH_MAX + 16], program[PATH_MAX];
    OWN(job_spec) spec = NULL;

    (void)step;
    (void)arg;
    if (!text)
        return err_set(err, ERR_INVALID, "train.spec: the text of the spec is missing");
    if (spec_parse(text, strlen(text), "train.yaml", NULL, 0, &spec, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%s/train.yaml", o->work);
    if (files_write(path, text, strlen(text), err) < 0)
        return -(int)err->code;
    chmod(path, 0644);
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    int now = o->workers > max ? max : o->workers < min ? min : o->workers;
    task_arg(t, "%s", program);
    task_arg(t, "train");
    task_arg(t, "%s", path);
    task_arg(t, "--out");
    if (snprintf(t->run_dir, sizeof t->run_dir, "%s/run", o->work) >= (int)sizeof t->run_dir)
        return err_set(err, ERR_INVALID, "%s: the path is too long", o->work);
    task_arg(t, "%s", t->run_dir);
    if (max > 1) {
        task_arg(t, "--workers");
        task_arg(t, "%d..%d", min, now);
    }
    take_run_of_before(o, t->run_dir);
    if (is_run(t->run_dir))
        task_arg(t, "--resume");
    OWN_MEM char *cache = files_resolve(NULL, "$MUSTER_DATA");
    if (cache) {
        task_set(t, "MUSTER_DATA", cache);
        task_expose(t, cache, false);
    }
    const char *dir = json_string_value(json_object_get(train, "dir"));
    /* For paths that are relative to it; a spec without any needs no such folder. */
    if (dir && dir[0] == '/' && json_is_true(json_object_get(o->spec, "host_files")) &&
        expose_host(t, o, dir, err) < 0)
        return -(int)err->code;
    if (expose_data(t, o, json_object_get(spec->doc, "data"), err) < 0)
        return -(int)err->code;
    task_expose(t, program, false);
    return 0;
}

static const struct kind {
    const char *name;
    int (*make)(const struct task_order *o, task_step *step, void *arg, struct task *t,
                struct err *err);
} kinds[] = {
    { "command", make_command },
    { "train", make_train },
    { "python", task_python },
};

int task_make(const struct task_order *o, task_step *step, void *arg, struct task *out,
              struct err *err)
{
    const char *name = json_string_value(json_object_get(o->spec, "kind"));
    struct task t;

    for (size_t i = 0; name && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name))
            continue;
        if (init_job(&t, o, err) < 0)
            return -(int)err->code;
        int rc = o->container && o->container->run
                     ? container_make(o, o->container, step, arg, &t, err)
                     : kinds[i].make(o, step, arg, &t, err);
        if (rc < 0) {
            task_done(&t);
            return -(int)err->code;
        }
        *out = t;
        return 0;
    }
    return err_set(err, ERR_INVALID, "kind: \"%s\" is none of command, train and python",
                   name ? name : "");
}

/* ------------------------------------------------------------------ as a sandbox takes it */

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct sandbox_path *)a)->path, ((const struct sandbox_path *)b)->path);
}

static char **list_of(size_t n)
{
    return calloc(n + 1, sizeof(char *));
}

/* Of the one who runs the server, when it is not root: inside, the job could read all of it. */
static const char *home_of(struct task *t)
{
    const struct passwd *user = getuid() ? getpwuid(getuid()) : NULL;
    const char *home = user ? user->pw_dir : getenv("HOME");

    if (!getuid() || !home || !realpath(home, t->home) || !strcmp(t->home, "/"))
        return NULL;
    return t->home;
}

/* What it asked for, or half of the machine's memory where it asked for none. */
static long long scratch_of(const struct limits *l)
{
    long long half = limits_machine_memory() / 2;

    return l->memory > 0 && (!l->unasked || l->memory < half) ? l->memory : half;
}

int task_fill(struct task *t, const struct task_order *o, struct sandbox *out, struct err *err)
{
    struct sandbox s = { .cwd = t->cwd,
                         .hide = { o->data_dir, home_of(t) },
                         .confined = o->confined && !t->outside,
                         .user_ns = o->user_ns,
                         .user_namespaces =
                             json_is_true(json_object_get(o->spec, "user_namespaces")),
                         .network = t->network != NETWORK_NONE,
                         .scratch = scratch_of(&t->limits) };
    const char *name;
    json_t *value;
    size_t i, n = 0;

    if (s.confined)
        task_expose_machine(t, o, s.hide);
    t->argv_list = list_of(json_array_size(t->argv));
    t->env_list = list_of(json_object_size(t->env));
    if (!t->argv_list || !t->env_list)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    json_array_foreach(t->argv, i, value)
        t->argv_list[i] = strdup(json_string_value(value));
    json_object_foreach(t->env, name, value)
        if (asprintf(&t->env_list[n++], "%s=%s", name, json_string_value(value)) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a job");
    json_array_foreach(t->paths, i, value) {
        if (s.n_paths == SANDBOX_PATHS_MAX)
            return err_set(err, ERR_INVALID, "the job names more than %d files and folders",
                           SANDBOX_PATHS_MAX);
        s.paths[s.n_paths++] = (struct sandbox_path){
            .path = json_string_value(json_object_get(value, "path")),
            .from = json_string_value(json_object_get(value, "from")),
            .fd = (int)json_integer_value(json_object_get(value, "fd")),
            .writable = json_is_true(json_object_get(value, "writable")) };
    }
    if (t->network == NETWORK_OUTSIDE && o->resolver_at[0] && s.n_paths < SANDBOX_PATHS_MAX)
        s.paths[s.n_paths++] =
            (struct sandbox_path){ .path = o->resolver_at, .from = o->resolver };
    /* What is mounted later covers: parents first. */
    qsort(s.paths, (size_t)s.n_paths, sizeof s.paths[0], by_path);
    if (t->run_dir[0]) {
        s.resize[0] = t->argv_list[0];
        s.resize[1] = "resize";
        s.resize[2] = t->run_dir;
    }
    if (t->container[0]) {
        const char *const words[] = { t->argv_list[0], "rm", "--force", "--time", "0", "--",
                                      t->container, NULL };
        memcpy(t->remove, words, sizeof words);
        s.abandoned = t->remove;
    }
    if (t->network == NETWORK_OUTSIDE && o->net) {
        s.net_fd = o->net->net;
        s.user_fd = o->net->user;
    }
    s.argv = t->argv_list;
    s.env = t->env_list;
    *out = s;
    return 0;
}
