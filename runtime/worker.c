/* runtime/worker.c - one of the processes that train a model together
 *
 * DESIGN. The main thread goes round: wait for a list, say which state it has, wait for the go,
 * link up with the others, copy the state if behind, train until the step is given up or the run is
 * over. Whatever goes wrong on the way leads back to waiting for a list.
 */
#include "runtime/worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "runtime/worker_int.h"

enum { LINK_MS = 3000, FULL_US = 1000 };
/* A message of a link: for less of the gradient, the threads of a plan need not meet. */
enum { READY_FLOATS = 1 << 14 };

/* How long a worker waits for a job that it was started before, and for a coordinator that is there
 * and still reads its data. */
static const double REACH_SECONDS = 10, READING_SECONDS = 300;

/* A checkpoint that an epoch asks for waits until the one before is this old. */
static const double CHECKPOINT_SECONDS = 1;

/* What the main thread has for one generation. */
struct turn {
    struct worker *w;
    uint64_t generation;
    struct mesh_peer peer[MESH_MAX];
    int n, self, source;
    uint64_t behind;
    long step;
    bool settled;
    bool leads;
    bool told;                  /* the first step of this generation has been */
    double saved_at;            /* of the last checkpoint */
    double held_at;
    long logged;                /* steps that are on record already */
    uint64_t sent;              /* bytes before this generation, for bytes_per_step */
    long from;
};

/* ------------------------------------------------------------------ hooks of the plan */

static int gather(void *arg, float *rows, long stride, long count)
{
    struct turn *t = arg;
    struct err err;

    return mesh_gather(t->w->mesh, rows, stride, count, &err);
}

/* A coordinator that is out of reach does not stop the steps, until there would be more to tell it
 * than is remembered. */
static int wait_for_talker(struct turn *t, struct err *err)
{
    struct worker *w = t->w;

    for (;;) {
        pthread_mutex_lock(&w->lock);
        bool full = w->results.next - w->logged > RESULTS_SENT ||
                    results_tests_after(&w->results, w->tested) > TESTS_KEPT / 2;
        pthread_mutex_unlock(&w->lock);
        if (!full)
            return 0;
        if (mesh_check(w->mesh, err) < 0)
            return -(int)err->code;
        usleep(FULL_US);
    }
}

enum { PACED_STEPS = 60, PACED_RATE = 4 };

/* Holds the step back to the pace that was asked for; not what is done again. */
static void hold(struct turn *t)
{
    struct worker *w = t->w;

    if (w->pace_until && access(w->pace_until, F_OK) == 0)
        w->pace = 0;
    if (w->pace <= 0 || atomic_load(&w->step) < t->logged)
        return;
    double pace = w->pace;
    if (w->pace_until && pace > PACED_RATE && atomic_load(&w->step) > PACED_STEPS)
        pace = PACED_RATE;
    double early = t->held_at + 1 / pace - clock_seconds();
    if (early > 0)
        usleep((useconds_t)(early * 1e6));
    t->held_at = clock_seconds();
}

static int reduce(void *arg, unsigned filled, const struct grad_segment **out, int *out_n)
{
    struct turn *t = arg;
    struct err err;

    if (t->leads) {
        hold(t);
        if (wait_for_talker(t, &err) < 0)
            return -(int)err.code;
    }
    return mesh_reduce(t->w->mesh, filled, out, out_n, &err);
}

static void ready(void *arg, unsigned filled, long from)
{
    struct turn *t = arg;

    mesh_ready(t->w->mesh, filled, from);
}

static int post(void *arg, long from, long n)
{
    struct turn *t = arg;
    struct err err;

    return mesh_post(t->w->mesh, from, n, &err);
}

static int wait_for(void *arg, int place)
{
    struct turn *t = arg;
    struct err err;

    return mesh_wait_for(t->w->mesh, place, &err);
}

/* The first of the list tests and tells the others. */
static int test(void *arg, struct test_result *out, struct err *err)
{
    struct turn *t = arg;
    struct { double value[METRICS_MAX]; long samples; int code; char text[128]; } told = { 0 };

    if (t->leads) {
        if (trainer_test(t->w->trainer, out, err) < 0) {
            if (parts_failed(t->w->config->parts))
                return -(int)err->code;         /* another one may have them */
            told.code = (int)err->code;
            snprintf(told.text, sizeof told.text, "%.127s", err->text);
        }
        memcpy(told.value, out->value, sizeof told.value);
        told.samples = out->samples;
    }
    if (mesh_tell(t->w->mesh, 0, &told, sizeof told, err) < 0)
        return -(int)err->code;
    if (told.code)
        return err_set(err, (enum err_code)told.code, "%s", told.text);
    memcpy(out->value, told.value, sizeof told.value);
    out->samples = told.samples;
    return 0;
}

