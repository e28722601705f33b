/* drivers/python.c - a job that is a Python module: its packages, its environment, its command
 * line */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "drivers/archive.h"
#include "drivers/environment.h"
#include "drivers/journal.h"
#include "drivers/task.h"

static void add_lines(json_t *list, const char *text)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        const char *line = p;
        p += n + (p[n] == '\n');
        while (n && strchr(" \t", *line))
            line++, n--;
        for (size_t i = 0; i + 1 < n; i++)      /* "name  # why" */
            if (line[i] == ' ' && line[i + 1] == '#')
                n = i;
        while (n && strchr(" \t\r", line[n - 1]))
            n--;
        if (n && *line != '#')
            json_array_append_new(list, json_stringn(line, n));
    }
}

/* Looks into every package; their requirements join the list where all are known. */
static int check_packages(const struct task_order *o, json_t *requirements, bool *out_layered,
                          bool *out_isolated, struct err *err)
{
    size_t i;
    json_t *path;

    *out_layered = true;
    *out_isolated = false;
    json_array_foreach((json_t *)o->packages, i, path) {
        struct archive_facts facts = { 0 };
        if (!json_is_string(path))
            return err_set(err, ERR_INVALID, "packages[%zu]: must be a path", i);
        if (archive_check(json_string_value(path), &facts, err) < 0)
            return err_add(err, "package refused");
        OWN_MEM char *text = facts.requirements;
        *out_layered &= text != NULL;
        *out_isolated |= facts.pyproject;
        if (text)
            add_lines(requirements, text);
    }
    return 0;
}

static void add_to_path(struct task *t, const struct environment *e)
{
    const char *path = json_string_value(json_object_get(t->env, "PATH"));
    OWN_MEM char *longer = NULL;
    if (asprintf(&longer, "%s/bin:%s%s%s", e->base, e->top, e->top[0] ? "/site/bin:" : "",
                 path ? path : "") >= 0)
        task_set(t, "PATH", longer);
}

static void use_environment(struct task *t, const struct environment *e, const struct runtime *r)
{
    char site[PATH_MAX + 8];

    add_to_path(t, e);
    task_set(t, "VIRTUAL_ENV", e->base);
    task_set(t, "PYTHONUNBUFFERED",
             "1"); /* a log that is followed shows lines as they are printed */
    task_expose(t, e->base, false);
    if (e->top[0]) {
        snprintf(site, sizeof site, "%s/site", e->top);
        task_set(t, "PYTHONPATH", site);
        task_expose(t, e->top, false);
    }
    environment_expose_python(t, r);
}

/* Several workers: `muster train` of a spec that names the module starts them as one group,
 * with ranks, and again when one is lost. */
static int add_group(const struct task_order *o, const struct environment *e, json_t *words,
                     int workers, struct task *t, struct err *err)
{
    const char *module = json_string_value(json_array_get(words, 2));
    char path[PATH_MAX + 16], program[PATH_MAX], python[PATH_MAX + 16];
    OWN_JSON json_t *args = json_array();
    for (size_t i = 3; i < json_array_size(words); i++)
        json_array_append(args, json_array_get(words, i));
    OWN_JSON json_t *spec = json_pack("{s:s, s:{s:s, s:O}, s:i}", "name", "group", "python",
                                      "module", module, "args", args, "workers", workers);
    OWN_MEM char *text = json_dumps(spec, JSON_COMPACT);        /* which is YAML, too */
    snprintf(path, sizeof path, "%s/group.yaml", o->work);
    if (!text || files_write(path, text, strlen(text), err) < 0)
        return text ? -(int)err->code : err_set(err, ERR_NOMEM, "no memory for a job");
    chmod(path, 0644);
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    snprintf(python, sizeof python, "%s/bin/python", e->base);
    task_set(t, "MUSTER_PYTHON", python);
    task_expose(t, program, false);
    json_array_clear(t->argv);
    task_arg(t, "%s", program);
    task_arg(t, "train");
    task_arg(t, "%s", path);
    task_arg(t, "--out");
    task_arg(t, "%s/group", o->work);
    return 0;
}

static int add_command(const struct task_order *o, const struct environment *e, struct task *t,
                       struct err *err)
{
    const json_t *max = json_object_get(json_object_get(o->spec, "workers"), "max");
    int workers = json_is_integer(max) ? (int)json_integer_value(max) : 1;
    const json_t *python = json_object_get(o->spec, "python"),
                 *args = json_object_get(python, "args");
    const char *module = json_string_value(json_object_get(python, "module"));
    const char *job_dir = json_string_value(json_object_get(o->spec, "job_dir"));
    size_t i;
    json_t *word;

    if (!module || !*module || *module == '-')
        return err_set(err, ERR_INVALID, "python.module: say which module to run");
    task_arg(t, "%s/bin/python", e->base);
    task_arg(t, "-m");
    task_arg(t, "%s", module);
    json_array_foreach((json_t *)args, i, word)
        if (json_is_string(word))
            json_array_append(t->argv, word);
    if (job_dir && *job_dir)
        task_arg(t, "--job-dir=%s", job_dir);
    if (workers <= 1)
        return 0;
    OWN_JSON json_t *words = json_copy(t->argv);
    return add_group(o, e, words, workers, t, err);
}

/* The environment of the document's "python" and "image", on the path of t. */
static int add_environment(const struct task_order *o, task_step *step, void *arg, struct task *t,
                           struct environment *e, struct err *err)
{
    const json_t *python = json_object_get(o->spec, "python");
    const char *extra = json_string_value(json_object_get(python, "requirements"));
    OWN_MEM struct runtime *runtime = calloc(1, sizeof *runtime);
    bool layered, isolated;

    if (!runtime)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    if (runtimes_find(o->data_dir, python, json_string_value(json_object_get(o->spec, "image")),
                      o->journal, runtime, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *requirements = runtime->requirements;
    if (extra)
        add_lines(requirements, extra);
    if (check_packages(o, requirements, &layered, &isolated, err) < 0)
        return -(int)err->code;
    /* A setup.py is built with the base's own; newer Pythons and uv bring none. */
    if (json_array_size(o->packages) && !isolated)
        json_array_append_new(requirements, json_string("setuptools"));
    const struct environment_request request = {
        .order = o, .runtime = runtime, .requirements = requirements, .packages = o->packages,
        .layered = layered, .isolated = isolated, .step = step, .step_arg = arg };
    if (environment_make(&request, e, err) < 0)
        return -(int)err->code;
    use_environment(t, e, runtime);
    return 0;
}

int task_python(const struct task_order *o, task_step *step, void *arg, struct task *t,
                struct err *err)
{
    OWN_MEM struct environment *e = calloc(1, sizeof *e);

    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    return add_environment(o, step, arg, t, e, err) < 0 ? -(int)err->code
                                                        : add_command(o, e, t, err);
}

int task_environment(const struct task_order *o, task_step *step, void *arg, struct task *t,
                     struct err *err)
{
    OWN_MEM struct environment *e = calloc(1, sizeof *e);

    return e ? add_environment(o, step, arg, t, e, err)
             : err_set(err, ERR_NOMEM, "no memory for a job");
}
