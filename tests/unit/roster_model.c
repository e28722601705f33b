/* tests/unit/roster_model.c - the roster and the commit protocol, in every order of events
 *
 * DESIGN. `struct model` is made of bytes alone, so that it can be copied and hashed as it is. The
 * roster is unpacked from it before an event and packed afterwards, which is why its source is
 * included here: what is tested is that file, with access to what it remembers.
 * An event is a row of `events`: it happens to one worker (or to the coordinator, worker 0 of the
 * loop) and says whether it can. The search is depth first.
 */
#include "tests/unit/roster_model_int.h"

#include <stdio.h>

#include "runtime/roster.c"

static struct roster roster;
const struct model_setup *setup;
static const char *wrong;       /* NULL: nothing is */

void expect(bool right, const char *what)
{
    if (!right && !wrong)
        wrong = what;
}

static void unpack(const struct model *m)
{
    struct roster *r = &roster;

    r->shards = SHARDS;
    r->min = setup->min;
    r->generation = m->generation;
    r->next_id = m->next_id;
    r->stored_step = m->stored_step;
    r->phase = m->phase;
    r->changed = m->flags & 1;
    r->store = m->flags & 2;
    r->tell = m->flags & 4;
    r->load = m->flags & 8;
    r->go = m->flags & 16;
    r->n = m->n;
    r->n_known = m->n_known;
    r->step = m->go_step;
    r->source = (int8_t)m->source;
    for (int i = 0; i < m->n; i++) {
        struct roster_worker *w = &r->worker[i];
        w->id = m->place[i].id;
        w->who.pid = m->place[i].slot;
        w->from = m->place[i].from;
        w->to = m->place[i].to;
        w->leaving = m->place[i].flags & 1;
        w->ready = m->place[i].flags & 2;
        r->counts[i] = m->place[i].flags & 4;
        w->step = m->place[i].step;
    }
    for (int i = 0; i < m->n_known; i++)
        r->known[i] = m->known[i];
}

static void pack(struct model *m)
{
    const struct roster *r = &roster;

    expect(r->n <= PLACES && r->n_known <= PLACES && r->generation < GENERATIONS &&
           r->next_id <= IDS, "the model is too small");
    if (wrong)
        return;
    m->generation = (uint8_t)r->generation;
    m->next_id = (uint8_t)r->next_id;
    m->stored_step = (uint8_t)r->stored_step;
    m->phase = (uint8_t)r->phase;
    m->flags = (uint8_t)(r->changed | r->store << 1 | r->tell << 2 | r->load << 3 | r->go << 4);
    m->n = (uint8_t)r->n;
    m->n_known = (uint8_t)r->n_known;
    m->go_step = (uint8_t)r->step;
    m->source = (uint8_t)r->source;
    memset(m->place, 0, sizeof m->place);
    memset(m->known, 0, sizeof m->known);
    for (int i = 0; i < r->n; i++) {
        const struct roster_worker *w = &r->worker[i];
        m->place[i].id = (uint8_t)w->id;
        m->place[i].slot = (uint8_t)w->who.pid;
        m->place[i].from = (uint8_t)w->from;
        m->place[i].to = (uint8_t)w->to;
        m->place[i].flags = (uint8_t)(w->leaving | w->ready << 1 | r->counts[i] << 2);
        m->place[i].step = (uint8_t)w->step;
    }
    for (int i = 0; i < r->n_known; i++)
        m->known[i] = (uint8_t)r->known[i];
}

/* ------------------------------------------------------------------ messages */

static void push_down(struct model_worker *w, struct message msg)
{
    expect(w->n_down < DOWN_MAX, "the model's queue is too small");
    if (w->n_down < DOWN_MAX)
        w->down[w->n_down++] = msg;
}

/* The coordinator closes its end: what is on the way may still arrive, and then the end. */
static void hang_up(struct model_worker *w)
{
    if (!w->open)
        return;
    w->open = w->as = w->member_from = 0;
    w->n_up = 0;
    memset(w->up, 0, sizeof w->up);
    if (w->alive)
        push_down(w, (struct message){ .kind = M_CLOSED });
    else
        w->conn = 0;
}

/* ------------------------------------------------------------------ the coordinator */

static void write_disk(struct model *m)
{
    const struct roster *r = &roster;

    m->disk_generation = (uint8_t)r->generation;
    m->disk_next = (uint8_t)r->next_id;
    m->disk_n = 0;
    memset(m->disk_id, 0, sizeof m->disk_id);
    for (int i = 0; i < r->n; i++)
        m->disk_id[m->disk_n++] = (uint8_t)r->worker[i].id;
}

