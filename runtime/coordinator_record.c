/* runtime/coordinator_record.c - what the workers report, written down
 *
 * A result or a test that is on record already is passed over: work that is done again gives the
 * same, so the record has it right.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "runtime/coordinator_int.h"

/* More generations or workers than any job comes to. */
static const json_int_t ROSTER_NUMBER = INT64_C(1) << 53;

void record_change(struct coordinator *c, const char *event, json_t *line)
{
    OWN_JSON json_t *own = line ? line : json_object();
    OWN_JSON json_t *head = json_pack("{s:f, s:s}", "t", clock_wall(), "event", event);

    json_object_update(head, own);
    OWN_MEM char *text = json_dumps(head, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text)
        return;
    size_t n = strlen(text);
    text[n++] = '\n';           /* in place of the NUL */
    if (write(c->history, text, n) != (ssize_t)n)
        fprintf(stderr, "muster: roster.jsonl: %s\n", strerror(errno));
}

int record_roster(struct coordinator *c, struct err *err)
{
    char path[4096 + 32];
    OWN_JSON json_t *ids = json_array();

    for (int i = 0; i < roster_size(c->roster); i++)
        json_array_append_new(ids, json_integer((json_int_t)roster_at(c->roster, i)->id));
    OWN_JSON json_t *doc = json_pack("{s:I, s:I, s:O, s:i, s:i}", "generation",
                                     (json_int_t)roster_generation(c->roster), "next_id",
                                     (json_int_t)roster_next_id(c->roster), "workers", ids, "min",
                                     c->min, "max", c->max);
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for roster.json");
    snprintf(path, sizeof path, "%s/roster.json", rundir_path(c->config->dir));
    return files_write(path, text, strlen(text), err);
}

/* True when they are what record_roster writes: ids in order, each given out already. */
static bool read_stored(const json_t *doc, struct stored *s)
{
    const json_t *ids = json_object_get(doc, "workers"), *min = json_object_get(doc, "min"),
                 *max = json_object_get(doc, "max");
    json_int_t generation = json_integer_value(json_object_get(doc, "generation"));
    json_int_t next = json_integer_value(json_object_get(doc, "next_id")), last = 0;

    if (generation < 0 || generation >= ROSTER_NUMBER || next < 1 || next >= ROSTER_NUMBER ||
        json_array_size(ids) > ROSTER_MAX || !min != !max)
        return false;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id <= last || id >= next)
            return false;
        s->id[s->n++] = (uint64_t)(last = id);
    }
    s->generation = (uint64_t)generation;
    s->next_id = (uint64_t)next;
    if (!max)
        return true;
    json_int_t least = json_integer_value(min), most = json_integer_value(max);
    s->min = (int)least;
    s->max = (int)most;
    return least >= 1 && most >= least && most <= ROSTER_MAX;
}

int record_restore(const struct coordinator *c, struct stored *out, struct err *err)
{
    char path[4096 + 32];
    OWN_MEM char *text = NULL;
    struct err why;

    *out = (struct stored){ 0 };
    snprintf(path, sizeof path, "%s/roster.json", rundir_path(c->config->dir));
    if (files_read(path, 1 << 20, &text, NULL, &why) < 0)
        return why.code == ERR_MISSING ? 0 : err_set(err, why.code, "%s", why.text);
    OWN_JSON json_t *doc = json_loads(text, 0, NULL);
    return read_stored(doc, out)
               ? 0 : err_set(err, ERR_INVALID, "%s: is damaged (remove it: the job goes on from "
                             "its last checkpoint)", path);
}

static json_t *read_history(struct coordinator *c)
{
    char path[4096 + 32];
    OWN_MEM char *text = NULL;
    struct err ignored;
    json_t *all = json_array();

    snprintf(path, sizeof path, "%s/roster.jsonl", rundir_path(c->config->dir));
    if (files_read(path, (size_t)1 << 30, &text, NULL, &ignored) < 0)
        return all;
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        OWN_JSON json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);
        const char *event = json_string_value(json_object_get(line, "event"));
        if (event && strcmp(event, "step") != 0)
            json_array_append(all, line);
    }
    return all;
}

