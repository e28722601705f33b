/* engine/split.c - parameters of which each plan updates a part
 *
 * DESIGN. Part k of a split parameter, some of its rows, is updated in every step by the plan in
 * place k. Plans that read each other's boards as memory leave it on its maker's board, weights and
 * optimizer state, and read it there: nothing is copied, and all workers of a machine have the
 * parameter once in its caches. A plan elsewhere applies the part's gradient, which is on the board
 * too where somebody wants it, to a copy of its own.
 *
 * A row on a board has room for one panel of columns more than it holds, and lies at one of two
 * sides, a panel apart. A step moves it from one side to the other, panel by panel from the end
 * where the room is, so that new values go where old ones have just been used up:
 *
 *     side 1:    [ .. | p0 | p1 | p2 ]      a step, p0 first:  [ p0' | .. | p1 | p2 ]
 *     side 0:    [ p0' | p1' | p2' | .. ]   the next, p2' first
 *
 * At any moment there is, of each panel, the old or the new one whole, and a mark says how many are
 * new: whoever misses a part, because its maker died or hangs, takes what is there and makes the
 * rest. What the mark says is read before and after; a maker that only was slow is done soon.
 *
 * Old values must not be used up while somebody could still give the step up and go on from them.
 * So all tell each other, after the reduce, that they have it (share_reduce); without the word of
 * everybody who reads its board, a plan updates its part in its own memory.
 *
 * A generation begins with everything in the plan's own memory, and ends by bringing it back there
 * (plan_collect), before anybody writes to a board for the next one.
 */
#include <string.h>

#include "engine/plan_int.h"

enum { LINE = 16 };             /* floats */

/* On a board: how far a member of its plan is with its rows of a part. */
struct mark {
    _Atomic uint64_t at;        /* the step (32 bits), panels done */
    _Atomic uint64_t threads;   /* of the plan; in the first mark */
    char gap[48];
};
_Static_assert(sizeof(struct mark) == LINE * sizeof(float), "a mark is a line");

static long lines(long floats) { return (floats + LINE - 1) / LINE * LINE; }

long plan_split(struct plan *p, struct param *q, struct split_shape shape, long floats)
{
    struct split *s = plan_alloc(p, struct split);
    const long at = p->board_floats, arrays = 1 + p->optim[q->group].states;

    s->shape = shape;
    s->ld = lines(shape.cols) + shape.panel;
    /* Rows a multiple of 1 KB apart would all fall into a few sets of the cache. */
    while (s->ld % 256 == 0)
        s->ld += LINE;
    s->room = (shape.rows / shape.unit + 1) / 2 * shape.unit * s->ld;
    s->at = at + lines(floats);
    s->grad = s->at + arrays * s->room;
    s->hash = s->grad + (shape.rows / shape.unit + 1) / 2 * shape.unit * shape.ld;
    s->marks = s->hash + 2 * LINE;
    p->board_floats = s->marks + TEAM_MAX * LINE;
    memset(s->side, SPLIT_OWN, sizeof s->side);
    q->split = s;
    q->grad_size = 0;
    return at;
}

static struct split_part part_at(const struct plan *p, const struct param *q, int place, int side)
{
    const struct split *s = q->split;
    const int states = p->optim[q->group].states;
    struct split_part part = { .ld = side == SPLIT_OWN ? s->shape.ld : s->ld };

    share_part(p, place, s->shape.rows, s->shape.unit, &part.from, &part.to);
    if (side == SPLIT_OWN) {
        part.w = q->w + part.from * part.ld;
        for (int i = 0; i < states; i++)
            part.state[i] = q->state[i] + part.from * part.ld;
        return part;
    }
    part.w = (float *)share_board(p, place) + s->at + side * s->shape.panel;
    for (int i = 0; i < states; i++)
        part.state[i] = part.w + (1 + i) * s->room;
    return part;
}

struct split_part split_now(const struct plan *p, const struct param *q, int place)
{
    return part_at(p, q, place, q->split->side[place]);
}