static bool call(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];
    const struct roster_who who = { .pid = slot };
    bool fresh;

    if (!w->alive || !m->up || w->conn != 0)
        return false;
    /* One that has to start over has nothing to keep by its id. */
    bool claims = !w->fresh || is(MISTAKE_FORGET_FRESH) || is(MISTAKE_CLAIM_EARLY);
    uint64_t id = roster_join(&roster, &who, claims ? w->id : 0, &fresh);
    expect(fresh || m->owner[id % IDS] == slot + 1, "two workers have one id");
    if (is(MISTAKE_TRUST_FENCED)) {
        roster.counts[place_of(&roster, id)] = true;
        fresh = fresh && !w->id;
    }
    w->conn = w->open = 1;
    w->as = (uint8_t)id;
    w->member_from = (uint8_t)(fresh ? roster.generation + 1 : 0);
    push_down(w, (struct message){ .kind = M_WELCOME, .step = (uint8_t)id, .bad = fresh });
    return true;
}

static void keep_list(struct model *m)
{
    const struct roster *r = &roster;
    struct list *l = &m->list[r->generation % GENERATIONS];
    int next = 0;

    expect(r->generation > m->last_generation, "a generation comes again");
    m->last_generation = (uint8_t)r->generation;
    *l = (struct list){ .n = (uint8_t)r->n };
    for (int i = 0; i < r->n; i++) {
        const struct roster_worker *w = &r->worker[i];
        l->id[i] = (uint8_t)w->id;
        l->slot[i] = (uint8_t)w->who.pid;
        m->owner[l->id[i] % IDS] = (uint8_t)(l->slot[i] + 1);
        expect(w->from == next || w->from == w->to, "shards are not covered once");
        next = w->to;
    }
    expect(next == SHARDS, "shards are left over");
    if (is(MISTAKE_GO_EARLY))
        for (int i = 0; i < r->n; i++) {
            roster.worker[i].ready = true;
            roster.worker[i].step = roster.counts[i] ? m->worker[l->slot[i]].step : 0;
        }
}

/* Those of the list who are connected: whom the coordinator can tell something. */
static struct model_worker *connected(struct model *m, int place)
{
    struct model_worker *w = &m->worker[roster.worker[place].who.pid];
    return w->open && w->as == roster.worker[place].id ? w : NULL;
}

static void tell_all(struct model *m, struct message msg)
{
    for (int i = 0; i < roster.n; i++) {
        struct model_worker *w = connected(m, i);
        msg.generation = (uint8_t)roster.generation;
        if (w)
            push_down(w, msg);
    }
}

static bool was_on(const struct list *l, uint64_t id)
{
    for (int i = 0; i < l->n; i++)
        if (l->id[i] == id)
            return true;
    return false;
}

static void check_go(const struct model *m)
{
    const struct list *before = &m->list[(roster.generation - 1) % GENERATIONS];

    for (int i = 0; i < roster.n; i++) {
        const struct model_worker *w = &m->worker[roster.worker[i].who.pid];
        if (!w->open || w->as != roster.worker[i].id || w->id != w->as)
            continue;
        if (!(roster_behind(&roster) >> i & 1))
            expect(!w->bad, "the job goes on from a wrong state");
        if (was_on(before, w->id) && !w->bad)
            expect(w->step <= roster.step, "a step that is there is done again");
    }
}

/* Whether act has something to do. After a restart it waits for those who may come back. */
static bool is_due(const struct model *m)
{
    bool all = m->phase == ROSTER_GATHERING;

    for (int i = 0; i < m->n; i++)
        all = all && m->place[i].flags & 2;
    return m->flags || all;
}

/* Everything that the roster asks for, as coordinator.c's act. */
static bool act(struct model *m, int slot)
{
    (void)slot;
    if (!m->up || m->unwritten || !is_due(m))
        return false;
    for (enum roster_act a; (a = roster_next(&roster)) != ROSTER_NOTHING && !wrong;) {
        if (a == ROSTER_STORE) {
            m->unwritten = is(MISTAKE_STORE_LATE);
            if (!m->unwritten)
                write_disk(m);
            roster_stored(&roster);
        } else if (a == ROSTER_TELL) {
            keep_list(m);
            tell_all(m, (struct message){ .kind = M_ROSTER });
        } else if (a == ROSTER_LOAD) {
            tell_all(m, (struct message){ .kind = M_LOAD, .step = m->disk_step });
        } else if (a == ROSTER_GO) {
            check_go(m);
            tell_all(m, (struct message){ .kind = M_GO, .step = (uint8_t)roster.step,
                                          .bad = (uint8_t)roster.source,
                                          .behind = (uint8_t)roster_behind(&roster) });
        }
    }
    return true;
}