/* ------------------------------------------------------------------ results */

static void tell(struct coordinator *c, struct train_event *e)
{
    e->steps_in_epoch = c->steps_in_epoch;
    e->samples_per_s = c->samples_per_s;
    if (c->config->handler(c->config->arg, c->config->trainer, e))
        c->stopping = true;
}

static void note_first_step(struct coordinator *c, long step)
{
    if (!c->first_step)
        return;
    c->first_step = false;
    record_change(c, "step", json_pack("{s:I, s:I}", "generation",
                                       (json_int_t)roster_generation(c->roster), "step",
                                       (json_int_t)step));
}

/* The epoch that a step is of; of the first one the length may not be known yet. */
static int epoch_of(const struct results_place *place, long step)
{
    return place->steps_in_epoch > 0 ? (int)(step / place->steps_in_epoch) : (int)place->epoch;
}

/* Those of one epoch at a time. */
static void tell_results(struct coordinator *c, const struct results_place *place,
                         const struct step_result *all, long count)
{
    for (long from = 0, to; from < count; from = to) {
        c->epoch = epoch_of(place, all[from].step);
        for (to = from + 1; to < count && epoch_of(place, all[to].step) == c->epoch;)
            to++;
        c->logged = all[to - 1].step + 1;
        if (c->logged > c->step)
            c->step = c->logged;
        c->loss = all[to - 1].reported;
        tell(c, &(struct train_event){ .kind = EVENT_STEPS, .step = c->logged, .epoch = c->epoch,
                                       .results = all + from, .n_results = to - from });
    }
}

int record_results(struct coordinator *c, bool current, const char *body, size_t n, struct err *err)
{
    struct results_place place;
    OWN_MEM struct step_result *all = NULL;
    long count, skip = 0;

    if (results_unpack(body, n, &place, &all, &count, err) < 0)
        return -(int)err->code;
    if (count && current)
        note_first_step(c, all[count - 1].step + 1);
    while (skip < count && all[skip].step < c->logged)
        skip++;
    /* What is missing in between is told after the next go. */
    if (skip == count || (all[skip].step > c->logged && !current))
        return 0;
    c->steps_in_epoch = (long)place.steps_in_epoch;
    c->samples_per_s = place.samples_per_s;
    tell_results(c, &place, all + skip, count - skip);
    return 0;
}

/* ------------------------------------------------------------------ events */

/* Whether the state of a step came before its event. When it came from one who was not the first of
 * the list yet it did not, and both are told again after the next go. */
static bool has_state(const struct coordinator *c, long step) { return c->state_step == step; }

/* It goes into the trainer that writes files. */
static int take_state(struct coordinator *c, struct err *err)
{
    return trainer_state_set(c->config->trainer, c->state.data, c->state.n, err);
}

/* A number as worker_talk.c writes it, also one that JSON has no word for. */
static double value_of(const json_t *value)
{
    const char *text = json_string_value(value);

    return text ? strtod(text, NULL) : NAN;
}

static int on_test(struct coordinator *c, const json_t *event, struct err *err)
{
    struct test_result r = { 0 };
    long step = (long)json_integer_value(json_object_get(event, "step"));
    const json_t *values = json_object_get(event, "values");

    if (step <= c->tested)
        return 0;
    trainer_name_test(c->config->trainer, &r);
    if (json_array_size(values) != (size_t)r.n)
        return err_set(err, ERR_INVALID, "a test of %zu values", json_array_size(values));
    for (int i = 0; i < r.n; i++)
        r.value[i] = value_of(json_array_get(values, (size_t)i));
    c->tested = step;
    c->epoch = (int)json_integer_value(json_object_get(event, "epoch"));
    if (step > c->step)
        c->step = step;
    tell(c, &(struct train_event){ .kind = EVENT_TEST, .step = step, .epoch = c->epoch,
                                   .test = &r });
    return 0;
}

