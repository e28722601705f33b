/* server/server.c - the parts of a running server: opened in order, closed the other way round */
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/sealed.h"
#include "drivers/driver.h"
#include "drivers/runtimes.h"
#include "server/auth.h"
#include "server/objects.h"
#include "server/queue.h"
#include "server/quota.h"
#include "server/retention.h"

/* ------------------------------------------------------------ the parts */

static int start_store(struct server *s, struct err *err)
{
    struct err why = { 0 };

    /* A full disk has no room for the copy: the next start tries again. */
    if (store_upgrade(s->data_dir, &why) < 0)
        log_event(LEVEL_WARN, "store.unchecked", "{s:s}", "error", why.text);
    return store_open(s->data_dir, &s->store, err);
}

static void stop_store(struct server *s)
{
    store_free(TAKE(s->store));
}

static int start_auth(struct server *s, struct err *err)
{
    return auth_new(s, &s->auth, err);
}

static void stop_auth(struct server *s)
{
    auth_free(TAKE(s->auth));
}

static int start_quota(struct server *s, struct err *err)
{
    return quota_new(s, &s->quota, err);
}

static void stop_quota(struct server *s)
{
    quota_free(TAKE(s->quota));
}

static int start_objects(struct server *s, struct err *err)
{
    return objects_new(s, &s->objects, err);
}

static void stop_objects(struct server *s)
{
    objects_free(TAKE(s->objects));
}

static int start_queue(struct server *s, struct err *err)
{
    const struct queue_config config = { .gpus = -1, .news_fd = -1, .unconfined = s->no_sandbox };

    driver_local_server(s->address);
    if (runtimes_check(s->data_dir, err) < 0 ||
        (!s->no_sandbox && driver_local_check(s->data_dir, err) < 0))
        return -(int)err->code;
    return queue_new(s, &config, &s->queue, err);
}

static void stop_queue(struct server *s)
{
    queue_free(TAKE(s->queue));
}

static int start_retention(struct server *s, struct err *err)
{
    return retention_new(s, &s->retention, err);
}

static void stop_retention(struct server *s)
{
    retention_free(TAKE(s->retention));
}

/* In the order in which they start; one may use those before it. */
static const struct server_part parts[] = {
    { "store", start_store, stop_store, NULL },
    { "auth", start_auth, stop_auth, NULL },
    { "limits", start_quota, stop_quota, NULL },
    { "buckets", start_objects, stop_objects, NULL },
    { "retention", start_retention, stop_retention, NULL },
    { "sandbox", server_try_promises, server_drop_promises, NULL },
    { "scheduler", start_queue, stop_queue, NULL },
};
enum { PARTS = sizeof parts / sizeof parts[0] };

/* ------------------------------------------------------------ the address */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6
        && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int bind_one(const struct addrinfo *at, const char *name, int port, int *out,
                    struct err *err)
{
    OWN_FD int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return err_set(err, ERR_IO, "cannot make a socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
    if (bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, 1024) < 0)
        return errno == EADDRINUSE
            ? err_set(err, ERR_CONFLICT, "port %d of %s is taken: another server may run there "
                      "(--port 0 takes a free one)", port, name)
            : err_set(err, ERR_IO, "cannot listen at %s port %d: %s", name, port, strerror(errno));
    *out = fd;
    fd = -1;
    return 0;
}

static int open_socket(const struct server_config *c, int *out, struct err *err)
{
    const char *name = c->listen ? c->listen : "127.0.0.1";
    const int port = c->port < 0 ? SERVER_PORT : c->port;
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE }, *at = NULL;
    char digits[16];

    if (port > 65535)
        return err_set(err, ERR_INVALID, "--port %d: a port is a number up to 65535", port);
    snprintf(digits, sizeof digits, "%d", port);
    int rc = getaddrinfo(name, digits, &hints, &at);
    if (rc || !at)
        return err_set(err, ERR_INVALID, "--listen %.64s: %s (an address of this machine, or its "
                       "name)", name, gai_strerror(rc));
    if (!c->http.tls_cert && !is_loopback(at->ai_addr))
        rc = err_set(err, ERR_DENIED,
                     "--listen %.64s is beyond this machine: tokens would cross the "
                     "network in the clear (give --tls-cert and --tls-key)",
                     name);
    else
        rc = bind_one(at, name, port, out, err);
    freeaddrinfo(at);
    return rc;
}

