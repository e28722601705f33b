/* server/http_ways.c - connections of jobs that have a network of their own
 *
 * DESIGN. A keeper connects to DATA/way and hands over the sockets that listen inside its job's
 * namespace (drivers/way.h). One thread accepts from all of them and queues the connections; the
 * first loop takes them from there as from the server's own socket. Each job has a made-up address,
 * so that its share of the connections is its own and not that of loopback.
 *
 * A server that drains leaves new connections in the backlog: the next server answers them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "drivers/way.h"
#include "server/http_int.h"

enum { QUEUE = 256, DOOR_MS = 1000, AGAIN_US = 100000 };

struct way_in {
    int fd;                     /* DATA/way, a keeper's connection, or a socket of a job */
    enum { DOOR, KEEPER, SOCKET } kind;
    uint32_t number;            /* of the job: its made-up address */
    struct way_in *sockets[WAY_SOCKETS];        /* of a keeper */
    int n_sockets;
    struct way_in *next, **link;
};

struct ways {
    struct http *http;
    pthread_t thread;
    bool has_thread;
    int epoll, end, news;       /* news: something is queued; in the first loop's epoll */
    struct way_in *all;
    uint32_t last_number;
    bool open;                  /* DATA/way is there */
    pthread_mutex_t lock;       /* of what follows */
    pthread_cond_t room;
    struct { int fd; uint32_t number; } queue[QUEUE];
    int first, n;
    bool ending;
};

/* ------------------------------------------------------------ what is watched */

static struct way_in *watch(struct ways *w, int fd, int kind, uint32_t number)
{
    struct way_in *in = calloc(1, sizeof *in);
    struct epoll_event ev = { EPOLLIN, { .ptr = in } };

    if (!in || epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        free(in);
        close(fd);
        return NULL;
    }
    *in = (struct way_in){ .fd = fd, .kind = kind, .number = number, .next = w->all,
                           .link = &w->all };
    if (w->all)
        w->all->link = &in->next;
    w->all = in;
    return in;
}

static void forget(struct ways *w, struct way_in *in)
{
    for (int i = 0; i < in->n_sockets; i++)
        forget(w, in->sockets[i]);
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, in->fd, NULL);
    close(in->fd);
    *in->link = in->next;
    if (in->next)
        in->next->link = in->link;
    free(in);
}

static void take_keeper(struct ways *w, const struct way_in *door)
{
    struct ucred who;
    socklen_t n = sizeof who;
    int fd = accept4(door->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0 || who.uid != geteuid()) {
        close(fd);
        return;
    }
    watch(w, fd, KEEPER, ++w->last_number);
}

static void take_sockets(struct ways *w, struct way_in *keeper)
{
    int fds[WAY_SOCKETS], n = way_take(keeper->fd, fds);

    if (n == 0)
        forget(w, keeper);
    for (int i = 0; i < n; i++) {
        struct way_in *in = keeper->n_sockets < WAY_SOCKETS
                                ? watch(w, fds[i], SOCKET, keeper->number) : NULL;
        if (in)
            keeper->sockets[keeper->n_sockets++] = in;
    }
}

/* ------------------------------------------------------------ connections */

static void queue_connection(struct ways *w, int fd, uint32_t number)
{
    pthread_mutex_lock(&w->lock);
    while (w->n == QUEUE && !w->ending)
        pthread_cond_wait(&w->room, &w->lock);
    if (w->ending) {
        close(fd);
    } else {
        const int at = (w->first + w->n++) % QUEUE;
        w->queue[at].fd = fd;
        w->queue[at].number = number;
        if (eventfd_write(w->news, 1) < 0)
            abort();
    }
    pthread_mutex_unlock(&w->lock);
}

