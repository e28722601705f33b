/* runtime/trainer_state.c - a trainer's state in a file and in memory
 *
 * Both hold the same: parameters, optimizer state, where the run is, and the parameters of the best
 * test so far. Who goes on from either, here or on another machine, ends with the same bits.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "engine/model.h"
#include "runtime/trainer_int.h"

/* ------------------------------------------------------------------ checkpoints */

static void note(json_t *notes, const char *key, const char *fmt, ...)
{
    char text[64];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_object_set_new(notes, key, json_string(text));
}

void trainer_mark(const struct trainer *t, char out[SHA256_HEX])
{
    OWN_JSON json_t *doc = spec_identity(t->spec);

    json_object_del(doc, "epochs");
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    sha256_hex_of(text ? text : "", text ? strlen(text) : 0, out);
}

/* The values of a test as one note. */
static void note_test(json_t *notes, const char *key, const double *value, int n)
{
    OWN_BUF text = BUF_INIT;

    for (int i = 0; i < n; i++)
        buf_printf(&text, "%s%a", i ? " " : "", value[i]);
    if (!text.failed && n)
        json_object_set_new(notes, key, json_string(text.data));
}

static void read_test(const struct safetensors *s, const char *key, double *value, int n)
{
    const char *at = safetensors_note(s, key);

    for (int i = 0; at && i < n; i++) {
        char *end;
        value[i] = strtod(at, &end);
        at = end;
    }
}

/* Where the best test was, and the loss that is being added up: a checkpoint of an older muster has
 * neither. */
static void note_progress(const struct trainer *t, json_t *notes)
{
    note(notes, "loss_sum", "%a", t->at.loss_sum);
    note(notes, "loss_samples", "%ld", t->at.loss_samples);
    note(notes, "best_step", "%ld", t->at.best_step);
    note(notes, "best_epoch", "%d", t->at.best_epoch);
    note(notes, "best_samples", "%ld", t->at.best_samples);
    note(notes, "over", "%d", t->at.over);
    json_object_set_new(notes, "why", json_string(t->at.why));
    note(notes, "test_step", "%ld", t->at.test_step);
    note(notes, "test_epoch", "%d", t->at.test_epoch);
    note(notes, "test_samples", "%ld", t->test.samples);
    note_test(notes, "test", t->test.value, t->test.n);
    if (t->at.best_step >= 0)
        note_test(notes, "best_test", t->at.best_test, metrics_count(t->metrics));
}

static double optional_note(const struct safetensors *s, const char *key, double otherwise)
{
    const char *text = safetensors_note(s, key);

    return text ? strtod(text, NULL) : otherwise;
}

static int load_progress(struct trainer *t, const struct safetensors *s, const char *path,
                         struct err *err)
{
    const char *why = safetensors_note(s, "why");

    t->at.loss_sum = optional_note(s, "loss_sum", 0);
    t->at.loss_samples = (long)optional_note(s, "loss_samples", 0);
    t->at.over = (int)optional_note(s, "over", 0);
    snprintf(t->at.why, sizeof t->at.why, "%s", why ? why : "");
    t->at.test_step = (long)optional_note(s, "test_step", 0);
    t->at.test_epoch = (int)optional_note(s, "test_epoch", 0);
    t->test = (struct test_result){ .samples = (long)optional_note(s, "test_samples", 0) };
    if (safetensors_note(s, "test")) {
        trainer_name_test(t, &t->test);
        read_test(s, "test", t->test.value, t->test.n);
    }
    t->at.best_step = t->best ? (long)optional_note(s, "best_step", -1) : -1;
    if (t->at.best_step < 0) {
        t->at.best = NAN;       /* without its parameters the value is of no use */
        return 0;
    }
    t->at.best_epoch = (int)optional_note(s, "best_epoch", 0);
    t->at.best_samples = (long)optional_note(s, "best_samples", 0);
    read_test(s, "best_test", t->at.best_test, metrics_count(t->metrics));
    return model_load_best(t->plan, s, path, t->best, err);
}

/* %a keeps every bit of a double. */
int trainer_save(const struct trainer *t, const char *path, struct err *err)
{
    OWN_JSON json_t *notes = json_object();
    char mark[SHA256_HEX], data[65];
    struct err gone;            /* a file that has gone by now is no reason not to save */

    trainer_mark(t, mark);
    json_object_set_new(notes, "spec", json_string(mark));
    if (dataset_digest(t->data, data, &gone) == 0)
        json_object_set_new(notes, "data", json_string(data));
    note(notes, "step", "%ld", t->at.step);
    note(notes, "epoch", "%d", t->at.epoch);
    note(notes, "done", "%ld", t->at.done);
    note(notes, "best", "%a", t->at.best);
    note(notes, "best_loss", "%a", t->at.best_loss);
    note(notes, "waited", "%d", t->at.waited);
    note(notes, "lr_factor", "%a", t->plan->lr_factor);
    note(notes, "schedule_factor", "%a", t->schedule.factor);
    note(notes, "schedule_best", "%a", t->schedule.best);
    note(notes, "schedule_waited", "%d", t->schedule.waited);
    note(notes, "numerics", "%d", NUMERICS_VERSION);
    note(notes, "chain", "%016" PRIx64, plan_chain(t->plan));
    note_progress(t, notes);
    return model_save_state(t->plan, path, t->at.best_step >= 0 ? t->best : NULL, notes, err);
}

static int read_note(const struct safetensors *s, const char *key, const char *path, double *out,
                     struct err *err)
{
    const char *text = safetensors_note(s, key);
    char *end;

