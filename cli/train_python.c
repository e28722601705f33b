/* cli/train_python.c - muster train, for a distributed program of the user's own */
#include "cli/train_python.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "runtime/group.h"
#include "runtime/rundir.h"

/* Python's own end of a training step is seconds at most; torchrun waits 30. */
static const double GRACE_SECONDS = 5;
static const double BACKOFF_SECONDS = 0.5;

/* What is to be run, whatever way it was asked for. */
struct program {
    const char *name;
    const char **argv;          /* borrowed words, NULL at the end */
    size_t n;
    char *python;               /* the interpreter */
    char *dir, *python_path;    /* NULL: here; nothing */
    int min, max;
};

static void program_done(struct program *p)
{
    free(p->argv);
    free(p->python);
    free(p->dir);
    free(p->python_path);
}
#define OWN_PROGRAM __attribute__((cleanup(program_done))) struct program

/* ------------------------------------------------------------------ what to run */

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the program's arguments");
}

/* $MUSTER_PYTHON or python3. A path is made absolute, since the program may start elsewhere, but no
 * link is followed: an environment's python is one. */
static int find_python(struct program *p, struct err *err)
{
    const char *python = getenv("MUSTER_PYTHON");
    OWN_MEM char *here = NULL;

    if (!python || !*python)
        python = "python3";
    if (!strchr(python, '/') || python[0] == '/') {
        p->python = strdup(python);
        return p->python ? 0 : no_memory(err);
    }
    here = getcwd(NULL, 0);
    if (!here || asprintf(&p->python, "%s/%s", here, python) < 0) {
        p->python = NULL;
        return no_memory(err);
    }
    return 0;
}

/* Room for the words of a program, those of the spec and those after "--". */
static int make_room(struct program *p, size_t own, const struct program_options *o,
                     struct err *err)
{
    p->argv = calloc(own + (size_t)o->n_args + 4, sizeof *p->argv);
    return p->argv ? 0 : no_memory(err);
}

static void add_word(struct program *p, const char *word)
{
    p->argv[p->n++] = word;
}

static void add_words(struct program *p, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        add_word(p, json_string_value(json_array_get(list, i)));
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A folder is where the program starts; an archive that Python itself can import from is only put
 * on its path. */
static int find_package(struct program *p, const struct job_spec *spec, const char *package,
                        struct err *err)
{
    OWN_MEM char *path = spec_resolve_path(spec->dir, package);
    struct stat st;

    if (!path)
        return no_memory(err);
    p->python_path = realpath(path, NULL);
    if (!p->python_path || stat(p->python_path, &st) < 0)
        return err_set(err, ERR_MISSING, "python.package: %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        p->dir = strdup(p->python_path);
        return p->dir ? 0 : no_memory(err);
    }
    if (!ends_with(path, ".zip") && !ends_with(path, ".whl") && !ends_with(path, ".egg"))
        return err_set(err, ERR_INVALID, "python.package: %s: train takes a folder, a zip or a "
                       "wheel (unpack it)", path);
    return 0;
}

static int read_program(struct program *p, const struct job_spec *spec,
                        const struct program_options *o, struct err *err)
{
    const json_t *python = json_object_get(spec->doc, "python");
    const json_t *words = python ? json_object_get(python, "args")
                                 : json_object_get(spec->doc, "command");

    if (json_object_get(spec->doc, "image"))
        return err_set(err, ERR_INVALID, "image: train starts a program on this machine as it is, "
                       "in no image (--set image=null)");
    if (make_room(p, json_array_size(words), o, err) < 0)
        return -(int)err->code;
    if (python) {
        if (find_python(p, err) < 0 ||
            find_package(p, spec, json_string_value(json_object_get(python, "package")), err) < 0)
            return -(int)err->code;
        add_word(p, p->python);
        add_word(p, "-m");
        add_word(p, json_string_value(json_object_get(python, "module")));
    } else {
        p->dir = spec_resolve_path(spec->dir, ".");
        if (!p->dir)
            return no_memory(err);
    }
    add_words(p, words);
    return 0;
}

static int read_script(struct program *p, const char *script, const struct program_options *o,
                       struct err *err)
{
    struct stat st;

    if (stat(script, &st) < 0)
        return err_set(err, errno == ENOENT ? ERR_MISSING : ERR_IO, "--python %s: %s", script,
                       strerror(errno));
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "--python %s: a folder (name the file in it; a package is "
                       "for a spec with \"python\")", script);
    if (find_python(p, err) < 0 || make_room(p, 0, o, err) < 0)
        return -(int)err->code;
    add_word(p, p->python);
    add_word(p, script);
    return 0;
}

/* ------------------------------------------------------------------ telling */

struct teller {
    const struct program_options *o;
    const char *run;
    struct buf line;
};