int split_owner(const struct plan *p, const struct param *q, long row)
{
    long from, to = 0;
    int place = -1;

    while (row >= to)
        share_part(p, ++place, q->split->shape.rows, q->split->shape.unit, &from, &to);
    return place;
}

/* ------------------------------------------------------------------ marks */

static struct mark *marks_of(const struct plan *p, const struct param *q, int place)
{
    return (struct mark *)(void *)((float *)share_board(p, place) + q->split->marks);
}

static uint64_t mark_of(const struct plan *p, long panels)
{
    return (uint64_t)(p->own->turn & UINT32_MAX) << 32 | (uint64_t)panels;
}

/* Members of the plan whose marks these are. */
static int makers_of(const struct mark *mark)
{
    uint64_t n = atomic_load_explicit(&mark->threads, memory_order_relaxed);
    return n < 1 ? 1 : n < TEAM_MAX ? (int)n : TEAM_MAX;
}

static long panels(const struct param *q)
{
    const struct split_shape *s = &q->split->shape;
    return (s->cols + s->panel - 1) / s->panel;
}

/* Panels that the member whose mark it is has done in this step. */
static long panels_done(const struct plan *p, const struct param *q, const struct mark *mark)
{
    uint64_t at = atomic_load_explicit(&mark->at, memory_order_acquire);
    const long done = at >> 32 == mark_of(p, 0) >> 32 ? (long)(at & UINT32_MAX) : 0;
    return done < panels(q) ? done : panels(q); /* it is another's memory */
}

/* What of the rows [from, to) of a part the i-th of n members has. */
static void rows_of(const struct param *q, const struct split_part *part, int i, int n, long *from,
                    long *to)
{
    const long unit = q->split->shape.unit, units = (part->to - part->from + unit - 1) / unit;

    *from = part->from + units * i / n * unit;
    *to = part->from + units * (i + 1) / n * unit;
    *from = *from < part->to ? *from : part->to;
    *to = *to < part->to ? *to : part->to;
}

/* ------------------------------------------------------------------ a step */

/* Not seen by the thread sanitizer: a maker that is only slow may be writing this, which the marks
 * then tell. */
__attribute__((no_sanitize("thread"))) static void copy(float *to, const float *from, long n)
{
    for (long i = 0; i < n; i++)
        to[i] = from[i];
}

/* Rows [first, end) of all arrays, columns [a, b). */
static void copy_rows(const struct plan *p, const struct param *q, const struct split_part *to,
                      const struct split_part *from, long first, long end, long a, long b)
{
    const int states = p->optim[q->group].states;

    for (long r = first - to->from; r < end - to->from; r++)
        for (int k = 0; k <= states; k++)
            copy((k ? to->state[k - 1] : to->w) + r * to->ld + a,
                 (k ? from->state[k - 1] : from->w) + r * from->ld + a, b - a);
}

static struct split_work work_on(const struct param *q, const struct split_part *old,
                                 const struct split_part *new)
{
    return (struct split_work){ .old = *old, .new = *new, .panels = panels(q),
                                .down = new->w > old->w };
}

struct split_work member_begin_part(struct member *m, struct param *q)
{
    struct plan *p = m->plan;
    int self, places = share_places(p, &self);
    const bool board = places > 1 && p->own->sure;
    struct split_part now = split_now(p, q, self);
    struct split_part old = part_at(p, q, self, board ? !share_side(p) : SPLIT_OWN);
    struct split_part new = part_at(p, q, self, board ? share_side(p) : SPLIT_OWN);
    struct split_work work = work_on(q, &old, &new);

    rows_of(q, &new, m->id, m->count, &work.from, &work.to);
    if (now.w != old.w)
        copy_rows(p, q, &old, &now, work.from, work.to, 0, q->split->shape.cols);
    if (places == 1)
        return work;
    work.give = p->own->share.far ? share_own_board(p) + q->split->grad : NULL;
    if (!board)
        return work;
    struct mark *mark = marks_of(p, q, self);
    if (m->id == 0)
        atomic_store_explicit(&mark->threads, (uint64_t)m->count, memory_order_relaxed);
    work.mark = &mark[m->id].at;
    work.step = mark_of(p, 0);
    split_panel_done(&work, 0);
    return work;
}

