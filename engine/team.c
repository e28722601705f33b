/* engine/team.c - the threads of one process, in step
 *
 * DESIGN. A member announces its arrival at a barrier by storing a growing number in a line of its
 * own and waits until everybody's number has reached it: no shared counter, one line moved for each
 * pair. Who waits spins for some microseconds, as long as a balanced step ever needs, and then sleeps
 * on the late member's number (a futex): on a machine with more threads than cores the late one may
 * not be running at all. Between runs members sleep on a condition variable.
 */
#include "engine/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Two lines: the prefetcher of neighbouring lines would make members share one. */
enum { OWN_BYTES = 128 };

/* Rounds of spinning before sleeping, most of them with a pause: about 50 microseconds. */
enum { SPINS = 4000, SPINS_HOT = 64 };

struct arrival {
    _Alignas(OWN_BYTES) atomic_uint at;
    atomic_uint sleepers;               /* members that sleep until `at` changes */
};

struct team {
    struct arrival arrived[TEAM_MAX];
    unsigned epoch[TEAM_MAX][OWN_BYTES / sizeof(unsigned)];     /* each written by its owner */
    int size;
    pthread_t thread[TEAM_MAX];
    int started;
    bool pinned;
    cpu_set_t before;                   /* the caller's cores */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    unsigned long run;                  /* counts runs; a change wakes the members */
    int running;                        /* members that have not returned yet */
    bool quit;
    void (*fn)(int id, void *arg);
    void *arg;
};

struct start {
    struct team *team;
    int id;
};

static void spin_hint(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

static bool has_arrived(const struct arrival *a, unsigned epoch)
{
    return (int)(atomic_load_explicit(&a->at, memory_order_acquire) - epoch) >= 0;
}

/* Either the sleeper sees the new number, or the late member sees the sleeper: both sides write
 * before they read, in one total order. */
static void sleep_until(struct arrival *a, unsigned epoch)
{
    atomic_fetch_add(&a->sleepers, 1);
    for (;;) {
        unsigned seen = atomic_load(&a->at);
        if ((int)(seen - epoch) >= 0)
            break;
        syscall(SYS_futex, &a->at, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    atomic_fetch_sub(&a->sleepers, 1);
}

void team_barrier(struct team *t, int id)
{
    if (t->size == 1)
        return;
    unsigned epoch = ++t->epoch[id][0];
    struct arrival *own = &t->arrived[id];
    atomic_exchange(&own->at, epoch);
    if (atomic_load(&own->sleepers))
        syscall(SYS_futex, &own->at, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    for (int i = 0; i < t->size; i++) {
        int spins = 0;
        while (!has_arrived(&t->arrived[i], epoch) && spins < SPINS)
            if (++spins > SPINS_HOT)
                spin_hint();
        if (spins == SPINS)
            sleep_until(&t->arrived[i], epoch);
    }
}

static void *member_main(void *arg)
{
    struct start *start = arg;
    struct team *t = start->team;
    int id = start->id;
    unsigned long seen = 0;

    free(start);
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->run == seen && !t->quit)
            pthread_cond_wait(&t->work, &t->lock);
        if (t->quit)
            break;
        seen = t->run;
        pthread_mutex_unlock(&t->lock);
        t->fn(id, t->arg);
        pthread_mutex_lock(&t->lock);
        if (--t->running == 0)
            pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int team_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < TEAM_MAX ? n : TEAM_MAX;
}

/* With a core for every member, each stays on its own: a step is shorter than the scheduler takes to
 * part two members that share one. The caller gets its cores back when the team is freed. */
static void pin(struct team *t)
{
    cpu_set_t one;
    int id = 0;

    t->pinned = pthread_getaffinity_np(pthread_self(), sizeof t->before, &t->before) == 0 &&
                t->size > 1 && CPU_COUNT(&t->before) == t->size;
    for (int core = 0; t->pinned && core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &t->before))
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        pthread_setaffinity_np(id ? t->thread[id] : pthread_self(), sizeof one, &one);
        id++;
    }
}

int team_new(int size, struct team **out, struct err *err)
{
    struct team *t = aligned_alloc(OWN_BYTES, (sizeof *t + OWN_BYTES - 1) / OWN_BYTES * OWN_BYTES);

    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for %d threads", size);
    *t = (struct team){ .size = size, .lock = PTHREAD_MUTEX_INITIALIZER,
                        .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER };
    for (int i = 1; i < size; i++) {
        struct start *start = malloc(sizeof *start);
        if (start)
            *start = (struct start){ t, i };
        if (!start || pthread_create(&t->thread[i], NULL, member_main, start) != 0) {
            free(start);
            team_free(t);
            return err_set(err, ERR_AGAIN, "cannot start thread %d of %d (ask for fewer with "
                           "--threads)", i + 1, size);
        }
        t->started = i;
    }
    pin(t);
    *out = t;
    return 0;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->quit = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (int i = 1; i <= t->started; i++)
        pthread_join(t->thread[i], NULL);
    if (t->pinned)
        pthread_setaffinity_np(pthread_self(), sizeof t->before, &t->before);
    free(t);
}

int team_size(const struct team *t)
{
    return t->size;
}

void team_run(struct team *t, void (*fn)(int id, void *arg), void *arg)
{
    if (t->size > 1) {
        pthread_mutex_lock(&t->lock);
        t->fn = fn;
        t->arg = arg;
        t->running = t->size - 1;
        t->run++;
        pthread_cond_broadcast(&t->work);
        pthread_mutex_unlock(&t->lock);
    }
    fn(0, arg);
    if (t->size > 1) {
        pthread_mutex_lock(&t->lock);
        while (t->running)
            pthread_cond_wait(&t->done, &t->lock);
        pthread_mutex_unlock(&t->lock);
    }
}