static int adopt_socket(int fd, struct err *err)
{
    int listens = 0;
    socklen_t n = sizeof listens;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) < 0 || !listens)
        return err_set(err, ERR_INVALID, "LISTEN_FDS is set, but what was passed is no listening "
                       "socket");
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_set(err, ERR_IO, "the socket that was passed does not obey: %s",
                       strerror(errno));
    return 0;
}

/* With TLS the name that the certificate is for: one that was given, before where it listens. */
static const char *tls_name(const struct server_config *c)
{
    for (const char *const *name = c->http.names; name && *name; name++)
        if (!c->listen || strcmp(*name, c->listen))
            return *name;
    return c->listen;
}

/* What clients are told: the socket's own address, loopback when it is all of them. */
static int say_address(struct server *s, int fd, const struct server_config *c, struct err *err)
{
    const bool tls = c->http.tls_cert != NULL;
    const char *shown = tls ? tls_name(c) : NULL;
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    char host[64], port[16];

    if (getsockname(fd, (struct sockaddr *)&own, &n) < 0
        || getnameinfo((struct sockaddr *)&own, n, host, sizeof host, port, sizeof port,
                       NI_NUMERICHOST | NI_NUMERICSERV))
        return err_set(err, ERR_IO, "the socket has no address");
    if (!strcmp(host, "0.0.0.0"))
        snprintf(host, sizeof host, "127.0.0.1");
    if (!strcmp(host, "::"))
        snprintf(host, sizeof host, "::1");
    if (!shown || !strcmp(shown, "0.0.0.0") || !strcmp(shown, "::"))
        shown = host;
    const bool colon = strchr(shown, ':') != NULL;
    snprintf(s->address, sizeof s->address, "%s://%s%.64s%s:%s", tls ? "https" : "http",
             colon ? "[" : "", shown, colon ? "]" : "", port);
    return 0;
}

/* ------------------------------------------------------------ the data directory */

/* While no server runs the file has another name, and keeps its block: the next start writes into
 * that, also on a full disk. `spare`: that name. */
static int json_path(const struct server *s, bool spare, char out[PATH_MAX])
{
    return snprintf(out, PATH_MAX, "%s/server.json%s", s->data_dir, spare ? ".spare" : "")
        < PATH_MAX ? 0 : -1;
}

/* Another process has the lock. */
static int say_taken(const struct server *s, struct err *err)
{
    char path[PATH_MAX];
    OWN_MEM char *text = NULL;
    struct err unread = { 0 };
    OWN_JSON json_t *doc =
        json_path(s, false, path) == 0 && files_read(path, 4096, &text, NULL, &unread) == 0
            ? json_loads(text, 0, NULL) : NULL;
    const char *where = json_string_value(json_object_get(doc, "address"));

    return err_set(err, ERR_CONFLICT, "a server runs on %s already%s%.100s: no other one was started "
                   "(muster serve --stop ends it, --data-dir makes another)", s->data_dir,
                   where ? ", at " : "", where ? where : "");
}

enum { LOCK_TRIES = 100 };      /* in a second */

