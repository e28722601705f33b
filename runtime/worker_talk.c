/* runtime/worker_talk.c - the thread that talks to the coordinator */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "runtime/worker_int.h"

enum { CALL_MS = 2000, AGAIN_MS = 20, SEND_MS = 10000 };

volatile sig_atomic_t worker_deaf;

/* ------------------------------------------------------------------ posting */

void worker_poke(struct worker *w)
{
    uint64_t one = 1;
    ssize_t n = write(w->wake, &one, sizeof one);

    (void)n;                    /* full: it is awake anyway */
}

static void free_letters(struct letter *all)
{
    for (struct letter *next; all; all = next) {
        next = all->next;
        buf_done(&all->body);
        free(all);
    }
}

void worker_post(struct worker *w, enum wire_kind kind, uint64_t generation, uint64_t number,
                 const void *body, size_t n)
{
    struct letter *l = calloc(1, sizeof *l);

    if (!l)
        return;
    l->head = (struct wire_header){ kind, generation, number, n };
    buf_append(&l->body, body, n);
    pthread_mutex_lock(&w->lock);
    bool kept = w->connected && l->body.n == n;         /* fewer: no memory */
    if (kept) {
        l->after = w->results.next;
        *w->last = l;
        w->last = &l->next;
    }
    pthread_mutex_unlock(&w->lock);
    if (kept)
        worker_poke(w);
    else
        free_letters(l);
}

void worker_post_json(struct worker *w, enum wire_kind kind, uint64_t generation, json_t *doc)
{
    OWN_JSON json_t *own = doc;
    OWN_MEM char *text = json_dumps(own, JSON_COMPACT | JSON_REAL_PRECISION(17));

    if (text)
        worker_post(w, kind, generation, 0, text, strlen(text));
}

/* *out_after: results from there on may be older than letters to come. */
static struct letter *take_letters(struct worker *w, long *out_after)
{
    pthread_mutex_lock(&w->lock);
    struct letter *all = w->first;
    *out_after = w->results.next;
    w->first = NULL;
    w->last = &w->first;
    pthread_mutex_unlock(&w->lock);
    return all;
}

/* ------------------------------------------------------------------ what comes in */

static int read_list(struct worker *w, const struct wire_header *h, const json_t *doc,
                     struct err *err)
{
    const json_t *list = json_object_get(doc, "workers");
    struct mesh_peer peer[MESH_MAX];
    int n = 0, self = -1;

    if (json_array_size(list) > MESH_MAX)
        return err_set(err, ERR_INVALID, "a list of %zu workers", json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        const char *address = json_string_value(json_object_get(k, "address"));
        const char *host = json_string_value(json_object_get(k, "host"));
        struct mesh_peer *p = &peer[n++];
        *p = (struct mesh_peer){ .id = (uint64_t)whole_of(k, "id"), .pid = whole_of(k, "pid"),
                                 .from = (int)whole_of(k, "from"), .to = (int)whole_of(k, "to") };
        if (!address || !host || p->from < 0 || p->to < p->from || p->to > SHARDS_MAX)
            return err_set(err, ERR_INVALID, "a damaged list of workers");
        snprintf(p->address, sizeof p->address, "%s", address);
        snprintf(p->host, sizeof p->host, "%s", host);
        if (p->id == w->id)
            self = n - 1;
    }
    pthread_mutex_lock(&w->lock);
    uint64_t running = w->running;
    w->listed = h->generation;
    memcpy(w->peer, peer, sizeof w->peer);
    w->n_peers = n;
    w->self = self;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
    mesh_abort(w->mesh, running);
    return 0;
}