/* Rows of a member's share, of columns that there are; what pads a row counts as zeros. */
static uint64_t hash_rows(const struct member *m, const struct param *q,
                          const struct split_part *part)
{
    static const _Alignas(64) float zero[LINE];
    const struct split_shape *s = &q->split->shape;
    const struct kernels *k = m->plan->own->kernels;
    uint64_t sum = 0;
    long from, to;

    rows_of(q, part, m->id, m->count, &from, &to);
    for (long r = from; r < to; r++) {
        const long place = q->place + r * s->ld;
        sum += k->hash(part->w + (r - part->from) * part->ld, s->cols, place);
        for (long at = s->cols; at < s->ld; at += LINE)
            sum += k->hash(zero, LINE, place + at);
    }
    return sum;
}

static float *hash_slot(const struct plan *p, const struct param *q, int place)
{
    return (float *)share_board(p, place) + q->split->hash + share_side(p) * LINE;
}

void member_give_part(struct member *m, struct param *q)
{
    struct plan *p = m->plan;
    struct plan_int *own = p->own;
    int self, places = share_places(p, &self);

    if (places == 1)
        return;
    if (own->sure) {
        const struct split_part part = part_at(p, q, self, share_side(p));
        uint64_t sum = 0;
        own->hash[m->id].part = hash_rows(m, q, &part);
        member_barrier(m);
        for (int i = 0; i < p->threads; i++)
            sum += own->hash[i].part;
        if (m->id == 0)
            memcpy(hash_slot(p, q, self), &sum, sizeof sum);
    }
    const struct split_part part = split_now(p, q, self);
    member_post(m, q->split->grad, (part.to - part.from) * q->split->shape.ld);
}

/* Whether the part on a near board is all new. */
static bool is_whole(const struct plan *p, const struct param *q, int place)
{
    const struct mark *mark = marks_of(p, q, place);
    const int n = makers_of(mark);
    bool whole = true;

    for (int i = 0; i < n; i++)
        whole &= panels_done(p, q, &mark[i]) == panels(q);
    return whole;
}

uint64_t member_take_parts(struct member *m, struct param *q)
{
    struct plan_int *own = m->plan->own;
    const struct plan_share *share = &own->share;
    int self, places = share_places(m->plan, &self);
    uint64_t here = places > 1 ? member_wait(m) : 0;

    member_barrier(m);
    for (int k = 0; k < places && m->id == 0; k++)
        if (k != self && share->place[k].near && !is_whole(m->plan, q, k))
            own->here &= ~(UINT64_C(1) << k);
    member_barrier(m);
    here &= own->here;
    for (int k = 0; k < places; k++) {
        const struct split_part part = split_now(m->plan, q, k);
        const long ld = q->split->shape.ld;
        if (k != self && here >> k & 1 && !share->place[k].near)
            member_update(m, q, part.from * ld, part.to * ld,
                          share->place[k].board + q->split->grad);
    }
    return here;
}

/* Member 0: part `place` as far as it is made, to the plan's own memory; `rest` says what is missing.
 * Its maker may be at work: then once more. */
static void take_rest(struct plan *p, struct param *q, int place)
{
    struct split_rest *rest = &p->own->rest;
    const struct mark *mark = marks_of(p, q, place);
    const struct split_part own = part_at(p, q, place, SPLIT_OWN);
    const struct split_part old = split_now(p, q, place);
    const struct split_part new = part_at(p, q, place, share_side(p));
    const long cols = q->split->shape.cols, panel = q->split->shape.panel;
    bool same;

    rest->n = 1;
    rest->done[0] = 0;
    if (q->split->side[place] == SPLIT_OWN)     /* and so are its old values */
        return;
    rest->n = makers_of(mark);
    do {
        same = true;
        for (int i = 0; i < rest->n; i++)
            rest->done[i] = panels_done(p, q, &mark[i]);
        for (int i = 0; i < rest->n; i++) {
            const long n = rest->done[i] * panel;
            long from, to;
            rows_of(q, &own, i, rest->n, &from, &to);
            if (new.w < old.w) {
                copy_rows(p, q, &own, &new, from, to, 0, n < cols ? n : cols);
                copy_rows(p, q, &own, &old, from, to, n, cols);
            } else {
                const long at = (panels(q) - rest->done[i]) * panel;
                copy_rows(p, q, &own, &old, from, to, 0, at < cols ? at : cols);
                copy_rows(p, q, &own, &new, from, to, at, cols);
            }
        }
        atomic_thread_fence(memory_order_acquire);
        for (int i = 0; i < rest->n; i++)
            same &= panels_done(p, q, &mark[i]) == rest->done[i];
    } while (!same);
}

