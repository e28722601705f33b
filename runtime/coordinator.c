/* runtime/coordinator.c - connections, the loop, and what the roster asks for
 *
 * DESIGN. One thread, one poll. Everything a caller sends goes through wire_in, which bounds it;
 * everything that is sent waits in the caller's buffer. After each round the roster is asked what
 * is to be done until there is nothing (act). A worker is taken out when its connection closes,
 * when it was silent for five beats while others could go on, or when another one cannot reach it.
 */
#include "runtime/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "runtime/coordinator_int.h"

enum {
    SILENT_BEATS = 5,
    POLL_MS = 26,               /* how late the clock may be looked at; a quarter of a short beat */
    STRANGER_SECONDS = 2,       /* to prove knowledge of the token and say who one is */
    FILES_KEPT = 8,             /* descriptors that are never a caller's: to store what there is */
};
/* After a restart workers have this long to come back before the list goes on without them. */
static const double BACK_SECONDS = 0.4;
/* A stop that is not answered for so long ends with the last checkpoint. */
static const double STOP_SECONDS = 10;
static const double REST_SECONDS = 0.1;         /* between two tries to let somebody in */

static volatile sig_atomic_t stop_asked;

void coordinator_stop(void) { stop_asked = 1; }

/* ------------------------------------------------------------------ callers */

void caller_put(struct caller *k, enum wire_kind kind, uint64_t generation, uint64_t number,
                const void *body, size_t n)
{
    const struct wire_header h = { kind, generation, number, n };

    wire_append(&k->out, &h, body);
}

void caller_put_json(struct caller *k, enum wire_kind kind, uint64_t generation, const json_t *doc)
{
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(17));

    if (text)
        caller_put(k, kind, generation, 0, text, strlen(text));
}

void caller_drop(struct caller *k)
{
    if (k->fd < 0)
        return;
    close(k->fd);
    wire_in_free(k->in);
    buf_done(&k->out);
    *k = (struct caller){ .fd = -1 };
}

struct caller *caller_find(struct coordinator *c, uint64_t id)
{
    for (int i = 0; i < CALLERS_MAX; i++)
        if (c->caller[i].fd >= 0 && c->caller[i].kind == CALLER_WORKER && c->caller[i].id == id)
            return &c->caller[i];
    return NULL;
}

/* A worker is gone: off the list, and its connection with it. */
static void caller_lose(struct coordinator *c, struct caller *k, const char *why)
{
    if (k->kind == CALLER_WORKER) {
        end_absent(c, &k->who);
        roster_lost(c->roster, k->id);
        if (!c->over)
            record_change(c, "lost", json_pack("{s:I, s:s}", "id", (json_int_t)k->id, "why", why));
    }
    caller_drop(k);
}

void caller_refuse(struct coordinator *c, struct caller *k, const struct err *why)
{
    caller_put(k, WIRE_REFUSED, 0, (uint64_t)why->code, why->text, strlen(why->text));
    k->closing = true;
    if (why->code != ERR_AGAIN)         /* it will ask many times */
        record_change(c, "refused", json_pack("{s:s}", "why", why->text));
}

/* A place for a newcomer: when all are taken, that of the stranger who has waited longest, so that
 * a crowd of them keeps nobody out for long. NULL: none is to be had. */
static struct caller *find_place(struct coordinator *c)
{
    struct caller *oldest = NULL;

    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *k = &c->caller[i];
        if (k->fd < 0)
            return k;
        if (k->kind == CALLER_NEW && !wire_in_proved(k->in) &&
            (!oldest || k->since < oldest->since))
            oldest = k;
    }
    if (oldest)
        caller_drop(oldest);
    return oldest;
}

/* Those who are left waiting call again. */
static void rest_from_callers(struct coordinator *c)
{
    if (c->accept_at == 0)
        fprintf(stderr, "muster: no more connections can be had than there are (ulimit -n); "
                "who else wants to join waits\n");
    c->accept_at = clock_seconds() + REST_SECONDS;
}