static bool write_late(struct model *m, int slot)
{
    (void)slot;
    if (!m->up || !m->unwritten)
        return false;
    m->unwritten = 0;
    write_disk(m);
    return true;
}

static bool restart(struct model *m, int slot)
{
    (void)slot;
    if (m->up)
        return false;
    uint64_t known[PLACES];
    for (int i = 0; i < m->disk_n; i++)
        known[i] = m->disk_id[i];
    uint64_t generation = m->disk_generation;
    if (is(MISTAKE_SAME_GENERATION) && generation)
        generation--;
    struct roster *r = roster_new(SHARDS, setup->min, generation, m->disk_next, known, m->disk_n,
                                  m->disk_step);
    expect(r != NULL, "no memory");
    if (r)
        roster = *r;
    roster_free(r);
    m->up = 1;
    return true;
}

static void take_report(struct model *m, const struct model_worker *w, struct message msg)
{
    if (roster.n == 0 || roster.worker[0].id != w->as)
        return;
    if (msg.generation < w->member_from && !is(MISTAKE_OLD_NEWS))
        return;
    expect(!msg.bad, "a wrong state is stored");
    if (msg.step > m->disk_step)
        m->disk_step = msg.step;
    roster_checkpoint(&roster, msg.step);
    m->ended |= msg.kind == M_END;
}

static bool hear(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!m->up || w->conn != 2 || !w->open || w->n_up == 0)
        return false;
    struct message msg = take(w->up, &w->n_up);
    if (msg.kind == M_READY)
        roster_ready(&roster, w->as, msg.generation,
                     is(MISTAKE_FOLLOW_NOBODY) && place_of(&roster, w->as) ? 0 : msg.step, true);
    else
        take_report(m, w, msg);
    return true;
}

static bool notice_end(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!m->up || w->alive || !w->open || is(MISTAKE_NO_EOF))
        return false;
    roster_lost(&roster, w->as);
    hang_up(w);
    return true;
}

static bool notice_stale(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!m->up || !w->stale)
        return false;
    roster_lost(&roster, w->stale);
    w->stale = 0;
    return true;
}

/* ------------------------------------------------------------------ disturbances */

static bool kill_worker(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!w->alive)
        return false;
    die(w);
    return true;
}

/* Silent for too long, or another one could not reach it: it may be well, or asleep. */
static bool lose_worker(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!m->up || !w->alive || !w->open)
        return false;
    roster_lost(&roster, w->as);
    hang_up(w);
    return true;
}

/* The worker gives the connection up, which the coordinator notices later. */
static bool cut_worker(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!m->up || !w->alive || w->conn != 2 || !w->open || w->stale)
        return false;
    w->stale = w->as;
    w->conn = w->open = w->as = w->member_from = 0;
    clear_queues(w);
    return true;
}

static bool add_worker(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (w->used || (slot > 0 && !m->worker[slot - 1].used))
        return false;
    w->alive = w->used = 1;
    return true;
}

/* The job shrinks: told to go, and its connection closed. */
static bool release_worker(struct model *m, int slot)
{
    struct model_worker *w = &m->worker[slot];

    if (!m->up || !w->alive || !w->open || w->conn != 2)
        return false;
    roster_leave(&roster, w->as);
    write_disk(m);
    push_down(w, (struct message){ .kind = M_BYE });
    hang_up(w);
    return true;
}

static bool crash(struct model *m, int slot)
{
    (void)slot;
    if (!m->up)
        return false;
    for (int i = 0; i < SLOTS; i++) {
        hang_up(&m->worker[i]);
        m->worker[i].stale = 0;
    }
    memset(&roster, 0, sizeof roster);
    m->up = m->unwritten = 0;
    return true;
}

/* ------------------------------------------------------------------ the search */

enum {
    EVENT_ACTS, EVENT_CALLS, EVENT_LISTENS, EVENT_GOES_ON, EVENT_IS_HEARD,      /* of begin */
};