    if (!text)
        return err_set(err, ERR_INVALID, "%s: is not a checkpoint (it has no note \"%s\")", path,
                       key);
    *out = strtod(text, &end);
    if (*end)
        return err_set(err, ERR_INVALID, "%s: damaged note \"%s\"", path, key);
    return 0;
}

/* The data that a checkpoint was made from is the data there is; one of old may not know. */
static int check_data(const struct trainer *t, const struct safetensors *s, const char *path,
                      struct err *err)
{
    const char *theirs = safetensors_note(s, "data");
    char data[65];

    if (!theirs)
        return 0;
    if (dataset_digest(t->data, data, err) < 0)
        return -(int)err->code;
    if (strcmp(theirs, data) == 0)
        return 0;
    return err_set(err, ERR_CONFLICT, "%s: was made from other training data than there is now "
                   "(put the files back as they were, or start a new run)", path);
}

int trainer_load(struct trainer *t, const char *path, struct err *err)
{
    OWN(safetensors) s = NULL;
    double step, epoch, done, best, best_loss, waited, factor, sf, sb, sw, numerics;
    struct { const char *key; double *to; } notes[] = {
        { "step", &step }, { "epoch", &epoch }, { "done", &done }, { "best", &best },
        { "best_loss", &best_loss }, { "waited", &waited }, { "lr_factor", &factor },
        { "schedule_factor", &sf }, { "schedule_best", &sb }, { "schedule_waited", &sw },
        { "numerics", &numerics },
    };

    if (safetensors_open(path, &s, err) < 0)
        return -(int)err->code;
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++)
        if (read_note(s, notes[i].key, path, notes[i].to, err) < 0)
            return -(int)err->code;
    if (numerics != NUMERICS_VERSION)
        return err_set(err, ERR_CONFLICT, "%s: made by numerics version %.0f, this is %d: going on "
                       "from it would give other bits (train again)", path, numerics,
                       NUMERICS_VERSION);
    t->kept_step = -1;
    if (model_load(t->plan, s, path, true, err) < 0)
        return -(int)err->code;
    char mark[SHA256_HEX];
    const char *theirs = safetensors_note(s, "spec");
    trainer_mark(t, mark);
    if (!theirs || strcmp(theirs, mark) != 0)
        return err_set(err, ERR_CONFLICT, "%s: was made by another spec; only epochs may differ "
                       "(resume with the spec and --set of the run, or start a new one)", path);
    if (check_data(t, s, path, err) < 0)
        return -(int)err->code;
    t->at.step = (long)step;
    t->at.epoch = (int)epoch;
    t->at.done = (long)done;
    t->at.best = best;
    t->at.best_loss = best_loss;
    t->at.waited = (int)waited;
    t->plan->lr_factor = factor;
    t->schedule.factor = sf;
    t->schedule.best = sb;
    t->schedule.waited = (int)sw;
    t->at.due = 0;
    const char *chain = safetensors_note(s, "chain");
    plan_set_chain(t->plan, chain ? strtoull(chain, NULL, 16) : 0);
    return load_progress(t, s, path, err);
}

/* ------------------------------------------------------------------ state in memory */

int trainer_state_get(const struct trainer *t, struct buf *out, struct err *err)
{
    const size_t plan = plan_state_bytes(t->plan);
    const size_t best = t->at.best_step >= 0 ? plan_copy_bytes(t->plan) : 0;
    struct place at = t->at;

    at.lr_factor = t->plan->lr_factor;
    at.schedule_factor = t->schedule.factor;
    at.schedule_best = t->schedule.best;
    at.schedule_waited = t->schedule.waited;
    at.chain = plan_chain(t->plan);
    at.tests = t->test.n;
    at.test_samples = t->test.samples;
    memcpy(at.test, t->test.value, sizeof at.test);
    buf_append(out, &at, sizeof at);
    char *to = buf_reserve(out, plan + best);
    if (!to)
        return err_set(err, ERR_NOMEM, "no memory for a copy of the model (%zu bytes)",
                       plan + best);
    plan_state_get(t->plan, to);
    if (best)
        memcpy(to + plan, t->best, best);
    out->n += plan + best;
    return buf_ok(out, err);
}

int trainer_state_set(struct trainer *t, const void *state, size_t n, struct err *err)
{
    const size_t plan = plan_state_bytes(t->plan);
    struct place at;
    size_t best = 0;

    if (n >= sizeof at) {
        memcpy(&at, state, sizeof at);
        best = t->best && at.best_step >= 0 ? plan_copy_bytes(t->plan) : 0;
    }
    if (n != sizeof at + plan + best)
        return err_set(err, ERR_INVALID, "a state of %zu bytes, this model has %zu", n,
                       sizeof at + plan + best);
    if (at.step < 0 || at.epoch < 0 || at.done < 0 || at.tests < 0 || at.tests > METRICS_MAX ||
        !memchr(at.why, 0, sizeof at.why) || (at.best_step >= 0 && !t->best))
        return err_set(err, ERR_INVALID, "a damaged state");
    t->at = at;
    t->kept_step = -1;
    t->plan->lr_factor = at.lr_factor;
    t->schedule.factor = at.schedule_factor;
    t->schedule.best = at.schedule_best;
    t->schedule.waited = at.schedule_waited;
    t->test = (struct test_result){ .samples = at.test_samples };
    if (at.tests) {
        trainer_name_test(t, &t->test);
        memcpy(t->test.value, at.test, sizeof at.test);
    }
    plan_set_chain(t->plan, at.chain);
    plan_state_set(t->plan, (const char *)state + sizeof at);
    if (best)
        memcpy(t->best, (const char *)state + sizeof at + plan, best);
    return 0;
}
