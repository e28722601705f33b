/* runtime/rerun.c - a finished run, opened again with its own spec and data */
#include "runtime/rerun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "engine/model.h"
#include "runtime/rundir.h"

enum { RUN_JSON_MAX = 64 << 20 };

struct rerun {
    char dir[4096];
    json_t *doc;
    struct job_spec *spec;
    struct trainer *trainer;
    struct rerun_mark *mark;
    long n_marks, room;
};

static int read_document(struct rerun *r, struct err *err)
{
    char path[4096 + 16];
    OWN_MEM char *text = NULL;
    json_error_t why;
    size_t n;

    snprintf(path, sizeof path, "%s/run.json", r->dir);
    if (files_read(path, RUN_JSON_MAX, &text, &n, err) < 0)
        return err->code == ERR_MISSING ?
               err_set(err, ERR_MISSING, "%s: is not a finished run (it has no run.json)", r->dir) :
               -(int)err->code;
    r->doc = json_loadb(text, n, 0, &why);
    if (!r->doc)
        return err_set(err, ERR_INVALID, "%s:%d: %s", path, why.line, why.text);
    if (json_object_get(r->doc, "program"))
        return err_set(err, ERR_INVALID, "%s: is the run of a program of the user's own, which has "
                       "no digest to compare", r->dir);
    if (!json_is_object(json_object_get(r->doc, "spec")) || !rerun_digest(r))
        return err_set(err, ERR_INVALID, "%s: has no spec or no digest; it is damaged", path);
    return 0;
}

/* JSON is YAML: the spec of a run goes the way of any spec. */
static int read_spec(struct rerun *r, struct err *err)
{
    char name[4096 + 16];
    const char *dir = json_string_value(json_object_get(r->doc, "spec_dir"));
    OWN_MEM char *text = json_dumps(json_object_get(r->doc, "spec"),
                                    JSON_INDENT(1) | JSON_REAL_PRECISION(17));

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for the spec of %s", r->dir);
    snprintf(name, sizeof name, "%s/run.json", r->dir);
    if (spec_parse(text, strlen(text), name, NULL, 0, &r->spec, err) < 0)
        return -(int)err->code;
    snprintf(r->spec->dir, sizeof r->spec->dir, "%s", dir ? dir : ".");
    return 0;
}

/* ------------------------------------------------------------------ marks */

static int add_mark(struct rerun *r, const json_t *doc, const char *step_key, struct err *err)
{
    const char *text = json_string_value(json_object_get(doc, "chain"));
    long step = (long)json_integer_value(json_object_get(doc, step_key));
    uint64_t chain = text ? strtoull(text, NULL, 16) : 0;

    if (!chain || step < 1 || (r->n_marks && step <= r->mark[r->n_marks - 1].step))
        return 0;
    if (r->n_marks == r->room) {
        r->room = r->room ? 2 * r->room : 256;
        struct rerun_mark *more = realloc(r->mark, (size_t)r->room * sizeof *more);
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for %ld steps of %s", r->room, r->dir);
        r->mark = more;
    }
    r->mark[r->n_marks++] = (struct rerun_mark){ step, chain };
    return 0;
}

/* The run's head stands for its last step, whatever the last line says. */
static int read_marks(struct rerun *r, struct err *err)
{
    char path[4096 + 32];
    OWN_MEM char *text = NULL;

    snprintf(path, sizeof path, "%s/metrics.jsonl", r->dir);
    if (files_read(path, (size_t)1 << 32, &text, NULL, err) < 0)
        return -(int)err->code;
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        OWN_JSON json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);
        if (!line)
            return err_set(err, ERR_INVALID, "%s: a line is damaged: %.60s", path, at);
        if (add_mark(r, line, "step", err) < 0)
            return -(int)err->code;
    }
    return add_mark(r, r->doc, "steps", err);
}

int rerun_open(const char *dir, int threads, struct rerun **out, struct err *err)
{
    OWN(rerun) r = calloc(1, sizeof *r);

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory to open %s", dir);
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    if (read_document(r, err) < 0 || read_spec(r, err) < 0)
        return -(int)err->code;
    const char *chain = json_string_value(json_object_get(r->doc, "chain"));
    if (chain && strspn(chain, "0") != strlen(chain) && read_marks(r, err) < 0)
        return -(int)err->code;
    if ((r->n_marks ? trainer_new_chained : trainer_new)(r->spec, threads, &r->trainer, err) < 0)
        return -(int)err->code;
    *out = TAKE(r);
    return 0;
}

void rerun_free(struct rerun *r)
{
    if (!r)
        return;
    trainer_free(r->trainer);
    spec_free(r->spec);
    json_decref(r->doc);
    free(r->mark);
    free(r);
}

static const char *digest_of_last(const struct rerun *r)
{
    return json_string_value(json_object_get(json_object_get(r->doc, "last"), "digest"));
}

int rerun_load(struct rerun *r, const char *which, struct err *err)
{
    char path[4096 + 64], digest[65];
    OWN(safetensors) s = NULL;
    struct plan *p = trainer_plan(r->trainer);
    const bool last = which && strcmp(which, "last") == 0 && digest_of_last(r);
    const char *said = last ? digest_of_last(r) : rerun_digest(r);

    if (rundir_weights(r->dir, which, path, sizeof path, err) < 0 ||
        safetensors_open(path, &s, err) < 0 || model_load(p, s, path, false, err) < 0)
        return -(int)err->code;
    model_digest(p, digest);
    if ((!which || last) && strcmp(digest, said) != 0)
        return err_set(err, ERR_CONFLICT,
                       "%s: has digest %.16s..., run.json says %.16s...: the file "
                       "was changed after the run",
                       path, digest, said);
    return 0;
}

int rerun_restore(struct rerun *r, long step, struct err *err)
{
    char path[4096 + 64];

    snprintf(path, sizeof path, "%s/checkpoints/step-%ld.safetensors", r->dir, step);
    return trainer_load(r->trainer, path, err);
}

const struct rerun_mark *rerun_marks(const struct rerun *r, long *out_n)
{
    *out_n = r->n_marks;
    return r->mark;
}

struct trainer *rerun_trainer(struct rerun *r) { return r->trainer; }
const json_t *rerun_document(const struct rerun *r) { return r->doc; }
const char *rerun_digest(const struct rerun *r)
{
    return json_string_value(json_object_get(r->doc, "digest"));
}
long rerun_steps(const struct rerun *r)
{
    return (long)json_integer_value(json_object_get(r->doc, "steps"));
}
