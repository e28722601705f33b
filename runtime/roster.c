/* runtime/roster.c - who is in the job now */
#include "runtime/roster.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct roster {
    int shards, min;
    uint64_t generation;
    uint64_t next_id;
    long stored_step;
    enum roster_phase phase;
    bool changed;               /* the list must be made anew */
    bool store, tell, load, go; /* acts that are due */
    /* Sorted by id. Everybody who is connected; the first `n` are all in the current list. */
    struct roster_worker worker[ROSTER_MAX];
    bool counts[ROSTER_MAX];    /* its state counts (invariant 4) */
    int n;
    uint64_t known[ROSTER_MAX]; /* of the disk's list, and not here */
    int n_known;
    long step;
    int source;
};

struct roster *roster_new(int shards, int min, uint64_t generation, uint64_t next_id,
                          const uint64_t *known, int n_known, long stored_step)
{
    struct roster *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->shards = shards;
    r->min = min > 0 ? min : 1;
    r->generation = generation;
    r->next_id = next_id ? next_id : 1;
    r->stored_step = stored_step;
    r->source = -1;
    for (int i = 0; i < n_known && i < ROSTER_MAX; i++)
        r->known[r->n_known++] = known[i];
    return r;
}

void roster_free(struct roster *r) { free(r); }

/* ------------------------------------------------------------------ the list */

static int place_of(const struct roster *r, uint64_t id)
{
    for (int i = 0; i < r->n; i++)
        if (r->worker[i].id == id)
            return i;
    return -1;
}

static void take_out(struct roster *r, int place)
{
    size_t after = (size_t)(r->n - place - 1);

    memmove(&r->worker[place], &r->worker[place + 1], after * sizeof r->worker[0]);
    memmove(&r->counts[place], &r->counts[place + 1], after * sizeof r->counts[0]);
    r->n--;
    r->changed = true;
}

static void check(const struct roster *r)
{
    int next = 0, active = 0;

    for (int i = 0; i < r->n; i++) {
        assert(i == 0 || r->worker[i - 1].id < r->worker[i].id);
        assert(r->worker[i].id < r->next_id);
        active += r->worker[i].from < r->worker[i].to;
    }
    for (int i = 0; r->phase != ROSTER_WAITING && !r->changed && i < r->n; i++) {
        assert(r->worker[i].from == next || i >= active);
        next = r->worker[i].to > next ? r->worker[i].to : next;
    }
    assert(r->phase == ROSTER_WAITING || r->changed || next == r->shards);
}

/* Whole shards to the oldest; those beyond the shards stand by. */
static void assign(struct roster *r)
{
    const int active = r->n < r->shards ? r->n : r->shards;

    for (int i = 0; i < r->n; i++) {
        r->worker[i].from = i < active ? r->shards * i / active : r->shards;
        r->worker[i].to = i < active ? r->shards * (i + 1) / active : r->shards;
        r->worker[i].ready = false;
        r->worker[i].step = 0;
    }
}

/* A new list from those who are here; too few: everybody waits. */
static void renew(struct roster *r)
{
    for (int i = r->n - 1; i >= 0; i--)
        if (r->worker[i].leaving)
            take_out(r, i);
    r->changed = false;
    r->tell = r->load = r->go = false;
    r->source = -1;
    if (r->n < r->min) {
        r->phase = ROSTER_WAITING;
        r->store = false;
        return;
    }
    assign(r);
    r->n_known = 0;             /* the list goes on without them */
    r->generation++;
    r->phase = ROSTER_GATHERING;
    r->store = r->tell = true;
}

/* ------------------------------------------------------------------ what happened */

static bool forget(struct roster *r, uint64_t id)
{
    for (int i = 0; i < r->n_known; i++)
        if (r->known[i] == id) {
            r->known[i] = r->known[--r->n_known];
            return true;
        }
    return false;
}

uint64_t roster_join(struct roster *r, const struct roster_who *who, uint64_t id, bool *out_fresh)
{
    int place = r->n;

    if (r->n == ROSTER_MAX)
        return 0;
    const bool known = forget(r, id);
    if (!known)
        id = r->next_id++;
    while (place > 0 && r->worker[place - 1].id > id)
        place--;
    size_t after = (size_t)(r->n - place);
    memmove(&r->worker[place + 1], &r->worker[place], after * sizeof r->worker[0]);
    memmove(&r->counts[place + 1], &r->counts[place], after * sizeof r->counts[0]);
    r->worker[place] = (struct roster_worker){ .id = id, .who = *who };
    r->counts[place] = known;
    r->n++;
    r->changed = true;
    *out_fresh = !known;
    return id;
}