static void read_go(struct worker *w, const struct wire_header *h, const json_t *doc)
{
    pthread_mutex_lock(&w->lock);
    if (h->generation == w->listed) {
        w->go = h->generation;
        w->go_step = whole_of(doc, "step");
        w->go_settled = json_is_true(json_object_get(doc, "settled"));
        w->source = (int)whole_of(doc, "source");
        w->behind = (uint64_t)json_integer_value(json_object_get(doc, "behind"));
        w->logged = whole_of(doc, "logged");
        w->tested = whole_of(doc, "tested");
        w->report_every = whole_of(doc, "report_every") > 0 ? whole_of(doc, "report_every")
                                                            : REPORT_EVERY;
        w->leads = w->self == 0;
    }
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static void say_bye(struct worker *w, const struct err *why)
{
    pthread_mutex_lock(&w->lock);
    w->bye = true;
    if (why)
        w->failed = *why;
    uint64_t running = w->running;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
    mesh_abort(w->mesh, running);
}

static int take_message(struct worker *w, const struct wire_header *h, const struct buf *body,
                        struct err *err)
{
    if (h->kind == WIRE_STATE) {
        pthread_mutex_lock(&w->lock);
        buf_clear(&w->loaded);
        buf_append(&w->loaded, body->data, body->n);
        w->loaded_for = h->generation;
        pthread_cond_broadcast(&w->news);
        pthread_mutex_unlock(&w->lock);
        return buf_ok(&w->loaded, err);
    }
    if (h->kind == WIRE_BYE) {
        if (w->config->sent_away)
            *w->config->sent_away = body->n && strcmp(body->data, "resized") == 0;
        say_bye(w, NULL);
        return 0;
    }
    /* To stop: the only question there is. It is for the one who leads, whose state is kept:
     * another one that stopped a step earlier would let it wait in that step for good. */
    if (h->kind == WIRE_ASK) {
        if (w->leads)
            trainer_stop(w->trainer);
        return 0;
    }
    OWN_JSON json_t *doc = body->n ? json_loadb(body->data, body->n, 0, NULL) : NULL;
    if (h->kind == WIRE_ROSTER && doc)
        return read_list(w, h, doc, err);
    if (h->kind == WIRE_GO && doc)
        read_go(w, h, doc);
    return 0;
}

/* ------------------------------------------------------------------ the connection */

/* One that must start over and has not yet claims to be nobody: by its id, a coordinator that was
 * killed meanwhile would take it for one whose state counts. */
static json_t *introduce(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t id = w->fresh ? 0 : w->id;
    pthread_mutex_unlock(&w->lock);
    return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:I}", "role", "worker", "version",
                     MUSTER_VERSION, "numerics", NUMERICS_VERSION, "mark", w->mark, "data", w->data,
                     "address", w->address, "host", w->host, "pid", (json_int_t)getpid(), "id",
                     (json_int_t)id);
}

/* The coordinator waits until everybody has heard that it was the end. */
static void say_heard(int fd)
{
    const struct wire_header h = { WIRE_BYE, 0, 0, 0 };
    struct err ignored;

    wire_send(fd, &h, NULL, CALL_MS, &ignored);
}

/* Connects, proves, says who this is and is let in. 1: the job is over; ERR_AGAIN: try again. */
static int call(struct worker *w, int *out_fd, int *out_beat_ms, struct err *err)
{
    OWN_BUF body = BUF_INIT;
    OWN_FD int fd = -1;
    struct wire_header h;
    OWN_JSON json_t *hello = introduce(w);
    OWN_MEM char *text = json_dumps(hello, JSON_COMPACT);

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a greeting");
    if (wire_connect(w->config->join, w->config->token, CALL_MS, &fd, err) < 0 ||
        wire_prove(fd, w->config->token, CALL_MS, err) < 0)
        return -(int)err->code;
    h = (struct wire_header){ WIRE_HELLO, 0, 0, strlen(text) };
    if (wire_send(fd, &h, text, CALL_MS, err) < 0 || wire_receive(fd, &h, &body, CALL_MS, err) < 0)
        return -(int)err->code;
    if (h.kind == WIRE_REFUSED)
        return err_set(err, (enum err_code)h.number, "%s", body.data);
    if (h.kind == WIRE_BYE) {
        say_heard(fd);
        return 1;
    }
    OWN_JSON json_t *doc = json_loadb(body.data, body.n, 0, NULL);
    if (h.kind != WIRE_WELCOME || !doc || whole_of(doc, "id") < 1)
        return err_set(err, ERR_IO, "%s does not speak as a coordinator", w->config->join);
    pthread_mutex_lock(&w->lock);
    w->id = (uint64_t)whole_of(doc, "id");
    w->fresh |= json_is_true(json_object_get(doc, "fresh"));    /* once is enough, until it has */
    w->listed = w->go = 0;
    w->leads = false;
    w->connected = true;
    uint64_t fenced = w->fresh ? w->running : 0;        /* what it is doing counts no more */
    pthread_mutex_unlock(&w->lock);
    if (fenced)
        mesh_abort(w->mesh, fenced);
    *out_beat_ms = (int)whole_of(doc, "beat_ms");
    if (*out_beat_ms < 1)
        return err_set(err, ERR_IO, "%s does not speak as a coordinator", w->config->join);
    mesh_set_beat(w->mesh, *out_beat_ms);
    *out_fd = fd;
    fd = -1;
    return 0;
}