static int lock_data(struct server *s, struct err *err)
{
    OWN_MEM char *path = NULL;

    if (files_mkdir(s->data_dir, err) < 0)
        return -(int)err->code;
    if (chmod(s->data_dir, 0700) < 0)
        return err_set(err, ERR_IO, "cannot keep %s to its owner: %s", s->data_dir,
                       strerror(errno));
    if (asprintf(&path, "%s/server.lock", s->data_dir) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return err_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    /* A job that a server was about to start when it was killed holds its lock for a moment
     * more. */
    bool mine = false;
    for (int i = 0; i < LOCK_TRIES && !(mine = flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0); i++)
        usleep(1000000 / LOCK_TRIES);
    return mine ? 0 : say_taken(s, err);
}

/* Nobody is told any more where a server is, or where one was that was killed. */
static int drop_json(const struct server *s)
{
    char path[PATH_MAX], spare[PATH_MAX];

    if (json_path(s, false, path) == 0 && json_path(s, true, spare) == 0 &&
        rename(path, spare) < 0)
        unlink(path);
    return 0;
}

/* In the blocks that it has. False: there is no such file, or it cannot be written. */
static bool rewrite(const char *path, const char *text, size_t n)
{
    OWN_FD int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    return fd >= 0 && pwrite(fd, text, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0 &&
           fsync(fd) == 0;
}

static int write_json(const struct server *s, struct err *err)
{
    char path[PATH_MAX], spare[PATH_MAX];
    OWN_JSON json_t *doc =
        json_pack("{s:s, s:i, s:f, s:s, s:b}", "address", s->address, "pid", (int)getpid(),
                  "started", s->started, "version", MUSTER_VERSION, "kept", s->passed);
    OWN_MEM char *text = doc ? sealed_text(doc) : NULL;
    int rc;

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for server.json");
    if (json_path(s, false, path) < 0 || json_path(s, true, spare) < 0)
        return err_set(err, ERR_INVALID, "%s: the path is too long", s->data_dir);
    /* Where a socket outlives the server the file is there, and stays until it is replaced. */
    if (s->passed && files_write(path, text, strlen(text), err) == 0)
        return 0;
    drop_json(s);
    if (rewrite(spare, text, strlen(text)) && rename(spare, path) == 0)
        return 0;
    do
        rc = files_write(path, text, strlen(text), err);
    while (rc == -ERR_IO && store_release(s->store));
    return rc;
}

/* ------------------------------------------------------------ start and stop */

static int start_parts(struct server *s, struct err *err)
{
    for (int i = 0; i < PARTS; i++)
        if (parts[i].start(s, err) < 0)
            return err_add(err, "starting the %s", parts[i].name);
    for (int i = 0; s->more && s->more[i]; i++)
        if (s->more[i]->start(s, err) < 0)
            return err_add(err, "starting the %s", s->more[i]->name);
    return 0;
}

static void stop_parts(struct server *s)
{
    int n = 0;

    while (s->more && s->more[n])
        n++;
    while (n > 0)
        s->more[--n]->stop(s);
    for (int i = PARTS - 1; i >= 0; i--)
        parts[i].stop(s);
}

/* A job that prints for ever does not fill the disk. Before the first is started. */
static int limit_logs(struct server *s)
{
    const int64_t most = (int64_t)10 << 30;
    struct statvfs disk;
    int64_t share = statvfs(s->data_dir, &disk) < 0
                        ? 0 : (int64_t)disk.f_blocks * (int64_t)disk.f_frsize / 10;

    if (s->log_limit <= 0)
        s->log_limit = share > 0 && share < most ? share : most;
    return 0;
}

int server_start(struct server *s, const struct server_config *config,
                 const struct protocol *const *protocols, struct err *err)
{
    struct http_config http = config->http;
    int fd = config->listen_fd;

    *s = (struct server){ .data_dir = config->data_dir, .lock_fd = -1, .started = clock_wall(),
                          .no_sandbox = config->no_sandbox, .strict = config->strict,
                          .more = config->parts,
                          .load_limit = config->load_limit > 0 ? config->load_limit : 0.9,
                          .log_limit = config->log_limit, .passed = fd >= 0 };
    umask(077);
    if (lock_data(s, err) < 0 || limit_logs(s) < 0
        || (s->passed ? 0 : drop_json(s)) < 0
        || (fd < 0 ? open_socket(config, &fd, err) : adopt_socket(fd, err)) < 0
        || say_address(s, fd, config, err) < 0
        || start_parts(s, err) < 0) {
        if (fd >= 0)
            close(fd);
        server_stop(s, 0);
        return -(int)err->code;
    }
    http.listen_fd = fd;
    if (http_start(s, &http, protocols, err) < 0) {
        close(fd);
        server_stop(s, 0);
        return -(int)err->code;
    }
    /* It answers all the same: who knows the address can make room. */
    struct err unsaid = { 0 };
    if (write_json(s, &unsaid) < 0)
        log_event(LEVEL_WARN, "server.json", "{s:s, s:s}", "reason", unsaid.text, "address",
                  s->address);
    return 0;
}

void server_stop(struct server *s, int drain_ms)
{
    /* Before anything ends: who looks for the server is not sent to one that is going. Where a
     * socket outlives it, the next request starts another. */
    if (s->http && !s->passed)
        drop_json(s);
    http_drain(s->http, drain_ms);
    http_stop(s->http);
    stop_parts(s);
    http_free(s->http);         /* last: the scheduler wakes it */
    s->http = NULL;
    if (s->heard_fd > 0)        /* after all who write to it */
        close(s->heard_fd);
    s->heard_fd = 0;
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->lock_fd = -1;
}
