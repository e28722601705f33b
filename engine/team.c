/* engine/team.c - the threads of one process, in step
 *
 * DESIGN. A member announces its arrival at a barrier by storing a growing number in a line of its
 * own and waits until everybody's number has reached it: no shared counter, one line moved for each
 * pair. Between runs members sleep on a condition variable, since a test or a save may take long.
 */
#include "engine/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Two lines: the prefetcher of neighbouring lines would make members share one. */
enum { OWN_BYTES = 128 };

/* Rounds of spinning before the core is offered to others: some microseconds, far more than the
 * longest wait of a balanced step, far less than a time slice. */
enum { SPINS = 20000 };

struct arrival {
    _Alignas(OWN_BYTES) atomic_uint at;
};

struct team {
    struct arrival arrived[TEAM_MAX];
    unsigned epoch[TEAM_MAX][OWN_BYTES / sizeof(unsigned)];     /* each written by its owner */
    int size;
    pthread_t thread[TEAM_MAX];
    int started;
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

void team_barrier(struct team *t, int id)
{
    if (t->size == 1)
        return;
    unsigned epoch = ++t->epoch[id][0];
    atomic_store_explicit(&t->arrived[id].at, epoch, memory_order_release);
    for (int i = 0; i < t->size; i++)
        for (int spins = 0;
             (int)(atomic_load_explicit(&t->arrived[i].at, memory_order_acquire) - epoch) < 0;)
            if (++spins < SPINS) {
                if (spins > 64)
                    spin_hint();
            } else {
                sched_yield();
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
