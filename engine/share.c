/* engine/share.c - a plan that is one of several
 *
 * DESIGN. A step of a shared plan: forward and backward over the own samples leave the gradient of
 * each root (a complete subtree of the own shards) in a vector; `reduce` makes of all plans' roots
 * the sums of the batch; the update is a pass over them that every plan makes for itself. What a
 * stage needs of the whole batch earlier (statistics of batch norm, the sum of weights) it gathers
 * by shard. Nothing that outlives a step is changed before reduce has succeeded, so a step that was
 * abandoned can be run again.
 *
 * What a stage splits (plan_split) is no part of the vector. Plans show each other on boards what
 * its gradient is made of, before the reduce; after it, when the step is sure to count, each makes
 * its part and shows that. A part that does not come is made by whoever misses it. See split.c.
 *
 * A plan without hooks has all shards to itself: it is its own reduce.
 */
#include <string.h>

#include "engine/plan_int.h"

int share_roots(int shards, int from, int to, int first[SHARE_ROOTS], int width[SHARE_ROOTS])
{
    int n = 0;

    for (int at = from; at < to; at += width[n++]) {
        int w = 1;
        while (w < shards && at % (2 * w) == 0 && at + 2 * w <= to)
            w *= 2;
        first[n] = at;
        width[n] = w;
    }
    return n;
}

/* ------------------------------------------------------------------ life */

void plan_known(struct plan *p, struct param *q)
{
    q->grad_size = 0;
    if (p->shared && !q->g)
        q->g = plan_take(p, (size_t)q->size * sizeof(float));
}

void share_init(struct plan *p)
{
    struct plan_int *own = p->own;
    long place = 0;

    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        q->place = place;
        place += q->size;
        q->grad_at = -1;
        if (!p->shared || !q->trained || !q->grad_size)
            continue;
        q->grad_at = p->grad_floats;
        p->grad_floats += q->grad_size;
    }
    if (p->shared && !p->grad_floats)
        p->grad_floats = 16;    /* everything is split; the reduce is still where all meet */
    own->hash = plan_take(p, (size_t)p->threads * sizeof *own->hash);
    p->to = p->shards;
    if (!p->shared)
        return;
    own->alone = plan_take(p, (size_t)p->grad_floats * sizeof(float));
    plan_set_share(p, &(struct plan_share){ .to = p->shards,
                                            .root = { { own->alone }, { own->alone } } });
}

/* The other side, for the next step. No member may be in a kernel. */
static void turn_over(struct plan *p)
{
    struct plan_int *own = p->own;

    own->side = !own->side;
    for (int r = 0; r < p->n_roots; r++)
        p->root[r].at = own->share.root[own->side][r];
}

void plan_set_share(struct plan *p, const struct plan_share *share)
{
    struct plan_int *own = p->own;
    int first[SHARE_ROOTS], width[SHARE_ROOTS];

    plan_collect(p);
    own->share = *share;
    p->from = share->from;
    p->to = share->to;
    p->n_roots = share_roots(p->shards, p->from, p->to, first, width);
    own->side = own->board_side = 0;
    own->turn = 0;
    split_begin(p);
    for (int r = 0; r < p->n_roots; r++) {
        p->root[r] = (struct root){ first[r], width[r], share->root[0][r] };
        /* Kernels leave out what pads a parameter. */
        for (int side = 0; side < 2; side++)
            memset(share->root[side][r], 0, (size_t)p->grad_floats * sizeof(float));
    }
}

bool plan_abandoned(const struct plan *p)
{
    return p->own->abandoned;
}

/* ------------------------------------------------------------------ sums of the batch */

/* Member 0 alone. */
static void gather(struct plan *p, float *rows, long stride, long count)
{
    struct plan_int *own = p->own;

    for (long at = 0; at < count && !own->abandoned; at += SHARE_GATHER)
        own->abandoned = own->share.gather(own->share.arg, rows + at, stride,
                                           count - at < SHARE_GATHER ? count - at : SHARE_GATHER);
}

