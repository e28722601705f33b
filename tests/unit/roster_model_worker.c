/* tests/unit/roster_model_worker.c - what runtime/worker.c and runtime/worker_talk.c do, in small
 *
 * What nobody else can tell apart is one event: to commit and to write the next roots, say. What
 * somebody can is two: to see that a peer has posted, and to read it.
 */
#include "tests/unit/roster_model_int.h"

/* ------------------------------------------------------------------ the talking thread */

static void take_list(struct model *m, struct model_worker *w, uint8_t generation)
{
    const struct list *l = &m->list[generation];

    w->listed = generation;
    w->self = 0xff;
    for (int i = 0; i < l->n; i++)
        if (l->id[i] == w->id)
            w->self = (uint8_t)i;
    if (w->running)
        w->aborted = w->running;
}

static void take_welcome(struct model_worker *w, struct message msg)
{
    w->conn = 2;
    w->id = msg.step;
    w->fresh = is(MISTAKE_FORGET_FRESH) ? msg.bad : w->fresh | msg.bad;
    w->listed = w->go = 0;
    if (msg.bad && w->running)
        w->aborted = w->running;
}

void die(struct model_worker *w)
{
    struct model_worker now = { .used = 1, .open = w->open, .as = w->as, .stale = w->stale,
                                .member_from = w->member_from, .conn = w->conn, .n_up = w->n_up,
                                .word_generation = w->word_generation,
                                .word_step = w->word_step, .word_post = w->word_post };

    memcpy(now.up, w->up, sizeof now.up);
    memcpy(now.part, w->part, sizeof now.part);
    *w = now;
}

bool listen_down(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!w->alive || w->n_down == 0)
        return false;
    struct message msg = take(w->down, &w->n_down);
    if (msg.kind == M_WELCOME) {
        take_welcome(w, msg);
    } else if (msg.kind == M_ROSTER) {
        take_list(m, w, msg.generation);
    } else if (msg.kind == M_LOAD) {
        w->loaded_for = msg.generation;
        w->loaded_step = msg.step;
    } else if (msg.kind == M_GO && msg.generation == w->listed) {
        w->go = msg.generation;
        w->go_step = msg.step;
        w->go_source = msg.bad;
        w->go_behind = msg.behind;
    } else if (msg.kind == M_BYE) {
        die(w);
    } else if (msg.kind == M_CLOSED) {
        w->conn = 0;
        clear_queues(w);        /* also what was to be sent */
    }
    return true;
}

/* The end comes before what was on the way. */
bool break_off(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!w->alive || w->n_down < 2 || w->down[w->n_down - 1].kind != M_CLOSED)
        return false;
    w->conn = 0;
    clear_queues(w);
    return true;
}

/* ------------------------------------------------------------------ the main thread */

/* To the coordinator. Without a connection it is not kept: the next list asks for what counts. */
static void post(struct model_worker *w, enum message_kind kind)
{
    struct message msg = { .kind = (uint8_t)kind, .generation = w->generation, .step = w->step,
                           .bad = w->bad };

    if (w->conn != 2 || !w->open)
        return;
    expect(w->n_up < UP_MAX, "the model's queue is too small");
    if (w->n_up < UP_MAX)
        w->up[w->n_up++] = msg;
}

/* What waits for others ends when it is told to, or when one of them is seen to be elsewhere. */
bool give_up(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];
    const struct list *l = &m->list[w->generation];

    if (!w->alive || w->at < AT_ENTERED || w->reading)
        return false;
    bool over = w->aborted == w->generation;
    for (int i = 0; i < l->n; i++) {
        const struct model_worker *p = &m->worker[l->slot[i]];
        over |= !p->alive || p->word_generation > w->generation;
    }
    if (!over)
        return false;
    w->at = AT_LIST;
    w->running = w->aborted = w->peer = w->sum_bad = 0;
    return true;
}

static void get_ready(struct model_worker *w)
{
    if (w->fresh)
        w->step = w->bad = 0;
    w->fresh = 0;
    post(w, M_READY);
    w->at = AT_GO;
}

static bool on_list(struct model *m, struct model_worker *w)
{
    (void)m;
    if (!w->listed || w->listed == w->generation || w->self == 0xff)
        return false;
    w->generation = w->listed;
    w->turn_self = w->self;
    get_ready(w);
    return true;
}

