/* drivers/python.c - a job that is a Python module: its packages, its environment, its command line */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    task_set(t, "PYTHONUNBUFFERED", "1");       /* a log that is followed shows lines as they are printed */
    task_expose(t, e->base, false);
    if (e->top[0]) {
        snprintf(site, sizeof site, "%s/site", e->top);
        task_set(t, "PYTHONPATH", site);
        task_expose(t, e->top, false);
    }
    environment_expose_python(t, r);
}

static int add_command(const struct task_order *o, const struct environment *e, struct task *t,
                       struct err *err)
{
    const json_t *python = json_object_get(o->spec, "python"), *args = json_object_get(python, "args");
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
    return 0;
}

int task_python(const struct task_order *o, task_step *step, void *arg, struct task *t, struct err *err)
{
    const json_t *python = json_object_get(o->spec, "python");
    const char *extra = json_string_value(json_object_get(python, "requirements"));
    OWN_MEM struct environment *e = calloc(1, sizeof *e);
    OWN_MEM struct runtime *runtime = calloc(1, sizeof *runtime);
    bool layered, isolated;

    if (!e || !runtime)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    if (runtimes_find(o->data_dir, python, json_string_value(json_object_get(o->spec, "image")), o->journal,
                      runtime, err) < 0)
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
    return add_command(o, e, t, err);
}