static void take_connection(struct ways *w, const struct way_in *in)
{
    if (atomic_load(&w->http->draining)) {
        usleep(AGAIN_US);       /* it is for the next server */
        return;
    }
    int fd = accept4(in->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        queue_connection(w, fd, in->number);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        usleep(AGAIN_US);
}

/* On a full disk there may be no inode for DATA/way. The server starts all the same; jobs reach it when
 * there is one. */
static int open_door(struct ways *w, struct err *err)
{
    const char *dir = w->http->server->data_dir;
    int door = way_listen(dir);

    if (door < 0 && (errno == ENOSPC || errno == EDQUOT))
        return 0;
    if (door < 0)
        return err_set(err, ERR_IO, "%.200s/way: %s", dir, strerror(errno));
    if (!watch(w, door, DOOR, 0))
        return err_set(err, ERR_IO, "cannot watch connections of jobs: %s", strerror(errno));
    w->open = true;
    return 0;
}

static void *run(void *arg)
{
    struct ways *w = arg;
    struct epoll_event ev;
    struct err none;
    int n;

    /* One at a time: what it changes may be what the next one points to. */
    while ((n = epoll_wait(w->epoll, &ev, 1, w->open ? -1 : DOOR_MS)) >= 0 || errno == EINTR) {
        struct way_in *in = n > 0 ? ev.data.ptr : NULL;
        pthread_mutex_lock(&w->lock);
        const bool ending = w->ending;
        pthread_mutex_unlock(&w->lock);
        if (ending)
            break;
        if (n == 0 && !w->open)
            open_door(w, &none);
        if (in && in->kind == DOOR)
            take_keeper(w, in);
        else if (in && in->kind == KEEPER)
            take_sockets(w, in);
        else if (in)
            take_connection(w, in);
    }
    return NULL;
}

int ways_accept(struct http *h, struct sockaddr_storage *from, socklen_t *n)
{
    struct ways *w = h->ways;
    struct sockaddr_in6 address = { .sin6_family = AF_INET6 };
    eventfd_t count;
    int fd = accept4(h->config.listen_fd, (struct sockaddr *)from, n,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0 || !w)
        return fd;
    int error = errno;
    pthread_mutex_lock(&w->lock);
    if (w->n) {
        const uint32_t number = htonl(w->queue[w->first].number);
        fd = w->queue[w->first].fd;
        w->first = (w->first + 1) % QUEUE;
        w->n--;
        address.sin6_addr.s6_addr[0] = 1;       /* 100::/8 is nobody's */
        memcpy(&address.sin6_addr.s6_addr[4], &number, sizeof number);
        memcpy(from, &address, sizeof address);
        pthread_cond_signal(&w->room);
    } else {
        eventfd_read(w->news, &count);
    }
    pthread_mutex_unlock(&w->lock);
    errno = error;
    return fd;
}

/* ------------------------------------------------------------ start and end */

int ways_start(struct http *h, struct err *err)
{
    struct ways *w = calloc(1, sizeof *w);
    struct epoll_event news = { EPOLLIN, { .ptr = NULL } }, end = { EPOLLIN, { .ptr = NULL } };

    if (!w)
        return err_set(err, ERR_NOMEM, "no memory for the server");
    h->ways = w;
    w->http = h;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->room, NULL);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->end = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (open_door(w, err) < 0)
        return -(int)err->code;
    if (!w->open)
        log_event(LEVEL_WARN, "server.way", "{s:s}", "reason", "the disk is full: jobs with a network of "
                  "their own reach the server when there is room");
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->end, &end) < 0 ||
        epoll_ctl(h->loops[0].epoll, EPOLL_CTL_ADD, w->news, &news) < 0)
        return err_set(err, ERR_IO, "cannot watch connections of jobs: %s", strerror(errno));
    int rc = pthread_create(&w->thread, NULL, run, w);
    if (rc)
        return err_set(err, ERR_AGAIN, "cannot start a thread: %s", strerror(rc));
    w->has_thread = true;
    return 0;
}

void ways_stop(struct http *h)
{
    struct ways *w = h->ways;

    if (!w || !w->has_thread)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_signal(&w->room);
    pthread_mutex_unlock(&w->lock);
    if (eventfd_write(w->end, 1) < 0)
        abort();
    pthread_join(w->thread, NULL);
    w->has_thread = false;
    way_remove(h->server->data_dir);
}

void ways_free(struct http *h)
{
    struct ways *w = TAKE(h->ways);

    if (!w)
        return;
    while (w->all) {
        struct way_in *in = w->all;
        in->n_sockets = 0;      /* they are in the list themselves */
        forget(w, in);
    }
    for (; w->n; w->n--, w->first = (w->first + 1) % QUEUE)
        close(w->queue[w->first].fd);
    close(w->epoll);
    close(w->end);
    close(w->news);
    pthread_cond_destroy(&w->room);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