static const struct event {
    const char *name;
    bool (*happen)(struct model *m, int slot);
    int limit;                  /* index of `left`; -1: no disturbance */
    bool inside;                /* happens in the coordinator */
    bool whole;                 /* and to it, not to a worker */
} events[] = {
    [EVENT_ACTS] = { "the coordinator acts", act, -1, true, true },
    [EVENT_CALLS] = { "calls", call, -1, true, false },
    [EVENT_LISTENS] = { "listens", listen_down, -1, false, false },
    [EVENT_GOES_ON] = { "goes on", go_on, -1, false, false },
    [EVENT_IS_HEARD] = { "is heard", hear, -1, true, false },
    { "the coordinator writes what it told", write_late, -1, true, true },
    { "the coordinator starts again", restart, -1, true, true },
    { "is seen to be gone", notice_end, -1, true, false },
    { "has its old connection seen to be gone", notice_stale, -1, true, false },
    { "loses what was on the way", break_off, -1, false, false },
    { "gives up", give_up, -1, false, false },
    { "is killed", kill_worker, 0, false, false },
    { "is taken out", lose_worker, 1, true, false },
    { "cuts its connection", cut_worker, 2, false, false },
    { "comes up", add_worker, 3, false, false },
    { "is told to leave", release_worker, 4, true, false },
    { "the coordinator is killed", crash, 5, true, true },
};
enum { EVENTS = sizeof events / sizeof events[0] };

struct search {
    uint64_t *seen;             /* hashes; the lowest bit: on the way to here */
    size_t size, used;
    struct { uint8_t event, slot; } way[STACK_MAX];
    struct model_outcome *out;
    bool full;
};