int roster_missing(const struct roster *r) { return r->n_known; }

void roster_lost(struct roster *r, uint64_t id)
{
    int place = place_of(r, id);

    if (place < 0)
        return;
    /* Until there is another list it may come back as who it was: a coordinator that slept finds
     * everybody gone, and they have all there is. */
    if (r->counts[place] && !r->worker[place].leaving && r->n_known < ROSTER_MAX)
        r->known[r->n_known++] = id;
    take_out(r, place);
}

void roster_leave(struct roster *r, uint64_t id)
{
    int place = place_of(r, id);

    if (place < 0)
        return;
    r->worker[place].leaving = true;
    r->changed = true;
}

void roster_ready(struct roster *r, uint64_t id, uint64_t generation, long step, bool settled)
{
    int place = place_of(r, id);

    if (place < 0 || generation != r->generation || r->phase != ROSTER_GATHERING)
        return;
    r->worker[place].ready = true;
    r->worker[place].step = r->counts[place] && step > 0 ? step : 0;
    r->worker[place].settled = !r->counts[place] || settled;
}

void roster_checkpoint(struct roster *r, long step)
{
    if (step > r->stored_step)
        r->stored_step = step;
}

void roster_stored(struct roster *r) { r->store = false; }

void roster_set_min(struct roster *r, int min)
{
    r->min = min > 0 ? min : 1;
    if (r->phase == ROSTER_WAITING)
        r->changed = true;      /* those who wait may be enough now */
}

/* ------------------------------------------------------------------ what to do */

static bool is_behind(const struct roster_worker *a, const struct roster_worker *b)
{
    return a->step < b->step || (a->step == b->step && !a->settled && b->settled);
}

/* All have answered: where to go on. When nobody has what is on disk, everybody gets it first. */
static void settle(struct roster *r)
{
    for (int i = 0; i < r->n; i++)
        if (!r->worker[i].ready)
            return;
    r->source = 0;
    for (int i = 1; i < r->n; i++)
        if (is_behind(&r->worker[r->source], &r->worker[i]))
            r->source = i;
    r->step = r->worker[r->source].step;
    if (r->step < r->stored_step) {
        for (int i = 0; i < r->n; i++) {
            r->worker[i].ready = false;
            r->counts[i] = true;
        }
        r->load = true;
        return;
    }
    r->go = true;
}

enum roster_act roster_next(struct roster *r)
{
    if (r->changed)
        renew(r);
    check(r);
    if (r->store)
        return ROSTER_STORE;
    if (r->tell) {
        r->tell = false;
        return ROSTER_TELL;
    }
    if (r->phase == ROSTER_GATHERING && !r->load && !r->go)
        settle(r);
    if (r->load) {
        r->load = false;
        return ROSTER_LOAD;
    }
    if (r->go) {
        r->go = false;
        r->phase = ROSTER_RUNNING;
        for (int i = 0; i < r->n; i++)
            r->counts[i] = true;
        return ROSTER_GO;
    }
    return ROSTER_NOTHING;
}

/* ------------------------------------------------------------------ questions */

enum roster_phase roster_phase(const struct roster *r) { return r->phase; }
uint64_t roster_generation(const struct roster *r) { return r->generation; }
uint64_t roster_next_id(const struct roster *r) { return r->next_id; }
int roster_size(const struct roster *r) { return r->n; }
const struct roster_worker *roster_at(const struct roster *r, int place)
{
    return &r->worker[place];
}
long roster_step(const struct roster *r) { return r->step; }
bool roster_settled(const struct roster *r) { return r->worker[r->source].settled; }
int roster_source(const struct roster *r) { return r->source; }

const struct roster_worker *roster_find(const struct roster *r, uint64_t id)
{
    int place = place_of(r, id);
    return place < 0 ? NULL : &r->worker[place];
}

uint64_t roster_behind(const struct roster *r)
{
    uint64_t behind = 0;

    for (int i = 0; i < r->n; i++)
        if (is_behind(&r->worker[i], &r->worker[r->source]))
            behind |= UINT64_C(1) << i;
    return behind;
}
