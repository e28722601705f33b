/* runtime/coordinator_desk.c - who comes to the coordinator, and what they want to know or have */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/coordinator_int.h"
#include "runtime/fetch.h"

enum { OUT_MAX = 1 << 26 };     /* a watcher that does not read is dropped */

/* ------------------------------------------------------------------ a worker knocks */

const char *desk_text(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s ? s : "";
}

static int check_worker(struct coordinator *c, const json_t *hello, struct err *err)
{
    const char *version = desk_text(hello, "version");
    long numerics = (long)json_integer_value(json_object_get(hello, "numerics"));

    if (strcmp(version, MUSTER_VERSION) != 0)
        return err_set(err, ERR_CONFLICT, "this worker is muster %s, the job runs %s (install the "
                       "same one)", version, MUSTER_VERSION);
    if (numerics != NUMERICS_VERSION)
        return err_set(err, ERR_CONFLICT,
                       "this worker computes by numerics version %ld, the job by "
                       "%d: its bits would differ (install the same muster)",
                       numerics, NUMERICS_VERSION);
    if (strcmp(desk_text(hello, "mark"), c->mark) != 0)
        return err_set(err, ERR_CONFLICT,
                       "this worker has another spec than the job (start it with "
                       "the same file and --set, or let it take the job's)");
    /* The offer's digest is that of one who checks each block that it reads against the offer. */
    if (strcmp(desk_text(hello, "data"), c->data) != 0 &&
        (!*c->config->offered || strcmp(desk_text(hello, "data"), c->config->offered) != 0))
        return err_set(err, ERR_CONFLICT, "this worker reads other data than the job (sha256 "
                       "%.16s..., the job's is %.16s...)", desk_text(hello, "data"), c->data);
    return 0;
}

/* One that others could not reach waits before it is let in again, longer each time. */
static bool is_penalised(struct coordinator *c, const struct roster_who *who)
{
    for (int i = 0; i < ROSTER_MAX; i++)
        if (c->penalty[i].pid == who->pid && strcmp(c->penalty[i].host, who->host) == 0)
            return clock_seconds() < c->penalty[i].until;
    return false;
}

void desk_penalise(struct coordinator *c, const struct roster_who *who)
{
    int at = 0;

    for (int i = 0; i < ROSTER_MAX; i++) {
        if (c->penalty[i].pid == who->pid && strcmp(c->penalty[i].host, who->host) == 0) {
            at = i;
            break;
        }
        if (c->penalty[i].until < c->penalty[at].until)
            at = i;
    }
    if (c->penalty[at].pid != who->pid || strcmp(c->penalty[at].host, who->host) != 0) {
        c->penalty[at].times = 0;
        c->penalty[at].pid = who->pid;
        snprintf(c->penalty[at].host, sizeof c->penalty[at].host, "%s", who->host);
    }
    if (c->penalty[at].times < 6)
        c->penalty[at].times++;
    c->penalty[at].until = clock_seconds() + 0.25 * (double)(1 << c->penalty[at].times);
}

/* The youngest go first; the first of the list stays as long as it can. */
static void shrink(struct coordinator *c)
{
    for (int i = roster_size(c->roster) - 1; i >= c->max; i--) {
        const struct roster_worker *w = roster_at(c->roster, i);
        struct caller *k = caller_find(c, w->id);
        if (w->leaving)
            continue;
        record_change(c, "leave", json_pack("{s:I}", "id", (json_int_t)w->id));
        roster_leave(c->roster, w->id);
        if (k) {
            caller_put(k, WIRE_BYE, 0, 0, "resized", 7);
            k->kind = CALLER_NEW;       /* no worker of this job any more */
            k->closing = true;
        }
    }
}

static void welcome(struct coordinator *c, struct caller *k, const json_t *hello)
{
    struct roster_who who = { .pid = (long)json_integer_value(json_object_get(hello, "pid")) };
    uint64_t id = (uint64_t)json_integer_value(json_object_get(hello, "id"));
    struct err why;
    bool fresh;

    snprintf(who.address, sizeof who.address, "%s", desk_text(hello, "address"));
    snprintf(who.host, sizeof who.host, "%s", desk_text(hello, "host"));
    if (check_worker(c, hello, &why) < 0) {
        caller_refuse(c, k, &why);
        return;
    }
    if (is_penalised(c, &who)) {
        err_set(&why, ERR_AGAIN, "other workers could not reach this one; not yet");
        caller_refuse(c, k, &why);
        return;
    }
    k->id = roster_join(c->roster, &who, id, &fresh);
    if (!k->id) {
        err_set(&why, ERR_CONFLICT, "the job has %d workers already, the most there can be",
                ROSTER_MAX);
        caller_refuse(c, k, &why);
        return;
    }
    k->kind = CALLER_WORKER;
    k->who = who;
    end_present(c, &who);
    k->member_from = fresh ? roster_generation(c->roster) + 1 : 0;
    OWN_JSON json_t *doc = json_pack("{s:I, s:b, s:i}", "id", (json_int_t)k->id, "fresh", fresh,
                                     "beat_ms", c->config->beat_ms);
    caller_put_json(k, WIRE_WELCOME, 0, doc);
    record_change(c, fresh ? "join" : "back",
                  json_pack("{s:I, s:I, s:s}", "id", (json_int_t)k->id, "pid", (json_int_t)who.pid,
                            "address", who.address));
    /* One who was away while the job was made smaller; without a resize more may join by hand. */
    if (c->resized)
        shrink(c);
}