/* Parts of the parameters are read from others' boards: by one who was stopped there and left out,
 * what they have written since. */
static bool intact(void *arg)
{
    const struct turn *t = arg;

    return mesh_intact(t->w->mesh);
}

/* ------------------------------------------------------------------ what is reported */

static void post_state(struct turn *t)
{
    OWN_BUF state = BUF_INIT;
    struct err err;

    if (trainer_state_get(t->w->trainer, &state, &err) == 0)
        worker_post(t->w, WIRE_STATE, t->generation, (uint64_t)trainer_step(t->w->trainer),
                    state.data, state.n);
}

static void post_event(struct turn *t, const char *kind, long step, json_t *event)
{
    json_object_set_new(event, "kind", json_string(kind));
    json_object_set_new(event, "step", json_integer(step));
    worker_post_json(t->w, WIRE_EVENT, t->generation, event);
}

static void on_steps(struct turn *t, const struct train_event *e)
{
    struct worker *w = t->w;

    pthread_mutex_lock(&w->lock);
    results_add(&w->results, e->results, e->n_results);
    w->place = (struct results_place){ e->epoch, e->steps_in_epoch, e->samples_per_s };
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->step, e->step);
    if (e->step > t->from)
        atomic_store(&w->bytes_per_step, (double)(mesh_bytes_sent(w->mesh) - t->sent) /
                                         (double)(e->step - t->from));
    if (t->leads && !t->told)
        worker_poke(w);
    t->told = true;
}

static void on_test(struct turn *t, const struct train_event *e)
{
    struct worker *w = t->w;
    struct told_test test = { .step = e->step, .epoch = e->epoch, .n = e->test->n };

    memcpy(test.value, e->test->value, sizeof test.value);
    pthread_mutex_lock(&w->lock);
    results_add_test(&w->results, &test);
    pthread_mutex_unlock(&w->lock);
    if (t->leads)
        worker_poke(w);
}

static void on_checkpoint(struct turn *t)
{
    if (trainer_spec(t->w->trainer)->checkpoint.unit == EVERY_EPOCHS &&
        clock_seconds() - t->saved_at < CHECKPOINT_SECONDS)
        return;
    t->saved_at = clock_seconds();
    post_state(t);
    post_event(t, "checkpoint", trainer_step(t->w->trainer), json_object());
}

static int on_event(void *arg, struct trainer *trainer, const struct train_event *e)
{
    struct turn *t = arg;

    (void)trainer;
    if (e->kind == EVENT_STEPS)
        on_steps(t, e);
    else if (e->kind == EVENT_TEST)
        on_test(t, e);
    else if (e->kind == EVENT_CHECKPOINT && t->leads)
        on_checkpoint(t);
    return 0;
}

static void on_lost(void *arg, uint64_t id)
{
    worker_post_json(arg, WIRE_EVENT, 0, json_pack("{s:s, s:I}", "kind", "suspect", "id",
                                                   (json_int_t)id));
}

/* ------------------------------------------------------------------ a turn */

/* Waits for a list that this worker is on and is not the one of `t`. False: it is over. */
static bool wait_list(struct worker *w, struct turn *t)
{
    bool on = false;

    pthread_mutex_lock(&w->lock);
    w->running = 0;
    while (!w->bye && !(w->listed && w->listed != t->generation && w->self >= 0))
        pthread_cond_wait(&w->news, &w->lock);
    if (!w->bye) {
        on = true;
        t->generation = w->listed;
        memcpy(t->peer, w->peer, sizeof t->peer);
        t->n = w->n_peers;
        t->self = w->self;
    }
    pthread_mutex_unlock(&w->lock);
    return on;
}

/* Says which state there is. A worker that was let in with nothing starts over first; one that is
 * sent a checkpoint takes it and says so. */
static int get_ready(struct turn *t, struct err *err)
{
    struct worker *w = t->w;

    pthread_mutex_lock(&w->lock);
    bool fresh = w->fresh;
    w->fresh = false;
    if (fresh)
        results_clear(&w->results);
    pthread_mutex_unlock(&w->lock);
    if (fresh && trainer_step(w->trainer) > 0 && trainer_reset(w->trainer, err) < 0)
        return -(int)err->code;
    worker_post_json(w, WIRE_READY, t->generation,
                     json_pack("{s:I, s:b}", "step", (json_int_t)trainer_step(w->trainer),
                               "settled", trainer_settled(w->trainer)));
    return 0;
}