void member_gather(struct member *m, float *rows, long stride, long count)
{
    struct plan *p = m->plan;

    member_barrier(m);
    if (!p->shared || !p->own->share.gather)
        return;
    if (m->id == 0)
        gather(p, rows, stride, count);
    member_barrier(m);
}

/* ------------------------------------------------------------------ what is split */

int share_places(const struct plan *p, int *out_self)
{
    *out_self = p->own->share.self;
    return p->own->share.n_places ? p->own->share.n_places : 1;
}

void share_part(const struct plan *p, int place, long n, long unit, long *a, long *b)
{
    const long places = p->own->share.n_places ? p->own->share.n_places : 1;
    const long units = (n + unit - 1) / unit;

    *a = units * place / places * unit;
    *b = units * (place + 1) / places * unit;
    *a = *a < n ? *a : n;
    *b = *b < n ? *b : n;
}

const float *share_board(const struct plan *p, int place)
{
    return p->own->share.place[place].board;
}

float *share_own_board(const struct plan *p)
{
    return p->own->share.board;
}

int share_owner(const struct plan *p, int shard)
{
    const struct plan_share *s = &p->own->share;
    int i = 0;

    while (shard < s->place[i].from || shard >= s->place[i].to)
        i++;
    return i;
}

void share_over(struct plan *p)
{
    p->own->board_side = !p->own->board_side;
    p->own->turn++;
    p->own->reduced = false;
}

int share_side(const struct plan *p)
{
    return p->own->board_side;
}

void member_post(struct member *m, long from, long n)
{
    struct plan_int *own = m->plan->own;

    member_barrier(m);
    if (m->id == 0 && !own->abandoned) {
        int rc = own->share.post(own->share.arg, from, n);
        own->abandoned = rc && !own->reduced;
    }
    member_barrier(m);
}

uint64_t member_wait(struct member *m)
{
    struct plan_int *own = m->plan->own;

    member_barrier(m);
    if (m->id == 0) {
        own->here = 0;
        for (int i = 0; i < own->share.n_places; i++)
            own->here |= (uint64_t)(i == own->share.self ||
                                    own->share.wait(own->share.arg, i) == 0) << i;
    }
    member_barrier(m);
    return own->here;
}

/* ------------------------------------------------------------------ the vector */

void share_ready(const struct member *m, long from)
{
    const struct plan_share *s = &m->plan->own->share;

    s->ready(s->arg, shards_filled(m->whole, m->plan->shards), from);
}

/* Member 0 alone. */
static void reduce(const struct member *m)
{
    struct plan *p = m->plan;
    struct plan_int *own = p->own;

    const long floats = (long)(sizeof own->loss[0] / (sizeof(float)));

    loss_by_shard(m, own->loss);
    if (own->share.gather)
        gather(p, (float *)own->loss, floats, floats);
    if (own->abandoned)
        return;
    if (own->share.reduce) {
        own->abandoned = own->share.reduce(own->share.arg, shards_filled(m->whole, p->shards),
                                           &own->segment, &own->n_segments);
        if (!own->abandoned)
            turn_over(p);
        return;
    }
    own->all = (struct grad_segment){ 0, p->grad_floats, own->alone, NULL };
    own->segment = &own->all;
    own->n_segments = 1;
}

/* Member 0: whether all plans that read the own board as memory have the reduce. None of them gives
 * the step up then, or goes back to what was before it. */
static bool confirm(struct plan *p)
{
    const struct plan_share *s = &p->own->share;
    bool sure = s->post(s->arg, 0, 0) == 0;

    for (int i = 0; i < s->n_places && sure; i++)
        sure = i == s->self || !s->place[i].reader || s->wait(s->arg, i) == 0;
    return sure;
}