int member_miss_part(struct member *m, struct param *q, int place)
{
    member_barrier(m);
    if (m->id == 0)
        take_rest(m->plan, q, place);
    member_barrier(m);
    return m->plan->own->rest.n;
}

struct split_work member_rest(struct member *m, const struct param *q, int place, int i)
{
    const struct plan *p = m->plan;
    const struct split_rest *rest = &p->own->rest;
    const struct split_part own = part_at(p, q, place, SPLIT_OWN);
    struct split_work work = work_on(q, &own, &own);
    struct split_part rows = own;

    rows_of(q, &own, i, rest->n, &rows.from, &rows.to);
    rows_of(q, &rows, m->id, m->count, &work.from, &work.to);
    work.done = rest->done[i];
    work.down = share_side(p) == 1;
    return work;
}

void member_settle_parts(struct member *m, struct param *q, uint64_t here)
{
    const struct plan *p = m->plan;
    int self, places = share_places(p, &self);

    member_barrier(m);
    for (int k = 0; k < places; k++) {
        const bool near = places > 1 && p->own->share.place[k].near, come = here >> k & 1;
        const bool board = near && come && (k != self || p->own->sure);
        const struct split_part own = part_at(p, q, k, SPLIT_OWN);
        uint64_t sum = 0;
        if (board && m->id == 0)
            memcpy(&sum, hash_slot(p, q, k), sizeof sum);
        else if (!board && (k == self || !come))        /* what came by other ways is counted */
            sum = hash_rows(m, q, &own);
        p->own->hash[m->id].sum += sum;
        if (m->id == 0)
            q->split->side[k] = board ? (signed char)share_side(p) : SPLIT_OWN;
    }
    member_barrier(m);
}

/* ------------------------------------------------------------------ in and out */

void split_get(const struct plan *p, const struct param *q, int which, void *out)
{
    const struct split_shape *s = &q->split->shape;
    const size_t row = (size_t)s->ld * sizeof(float), cols = (size_t)s->cols * sizeof(float);
    int self, places = share_places(p, &self);

    for (int k = 0; k < places; k++) {
        const struct split_part part = split_now(p, q, k);
        const float *from = which ? part.state[which - 1] : part.w;
        for (long r = part.from; r < part.to; r++, from += part.ld) {
            char *to = (char *)out + (size_t)r * row;
            if (to == (const char *)from)
                break;
            memcpy(to, from, cols);
            memset(to + cols, 0, row - cols);
        }
    }
}

void split_forget(struct plan *p)
{
    for (int i = 0; i < p->n_params; i++)
        if (p->param[i]->split)
            memset(p->param[i]->split->side, SPLIT_OWN, sizeof p->param[i]->split->side);
}

void split_begin(struct plan *p)
{
    for (int i = 0; i < p->n_params && p->own->share.board; i++)
        for (int k = 0; p->param[i]->split && k < TEAM_MAX; k++)
            atomic_store(&marks_of(p, p->param[i], p->own->share.self)[k].at, UINT64_MAX);
}

void plan_collect(struct plan *p)
{
    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        for (int k = 0; q->split && k <= p->optim[q->group].states; k++)
            split_get(p, q, k, k ? q->state[k - 1] : q->w);
    }
    split_forget(p);
}