/* 1: go; 0: another list or the end came first. */
static int wait_go(struct turn *t, struct err *err)
{
    struct worker *w = t->w;

    for (;;) {
        OWN_BUF state = BUF_INIT;
        pthread_mutex_lock(&w->lock);
        while (!w->bye && w->listed == t->generation && w->go != t->generation &&
               w->loaded_for != t->generation)
            pthread_cond_wait(&w->news, &w->lock);
        bool loaded = w->loaded_for == t->generation && w->go != t->generation;
        bool go = !w->bye && w->listed == t->generation && w->go == t->generation;
        if (loaded) {
            state = w->loaded;
            w->loaded = (struct buf)BUF_INIT;
            w->loaded_for = 0;
        }
        if (go) {
            w->running = t->generation;
            t->step = w->go_step;
            t->settled = w->go_settled;
            t->source = w->source;
            t->behind = w->behind;
            t->leads = w->leads;
            t->logged = w->logged;
            trainer_report_every(w->trainer, w->report_every);
        }
        pthread_mutex_unlock(&w->lock);
        if (!loaded)
            return go;
        if (trainer_state_set(w->trainer, state.data, state.n, err) < 0 || get_ready(t, err) < 0)
            return -(int)err->code;
    }
}

/* What one worker copies from another: the state, the tests and the results of steps that it
 * remembers. The lengths of the first two go ahead. */
struct copy_head {
    uint64_t state, tests;
};

static int pack_copy(struct worker *w, struct buf *out, struct err *err)
{
    struct copy_head head = { 0 };

    buf_append(out, &head, sizeof head);
    if (trainer_state_get(w->trainer, out, err) < 0)
        return -(int)err->code;
    head.state = out->n - sizeof head;
    pthread_mutex_lock(&w->lock);
    results_pack_tests(&w->results, out);
    head.tests = out->n - sizeof head - head.state;
    results_pack(&w->results, w->results.next - RESULTS_SENT, w->results.next, &w->place, out);
    pthread_mutex_unlock(&w->lock);
    if (buf_ok(out, err) < 0)
        return -(int)err->code;
    memcpy(out->data, &head, sizeof head);
    return 0;
}