static void accept_all(struct coordinator *c)
{
    const struct coordinator_config *config = c->config;
    int fd;

    while ((fd = wire_accept(config->listener, config->address, config->token)) >= 0) {
        if (fd >= c->files) {
            close(fd);
            rest_from_callers(c);
            return;
        }
        struct caller *k = find_place(c);
        if (!k) {
            close(fd);
            continue;
        }
        *k = (struct caller){ .fd = fd, .heard = clock_seconds(), .since = clock_seconds() };
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        k->in = wire_in_new(c->config->token, &k->out);
        if (!k->in)
            caller_drop(k);
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        rest_from_callers(c);
}

/* ------------------------------------------------------------------ what workers say */

static bool is_first(const struct coordinator *c, const struct caller *k)
{
    return roster_size(c->roster) > 0 && roster_at(c->roster, 0)->id == k->id;
}

static void on_beat(struct caller *k, const json_t *doc)
{
    k->step = (long)json_integer_value(json_object_get(doc, "step"));
    k->bytes_per_step = json_number_value(json_object_get(doc, "bytes_per_step"));
    k->read = json_integer_value(json_object_get(doc, "read"));
}

/* The word of the first of the list counts; not what it did before it was let in with nothing. */
static bool counts(const struct coordinator *c, const struct caller *k, const struct wire_header *h)
{
    return k->kind == CALLER_WORKER && is_first(c, k) && h->generation >= k->member_from;
}

/* From the one who was told by the last go what is not on record yet. */
static bool is_current(const struct coordinator *c, const struct wire_header *h)
{
    return roster_phase(c->roster) == ROSTER_RUNNING &&
           h->generation == roster_generation(c->roster);
}

static void on_event(struct coordinator *c, struct caller *k, const struct wire_header *h,
                     const json_t *doc)
{
    struct err err = { 0 };

    if (strcmp(desk_text(doc, "kind"), "suspect") == 0) {
        k->suspects = (uint64_t)json_integer_value(json_object_get(doc, "id"));
        k->suspected_at = clock_seconds();
        return;
    }
    if (strcmp(desk_text(doc, "kind"), "unable") == 0) {        /* it closes its connection now */
        record_change(c, "unable", json_pack("{s:I, s:s}", "id", (json_int_t)k->id, "why",
                                             desk_text(doc, "why")));
        return;
    }
    /* A checkpoint whose steps are not all on record waits for the next go, after which they are
     * told first: else they would be lost with the workers that remember them. */
    long step = (long)json_integer_value(json_object_get(doc, "step"));
    if (strcmp(desk_text(doc, "kind"), "failed") == 0 ? h->generation < k->member_from :
        !counts(c, k, h) || (step > c->logged && !is_current(c, h)))
        return;
    if (record_event(c, doc, &err) < 0) {
        c->failed = err;
        c->stopping = true;
    }
}

static void on_message(struct coordinator *c, struct caller *k, const struct wire_header *h,
                       const char *body)
{
    struct err err = { 0 };

    if (h->kind == WIRE_RESULTS || h->kind == WIRE_STATE) {
        if (c->over || !counts(c, k, h))
            return;
        if (h->kind == WIRE_STATE) {
            buf_clear(&c->state);
            buf_append(&c->state, body, h->length);
            c->state_step = c->state.failed ? -1 : (long)h->number;
        } else if (record_results(c, is_current(c, h), body, h->length, &err) < 0) {
            caller_lose(c, k, err.text);
        }
        return;
    }
    OWN_JSON json_t *doc = h->length ? json_loadb(body, h->length, 0, NULL) : json_object();
    if (!doc) {
        caller_lose(c, k, "sent what is not JSON");
        return;
    }
    if (c->over)
        end_message(c, k, h, doc);
    else if (h->kind == WIRE_HELLO)
        desk_hello(c, k, doc);
    else if (h->kind == WIRE_ASK)
        desk_ask(c, k, doc);
    else if (k->kind != CALLER_WORKER)
        return;
    else if (h->kind == WIRE_BEAT)
        on_beat(k, doc);
    else if (h->kind == WIRE_EVENT)
        on_event(c, k, h, doc);
    else if (h->kind == WIRE_READY)
        roster_ready(c->roster, k->id, h->generation,
                     (long)json_integer_value(json_object_get(doc, "step")),
                     json_is_true(json_object_get(doc, "settled")));
    else if (h->kind == WIRE_BYE) {
        record_change(c, "leave", json_pack("{s:I}", "id", (json_int_t)k->id));
        roster_leave(c->roster, k->id);
        k->kind = CALLER_NEW;
        k->closing = true;
    }
}

/* ------------------------------------------------------------------ bytes in and out */

/* Everything that has come, a bounded piece at a time. */
static void read_caller(struct coordinator *c, struct caller *k)
{
    static char bytes[1 << 18];
    struct wire_header h;
    const char *body;
    struct err err;

    for (int rounds = 0; rounds < 64 && k->fd >= 0; rounds++) {
        ssize_t n = recv(k->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            caller_lose(c, k, "the connection closed");
            return;
        }
        if (k->closing)
            continue;
        k->heard = clock_seconds();
        int rc = wire_in_feed(k->in, bytes, (size_t)n, &k->out, &err);
        while (k->fd >= 0 && !k->closing && wire_in_next(k->in, &h, &body) > 0)
            on_message(c, k, &h, body);
        if (rc < 0 && k->fd >= 0) {
            if (k->kind == CALLER_WORKER)
                caller_lose(c, k, err.text);
            else
                k->closing = true;
            return;
        }
    }
}

static void write_caller(struct coordinator *c, struct caller *k)
{
    if (k->told_all)
        return;
    while (k->fd >= 0 && k->sent < k->out.n) {
        ssize_t n = send(k->fd, k->out.data + k->sent, k->out.n - k->sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            caller_lose(c, k, "the connection closed");
            return;
        }
        k->sent += (size_t)n;
        if (k->kind == CALLER_NEW)
            k->heard = clock_seconds();
    }
    if (k->fd < 0)
        return;
    buf_clear(&k->out);
    k->sent = 0;
    if (!k->closing)
        return;
    /* Closed with bytes unread, the kernel would take back what was just sent. */
    shutdown(k->fd, SHUT_WR);
    k->told_all = true;
    k->since = clock_seconds();
}

void callers_poll(struct coordinator *c, int timeout_ms)
{
    const bool rest = clock_seconds() < c->accept_at;
    struct pollfd p[CALLERS_MAX + 1] = { { .fd = rest ? -1 : c->config->listener,
                                           .events = POLLIN } };
    struct caller *of[CALLERS_MAX + 1];
    int n = 1;

    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *k = &c->caller[i];
        if (k->fd < 0)
            continue;
        write_caller(c, k);
        if (k->fd < 0)
            continue;
        of[n] = k;
        p[n++] =
            (struct pollfd){ .fd = k->fd, .events = (short)(POLLIN | (k->out.n ? POLLOUT : 0)) };
    }
    if (poll(p, (nfds_t)n, timeout_ms) <= 0)
        return;
    for (int i = 1; i < n; i++) {
        if (of[i]->fd == p[i].fd && (p[i].revents & (POLLIN | POLLHUP | POLLERR)))
            read_caller(c, of[i]);
        if (of[i]->fd == p[i].fd && (p[i].revents & POLLOUT))
            write_caller(c, of[i]);
    }
    if (p[0].revents & POLLIN)
        accept_all(c);
}

