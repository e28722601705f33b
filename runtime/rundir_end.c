/* runtime/rundir_end.c - the model and run.json, written at the end and tried before the first step
 *
 * DESIGN. Hours of training must not end with a model that cannot be saved. So rundir_rehearse makes
 * both documents as they will be, computes the digest of the data while its files are there, checks
 * the room on the disk and writes a file. From then on a file without a name holds the room that
 * the model or a checkpoint takes; rundir_finish gives it back first, and so does a checkpoint that
 * finds the disk full.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "base/room.h"
#include "base/sha256.h"
#include "runtime/rundir_int.h"
#include "runtime/scalars.h"

/* Metrics, events and what a file system itself needs for a few files. */
static const int64_t ROOM_MORE = 64 << 10;

static int dump_json(const json_t *doc, const char *name, char **out, struct err *err)
{
    *out = doc ? json_dumps(doc, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    if (*out)
        return 0;
    return err_set(err, ERR_INVALID, "%s cannot be written as JSON: a name in it is not UTF-8 (is "
                   "the spec in a directory whose name is not? rename it), or there is no memory",
                   name);
}

static int write_json(const char *dir, const char *name, const json_t *doc, struct err *err)
{
    char path[NAME_SIZE];
    OWN_MEM char *text = NULL;

    if (dump_json(doc, name, &text, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%.4000s/%s", dir, name);
    return files_write(path, text, strlen(text), err);
}

/* What predict and evaluate need; the words of a spec where there are words. */
static json_t *model_document(struct trainer *t)
{
    const struct job_spec *s = trainer_spec(t);

    return json_pack("{s:s, s:i, s:s, s:O, s:O, s:o, s:i, s:i, s:O}", "muster", MUSTER_VERSION,
                     "numerics", NUMERICS_VERSION, "name", s->name, "model", s->model, "loss",
                     s->loss, "data", dataset_describe(trainer_data(t)), "batch", s->batch,
                     "shards", s->shards, "metrics", json_object_get(s->doc, "metrics"));
}

static int save_weights(const char *dir, const char *name, struct trainer *t, const float *copy,
                        struct err *err)
{
    char path[NAME_SIZE];

    snprintf(path, sizeof path, "%.4000s/%s", dir, name);
    return copy ? model_save_copy(trainer_plan(t), copy, path, NULL, err)
                : model_save(trainer_plan(t), path, false, NULL, err);
}

int rundir_save_copy(const char *path, struct trainer *t, const struct snapshot *copy,
                     struct err *err)
{
    char weights[NAME_SIZE];
    OWN_JSON json_t *doc = model_document(t);
    OWN_MEM char *text = NULL;

    if (dump_json(doc, "model.json", &text, err) < 0 || files_mkdir(path, err) < 0)
        return -(int)err->code;
    snprintf(weights, sizeof weights, "%.4000s/weights.safetensors", path);
    if (snapshot_save(copy, weights, NULL, err) < 0)
        return -(int)err->code;
    return write_json(path, "model.json", doc, err);
}

/* The identity of a run: what must be equal for the bits to be. */
static json_t *identity(struct trainer *t, struct err *err)
{
    const struct job_spec *s = trainer_spec(t);
    char data[65], id[SHA256_HEX];

    if (dataset_digest(trainer_data(t), data, err) < 0)
        return NULL;
    json_t *spec = spec_identity(s);
    json_t *doc = json_pack("{s:o, s:s, s:I, s:i, s:s}", "spec", spec, "data", data, "seed",
                            (json_int_t)s->seed, "numerics", NUMERICS_VERSION, "device", "cpu");
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    if (!text) {
        json_decref(doc);
        err_set(err, ERR_NOMEM, "no memory for run.json");
        return NULL;
    }
    sha256_hex_of(text, strlen(text), id);
    json_object_set_new(doc, "sha256", json_string(id));
    return doc;
}

static json_t *test_document(const struct test_result *r)
{
    json_t *doc = json_object();

    for (int i = 0; i < r->n; i++)
        json_object_set_new(doc, r->name[i], json_number(r->value[i]));
    return doc;
}

/* `best` and, where it is the model, `last`. */
static void describe_best(struct trainer *t, const struct fit_result *fit, json_t *doc)
{
    struct best best;
    char digest[65];

    if (!trainer_best(t, &best))
        return;
    json_object_set_new(doc, "best", json_pack("{s:I, s:i, s:s, s:o, s:o}", "step",
                                               (json_int_t)best.step, "epoch", best.epoch, "metric",
                                               best.metric, "value", json_number(best.value),
                                               "test", test_document(&best.test)));
    if (!trainer_delivers_best(t))
        return;
    model_digest(trainer_plan(t), digest);
    json_object_set_new(doc, "last", json_pack("{s:I, s:s, s:o}", "step", (json_int_t)fit->steps,
                                               "digest", digest, "test",
                                               test_document(&fit->test)));
    json_object_set_new(doc, "test", test_document(&best.test));
}

/* run.json. NULL: `err` says why. */
static json_t *run_document(struct trainer *t, const struct fit_result *fit, const char *digest,
                            json_t *more, struct err *err)
{
    const struct job_spec *s = trainer_spec(t);
    const struct plan *p = trainer_plan(t);
    char chain[17];

    json_t *id = identity(t, err);
    if (!id)
        return NULL;
    json_t *doc = json_pack(
        "{s:s, s:s, s:s, s:o, s:I, s:i, s:s, s:o, s:f, s:f, s:i, s:s, s:I, s:O, s:s}", "name",
        s->name, "muster", MUSTER_VERSION, "digest", digest, "identity", id, "steps",
        (json_int_t)fit->steps, "epochs", fit->epochs, "ended", fit->why, "test",
        test_document(&fit->test), "seconds", fit->seconds, "samples_per_s", fit->samples_per_s,
        "threads", p->threads, "isa", isa_name(p->isa), "rows_skipped",
        (json_int_t)dataset_skipped(trainer_data(t)), "spec", s->doc, "spec_dir", s->dir);
    if (!doc) {
        err_set(err, ERR_INVALID, "run.json cannot be written as JSON: the spec's directory \"%s\" "
                "has a name that is not UTF-8 (rename it), or there is no memory", s->dir);
        return NULL;
    }
    snprintf(chain, sizeof chain, "%016" PRIx64, plan_chain(p));
    json_object_set_new(doc, "chain", json_string(chain));
    describe_best(t, fit, doc);
    if (more)
        json_object_update(doc, more);
    return doc;
}

int rundir_finish(struct rundir *r, struct trainer *t, const struct fit_result *fit, json_t *more,
                  char out_digest[65], struct err *err)
{
    const bool deliver = trainer_delivers_best(t);
    struct best best = { 0 };
    char digest[65];

    trainer_best(t, &best);
    model_digest_copy(trainer_plan(t), deliver ? best.params : NULL, digest);
    OWN_JSON json_t *model = model_document(t);
    OWN_JSON json_t *run = run_document(t, fit, digest, more, err);
    if (!run)
        return -(int)err->code;
    rundir_release(r);
    /* model.json comes after the weights: a directory that has it has both. */
    if (save_weights(r->path, "weights.safetensors", t, deliver ? best.params : NULL, err) < 0 ||
        (deliver && save_weights(r->path, "last.safetensors", t, NULL, err) < 0) ||
        write_json(r->path, "model.json", model, err) < 0 || rundir_save_best(r, t, err) < 0 ||
        scalars_flush(r->scalars, err) < 0 || write_json(r->path, "run.json", run, err) < 0)
        return -(int)err->code;
    memcpy(out_digest, digest, sizeof digest);
    return 0;
}

/* ------------------------------------------------------------------ before the first step */

/* Weights, the last ones beside the best ones, and what is around them. */
static int64_t model_room(struct trainer *t, size_t json)
{
    int copies = trainer_spec(t)->patience ? 2 : 1;

    return copies * model_bytes(trainer_plan(t), false) + (int64_t)json + ROOM_MORE;
}

/* Of all that the run has on disk at one time: one more checkpoint than it keeps, since the new one
 * is there before the oldest goes. */
static int64_t run_room(struct trainer *t, size_t json)
{
    const struct job_spec *s = trainer_spec(t);
    int keep = s->checkpoint_keep > 0 ? s->checkpoint_keep : 1;
    int64_t all = model_room(t, json);

    if (s->checkpoint_best)
        all += 2 * model_bytes(trainer_plan(t), false);
    if (s->checkpoint.unit != EVERY_NEVER)
        all += (keep + 1) * model_bytes(trainer_plan(t), true);
    return all;
}

/* What is set aside: for the model, or for a checkpoint in its place. */
static int64_t reserved_room(struct trainer *t)
{
    int64_t model = model_room(t, 0), state = model_bytes(trainer_plan(t), true) + ROOM_MORE;

    return model > state ? model : state;
}

/* A file without a name. Where a file system cannot set room aside the one who writes at the end has
 * to find some. */
int rundir_reserve(struct rundir *r, struct trainer *t, struct err *err)
{
    char path[NAME_SIZE];

    if (r->reserve >= 0)
        return 0;
    snprintf(path, sizeof path, "%.4000s/.room-XXXXXX", r->path);
    r->reserve = mkostemp(path, O_CLOEXEC);
    if (r->reserve < 0)
        return err_set(err, ERR_IO, "%s: no file can be made there: %s (choose another --out)",
                       r->path, strerror(errno));
    unlink(path);
    if (fallocate(r->reserve, 0, 0, (off_t)reserved_room(t)) == 0 || errno != ENOSPC)
        return 0;
    rundir_release(r);
    return err_set(err, ERR_IO, "%s: the disk is full: the model or a checkpoint takes %" PRId64
                   " bytes (make room, or choose another --out)", r->path, reserved_room(t));
}

int rundir_rehearse(struct rundir *r, struct trainer *t, struct err *err)
{
    const struct fit_result fit = { .steps = trainer_step(t) };
    OWN_JSON json_t *model = model_document(t);
    OWN_JSON json_t *run = run_document(t, &fit, "", NULL, err);
    OWN_MEM char *model_text = NULL, *run_text = NULL;

    if (!run || dump_json(model, "model.json", &model_text, err) < 0 ||
        dump_json(run, "run.json", &run_text, err) < 0)
        return err_add(err, "%s: the model could not be saved at the end", trainer_spec(t)->path);
    if (strlen(r->path) > RUN_PATH_MAX)
        return err_set(err, ERR_INVALID, "--out %.60s...: the path has %zu bytes, %d are possible",
                       r->path, strlen(r->path), RUN_PATH_MAX);
    if (rundir_reserve(r, t, err) < 0)
        return -(int)err->code;
    int64_t free = room_left(r->reserve, INT32_MAX) + reserved_room(t);
    int64_t need = run_room(t, strlen(model_text) + strlen(run_text));
    if (free < need)
        return err_set(err, ERR_IO, "%s: the disk is full: %" PRId64 " bytes are free, the run's "
                       "checkpoints and model take %" PRId64 " (make room, choose another --out, or "
                       "keep fewer: --set checkpoint.keep=1)", r->path, free, need);
    return 0;
}

/* ------------------------------------------------------------------ which weights */

/* The steps that there are checkpoints of, for a message. */
static void list_steps(const char *dir, char *out, size_t size)
{
    size_t n = 0;

    out[0] = 0;
    for (long step = LONG_MAX; (step = rundir_find_checkpoint(dir, step)) >= 0 && n + 32 < size;)
        n += (size_t)snprintf(out + n, size - n, "%s%ld", n ? ", " : "", step);
}

static long last_step(const char *dir)
{
    char path[NAME_SIZE];
    OWN_MEM char *text = NULL;
    struct err ignored;

    snprintf(path, sizeof path, "%.4000s/run.json", dir);
    if (files_read(path, (size_t)1 << 30, &text, NULL, &ignored) < 0)
        return -1;
    OWN_JSON json_t *doc = json_loads(text, 0, NULL);
    return doc ? whole_of(doc, "steps") : -1;
}

int rundir_weights(const char *dir, const char *which, char *out, size_t size, struct err *err)
{
    char steps[256], *end;
    long step = which ? strtol(which, &end, 10) : 0;
    const bool number = which && *which >= '0' && *which <= '9' && !*end;
    const bool last = which && (strcmp(which, "last") == 0 || (number && step == last_step(dir)));

    if (!which)
        snprintf(out, size, "%.4000s/weights.safetensors", dir);
    else if (strcmp(which, "best") == 0)
        snprintf(out, size, "%.4000s/checkpoints/best.safetensors", dir);
    else if (number)
        snprintf(out, size, "%.4000s/checkpoints/step-%ld.safetensors", dir, step);
    else if (!last)
        return err_set(err, ERR_INVALID, "--checkpoint %s: wants best, last or the number of a "
                       "step", which);
    if (!which || (!(strcmp(which, "last") == 0) && access(out, F_OK) == 0))
        return 0;
    if (last) {
        snprintf(out, size, "%.4000s/last.safetensors", dir);
        if (access(out, F_OK) < 0)      /* the last ones are the model */
            snprintf(out, size, "%.4000s/weights.safetensors", dir);
        return 0;
    }
    list_steps(dir, steps, sizeof steps);
    if (!number)
        return err_set(err, ERR_MISSING, "%s: keeps no best parameters (a run has them that tests, "
                       "unless checkpoint.best is none); steps with a checkpoint: %s", dir,
                       steps[0] ? steps : "none");
    return err_set(err, ERR_MISSING, "%s: keeps no checkpoint of step %ld; steps with a checkpoint: "
                   "%s", dir, step, steps[0] ? steps : "none");
}
