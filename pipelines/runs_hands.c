/* pipelines/runs_hands.c - threads that carry outputs into the object store, which may take long
 *
 * Whoever has nothing carried yet comes first, and no project has all hands: one with large outputs
 * delays its own runs.
 */
#include <signal.h>
#include <string.h>

#include "pipelines/runs_int.h"
#include "server/server.h"

enum { HANDS = 4 };

struct load {
    struct leaf *leaf;
    json_t *order;
    struct load *next;
};

struct hands {
    struct runs *runs;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct load *first, **last;
    struct load *busy;          /* being carried */
    struct leaf *done;
    pthread_t threads[HANDS];
    int n_threads;
    bool ending;
};

static int carried_for(const struct hands *h, const char *project)
{
    int n = 0;
    for (const struct load *l = h->busy; l; l = l->next)
        n += !strcmp(l->leaf->run->project, project);
    return n;
}

/* Out of the queue and among the busy; NULL: none that may be carried now. */
static struct load *next_load(struct hands *h)
{
    struct load **best = NULL;
    int least = HANDS - 1;

    for (struct load **at = &h->first; *at && least > 0; at = &(*at)->next) {
        int n = carried_for(h, (*at)->leaf->run->project);
        if (n < least) {
            least = n;
            best = at;
        }
    }
    if (!best)
        return NULL;
    struct load *l = *best;
    *best = l->next;
    if (!l->next)
        h->last = best;
    l->next = h->busy;
    h->busy = l;
    return l;
}

static void *work(void *arg)
{
    struct hands *h = arg;

    pthread_mutex_lock(&h->lock);
    for (;;) {
        struct load *l = NULL;
        while (!h->ending && !(l = next_load(h)))
            pthread_cond_wait(&h->more, &h->lock);
        if (h->ending)
            break;
        pthread_mutex_unlock(&h->lock);
        leaf_collect(h->runs->server, l->leaf, l->order);
        json_decref(l->order);
        pthread_mutex_lock(&h->lock);
        struct load **at = &h->busy;
        while (*at != l)
            at = &(*at)->next;
        *at = l->next;
        pthread_cond_signal(&h->more);  /* its project may have another carried */
        l->leaf->next = h->done;
        h->done = l->leaf;
        free(l);
        runs_wake(h->runs->server);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

int hands_new(struct runs *r, struct hands **out, struct err *err)
{
    struct hands *h = calloc(1, sizeof *h);

    if (!h)
        return err_set(err, ERR_NOMEM, "no memory for runs");
    h->runs = r;
    h->last = &h->first;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->more, NULL);
    *out = h;
    return 0;
}

void hands_free(struct hands *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->ending = true;
    for (struct load *l = h->busy; l; l = l->next)
        l->leaf->leave = true;
    pthread_cond_broadcast(&h->more);
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->n_threads; i++)
        pthread_join(h->threads[i], NULL);
    while (h->first) {
        struct load *l = h->first;
        h->first = l->next;
        leaf_free(l->leaf);
        json_decref(l->order);
        free(l);
    }
    for (struct leaf *f; (f = hands_take(h));)
        leaf_free(f);
    pthread_cond_destroy(&h->more);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void hands_give(struct hands *h, struct leaf *f, json_t *order)
{
    struct load *l = calloc(1, sizeof *l);
    sigset_t all, old;

    if (!l) {                   /* no memory for help: then without */
        leaf_collect(h->runs->server, f, order);
        json_decref(order);
    }
    pthread_mutex_lock(&h->lock);
    if (l) {
        *l = (struct load){ f, order, NULL };
        *h->last = l;
        h->last = &l->next;
    } else {
        f->next = h->done;
        h->done = f;
    }
    if (h->n_threads < HANDS) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        if (pthread_create(&h->threads[h->n_threads], NULL, work, h) == 0)
            h->n_threads++;
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->lock);
}

bool hands_leave(struct hands *h, const struct node *n)
{
    bool found = false;

    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < 2; i++)
        for (struct load *l = i ? h->busy : h->first; l; l = l->next)
            if (l->leaf->node == n && l->leaf->attempt == n->attempt) {
                l->leaf->leave = true;
                found = true;
            }
    for (const struct leaf *f = h->done; f; f = f->next)
        found |= f->node == n && f->attempt == n->attempt;
    pthread_mutex_unlock(&h->lock);
    return found;
}

struct leaf *hands_take(struct hands *h)
{
    pthread_mutex_lock(&h->lock);
    struct leaf *f = h->done;
    if (f)
        h->done = f->next;
    pthread_mutex_unlock(&h->lock);
    return f;
}