bool share_reduce(struct member *m)
{
    struct plan *p = m->plan;

    member_barrier(m);
    if (m->id == 0) {
        reduce(m);
        p->own->reduced = !p->own->abandoned;
        p->own->sure = p->own->reduced && p->board_floats && p->own->share.n_places > 1 &&
                       confirm(p);
    }
    member_barrier(m);
    if (p->own->abandoned)
        return false;
    for (int i = 0; i < p->n_stages; i++)
        if (p->stage[i].ops->reduced)
            p->stage[i].ops->reduced(&p->stage[i], m);
    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        long from, to;
        if (q->grad_at < 0 || !q->g || q->grad_size != q->size)
            continue;
        member_part(m, q->size, 16, &from, &to);
        share_copy(p, q, from, to, q->g + from);
    }
    return true;
}

/* Element `at` of the vector and those that follow it up to *end, which may come nearer. */
static const float *find(const struct plan *p, long at, long *end, const float **out_plus)
{
    const struct grad_segment *s = p->own->segment;

    while (s->to <= at)
        s++;
    if (*end > s->to)
        *end = s->to;
    *out_plus = s->plus ? s->plus + (at - s->from) : NULL;
    return s->sum + (at - s->from);
}

const float *share_gradient(const struct plan *p, const struct param *q, long from, long *to,
                            float *room)
{
    const float *plus;

    if (q->g)
        return q->g + from;
    long end = q->grad_at + *to;
    const float *g = find(p, q->grad_at + from, &end, &plus);
    *to = end - q->grad_at;
    if (!plus)
        return g;
    p->own->kernels->add(room, g, plus, *to - from);
    return room;
}

void share_copy(const struct plan *p, const struct param *q, long from, long to, float *out)
{
    for (long at = q->grad_at + from, end = q->grad_at + to; at < end;) {
        long part = end;
        const float *plus, *sum = find(p, at, &part, &plus);
        if (plus)
            p->own->kernels->add(out, sum, plus, part - at);
        else
            memcpy(out, sum, (size_t)(part - at) * sizeof *out);
        out += part - at;
        at = part;
    }
}

/* ------------------------------------------------------------------ chain */

/* From splitmix64's finish: every bit of both reaches every bit of the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t share_chain(struct plan *p)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->threads; i++)
        sum += p->own->hash[i].sum;
    p->own->chain = mix(mix(p->own->chain + UINT64_C(0x9e3779b97f4a7c15)) ^ sum);
    return p->own->chain;
}

uint64_t plan_chain(const struct plan *p)
{
    return p->own->chain;
}

void plan_set_chain(struct plan *p, uint64_t chain)
{
    p->own->chain = chain;
}

/* ------------------------------------------------------------------ state */

static int states_of(const struct plan *p, const struct param *q)
{
    return p->train && q->trained ? p->optim[q->group].states : 0;
}

size_t plan_state_bytes(const struct plan *p)
{
    size_t floats = 0;

    for (int i = 0; i < p->n_params; i++)
        floats += (size_t)p->param[i]->size * (size_t)(1 + states_of(p, p->param[i]));
    return floats * sizeof(float);
}

void plan_state_get(const struct plan *p, void *out)
{
    char *to = out;

    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        const size_t bytes = (size_t)q->size * sizeof(float);
        for (int k = 0; k <= states_of(p, q); k++, to += bytes)
            if (q->split)
                split_get(p, q, k, to);
            else
                memcpy(to, k ? q->state[k - 1] : q->w, bytes);
    }
}

size_t plan_copy_bytes(const struct plan *p)
{
    size_t floats = 0;

    for (int i = 0; i < p->n_params; i++)
        floats += (size_t)p->param[i]->size;
    return floats * sizeof(float);
}

void plan_copy(const struct plan *p, float *out)
{
    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        if (q->split)
            split_get(p, q, 0, out);
        else
            memcpy(out, q->w, (size_t)q->size * sizeof *out);
        out += q->size;
    }
}

void plan_state_set(struct plan *p, const void *in)
{
    const char *from = in;

    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        const size_t bytes = (size_t)q->size * sizeof(float);
        for (int k = 0; k <= states_of(p, q); k++, from += bytes)
            for (int r = 0; r < (q->replica ? p->threads : 1); r++)
                memcpy((k ? q->state[k - 1] : q->w) + r * q->replica, from, bytes);
    }
    plan_derive(p);
}