/* A disk that is full costs this checkpoint, not the job. */
static int on_checkpoint(struct coordinator *c, const json_t *event, struct err *err)
{
    long step = (long)json_integer_value(json_object_get(event, "step"));
    struct err why;

    if (!has_state(c, step))
        return 0;
    if (take_state(c, err) < 0)
        return -(int)err->code;
    if (rundir_checkpoint(c->config->dir, c->config->trainer, &why) < 0) {
        fprintf(stderr, "muster: %s; the job goes on\n", why.text);
        record_change(c, "checkpoint", json_pack("{s:I, s:s}", "step", (json_int_t)step, "failed",
                                                 why.text));
        return 0;
    }
    roster_checkpoint(c->roster, step);
    record_change(c, "checkpoint", json_pack("{s:I}", "step", (json_int_t)step));
    return 0;
}

static int on_end(struct coordinator *c, const json_t *event, struct err *err)
{
    const char *why = json_string_value(json_object_get(event, "why"));
    struct fit_result *f = &c->fit;
    long test_step;
    int test_epoch;

    f->steps = (long)json_integer_value(json_object_get(event, "step"));
    if (c->ended || !has_state(c, f->steps))
        return 0;
    if (take_state(c, err) < 0)
        return -(int)err->code;
    f->epochs = (int)json_integer_value(json_object_get(event, "epoch"));
    f->seconds = json_number_value(json_object_get(event, "seconds"));
    f->samples_per_s = json_number_value(json_object_get(event, "samples_per_s"));
    snprintf(f->why, sizeof f->why, "%s", why ? why : "");
    trainer_last_test(c->config->trainer, &f->test, &test_step, &test_epoch);
    record_change(c, "end", json_pack("{s:I}", "step", (json_int_t)f->steps));
    OWN_JSON json_t *more = json_pack("{s:o}", "roster", read_history(c));
    if (rundir_finish(c->config->dir, c->config->trainer, f, more, c->digest, err) < 0) {
        struct err why;         /* a checkpoint keeps all of it: --resume writes the model alone */
        if (rundir_checkpoint(c->config->dir, c->config->trainer, &why) < 0)
            fprintf(stderr, "muster: %s\n", why.text);
        else
            err_add(err, "the trained parameters are in %s; make room and go on with --resume",
                    rundir_last_checkpoint(c->config->dir));
        return -(int)err->code;
    }
    c->ended = true;
    return 0;
}

/* The job was asked to stop: where it is is kept. */
static int on_stopped(struct coordinator *c, const json_t *event, struct err *err)
{
    if (!has_state(c, (long)json_integer_value(json_object_get(event, "step"))))
        return 0;
    if (on_checkpoint(c, event, err) < 0)
        return -(int)err->code;
    c->fit.steps = trainer_step(c->config->trainer);
    c->fit.stopped = true;
    return 0;
}

/* All workers fail alike, being deterministic: the first one's word is enough. */
static int on_failed(struct coordinator *c, const json_t *event, struct err *err)
{
    const char *text = json_string_value(json_object_get(event, "text"));

    (void)err;
    c->failed.code = (enum err_code)json_integer_value(json_object_get(event, "code"));
    snprintf(c->failed.text, sizeof c->failed.text, "%s", text ? text : "the workers failed");
    return 0;
}

int record_event(struct coordinator *c, const json_t *event, struct err *err)
{
    static const struct {
        const char *kind;
        int (*run)(struct coordinator *c, const json_t *event, struct err *err);
    } table[] = { { "test", on_test }, { "checkpoint", on_checkpoint }, { "end", on_end },
                  { "stopped", on_stopped }, { "failed", on_failed } };
    const char *kind = json_string_value(json_object_get(event, "kind"));

    for (size_t i = 0; kind && i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].kind, kind) == 0)
            return table[i].run(c, event, err);
    return 0;
}
