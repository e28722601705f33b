/* drivers/runtimes_limits.c - what jobs and projects may use, as the table says */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/own.h"
#include "drivers/limits.h"
#include "drivers/runtimes_int.h"

struct machine { double memory, disk; };

static struct machine machine_of(const char *data_dir)
{
    struct machine m = { .memory = (double)limits_machine_memory() };
    struct statvfs fs;

    if (statvfs(data_dir, &fs) == 0)
        m.disk = (double)fs.f_blocks * (double)fs.f_frsize;
    return m;
}

/* Puts the row's numbers over those that are in `out`; what they mean was checked. */
static void read_row(const struct value *row, const struct machine *m, json_t *out)
{
    for (const struct value *v = row && row->kind == VALUE_MAP ? row->child : NULL; v; v = v->next)
        json_object_set_new(out, v->key,
                            json_real(runtimes_share(v->text, !strcmp(v->key, "memory")
                                                                  ? m->memory : m->disk)));
}

static int read_limits(const struct value *table, const struct machine *m, json_t *out,
                       struct err *err)
{
    static const char *const rows[] = { "job", "job_max", "project" };
    const struct value *limits = value_find(table, "limits");
    json_t *projects;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!json_object_get(out, rows[i]))
            json_object_set_new(out, rows[i], json_object());
        read_row(limits ? value_find(limits, rows[i]) : NULL, m, json_object_get(out, rows[i]));
    }
    if (!json_object_get(out, "jobs"))
        json_object_set_new(out, "jobs", json_object());
    read_row(value_find(table, "jobs"), m, json_object_get(out, "jobs"));
    if (json_object_set_new(out, "projects", projects = json_object()) < 0)
        return err_set(err, ERR_NOMEM, "no memory for limits");
    const struct value *named = limits ? value_find(limits, "projects") : NULL;
    for (const struct value *p = named && named->kind == VALUE_MAP ? named->child : NULL; p;
         p = p->next) {
        json_t *row = json_object();
        if (json_object_set_new(projects, p->key, row) < 0)
            return err_set(err, ERR_NOMEM, "no memory for limits");
        read_row(p, m, row);
    }
    return 0;
}

int runtimes_limits(const char *data_dir, json_t **out, struct err *err)
{
    char path[PATH_MAX];
    const struct machine m = machine_of(data_dir);
    OWN(value) own = NULL;
    OWN(value) table = NULL;
    OWN_JSON json_t *limits = json_object();

    if (!limits)
        return err_set(err, ERR_NOMEM, "no memory for limits");
    if (yaml_parse(RUNTIMES_LIMITS, strlen(RUNTIMES_LIMITS), "limits", NULL, &own, err) < 0 ||
        runtimes_read(data_dir, path, &table, err) < 0 || read_limits(own, &m, limits, err) < 0 ||
        (table->kind == VALUE_MAP && read_limits(table, &m, limits, err) < 0))
        return -(int)err->code;
    *out = TAKE(limits);
    return 0;
}