static int take_copy(struct worker *w, const char *at, size_t n, struct err *err)
{
    OWN_MEM struct step_result *results = NULL;
    struct results_place place;
    struct copy_head head;
    long count;

    if (n < sizeof head || (memcpy(&head, at, sizeof head), head.state > n - sizeof head) ||
        head.tests > n - sizeof head - head.state)
        return err_set(err, ERR_INVALID, "a state that is cut off");
    const char *tests = at + sizeof head + head.state, *steps = tests + head.tests;
    if (trainer_state_set(w->trainer, at + sizeof head, head.state, err) < 0 ||
        results_unpack(steps, (size_t)(at + n - steps), &place, &results, &count, err) < 0)
        return -(int)err->code;
    pthread_mutex_lock(&w->lock);
    results_clear(&w->results);
    results_add(&w->results, results, count);
    int rc = results_unpack_tests(&w->results, tests, head.tests, err);
    w->place = place;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* From the one who is furthest to those behind. */
static int copy_state(struct turn *t, struct err *err)
{
    struct worker *w = t->w;
    OWN_BUF state = BUF_INIT;
    OWN_MEM void *got = NULL;
    size_t n = 0;

    if (!t->behind)
        return 0;
    if (t->self == t->source && pack_copy(w, &state, err) < 0)
        return -(int)err->code;
    if (mesh_copy(w->mesh, t->source, t->behind, state.data, state.n, &got, &n, err) < 0)
        return -(int)err->code;
    return got ? take_copy(w, got, n, err) : 0;
}

static void take_share(struct turn *t)
{
    const struct mesh_peer *self = &t->peer[t->self];
    struct plan_share share = { .from = self->from, .to = self->to, .gather = gather,
                                .reduce = reduce, .post = post, .wait = wait_for,
                                .n_places = t->n, .self = t->self,
                                .board = mesh_board(t->w->mesh), .arg = t };

    if (mesh_wants_ready(t->w->mesh)) {
        share.ready = ready;
        share.ready_floats = READY_FLOATS;
    }
    for (int side = 0; side < 2; side++)
        for (int r = 0; r < SHARE_ROOTS; r++)
            share.root[side][r] = mesh_root(t->w->mesh, side, r);
    for (int i = 0; i < t->n; i++) {
        bool far = false, near = mesh_is_near(t->w->mesh, i, &far);
        share.place[i] = (struct plan_place){ t->peer[i].from, t->peer[i].to,
                                              mesh_board_of(t->w->mesh, i), near, !far };
        share.far |= far;
    }
    plan_set_share(trainer_plan(t->w->trainer), &share);
    trainer_set_tester(t->w->trainer, test, intact, t);
    t->told = false;
    t->sent = mesh_bytes_sent(t->w->mesh);
    t->from = trainer_step(t->w->trainer);
    atomic_store(&t->w->step, t->from);
}

/* The run is over, by the spec or by an error that all workers have alike. */
static void report_end(struct turn *t, const struct fit_result *fit, int rc, const struct err *err)
{
    const long step = trainer_step(t->w->trainer);

    if (rc < 0) {
        post_event(t, "failed", step, json_pack("{s:i, s:s}", "code", (int)err->code, "text",
                                                err->text));
        return;
    }
    if (!t->leads)
        return;
    post_state(t);
    if (fit->stopped)
        post_event(t, "stopped", step, json_object());
    else
        post_event(t, "end", step,
                   json_pack("{s:i, s:s, s:f, s:f}", "epoch", fit->epochs, "why", fit->why,
                             "seconds", fit->seconds, "samples_per_s", fit->samples_per_s));
}

/* ERR_AGAIN: wait for the next list. */
static int take_turn(struct turn *t, struct err *err)
{
    struct worker *w = t->w;
    struct fit_result fit;

    plan_collect(trainer_plan(w->trainer));     /* while nobody writes for this generation yet */
    int rc = get_ready(t, err);
    if (rc == 0)
        rc = wait_go(t, err);
    if (rc <= 0)
        return rc < 0 ? rc : err_set(err, ERR_AGAIN, "another list came");
    if (mesh_enter(w->mesh, t->generation, t->peer, t->n, t->self, LINK_MS, err) < 0 ||
        copy_state(t, err) < 0)
        return -(int)err->code;
    if (trainer_step(w->trainer) != t->step || trainer_settled(w->trainer) != t->settled)
        return err_set(err, ERR_INVALID, "worker %d is at step %ld%s, the job at %ld%s", t->self,
                       trainer_step(w->trainer),
                       trainer_settled(w->trainer) ? "" : " before its test", t->step,
                       t->settled ? "" : " before its test");
    take_share(t);
    rc = trainer_fit(w->trainer, on_event, t, &fit, err);
    if (rc < 0 && err->code == ERR_AGAIN)
        return rc;
    /* Who cannot have its rows leaves; the others go on without it. */
    if (rc < 0 && parts_failed(w->config->parts)) {
        post_event(t, "unable", t->step, json_pack("{s:s}", "why", err->text));
        return rc;
    }
    report_end(t, &fit, rc, err);
    return rc;
}

/* ------------------------------------------------------------------ life */

static void go_deaf(int sig)
{
    (void)sig;
    worker_deaf = 1;
}

/* Workers of one boot of one machine share memory. */
static void name_host(char *out, size_t size)
{
    OWN_MEM char *text = NULL;
    struct err ignored;

    if (files_read("/proc/sys/kernel/random/boot_id", 128, &text, NULL, &ignored) == 0)
        snprintf(out, size, "%.36s", text);
    else
        gethostname(out, size - 1);
}

int worker_reach(const char *join, const char *token, int *out_fd, struct err *err)
{
    double begun = clock_seconds();

    for (;;) {
        OWN_FD int fd = -1;
        if (wire_connect(join, token, 5000, &fd, err) == 0 &&
            wire_prove(fd, token, 5000, err) == 0) {
            *out_fd = fd;
            fd = -1;
            return 0;
        }
        double patience = fd >= 0 && err->code == ERR_AGAIN ? READING_SECONDS : REACH_SECONDS;
        if ((err->code != ERR_IO && err->code != ERR_AGAIN) || clock_seconds() - begun > patience)
            return -(int)err->code;
        usleep(100000);
    }
}

/* The address by which this host reaches the coordinator, with any port. */
static int own_address(const char *join, const char *token, char *out, size_t size, struct err *err)
{
    OWN_FD int fd = -1;

    return worker_reach(join, token, &fd, err) < 0 ? -(int)err->code
                                                   : wire_here(fd, out, size, err);
}

static int open_worker(struct worker *w, struct err *err)
{
    const struct worker_config *c = w->config;
    struct plan *p;

    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    w->last = &w->first;
    const char *pace = getenv("MUSTER_TORTURE");
    if (pace) {
        char *end;
        w->pace = strtod(pace, &end);
        w->pace_until = *end == ',' ? end + 1 : NULL;
        signal(SIGUSR1, go_deaf);
    }
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake < 0)
        return err_set(err, ERR_IO, "an eventfd cannot be had: %s", strerror(errno));
    if (trainer_new_shared(c->spec, c->threads, c->parts, &w->trainer, err) < 0)
        return -(int)err->code;
    if (c->parts && c->parts->n)
        snprintf(w->data, sizeof w->data, "%s", c->parts->digest);
    else if (dataset_digest(trainer_data(w->trainer), w->data, err) < 0)
        return -(int)err->code;
    trainer_mark(w->trainer, w->mark);
    name_host(w->host, sizeof w->host);
    /* In a job that uses TLS so does every worker, whatever --listen says. */
    const char *tls = wire_is_tls(c->join) && c->listen && !wire_is_tls(c->listen) ? WIRE_TLS : "";
    snprintf(w->address, sizeof w->address, "%s%s", tls, c->listen ? c->listen : "");
    if (!c->listen && own_address(c->join, c->token, w->address, sizeof w->address, err) < 0)
        return -(int)err->code;
    p = trainer_plan(w->trainer);
    const struct mesh_config m = {
        .token = c->token, .listen = w->address, .host = w->host,
        .floats = p->grad_floats, .board = p->board_floats, .shards = p->shards, .lost = on_lost,
        .arg = w, .no_shared_memory = c->no_shared_memory,
    };
    if (mesh_new(&m, &w->mesh, err) < 0)
        return -(int)err->code;
    snprintf(w->address, sizeof w->address, "%s", mesh_address(w->mesh));
    if (wire_is_any(w->address))
        return err_set(err, ERR_INVALID,
                       "--listen %s: name the address of this host that other workers "
                       "reach, as in 192.168.1.6:0",
                       c->listen ? c->listen : w->address);
    return 0;
}