static int put_line(const struct teller *w, int fd, struct err *err)
{
    const char *at = w->line.data;
    size_t left = w->line.n;

    if (buf_ok(&w->line, err) < 0)
        return -(int)err->code;
    while (left) {
        ssize_t n = write(fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot write the output: %s", strerror(errno));
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

static int print_line(struct teller *w, const struct group_event *e, struct err *err)
{
    buf_clear(&w->line);
    if (e->size > 1)
        buf_printf(&w->line, "[%d] ", e->rank);
    buf_append(&w->line, e->text, e->n);
    /* Several cannot draw over one line. */
    buf_append(&w->line, e->size > 1 ? "\n" : &e->end, 1);
    return put_line(w, e->stream, err);
}

static int print_text(struct teller *w, const struct group_event *e, struct err *err)
{
    char why[160];

    buf_clear(&w->line);
    switch (e->kind) {
    case GROUP_LINE:
        return print_line(w, e, err);
    case GROUP_STARTED:
        if (e->start == 0)
            buf_printf(&w->line, "%d worker%s, output also in %s/logs\n", e->size,
                       e->size == 1 ? "" : "s", w->run);
        break;
    case GROUP_LOST:
        group_say(&e->lost, why, sizeof why);
        buf_printf(&w->line, "%s; in %.1f s %s again (restart %d of %ld)\n", why, e->wait_s,
                   e->next_size == 1 ? "it starts" : "all start", e->start + 1,
                   w->o->max_restarts);
        if (e->next_size < e->size) {
            buf_clear(&w->line);
            buf_printf(&w->line, "%s; in %.1f s %d of %d start again (restart %d of %ld)\n", why,
                       e->wait_s, e->next_size, e->size, e->start + 1, w->o->max_restarts);
        }
        break;
    case GROUP_STOPPING:
        buf_printf(&w->line, "stopping %d worker%s (once more: at once)\n", e->size,
                   e->size == 1 ? "" : "s");
        break;
    }
    return put_line(w, STDERR_FILENO, err);
}

/* A text that is not UTF-8 has a '?' for each byte that is not ASCII. */
static json_t *json_line(const char *text, size_t n)
{
    json_t *s = json_stringn(text, n);

    if (s)
        return s;
    OWN_MEM char *copy = malloc(n + 1);
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    return copy ? json_stringn(copy, n) : NULL;
}

static json_t *json_event(const struct group_event *e)
{
    switch (e->kind) {
    case GROUP_LINE:
        return json_pack("{s:i, s:s, s:o}", "rank", e->rank, "stream",
                         e->stream == 1 ? "stdout" : "stderr", "line", json_line(e->text, e->n));
    case GROUP_STARTED:
        return json_pack("{s:i, s:i, s:i}", "start", e->start, "workers", e->size, "port", e->port);
    case GROUP_LOST:
        return json_pack("{s:i, s:i, s:i, s:i, s:f}", "lost", e->lost.rank,
                         e->lost.signal ? "signal" : "exit",
                         e->lost.signal ? e->lost.signal : e->lost.code, "restart", e->start + 1,
                         "workers", e->next_size, "wait", e->wait_s);
    case GROUP_STOPPING:
        return json_pack("{s:i}", "stopping", e->signal);
    }
    return NULL;
}

static int put_json(struct teller *w, json_t *doc, struct err *err)
{
    OWN_JSON json_t *own = doc;
    OWN_MEM char *text = doc ? json_dumps(own, JSON_REAL_PRECISION(9)) : NULL;

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a line of output");
    buf_clear(&w->line);
    buf_printf(&w->line, "%s\n", text);
    return put_line(w, STDOUT_FILENO, err);
}

static int on_event(void *arg, const struct group_event *e, struct err *err)
{
    struct teller *w = arg;

    if (w->o->json)
        return put_json(w, json_event(e), err);
    return w->o->quiet ? 0 : print_text(w, e, err);
}

/* ------------------------------------------------------------------ the run */

static const char *ended(const struct group_result *r)
{
    return r->stopped ? "stopped" : r->failed ? "failed" : "done";
}

static int exit_code(const struct group_result *r)
{
    if (r->stopped)
        return 128 + r->stopped;
    if (!r->failed)
        return 0;
    return r->lost.signal ? 128 + r->lost.signal : r->lost.code;
}

static json_t *result_document(const struct program *p, const struct group_result *r)
{
    json_t *words = json_array();

    for (size_t i = 0; i < p->n; i++)
        json_array_append_new(words, json_line(p->argv[i], strlen(p->argv[i])));
    return json_pack("{s:s, s:s, s:o, s:i, s:i, s:s, s:i, s:f}", "muster", MUSTER_VERSION, "name",
                     p->name, "program", words, "workers", r->size, "restarts", r->restarts,
                     "ended", ended(r), "exit", exit_code(r), "seconds", r->seconds);
}

static int write_result(const char *run, const struct program *p, const struct group_result *r,
                        struct err *err)
{
    char path[PATH_MAX + 16];
    OWN_JSON json_t *doc = result_document(p, r);
    OWN_MEM char *text = doc ? json_dumps(doc, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for run.json");
    snprintf(path, sizeof path, "%s/run.json", run);
    return files_write(path, text, strlen(text), err);
}

static int tell_end(struct teller *w, const struct group_result *r, struct err *err)
{
    char why[160];

    if (w->o->json &&
        put_json(w, json_pack("{s:s, s:i, s:i, s:i, s:f, s:s}", "ended", ended(r), "workers",
                              r->size, "restarts", r->restarts, "exit", exit_code(r), "seconds",
                              r->seconds, "run", w->run), err) < 0)
        return -(int)err->code;
    if (r->stopped)
        return err_set(err, ERR_AGAIN, "stopped by signal %d (%s); no worker is left", r->stopped,
                       sigdescr_np(r->stopped));
    if (r->failed) {
        group_say(&r->lost, why, sizeof why);
        return err_set(err, ERR_AGAIN, "%s; gave up after %d restart%s (its output: "
                       "%s/logs/worker-%d.log)", why, r->restarts, r->restarts == 1 ? "" : "s",
                       w->run, r->lost.rank);
    }
    if (!w->o->json && !w->o->quiet)
        fprintf(stderr, "done: %d worker%s, %d restart%s, %.2f s; output in %s/logs\n", r->size,
                r->size == 1 ? "" : "s", r->restarts, r->restarts == 1 ? "" : "s", r->seconds,
                w->run);
    return 0;
}

static int open_run(const struct program *p, const char *asked, char *out, size_t size,
                    struct err *err)
{
    char path[PATH_MAX + 16];

    if (asked)
        snprintf(out, size, "%s", asked);
    else
        rundir_choose(p->name, out, size);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", out,
                 (const char *[]){ "run.json", "metrics.jsonl", "logs" }[i]);
        if (access(path, F_OK) == 0)
            return err_set(err, ERR_CONFLICT, "%s: holds a run already (choose another --out)",
                           out);
    }
    return files_mkdir(out, err);
}

static int run_program(struct cli *c, const struct program *p, const struct program_options *o,
                       struct err *err)
{
    char run[PATH_MAX];
    struct group_result r;

    if (open_run(p, o->out, run, sizeof run, err) < 0)
        return -(int)err->code;
    struct teller w = { .o = o, .run = run };
    struct group_job job = { .name = p->name, .argv = (char *const *)p->argv, .dir = p->dir,
                             .python_path = p->python_path, .run = run, .min = p->min,
                             .max = p->max, .max_restarts = (int)o->max_restarts,
                             .threads = (int)o->threads, .grace_s = GRACE_SECONDS,
                             .backoff_s = BACKOFF_SECONDS };
    int rc = group_run(&job, on_event, &w, &r, err);
    if (rc < 0)
        rmdir(run);             /* when nothing ran there is nothing in it */
    if (rc == 0)
        rc = write_result(run, p, &r, err);
    if (rc == 0) {
        rc = tell_end(&w, &r, err);
        c->exit_code = exit_code(&r);
    }
    buf_done(&w.line);
    return rc;
}

static void print_plan(const struct program *p)
{
    printf("name: %s\nworkers: %d..%d\ncommand:", p->name, p->min, p->max);
    for (size_t i = 0; i < p->n; i++)
        printf(" %s", p->argv[i]);
    printf("\nfolder: %s\n", p->dir ? p->dir : ".");
}

static int train_either(struct cli *c, const struct job_spec *spec, const char *script,
                        const struct program_options *o, struct err *err)
{
    OWN_PROGRAM p = { .name = spec->name, .min = spec->workers_min, .max = spec->workers_max };

    if (o->max_restarts < 0 || o->max_restarts > INT_MAX)
        return err_set(err, ERR_INVALID, "--max-restarts wants a number from 0");
    if (o->workers && workers_parse(o->workers, &p.min, &p.max, err) < 0)
        return -(int)err->code;
    if (script ? read_script(&p, script, o, err) < 0 : read_program(&p, spec, o, err) < 0)
        return script ? -(int)err->code : spec_locate(spec, err);
    for (int i = 0; i < o->n_args; i++)
        add_word(&p, o->args[i]);
    if (o->dry_run) {
        print_plan(&p);
        return 0;
    }
    return run_program(c, &p, o, err);
}

int train_program(struct cli *c, const struct job_spec *spec, const struct program_options *o,
                  struct err *err)
{
    return train_either(c, spec, NULL, o, err);
}

/* A file alone is the shortest spec there is; its name is chosen as any spec's. */
int train_script(struct cli *c, const char *script, const struct program_options *o,
                 struct err *err)
{
    static const char text[] = "command: [python]";
    OWN(job_spec) spec = NULL;

    if (spec_parse(text, strlen(text), script, NULL, 0, &spec, err) < 0)
        return -(int)err->code;
    return train_either(c, spec, script, o, err);
}
