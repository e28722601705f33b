/* pipelines/runs_hands.c - threads that carry outputs into the object store, which may take long */
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
    struct leaf *done;
    pthread_t threads[HANDS];
    int n_threads;
    bool ending;
};

static void *work(void *arg)
{
    struct hands *h = arg;

    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (!h->first && !h->ending)
            pthread_cond_wait(&h->more, &h->lock);
        if (h->ending)
            break;
        struct load *l = h->first;
        h->first = l->next;
        if (!h->first)
            h->last = &h->first;
        pthread_mutex_unlock(&h->lock);
        leaf_collect(h->runs->server, l->leaf, l->order);
        json_decref(l->order);
        pthread_mutex_lock(&h->lock);
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

struct leaf *hands_take(struct hands *h)
{
    pthread_mutex_lock(&h->lock);
    struct leaf *f = h->done;
    if (f)
        h->done = f->next;
    pthread_mutex_unlock(&h->lock);
    return f;
}