/* ------------------------------------------------------------------ what the roster asks for */

static json_t *list_document(const struct coordinator *c)
{
    json_t *workers = json_array();

    for (int i = 0; i < roster_size(c->roster); i++) {
        const struct roster_worker *w = roster_at(c->roster, i);
        json_array_append_new(workers, json_pack(
            "{s:I, s:s, s:s, s:I, s:i, s:i}", "id", (json_int_t)w->id, "address", w->who.address,
            "host", w->who.host, "pid", (json_int_t)w->who.pid, "from", w->from, "to", w->to));
    }
    return json_pack("{s:o}", "workers", workers);
}

static void tell_workers(struct coordinator *c, enum wire_kind kind, const json_t *doc)
{
    for (int i = 0; i < roster_size(c->roster); i++) {
        struct caller *k = caller_find(c, roster_at(c->roster, i)->id);
        if (k)
            caller_put_json(k, kind, roster_generation(c->roster), doc);
    }
}

/* The newest checkpoint to everybody: nobody has as much. */
static int send_checkpoint(struct coordinator *c, struct err *err)
{
    OWN_BUF state = BUF_INIT;
    const char *path = rundir_last_checkpoint(c->config->dir);

    if (!path || trainer_load(c->config->trainer, path, err) < 0 ||
        trainer_state_get(c->config->trainer, &state, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < roster_size(c->roster); i++) {
        struct caller *k = caller_find(c, roster_at(c->roster, i)->id);
        if (k)
            caller_put(k, WIRE_STATE, roster_generation(c->roster),
                (uint64_t)trainer_step(c->config->trainer), state.data, state.n);
    }
    record_change(c, "load", json_pack("{s:I, s:s}", "step",
                                       (json_int_t)trainer_step(c->config->trainer), "path", path));
    return 0;
}

static void tell_go(struct coordinator *c)
{
    OWN_JSON json_t *doc = json_pack(
        "{s:I, s:b, s:i, s:I, s:I, s:I, s:I}", "step", (json_int_t)roster_step(c->roster), "settled",
        roster_settled(c->roster), "source", roster_source(c->roster), "behind",
        (json_int_t)roster_behind(c->roster), "logged", (json_int_t)c->logged, "tested",
        (json_int_t)c->tested, "report_every", (json_int_t)trainer_reports(c->config->trainer));
    json_t *ids = json_array();

    tell_workers(c, WIRE_GO, doc);
    for (int i = 0; i < roster_size(c->roster); i++)
        json_array_append_new(ids, json_integer((json_int_t)roster_at(c->roster, i)->id));
    record_change(c, "go", json_pack("{s:I, s:I, s:o}", "generation",
                                     (json_int_t)roster_generation(c->roster), "step",
                                     (json_int_t)roster_step(c->roster), "workers", ids));
    c->first_step = true;
    c->told = 0;
    for (int i = 0; i < CALLERS_MAX; i++)
        c->caller[i].suspects = 0;
}

/* A list is told when it is stored, not before: on a full disk the job waits for room. */
static bool store_roster(struct coordinator *c)
{
    struct err why;

    if (clock_seconds() < c->store_at)
        return false;
    if (record_roster(c, &why) < 0) {
        if (c->store_at == 0)
            fprintf(stderr, "muster: %s; the job waits until its roster can be stored\n", why.text);
        c->store_at = clock_seconds() + 0.5;
        return false;
    }
    c->store_at = 0;
    roster_stored(c->roster);
    return true;
}

static int act(struct coordinator *c, struct err *err)
{
    if (roster_missing(c->roster) && clock_seconds() < c->back_until)
        return 0;
    for (enum roster_act a; (a = roster_next(c->roster)) != ROSTER_NOTHING;) {
        OWN_JSON json_t *list = NULL;
        switch (a) {
        case ROSTER_STORE:
            if (!store_roster(c))
                return 0;
            break;
        case ROSTER_TELL:
            list = list_document(c);
            tell_workers(c, WIRE_ROSTER, list);
            break;
        case ROSTER_LOAD:
            if (send_checkpoint(c, err) < 0)
                return err_add(err, "the checkpoint cannot be read");
            break;
        case ROSTER_GO:
            tell_go(c);
            break;
        case ROSTER_NOTHING:
            break;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------ time */

/* Two that cannot reach each other: out goes the one whom more suspect, else the younger. */
static void judge_suspects(struct coordinator *c, double now)
{
    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *k = &c->caller[i];
        if (k->fd < 0 || k->kind != CALLER_WORKER || !k->suspects ||
            now - k->suspected_at < c->beat)
            continue;
        struct caller *other = caller_find(c, k->suspects);
        k->suspects = 0;
        if (!other)
            continue;
        int against_k = 0, against_other = 1;
        for (int j = 0; j < CALLERS_MAX; j++) {
            against_k += c->caller[j].fd >= 0 && c->caller[j].suspects == k->id;
            against_other += c->caller[j].fd >= 0 && c->caller[j].suspects == other->id;
        }
        struct caller *out = against_k > against_other ? k : against_other > against_k ? other :
                             k->id > other->id ? k : other;
        const struct roster_worker *w = roster_find(c->roster, out->id);
        if (w)
            desk_penalise(c, &w->who);
        caller_lose(c, out, "another worker cannot reach it");
    }
}

static void judge_silence(struct coordinator *c, double now)
{
    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *k = &c->caller[i];
        if (k->fd < 0)
            continue;
        /* What a stranger sends buys no time; one who is known may take long over a file. */
        double last = k->told_all || !wire_in_proved(k->in) ? k->since : k->heard;
        if (k->kind == CALLER_NEW && now - last > STRANGER_SECONDS)
            caller_drop(k);
        else if (k->kind == CALLER_WORKER && now - k->heard > SILENT_BEATS * c->beat &&
                 roster_size(c->roster) > 1)
            caller_lose(c, k, "silent");
    }
}

static void beat_all(struct coordinator *c)
{
    for (int i = 0; i < CALLERS_MAX; i++)
        if (c->caller[i].fd >= 0 && c->caller[i].kind == CALLER_WORKER && c->caller[i].out.n == 0)
            caller_put(&c->caller[i], WIRE_BEAT, 0, 0, NULL, 0);
}

/* ------------------------------------------------------------------ life */

static int write_job(const struct coordinator *c, struct err *err)
{
    char path[4096 + 32];
    OWN_JSON json_t *doc = json_pack("{s:s, s:s, s:i}", "name",
                                     trainer_spec(c->config->trainer)->name, "address",
                                     c->config->address, "pid", (int)getpid());
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for job.json");
    snprintf(path, sizeof path, "%s/job.json", rundir_path(c->config->dir));
    return files_write(path, text, strlen(text), err);
}

/* What the coordinator before this one had stored. */
static int restore(struct coordinator *c, struct err *err)
{
    struct stored s;

    if (record_restore(c, &s, err) < 0)
        return -(int)err->code;
    if (s.max) {                /* as it was resized, before a restart */
        c->min = s.min;
        c->max = s.max;
        c->resized = c->max != c->config->max;
    }
    c->roster = roster_new(trainer_plan(c->config->trainer)->shards, c->min, s.generation,
                           s.next_id, s.id, s.n, trainer_step(c->config->trainer));
    if (!c->roster)
        return err_set(err, ERR_NOMEM, "no memory for a roster");
    return 0;
}

static int open_coordinator(struct coordinator *c, struct err *err)
{
    char path[4096 + 32];
    const struct coordinator_config *config = c->config;

    c->min = config->min;
    c->max = config->max;
    c->beat = config->beat_ms / 1e3;
    c->logged = config->logged;
    c->tested = config->tested;
    c->step = trainer_step(config->trainer);
    if (c->step < c->logged)    /* the checkpoint is older than what is on record */
        c->step = c->logged;
    c->state_step = -1;
    struct rlimit files;
    c->files = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < INT_MAX
                   ? (int)files.rlim_cur - FILES_KEPT : INT_MAX;
    for (int i = 0; i < CALLERS_MAX; i++)
        c->caller[i].fd = -1;
    snprintf(path, sizeof path, "%s/roster.jsonl", rundir_path(config->dir));
    c->history = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (c->history < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (restore(c, err) < 0 ||
        write_job(c, err) < 0)
        return -(int)err->code;
    snprintf(c->data, sizeof c->data, "%s", config->data);
    trainer_mark(config->trainer, c->mark);
    fcntl(config->listener, F_SETFL, fcntl(config->listener, F_GETFL) | O_NONBLOCK);
    c->started = clock_seconds();
    c->back_until = c->started + BACK_SECONDS;
    record_change(c, "start", json_pack("{s:i, s:i, s:i}", "pid", (int)getpid(), "min", c->min,
                                        "max", c->max));
    return 0;
}

static void close_coordinator(struct coordinator *c)
{
    for (int i = 0; i < CALLERS_MAX; i++)
        caller_drop(&c->caller[i]);
    roster_free(c->roster);
    buf_done(&c->state);
    if (c->history >= 0)
        close(c->history);
}

/* The end of a stop: the first worker is asked for its state, which becomes a checkpoint. One that
 * is between two lists, or on its way back to a coordinator that was started again, does not hear
 * it: all are asked with each beat. */
static void ask_to_stop(struct coordinator *c)
{
    static const char text[] = "{\"stop\":true}";

    for (int i = 0; i < roster_size(c->roster); i++) {
        struct caller *k = caller_find(c, roster_at(c->roster, i)->id);
        if (k)
            caller_put(k, WIRE_ASK, 0, 0, text, sizeof text - 1);
    }
}

static bool stop_ends(const struct coordinator *c, double stop_at, double now)
{
    return c->fit.stopped || now - stop_at > STOP_SECONDS ||
           (roster_size(c->roster) == 0 && now - c->started > STOP_SECONDS / 2);
}

static int loop(struct coordinator *c, struct err *err)
{
    double beat_at = 0, stop_at = 0;

    while (!c->ended && c->failed.code == ERR_OK) {
        callers_poll(c, c->beat < 0.1 ? (int)(c->beat * 1e3 / 4) + 1 : POLL_MS);
        double now = clock_seconds();
        judge_suspects(c, now);
        judge_silence(c, now);
        if (act(c, err) < 0)
            return -(int)err->code;
        if (now - beat_at > c->beat) {
            beat_at = now;
            beat_all(c);
            if (stop_at > 0)
                ask_to_stop(c);
        }
        if (now - c->told > 0.1)
            desk_tell(c);
        if ((stop_asked || c->stopping) && stop_at == 0) {
            c->stopping = true;
            stop_at = now;
            ask_to_stop(c);
        }
        if (stop_at > 0 && stop_ends(c, stop_at, now)) {
            c->fit.stopped = true;
            return 0;
        }
    }
    if (c->failed.code != ERR_OK) {
        *err = c->failed;
        return -(int)err->code;
    }
    return 0;
}

int coordinator_run(const struct coordinator_config *config, struct fit_result *out,
                    char out_digest[65], struct err *err)
{
    OWN_MEM struct coordinator *c = calloc(1, sizeof *c);

    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a coordinator");
    c->config = config;
    c->history = -1;
    int rc = open_coordinator(c, err);
    if (rc == 0) {
        rc = loop(c, err);
        stop_asked = 0;
        end_tell(c, &stop_asked);
    }
    close_coordinator(c);
    if (rc < 0)
        return rc;
    *out = c->fit;
    memcpy(out_digest, c->digest, sizeof c->digest);
    return 0;
}