/* The job's spec for a worker that has none: everything a `muster worker --join` needs. */
static json_t *spec_document(const struct coordinator *c)
{
    const struct job_spec *s = trainer_spec(c->config->trainer);

    return json_pack("{s:O, s:s}", "spec", s->doc, "dir", s->dir);
}

void desk_hello(struct coordinator *c, struct caller *k, const json_t *hello)
{
    const char *role = desk_text(hello, "role");

    if (k->kind != CALLER_NEW)
        return;
    if (strcmp(role, "worker") == 0) {
        welcome(c, k, hello);
    } else if (strcmp(role, "watcher") == 0) {
        k->kind = CALLER_WATCHER;
        c->told = 0;
    } else if (strcmp(role, "asker") == 0) {
        OWN_JSON json_t *doc = spec_document(c);
        caller_put_json(k, WIRE_WELCOME, 0, doc);
    } else {
        caller_drop(k);
    }
}

/* ------------------------------------------------------------------ questions */

static json_t *status(struct coordinator *c)
{
    static const char *const phases[] = { "waiting", "gathering", "running" };
    const int epochs = trainer_spec(c->config->trainer)->epochs;
    json_t *workers = json_array();

    for (int i = 0; i < roster_size(c->roster); i++) {
        const struct roster_worker *w = roster_at(c->roster, i);
        const struct caller *k = caller_find(c, w->id);
        json_array_append_new(workers, json_pack(
            "{s:I, s:I, s:s, s:i, s:i, s:I, s:f, s:I}", "id", (json_int_t)w->id, "pid",
            (json_int_t)w->who.pid, "address", w->who.address, "from", w->from, "to", w->to, "step",
            (json_int_t)(k ? k->step : 0), "bytes_per_step", k ? k->bytes_per_step : 0.0,
            "bytes_read", (json_int_t)(k ? k->read : 0)));
    }
    return json_pack("{s:s, s:s, s:I, s:i, s:i, s:o, s:I, s:i, s:I, s:i, s:f, s:f, s:b}", "name",
                     trainer_spec(c->config->trainer)->name, "phase",
                     c->ended ? "ended" : phases[roster_phase(c->roster)], "generation",
                     (json_int_t)roster_generation(c->roster), "min", c->min, "max", c->max,
                     "workers", workers, "step", (json_int_t)c->step, "epoch",
                     c->epoch < epochs ? c->epoch + 1 : epochs, "steps_in_epoch",
                     (json_int_t)c->steps_in_epoch, "epochs", epochs, "loss", c->loss,
                     "samples_per_s", c->samples_per_s, "stopping", c->stopping);
}

void desk_tell(struct coordinator *c)
{
    OWN_JSON json_t *doc = NULL;

    c->told = clock_seconds();
    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *k = &c->caller[i];
        if (k->fd < 0 || k->kind != CALLER_WATCHER || k->closing)
            continue;
        if (!doc)
            doc = status(c);
        caller_put_json(k, WIRE_STATUS, roster_generation(c->roster), doc);
        if (k->out.n > OUT_MAX)
            caller_drop(k);
    }
}

/* A piece of one of the job's files, for a worker whose host does not have it. */
static void hand_on(struct coordinator *c, struct caller *k, const json_t *ask)
{
    OWN_BUF piece = BUF_INIT;
    int64_t size = 0, n = json_integer_value(json_object_get(ask, "n"));
    struct err why;

    if (fetch_piece(trainer_spec(c->config->trainer),
                    (int)json_integer_value(json_object_get(ask, "file")),
                    json_integer_value(json_object_get(ask, "at")), n < 0 ? 0 : (size_t)n, &piece,
                    &size, &why) < 0)
        caller_refuse(c, k, &why);
    else
        caller_put(k, WIRE_STATE, 0, (uint64_t)size, piece.data, piece.n);
}

void desk_ask(struct coordinator *c, struct caller *k, const json_t *ask)
{
    const json_t *size = json_object_get(ask, "resize");
    struct err why;

    if (json_object_get(ask, "file")) {
        hand_on(c, k, ask);
        return;
    }
    if (json_object_get(ask, "offer")) {
        caller_put(k, WIRE_STATE, 0, 0, c->config->offer->data, c->config->offer->n);
        return;
    }
    if (size) {
        int min = (int)json_integer_value(json_array_get(size, 0));
        int max = (int)json_integer_value(json_array_get(size, 1));
        if (min < 1 || max < min || max > ROSTER_MAX) {
            err_set(&why, ERR_INVALID, "%d..%d workers cannot be (1 to %d)", min, max, ROSTER_MAX);
            caller_refuse(c, k, &why);
            return;
        }
        c->min = min;
        c->max = max;
        c->resized = true;
        roster_set_min(c->roster, min);
        record_change(c, "resize", json_pack("{s:i, s:i}", "min", min, "max", max));
        shrink(c);
        if (record_roster(c, &why) < 0)
            fprintf(stderr, "muster: %s\n", why.text);
        c->told = 0;
    }
    if (json_is_true(json_object_get(ask, "stop")))
        c->stopping = true;
    OWN_JSON json_t *doc = status(c);
    caller_put_json(k, WIRE_STATUS, roster_generation(c->roster), doc);
}
