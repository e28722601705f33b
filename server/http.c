/* server/http.c - the threads: loops that wait for sockets, a pool that waits for disks */
#include "server/http.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/http_int.h"
#include "server/tickets.h"

enum { EVENTS = 64, STALL_MS = 50, POOL_IDLE_S = 10, STACK = 512 << 10,
       FILES_RESERVE = 256 };

const double http_bucket_s[HTTP_BUCKETS] = { 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                             0.05, 0.25, 1, 10, 1e300 };

/* ------------------------------------------------------------ the pool */

static struct conn *pool_take(struct http *h)
{
    struct conn *c = h->pool_first;

    if (c) {
        h->pool_first = c->queued;
        if (!c->queued)
            h->pool_last = NULL;
        c->queued = NULL;
        h->pool_queued--;
    }
    return c;
}

static void give_back(struct conn *c)
{
    struct loop *l = c->loop;

    pthread_mutex_lock(&l->lock);
    const bool first = !l->done;
    c->queued = l->done;
    l->done = c;
    pthread_mutex_unlock(&l->lock);
    if (first && eventfd_write(l->event, 1) < 0)
        abort();                /* a counter cannot be full of ones */
}

/* Ends after a while without work. */
static void *pool_thread(void *arg)
{
    struct http *h = arg;

    pthread_mutex_lock(&h->pool_lock);
    for (;;) {
        struct conn *c = pool_take(h);
        if (c) {
            pthread_mutex_unlock(&h->pool_lock);
            conn_run(c);
            give_back(c);
            pthread_mutex_lock(&h->pool_lock);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += POOL_IDLE_S;
        h->pool_idle++;
        int rc = atomic_load(&h->stopping) ? ETIMEDOUT
            : pthread_cond_timedwait(&h->pool_news, &h->pool_lock, &until);
        h->pool_idle--;
        if (rc == ETIMEDOUT && !h->pool_first && h->n_pool_ended < h->config.waiters)
            break;
    }
    h->pool_threads--;
    h->pool_ended[h->n_pool_ended++] = pthread_self();
    pthread_cond_broadcast(&h->pool_gone);
    pthread_mutex_unlock(&h->pool_lock);
    return NULL;
}

/* Under the pool's lock: waits for one that has ended to be gone, with all that belongs to it (its
 * connection to the store). It ended long ago, but for the last ones. */
static bool reap_one(struct http *h)
{
    if (!h->n_pool_ended)
        return false;
    pthread_t thread = h->pool_ended[--h->n_pool_ended];
    pthread_mutex_unlock(&h->pool_lock);
    pthread_join(thread, NULL);
    pthread_mutex_lock(&h->pool_lock);
    return true;
}

static int start_thread(pthread_t *out, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    int rc = pthread_create(out, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return rc;
}

void pool_give(struct http *h, struct conn *c)
{
    pthread_t thread;

    pthread_mutex_lock(&h->pool_lock);
    c->queued = NULL;
    *(h->pool_last ? &h->pool_last->queued : &h->pool_first) = c;
    h->pool_last = c;
    h->pool_queued++;
    if (h->pool_queued > h->pool_idle && h->pool_threads < h->config.waiters) {
        h->pool_threads++;      /* first: reaping lets go of the lock */
        reap_one(h);
        if (start_thread(&thread, pool_thread, h) != 0 && --h->pool_threads == 0)
            abort();            /* no thread at all: nobody would ever answer */
    }
    pthread_cond_signal(&h->pool_news);
    pthread_mutex_unlock(&h->pool_lock);
}

/* ------------------------------------------------------------ a loop */

static void loop_wake(struct loop *l)
{
    if (!atomic_exchange(&l->wake, true) && eventfd_write(l->event, 1) < 0)
        abort();
}

void http_wake(struct server *s)
{
    struct http *h = s->http;

    if (!h || atomic_load(&h->n_streams) == 0)
        return;
    for (int i = 0; i < h->n_loops; i++)
        loop_wake(&h->loops[i]);
}

void loop_sweep_by(struct loop *l, double when)
{
    if (!l->next_sweep || when < l->next_sweep)
        l->next_sweep = when;
}

static void update_date(struct loop *l)
{
    time_t now = (time_t)clock_wall();
    struct tm tm;

    if (now == l->date_s)
        return;
    l->date_s = now;
    strftime(l->date, sizeof l->date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
}

/* What others have put here: new connections, those that the pool is done with. After the events of a
 * round: to make room for a new one another is closed, which may not have one of them still to come. */
static void take_lists(struct loop *l)
{
    pthread_mutex_lock(&l->lock);
    struct conn *newest = TAKE(l->fresh), *done = TAKE(l->done), *fresh = NULL;
    pthread_mutex_unlock(&l->lock);
    while (newest) {            /* in the order in which they came: the oldest are the first to go */
        struct conn *c = newest;
        newest = c->queued;
        c->queued = fresh;
        fresh = c;
    }
    while (fresh) {
        struct conn *c = fresh;
        fresh = c->queued;
        c->queued = NULL;
        conn_start(c);
    }
    while (done) {
        struct conn *c = done;
        done = c->queued;
        c->queued = NULL;
        conn_back(c);
    }
}

static void go_stalled(struct loop *l)
{
    for (struct conn *c = l->first, *next; c && l->n_stalled; c = next) {
        next = c->next;
        if (c->stalled)
            conn_go(c);
    }
}

static void go_again(struct loop *l)
{
    for (struct conn *c = l->first, *next; c; c = next) {
        next = c->next;
        if (c->again)
            conn_go(c);
    }
}

/* Closes what took too long; when draining, what is between two requests. */
static void sweep(struct loop *l)
{
    struct http *h = l->http;
    const bool draining = atomic_load(&h->draining);

    l->next_sweep = 0;
    if (l->number == 0 && h->accept_after && l->now >= h->accept_after && !draining) {
        struct epoll_event ev = { EPOLLIN, { .ptr = NULL } };
        h->accept_after = 0;
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, h->config.listen_fd, &ev);
    }
    for (struct conn *c = l->first, *next; c; c = next) {
        next = c->next;
        if (c->state == CONN_BUSY || c->stalled)
            continue;
        if (l->now >= c->deadline || (draining && c->state == CONN_HEAD && !c->in_n)
            || atomic_load(&h->stopping))
            conn_close(c);
        else
            loop_sweep_by(l, c->deadline);
    }
}

static void on_event(struct loop *l, const struct epoll_event *ev)
{
    struct conn *c = ev->data.ptr;

    if (!c) {
        accept_all(l);
        return;
    }
    if (ev->data.ptr == l) {
        eventfd_t count;
        eventfd_read(l->event, &count);
        return;                 /* the lists are looked at after every round */
    }
    if (ev->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        c->readable = true;
    if (ev->events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        c->writable = true;
    if (ev->events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
        c->hung_up = true;
        c->eof |= c->state == CONN_STREAM;
    }
    conn_go(c);
}

static void *loop_thread(void *arg)
{
    struct loop *l = arg;
    struct http *h = l->http;
    struct epoll_event events[EVENTS];
    bool listening = l->number == 0;

    for (;;) {
        double left = l->next_sweep ? (l->next_sweep - clock_seconds()) * 1000 + 1 : -1;
        int wait = l->next_sweep ? (left < 0 ? 0 : left < 1e6 ? (int)left : 1000000) : -1;
        if (l->n_stalled && (wait < 0 || wait > STALL_MS))
            wait = STALL_MS;
        if (l->n_again)
            wait = 0;
        int n = epoll_wait(l->epoll, events, EVENTS, wait);
        l->now = clock_seconds();
        update_date(l);
        for (int i = 0; i < n; i++)
            on_event(l, &events[i]);
        take_lists(l);
        if (l->n_condemned)
            loop_close_condemned(l);
        if (l->n_again)
            go_again(l);
        /* By the clock, not when nothing else happens: under load something always does. */
        if (atomic_exchange(&l->wake, false) || (l->n_stalled && l->now >= l->next_look)) {
            go_stalled(l);
            l->next_look = l->now + STALL_MS / 1000.0;
        }
        const bool draining = atomic_load(&h->draining);
        if (draining && listening) {
            epoll_ctl(l->epoll, EPOLL_CTL_DEL, h->config.listen_fd, NULL);
            listening = false;
        }
        if (draining || (l->next_sweep && l->now >= l->next_sweep))
            sweep(l);
        if (atomic_load(&h->stopping) && !l->n_busy) {
            while (l->first)
                conn_close(l->first);
            return NULL;
        }
    }
}

/* ------------------------------------------------------------ start and end */

static int cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 4 ? 4 : (int)n;
}

static int loop_init(struct http *h, int i, struct err *err)
{
    struct loop *l = &h->loops[i];
    struct epoll_event news = { EPOLLIN, { .ptr = l } }, listen = { EPOLLIN, { .ptr = NULL } };

    l->http = h;
    l->number = i;
    pthread_mutex_init(&l->lock, NULL);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->now = clock_seconds();
    update_date(l);
    if (l->epoll < 0 || l->event < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->event, &news) < 0
        || (i == 0 && epoll_ctl(l->epoll, EPOLL_CTL_ADD, h->config.listen_fd, &listen) < 0))
        return err_set(err, ERR_IO, "cannot watch connections: %s", strerror(errno));
    return 0;
}

static void fill_defaults(struct http_config *c)
{
    struct rlimit files;

    c->loops = c->loops ? c->loops : cores();
    c->waiters = c->waiters ? c->waiters : 64;
    c->connections = c->connections ? c->connections : 4096;
    c->per_host = c->per_host ? c->per_host : 1024;
    c->head_timeout_ms = c->head_timeout_ms ? c->head_timeout_ms : 10000;
    c->idle_timeout_ms = c->idle_timeout_ms ? c->idle_timeout_ms : 75000;
    c->head_max = c->head_max ? c->head_max : 64 << 10;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max < 65536 ? files.rlim_max : 65536;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    /* Connections never take the last descriptors: files and the reserve need some. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        const long left = (long)files.rlim_cur - CONNS_RESERVE - FILES_RESERVE;
        const long most = left > 16 ? left : 16;
        c->connections = c->connections < most ? c->connections : (int)most;
    }
}

int http_start(struct server *s, const struct http_config *config,
               const struct protocol *const *protocols, struct err *err)
{
    struct http *h = calloc(1, sizeof *h);
    pthread_condattr_t attr;

    if (!h)
        return err_set(err, ERR_NOMEM, "no memory for the server");
    h->server = s;
    h->config = *config;
    fill_defaults(&h->config);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->pool_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attr);
    pthread_cond_init(&h->pool_news, &attr);
    pthread_cond_init(&h->pool_gone, &attr);
    pthread_condattr_destroy(&attr);
    h->loops = calloc((size_t)h->config.loops, sizeof *h->loops);
    h->pool_ended = calloc((size_t)h->config.waiters, sizeof *h->pool_ended);
    if (!h->loops || !h->pool_ended)
        err_set(err, ERR_NOMEM, "no memory for the server");
    else if (!(h->tickets = tickets_new()))
        err_set(err, ERR_NOMEM, "no memory for tickets");
    else if (router_new(protocols, &h->router, err) == 0 &&
             (!config->tls_cert || tls_open(config->tls_cert, config->tls_key, &h->tls, err) == 0))
        for (; h->n_loops < h->config.loops; h->n_loops++)
            if (loop_init(h, h->n_loops, err) < 0)
                break;
    if (!err->code && s->data_dir)
        ways_start(h, err);
    if (!err->code)
        s->http = h;            /* before a handler runs that wakes others */
    for (int i = 0; !err->code && i < h->n_loops; i++, h->n_started++)
        if (start_thread(&h->loops[i].thread, loop_thread, &h->loops[i]))
            err_set(err, ERR_AGAIN, "cannot start a thread");
    if (err->code) {
        h->config.listen_fd = -1;       /* it stays the caller's */
        s->http = NULL;
        http_free(h);
        return -(int)err->code;
    }
    return 0;
}

void http_drain(struct http *h, int timeout_ms)
{
    struct timespec until;

    if (!h)
        return;
    atomic_store(&h->draining, true);
    for (int i = 0; i < h->n_loops; i++)
        loop_wake(&h->loops[i]);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&h->lock);
    while (h->n_conns && pthread_cond_timedwait(&h->changed, &h->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&h->lock);
}

void http_stop(struct http *h)
{
    if (!h)
        return;
    atomic_store(&h->draining, true);
    ways_stop(h);
    atomic_store(&h->stopping, true);
    for (int i = 0; i < h->n_started; i++)
        if (eventfd_write(h->loops[i].event, 1) < 0)
            abort();
    for (int i = 0; i < h->n_started; i++)
        pthread_join(h->loops[i].thread, NULL);
    h->n_started = 0;
    pthread_mutex_lock(&h->pool_lock);
    do {
        pthread_cond_broadcast(&h->pool_news);
        while (h->pool_threads && !h->n_pool_ended)
            pthread_cond_wait(&h->pool_gone, &h->pool_lock);
    } while (reap_one(h));
    pthread_mutex_unlock(&h->pool_lock);
}

void http_free(struct http *h)
{
    if (!h)
        return;
    http_stop(h);
    ways_free(h);
    for (int i = 0; i < h->n_loops; i++) {
        close(h->loops[i].epoll);
        close(h->loops[i].event);
        pthread_mutex_destroy(&h->loops[i].lock);
    }
    if (h->config.listen_fd >= 0)
        close(h->config.listen_fd);
    router_free(h->router);
    tickets_free(h->tickets);
    tls_close(h->tls);
    free(h->pool_ended);
    free(h->loops);
    free(h->peers);
    free(h);
}

void http_stats(struct http *h, struct http_stats *out)
{
    *out = (struct http_stats){ .connections_all = h->n_all, .connections_dropped = h->n_dropped,
                                .streams_open = h->n_streams };
    for (int i = 0; i < h->n_loops; i++) {
        struct loop *l = &h->loops[i];
        for (int k = 0; k < 6; k++)
            out->by_status[k] += l->by_status[k];
        for (int k = 0; k < HTTP_BUCKETS; k++)
            out->latency[k] += l->latency[k];
        out->latency_sum_s += (double)l->latency_us / 1e6;
        out->bytes_in += l->bytes_in;
        out->bytes_out += l->bytes_out;
    }
    pthread_mutex_lock(&h->lock);
    out->connections_open = (uint64_t)h->n_conns;
    pthread_mutex_unlock(&h->lock);
}