static bool on_go(struct model *m, struct model_worker *w)
{
    (void)m;
    if (w->loaded_for == w->generation && w->go != w->generation) {
        w->step = w->loaded_step;
        w->bad = w->loaded_for = w->loaded_step = 0;
        get_ready(w);
        return true;
    }
    if (w->listed != w->generation) {
        w->at = AT_LIST;
        return true;
    }
    if (w->go != w->generation)
        return false;
    w->running = w->generation;
    w->turn_step = w->go_step;
    w->turn_source = w->go_source;
    w->turn_behind = w->go_behind;
    w->word_generation = w->generation;
    w->word_step = w->word_post = 0;
    w->at = AT_ENTERED;
    return true;
}

static void publish(struct model_worker *w, int part, uint8_t bad)
{
    w->part[part].generation = w->generation;
    w->part[part].step = w->step;
    w->part[part].bad = bad;
    w->word_step = w->step;
    w->word_post = (uint8_t)(part + 1);
    w->peer = w->reading = 0;
}

/* The next step, or the end of the job. */
static void write_roots(struct model_worker *w)
{
    w->turn_step = w->turn_source = w->turn_behind = 0;
    if (w->step == setup->steps) {
        if (w->turn_self == 0)
            post(w, M_END);
        w->at = AT_LIST;
        w->running = w->aborted = 0;
        return;
    }
    publish(w, 0, w->bad);
    w->sum_bad = w->bad;
    w->at = AT_ROOTS;
}

static void send_state(struct model *m, const struct model_worker *w)
{
    const struct list *l = &m->list[w->generation];

    expect(!w->bad, "a wrong state is copied");
    for (int i = 0; i < l->n; i++) {
        struct model_worker *p = &m->worker[l->slot[i]];
        if (w->turn_behind >> i & 1 && p->alive && p->arrival.generation < w->generation) {
            p->arrival.generation = w->generation;
            p->arrival.step = w->step;
        }
    }
}

static bool on_copy(struct model *m, struct model_worker *w)
{
    if (w->turn_behind >> w->turn_self & 1) {
        if (w->arrival.generation != w->generation)
            return false;
        w->step = w->arrival.step;
        w->bad = 0;
        memset(&w->arrival, 0, sizeof w->arrival);
    } else if (w->turn_behind && w->turn_self == w->turn_source) {
        send_state(m, w);
    }
    expect(w->step == w->turn_step && !w->bad, "a generation begins with a wrong state");
    write_roots(w);
    return true;
}

static bool on_entered(struct model *m, struct model_worker *w)
{
    const struct list *l = &m->list[w->generation];

    for (int i = 0; i < l->n; i++)
        if (m->worker[l->slot[i]].word_generation != w->generation)
            return false;
    w->at = AT_COPY;
    on_copy(m, w);              /* at once, unless it has to wait for what comes */
    return true;
}

/* Reads a part of everybody's region, one after the other: waits for the word, then reads. In
 * between its owner may have gone elsewhere, and what is read is not what was announced.
 * False: there is nothing to be read yet. */
static bool read_parts(const struct model *m, struct model_worker *w, int part, bool *out_all)
{
    const struct list *l = &m->list[w->generation];

    w->peer = (uint8_t)(w->peer + (w->peer == w->turn_self));
    *out_all = w->peer >= l->n;
    if (*out_all)
        return true;
    const struct model_worker *p = &m->worker[l->slot[w->peer]];
    if (!w->reading) {
        w->reading = p->word_generation == w->generation &&
                     (p->word_step > w->step ||
                      (p->word_step == w->step && p->word_post > part));
        return w->reading;
    }
    w->reading = 0;
    w->sum_bad |= p->part[part].generation != w->generation || p->part[part].step != w->step ||
                  p->part[part].bad;
    w->peer++;
    w->peer = (uint8_t)(w->peer + (w->peer == w->turn_self));
    *out_all = w->peer >= l->n;
    return true;
}

static bool on_roots(struct model *m, struct model_worker *w)
{
    bool all;

    if (!read_parts(m, w, 0, &all))
        return false;
    if (all) {
        publish(w, 1, w->sum_bad);
        w->at = AT_SUMS;
    }
    return true;
}

static bool on_sums(struct model *m, struct model_worker *w)
{
    bool all;

    if (!read_parts(m, w, 1, &all))
        return false;
    if (!all)
        return true;
    w->bad |= w->sum_bad;
    w->step++;
    w->sum_bad = w->peer = 0;
    if (w->turn_self == 0 && setup->checkpoint && w->step % setup->checkpoint == 0 &&
        w->step < setup->steps)
        post(w, M_CHECKPOINT);
    write_roots(w);
    return true;
}

bool go_on(struct model *m, int slot)
{
    static bool (*const doing[])(struct model *m, struct model_worker *w) = {
        on_list, on_go, on_entered, on_copy, on_roots, on_sums,
    };
    struct model_worker *w = &m->worker[slot];

    return w->alive && doing[w->at](m, w);
}