/* Until it is let in (0) or told that the job is over (1). A refusal for good, or patience at its
 * end, is the end too. */
static int call_again(struct worker *w, int *out_fd, int *out_beat_ms, struct err *err)
{
    double until =
        clock_seconds() + (w->config->patience_ms ? w->config->patience_ms : 30000) / 1e3;

    while (!atomic_load(&w->over)) {
        int rc = call(w, out_fd, out_beat_ms, err);
        if (rc >= 0)
            return rc;
        if (err->code != ERR_IO && err->code != ERR_AGAIN && err->code != ERR_MISSING)
            return -(int)err->code;
        if (clock_seconds() > until)
            return err_add(err, "the coordinator did not come back");
        poll(NULL, 0, AGAIN_MS);
    }
    return err_set(err, ERR_AGAIN, "the worker has ended");
}

static int send_beat(struct worker *w, int fd, struct err *err)
{
    char text[160];

    int n = snprintf(text, sizeof text,
                     "{\"step\":%ld,\"bytes_per_step\":%.1f,\"read\":%" PRIu64 "}",
                     atomic_load(&w->step), atomic_load(&w->bytes_per_step),
                     parts_bytes(w->config->parts));
    struct wire_header h = { WIRE_BEAT, 0, 0, (uint64_t)n };
    return wire_send(fd, &h, text, SEND_MS, err);
}

static int send_test(int fd, uint64_t generation, const struct told_test *test, struct err *err)
{
    json_t *values = json_array();

    for (int i = 0; i < test->n; i++)
        json_array_append_new(values, json_sprintf("%a", test->value[i]));
    OWN_JSON json_t *doc = json_pack("{s:s, s:I, s:I, s:o}", "kind", "test", "step",
                                     (json_int_t)test->step, "epoch", (json_int_t)test->epoch,
                                     "values", values);
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a test");
    struct wire_header h = { WIRE_EVENT, generation, 0, strlen(text) };
    return wire_send(fd, &h, text, SEND_MS, err);
}

/* What the coordinator has not heard of the steps before `until` and of their tests, in order, when
 * this worker leads. */
static int send_results(struct worker *w, int fd, long until, struct err *err)
{
    OWN_BUF results = BUF_INIT;
    struct told_test test;

    for (;;) {
        buf_clear(&results);
        pthread_mutex_lock(&w->lock);
        const struct told_test *next = results_test_after(&w->results, w->tested);
        if (until > w->results.next)
            until = w->results.next;    /* it has started over since */
        const long to = next && next->step < until ? next->step : until;
        const bool steps = w->leads && to > w->logged;
        const bool tests = w->leads && !steps && next && next->step <= until;
        const uint64_t generation = w->go;
        if (steps)
            w->logged = results_pack(&w->results, w->logged, to, &w->place, &results);
        if (tests) {
            test = *next;
            w->tested = test.step;
        }
        pthread_mutex_unlock(&w->lock);
        if (!steps && !tests)
            return 0;
        const struct wire_header h = { WIRE_RESULTS, generation, 0, results.n };
        if (steps ? wire_send(fd, &h, results.data, SEND_MS, err) < 0 :
                    send_test(fd, generation, &test, err) < 0)
            return -(int)err->code;
    }
}

