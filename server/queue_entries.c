/* server/queue_entries.c - the jobs that have not ended, in memory and in order */
#include <math.h>
#include <string.h>

#include "server/queue_int.h"

/* ------------------------------------------------------------ lists */

int list_add(struct list *l, int at, struct entry *e, struct err *err)
{
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 16;
        struct entry **more = realloc(l->at, (size_t)cap * sizeof *more);
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for %d jobs", cap);
        l->at = more;
        l->cap = cap;
    }
    memmove(l->at + at + 1, l->at + at, (size_t)(l->n - at) * sizeof *l->at);
    l->at[at] = e;
    l->n++;
    return 0;
}

void list_remove(struct list *l, int at)
{
    l->n--;
    memmove(l->at + at, l->at + at + 1, (size_t)(l->n - at) * sizeof *l->at);
}

static void list_take(struct list *l, const struct entry *e)
{
    for (int i = 0; i < l->n; i++)
        if (l->at[i] == e) {
            list_remove(l, i);
            return;
        }
}

/* Where an id is, or would be. */
static int place_of_id(const struct list *l, int64_t id)
{
    int low = 0, high = l->n;

    while (low < high) {
        int mid = (low + high) / 2;
        if (l->at[mid]->plan.id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool waits_before(const struct entry *a, const struct entry *b)
{
    return a->plan.priority != b->plan.priority ? a->plan.priority > b->plan.priority
                                                : a->plan.id < b->plan.id;
}

static int place_in_turn(const struct list *l, const struct entry *e)
{
    int low = 0, high = l->n;

    while (low < high) {
        int mid = (low + high) / 2;
        if (waits_before(l->at[mid], e))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* ------------------------------------------------------------ places */

static void leave_place(struct queue *q, struct entry *e)
{
    struct list *w = &e->project->waiting;

    switch (e->place) {
    case PLACE_WAITING:
        list_remove(w, place_in_turn(w, e));
        q->n_waiting--;
        break;
    case PLACE_LATER:
        list_take(&q->later, e);
        break;
    case PLACE_LIVE:
        list_take(&q->live, e);
        break;
    case PLACE_NONE:
        break;
    }
    e->place = PLACE_NONE;
}

static int take_place(struct queue *q, struct entry *e, enum place place, struct err *err)
{
    int rc = 0;

    if (place == e->place)
        return 0;
    leave_place(q, e);
    if (place == PLACE_WAITING) {
        rc = list_add(&e->project->waiting, place_in_turn(&e->project->waiting, e), e, err);
        q->n_waiting += rc == 0;
    } else if (place == PLACE_LATER) {
        rc = list_add(&q->later, q->later.n, e, err);
    } else if (place == PLACE_LIVE) {
        rc = list_add(&q->live, q->live.n, e, err);
    }
    if (rc == 0)
        e->place = place;
    return rc;
}

/* One that is to be cancelled and has no attempt is in `later`, too, and ended from there. */
static enum place place_for(const struct entry *e)
{
    if (e->live)
        return PLACE_LIVE;
    return e->state == JOB_QUEUED && e->retry_at <= 0 ? PLACE_WAITING : PLACE_LATER;
}

void entries_wake_later(struct queue *q, double now)
{
    struct err none;

    for (int i = q->later.n; i-- > 0;) {
        struct entry *e = q->later.at[i];
        if (e->state == JOB_QUEUED && e->retry_at <= now)
            take_place(q, e, PLACE_WAITING, &none);
    }
}

/* ------------------------------------------------------------ projects */

struct project *entries_project(struct queue *q, const char *name)
{
    for (struct project *p = q->projects; p; p = p->next)
        if (!strcmp(p->name, name))
            return p;
    struct project *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->next = q->projects;
    q->projects = p;
    return p;
}

/* ------------------------------------------------------------ entries */

struct entry *entries_find(struct queue *q, int64_t id)
{
    int at = place_of_id(&q->all, id);
    return at < q->all.n && q->all.at[at]->plan.id == id ? q->all.at[at] : NULL;
}

static int entry_new(struct queue *q, const struct job_row *r, struct entry **out, struct err *err)
{
    struct entry *e = calloc(1, sizeof *e);

    if (!e || !(e->project = entries_project(q, r->project)) ||
        list_add(&q->all, place_of_id(&q->all, r->id), e, err) < 0) {
        free(e);
        return err_set(err, ERR_NOMEM, "no memory for a job");
    }
    e->plan.id = r->id;
    e->plan.priority = r->priority;
    e->plan.since = fmin(r->created, queue_now(q));     /* the clock may have been set back */
    e->plan.each[PLAN_CPU] = llround(r->cpu * 1000);
    e->plan.each[PLAN_MEMORY] = r->memory;
    e->plan.each[PLAN_GPU] = r->gpu;
    e->processes = r->processes;
    e->train = !strcmp(r->kind, "train");
    *out = e;
    return 0;
}

int entries_update(struct queue *q, const struct job_row *r, struct err *err)
{
    struct entry *e = entries_find(q, r->id);

    if (job_state_ended(r->state)) {
        entries_drop(q, r->id);
        return 0;
    }
    if (!e && entry_new(q, r, &e, err) < 0)
        return -(int)err->code;
    if (r->attempt != e->attempt || !r->live) {
        e->phase = RUN_NOT_STARTED;
        e->asked = e->stopped = false;
        e->not_before = 0;
        e->plan.settled = false;
        e->plan.n = e->plan.now = 0;
    }
    e->state = r->state;
    e->attempt = r->attempt;
    e->retries = r->retries;
    e->logged_now = r->now;
    if (e->live && !r->live)
        users_release(e);
    e->live = r->live;
    e->user = r->live ? r->user : 0;
    if (r->retry_at != e->retry_row)
        e->retry_at = e->retry_row = r->retry_at;
    e->plan.min = r->min;
    /* The graphics processors of a job are fixed when it starts (drivers/gpus.h). */
    e->plan.elastic = e->train && !r->gpu;
    e->plan.max = e->plan.elastic ? r->max : r->min;
    if (e->live && e->plan.n == 0)
        e->plan.n = r->now > r->min ? r->now : r->min;
    return take_place(q, e, place_for(e), err);
}

void entries_clock_set(struct queue *q, double by)
{
    for (int i = 0; i < q->all.n; i++) {
        struct entry *e = q->all.at[i];
        e->plan.since += by;    /* of all: their order stays */
        e->not_before += by;
        if (e->retry_at > 0)
            e->retry_at += by;
    }
    q->look_at += by;
    q->last_use += by;
}

void entries_drop(struct queue *q, int64_t id)
{
    int at = place_of_id(&q->all, id);

    if (at == q->all.n || q->all.at[at]->plan.id != id)
        return;
    struct entry *e = q->all.at[at];
    leave_place(q, e);
    list_remove(&q->all, at);
    users_release(e);
    free(e);
}

void entries_free(struct queue *q)
{
    for (int i = 0; i < q->all.n; i++) {
        users_release(q->all.at[i]);
        free(q->all.at[i]);
    }
    free(q->all.at);
    free(q->live.at);
    free(q->later.at);
    for (struct project *p = q->projects, *next; p; p = next) {
        next = p->next;
        free(p->waiting.at);
        free(p);
    }
}