static uint64_t hash_of(const struct model *m)
{
    const unsigned char *at = (const unsigned char *)m;
    uint64_t h = 0x9e3779b97f4a7c15u, x;

    for (size_t i = 0; i < sizeof *m; i += 8) {
        size_t n = sizeof *m - i < 8 ? sizeof *m - i : 8;
        x = 0;
        memcpy(&x, at + i, n);
        h = (h ^ x) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (h * 0xc4ceb9fe1a85ec53u) | 3;       /* never 0 */
}

/* Where the hash is, or belongs. */
static uint64_t *find(const struct search *s, uint64_t hash)
{
    size_t at = (hash >> 20) & (s->size - 1);

    while (s->seen[at] && (s->seen[at] | 1) != hash)
        at = (at + 1) & (s->size - 1);
    return &s->seen[at];
}

static bool grow(struct search *s)
{
    uint64_t *old = s->seen;
    size_t old_size = s->size;

    s->size = old_size ? old_size * 2 : 1 << 16;
    s->seen = calloc(s->size, sizeof *s->seen);
    if (!s->seen) {
        s->seen = old;
        s->size = old_size;
        return false;
    }
    for (size_t i = 0; i < old_size; i++)
        if (old[i])
            *find(s, old[i] | 1) = old[i];
    free(old);
    return true;
}

/* Whether some worker is in this generation and may read what was written in it. */
static bool is_read(const struct model *m, uint8_t generation)
{
    for (int i = 0; i < SLOTS; i++)
        if (m->worker[i].at >= AT_ENTERED && m->worker[i].generation == generation)
            return true;
    return false;
}

/* What can make no difference any more is not remembered: fewer states. */
static void forget_old(struct model *m)
{
    unsigned used = 3u << m->last_generation >> 1;

    for (int i = 0; i < SLOTS; i++) {
        struct model_worker *w = &m->worker[i];
        used |= 1u << w->listed | 1u << w->generation;
        for (int j = 0; j < w->n_down; j++)
            used |= 1u << w->down[j].generation;
        for (int j = 0; j < 2; j++)
            if (!is_read(m, w->part[j].generation))
                memset(&w->part[j], 0, sizeof w->part[j]);
        if (!is_read(m, w->word_generation))
            w->word_step = w->word_post = 0;
        if (w->arrival.generation < w->generation)
            memset(&w->arrival, 0, sizeof w->arrival);
        if (w->loaded_for < w->generation)
            w->loaded_for = w->loaded_step = 0;
        if (w->go != w->listed || (w->at >= AT_ENTERED && w->generation == w->go))
            w->go = w->go_step = w->go_source = w->go_behind = 0;
        if (w->listed == w->generation)
            w->self = 0;
    }
    for (int g = 0; g < GENERATIONS; g++)
        if (!(used >> g & 1))
            memset(&m->list[g], 0, sizeof m->list[g]);
    for (int i = 0; i < 6; i++)
        if (m->left[i] > m->left_all)
            m->left[i] = m->left_all;
}

static void tell_way(const struct search *s, int depth)
{
    char *to = s->out->trace;
    size_t room = sizeof s->out->trace;

    snprintf(s->out->why, sizeof s->out->why, "%s", wrong);
    for (int i = 0; i < depth && room > 80; i++) {
        const char *name = events[s->way[i].event].name;
        int n = strncmp(name, "the ", 4) == 0
                    ? snprintf(to, room, "%s\n", name)
                    : snprintf(to, room, "%c %s\n", 'A' + s->way[i].slot, name);
        to += n;
        room -= (size_t)n;
    }
}

/* What costs nothing to see. */
static bool can_happen(const struct model *m, int event, int slot)
{
    const struct event *e = &events[event];

    if (e->limit >= 0 && !m->left[e->limit])
        return false;
    if (!e->whole && e->happen != add_worker && !m->worker[slot].used)
        return false;
    /* A round of the coordinator's loop reads what has come, then acts; after a restart it waits
     * for those who may come back. */
    return e->inside || !m->up || m->n_known || !is_due(m);
}

static bool happen(struct model *m, int event, int slot)
{
    const int limit = events[event].limit;

    unpack(m);
    if (!events[event].happen(m, slot))
        return false;
    pack(m);
    if (limit >= 0) {
        m->left[limit]--;
        m->left_all--;
    }
    forget_old(m);
    return true;
}

static int living(const struct model *m)
{
    int n = 0;

    for (int i = 0; i < SLOTS; i++)
        n += m->worker[i].alive;
    return n;
}

static void visit(struct search *s, const struct model *m, int depth)
{
    uint64_t hash = hash_of(m), *at = find(s, hash);
    bool stuck = true;

    if (*at) {
        expect(*at & 1, "events can go round in a circle");
        return;
    }
    *at = hash & ~UINT64_C(1);
    s->out->states++;
    if (depth > s->out->depth)
        s->out->depth = depth;
    if (++s->used * 4 > s->size * 3 && !grow(s))
        s->full = true;
    if (setup->states_max && s->out->states >= setup->states_max)
        s->full = true;
    for (int e = 0; e < EVENTS && !m->ended; e++)
        for (int slot = 0; slot < (events[e].whole ? 1 : SLOTS); slot++) {
            struct model next;
            if (s->full || !can_happen(m, e, slot))
                continue;
            next = *m;
            if (!happen(&next, e, slot))
                continue;
            s->out->moves++;
            stuck &= events[e].limit >= 0;
            s->way[depth].event = (uint8_t)e;
            s->way[depth].slot = (uint8_t)slot;
            expect(depth + 1 < STACK_MAX, "the model's stack is too small");
            if (!wrong)
                visit(s, &next, depth + 1);
            if (wrong) {
                if (!s->out->why[0])
                    tell_way(s, depth + 1);
                return;
            }
        }
    s->out->ends += m->ended;
    if (stuck && !s->full && !m->ended && living(m) >= setup->min) {
        wrong = "the job is stuck";
        tell_way(s, depth);
        return;
    }
    *find(s, hash) |= 1;
}

static void begin(struct model *m)
{
    *m = (struct model){ .up = 1, .next_id = 1, .disk_next = 1, .source = 0xff,
                         .left = { (uint8_t)setup->kill, (uint8_t)setup->lose, (uint8_t)setup->cut,
                                   (uint8_t)setup->join, (uint8_t)setup->leave,
                                   (uint8_t)setup->crash },
                         .left_all = (uint8_t)setup->disturbances };
    for (int i = 0; i < setup->workers; i++)
        m->worker[i].alive = m->worker[i].used = 1;
    if (!setup->warm)
        return;
    /* All have called before the coordinator acts; then whatever can be, until they run. */
    for (int i = 0; i < setup->workers; i++)
        happen(m, EVENT_CALLS, i);
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < setup->workers; i++) {
            happen(m, EVENT_ACTS, i);
            happen(m, EVENT_LISTENS, i);
            if (m->worker[i].at < AT_ENTERED)
                happen(m, EVENT_GOES_ON, i);
            happen(m, EVENT_IS_HEARD, i);
        }
}

void model_search(const struct model_setup *of, struct model_outcome *out)
{
    struct search *s = calloc(1, sizeof *s);
    struct model first;

    *out = (struct model_outcome){ 0 };
    setup = of;
    wrong = NULL;
    if (!s || (s->out = out, !grow(s))) {
        snprintf(out->why, sizeof out->why, "no memory");
        free(s);
        return;
    }
    begin(&first);
    visit(s, &first, 0);
    out->whole = !s->full && !wrong;
    free(s->seen);
    free(s);
}