/* A beat, and everything in the order in which it happened. Above all, a checkpoint never comes
 * before the results of the steps that it stands for: were this worker killed in between, nobody
 * could tell them any more. */
static int send_news(struct worker *w, int fd, struct err *err)
{
    long after;
    struct letter *all = take_letters(w, &after);
    int rc = send_beat(w, fd, err);

    for (const struct letter *l = all; rc == 0 && l; l = l->next) {
        rc = send_results(w, fd, l->after, err);
        if (rc == 0)
            rc = wire_send(fd, &l->head, l->body.data, SEND_MS, err);
    }
    free_letters(all);
    return rc < 0 ? rc : send_results(w, fd, after, err);
}

/* A connection that takes nothing any more may still have brought something: the end, perhaps. */
static int hear_rest(struct worker *w, int fd, struct err *err)
{
    OWN_BUF body = BUF_INIT;
    struct wire_header h;
    struct err ignored;

    while (wire_receive(fd, &h, &body, 0, &ignored) == 0 &&
           take_message(w, &h, &body, &ignored) == 0)
        if (h.kind == WIRE_BYE)
            return 0;
    return -(int)err->code;
}

/* One connection, until it breaks or the job is over (0). */
static int converse(struct worker *w, int fd, int beat_ms, struct err *err)
{
    OWN_BUF body = BUF_INIT;
    double beat_at = 0, heard = clock_seconds();
    struct wire_header h;

    while (!atomic_load(&w->over)) {
        if (worker_deaf) {
            poll(NULL, 0, DEAF_MS);
            worker_deaf = 0;
        }
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
                               { .fd = w->wake, .events = POLLIN } };
        poll(p, 2, beat_ms / 2);
        bool poked = p[1].revents & POLLIN;
        if (poked) {
            uint64_t count;
            ssize_t n = read(w->wake, &count, sizeof count);
            (void)n;
        }
        if (p[0].revents) {
            if (wire_receive(fd, &h, &body, SEND_MS, err) < 0 ||
                take_message(w, &h, &body, err) < 0)
                return -(int)err->code;
            heard = clock_seconds();
            if (h.kind == WIRE_BYE) {
                say_heard(fd);
                return 0;
            }
        }
        if (poked || clock_seconds() - beat_at > beat_ms / 1e3) {
            beat_at = clock_seconds();
            if (send_news(w, fd, err) < 0)
                return hear_rest(w, fd, err);
        }
        /* Silent for long, and this thread was not the one that slept. */
        if (!p[0].revents && clock_seconds() - heard > beat_ms / 1e3 * 10)
            return err_set(err, ERR_IO, "the coordinator is silent");
    }
    send_news(w, fd, err);
    return 0;
}

static void disconnect(struct worker *w)
{
    long after;

    pthread_mutex_lock(&w->lock);
    w->connected = false;
    pthread_mutex_unlock(&w->lock);
    free_letters(take_letters(w, &after));
}

static void *talk(void *arg)
{
    struct worker *w = arg;
    struct err err;
    int fd = -1, beat_ms = 100;

    while (!atomic_load(&w->over)) {
        int rc = call_again(w, &fd, &beat_ms, &err);
        if (rc != 0) {
            if (!atomic_load(&w->over))
                say_bye(w, rc < 0 ? &err : NULL);
            break;
        }
        rc = converse(w, fd, beat_ms, &err);
        close(fd);
        disconnect(w);
        if (rc == 0)
            break;
    }
    return NULL;
}

int worker_talk(struct worker *w, struct err *err)
{
    if (pthread_create(&w->talker, NULL, talk, w) != 0)
        return err_set(err, ERR_NOMEM, "no memory for a thread");
    return 0;
}

void worker_hush(struct worker *w)
{
    atomic_store(&w->over, true);
    worker_poke(w);
    pthread_join(w->talker, NULL);
    disconnect(w);
}