static void close_worker(struct worker *w)
{
    mesh_free(w->mesh);
    trainer_free(w->trainer);
    buf_done(&w->loaded);
    if (w->wake >= 0)
        close(w->wake);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
}

static int go_round(struct worker *w, struct err *err)
{
    struct turn *t = calloc(1, sizeof *t);
    int rc = 0;

    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for a turn");
    t->w = w;
    t->saved_at = clock_seconds();
    while (wait_list(w, t)) {
        rc = take_turn(t, err);
        if (rc < 0 && err->code != ERR_AGAIN && err->code != ERR_IO && err->code != ERR_DIVERGED)
            break;
        rc = 0;                 /* told to the coordinator, whose answer is to come */
    }
    if (rc == 0 && w->failed.code != ERR_OK) {
        *err = w->failed;
        rc = -(int)err->code;
    }
    free(t);
    return rc;
}

int worker_run(const struct worker_config *config, struct err *err)
{
    OWN_MEM struct worker *w = calloc(1, sizeof *w);

    if (!w)
        return err_set(err, ERR_NOMEM, "no memory for a worker");
    w->config = config;
    w->wake = -1;
    int rc = open_worker(w, err);
    if (rc == 0 && (rc = worker_talk(w, err)) == 0) {
        rc = go_round(w, err);
        worker_hush(w);
    }
    close_worker(w);
    return rc;
}

int worker_fetch_spec(const char *join, const char *token, struct job_spec **out, struct err *err)
{
    static const char hello[] = "{\"role\":\"asker\"}";
    const struct wire_header ask = { WIRE_HELLO, 0, 0, sizeof hello - 1 };
    struct wire_header h;
    OWN_BUF body = BUF_INIT;
    OWN_FD int fd = -1;

    if (worker_reach(join, token, &fd, err) < 0 ||
        wire_send(fd, &ask, hello, 5000, err) < 0 || wire_receive(fd, &h, &body, 5000, err) < 0)
        return -(int)err->code;
    if (h.kind == WIRE_REFUSED)
        return err_set(err, ERR_DENIED, "%s", body.data);
    if (h.kind == WIRE_BYE)
        return err_set(err, ERR_MISSING, "the job at %s has just ended", join);
    OWN_JSON json_t *doc = json_loadb(body.data, body.n, 0, NULL);
    const char *dir = json_string_value(json_object_get(doc, "dir"));
    OWN_MEM char *text = json_dumps(json_object_get(doc, "spec"),
                                    JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (!text || !dir)
        return err_set(err, ERR_INVALID, "%s does not speak as a coordinator", join);
    if (spec_parse(text, strlen(text), "the job's spec", NULL, 0, out, err) < 0)
        return -(int)err->code;
    snprintf((*out)->dir, sizeof (*out)->dir, "%s", dir);
    return 0;
}
