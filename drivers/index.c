/* drivers/index.c - package indexes for builders, without the server's credentials: the settings */
#include "drivers/index.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <nettle/base64.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drivers/index_int.h"
#include "drivers/sandbox.h"

#define PYPI "https://pypi.org/simple"

enum kind {
    PLAIN,                      /* holds no secret: handed on */
    INDEX,                      /* a URL */
    INDEXES,                    /* several, separated by blanks; of uv perhaps NAME=URL */
    LINKS,                      /* URLs of pages, or paths; blanks or commas between them */
};

/* What a builder may know. Not listed: PIP_PROXY, PIP_CLIENT_CERT, PIP_CONFIG_FILE, PIP_KEYRING_*,
 * UV_INDEX_*_PASSWORD and whatever else there may be. */
static const struct { const char *name; enum kind kind; } settings[] = {
    { "PIP_INDEX_URL", INDEX },
    { "PIP_EXTRA_INDEX_URL", INDEXES },
    { "PIP_FIND_LINKS", LINKS },
    { "PIP_NO_INDEX", PLAIN },
    { "PIP_CERT", PLAIN },
    { "PIP_TRUSTED_HOST", PLAIN },
    { "PIP_TIMEOUT", PLAIN },
    { "PIP_DEFAULT_TIMEOUT", PLAIN },
    { "PIP_RETRIES", PLAIN },
    { "PIP_PRE", PLAIN },
    { "PIP_PREFER_BINARY", PLAIN },
    { "PIP_ONLY_BINARY", PLAIN },
    { "PIP_NO_BINARY", PLAIN },
    { "PIP_CONSTRAINT", PLAIN },
    { "PIP_USE_PEP517", PLAIN },
    { "PIP_USE_FEATURE", PLAIN },
    { "PIP_USE_DEPRECATED", PLAIN },
    { "UV_INDEX_URL", INDEX },
    { "UV_DEFAULT_INDEX", INDEX },
    { "UV_EXTRA_INDEX_URL", INDEXES },
    { "UV_INDEX", INDEXES },
    { "UV_FIND_LINKS", LINKS },
    { "UV_INDEX_STRATEGY", PLAIN },
    { "UV_NO_INDEX", PLAIN },
    { "UV_HTTP_TIMEOUT", PLAIN },
    { "UV_CONCURRENT_DOWNLOADS", PLAIN },
    { "UV_NATIVE_TLS", PLAIN },
    { "UV_SYSTEM_CERTS", PLAIN },
    { "UV_INSECURE_HOST", PLAIN },
    { "UV_PRERELEASE", PLAIN },
    { "UV_RESOLUTION", PLAIN },
    { "UV_EXCLUDE_NEWER", PLAIN },
    { "UV_CONSTRAINT", PLAIN },
    { "UV_NO_BINARY", PLAIN },
    { "UV_NO_BUILD", PLAIN },
    { "UV_OFFLINE", PLAIN },
};

static const char *const proxies[] = { "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                       "ALL_PROXY", "PIP_PROXY" };

static const char *value_of(char *const *environ_, const char *name)
{
    size_t n = strlen(name);
    for (; *environ_; environ_++)
        if (!strncmp(*environ_, name, n) && (*environ_)[n] == '=')
            return (*environ_)[n + 1] ? *environ_ + n + 1 : NULL;
    return NULL;
}

/* ------------------------------------------------------------------ one URL */

static char *basic(const char *user, size_t n)
{
    OWN_BUF plain = BUF_INIT;
    OWN_BUF out = BUF_INIT;

    for (size_t i = 0; i < n; i++) {    /* percent escapes are the URL's, not the user's */
        unsigned byte;
        if (user[i] == '%' && i + 2 < n && sscanf(user + i + 1, "%2x", &byte) == 1) {
            buf_append(&plain, &(char){ (char)byte }, 1);
            i += 2;
        } else {
            buf_append(&plain, user + i, 1);
        }
    }
    if (!memchr(user, ':', n))
        buf_text(&plain, ":");
    buf_text(&out, "Basic ");
    char *to = buf_reserve(&out, BASE64_ENCODE_RAW_LENGTH(plain.n));
    if (!to || plain.failed)
        return NULL;
    base64_encode_raw(to, plain.n, (const uint8_t *)plain.data);
    out.n += BASE64_ENCODE_RAW_LENGTH(plain.n);
    explicit_bzero(plain.data, plain.n);
    return buf_take(&out);
}

/* `host` is what comes behind a URL's scheme and user. */
static bool is_loopback(const char *host)
{
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");

    return (!strncmp(host, "127.", 4) && strspn(host, "0123456789.") == n) ||
           (n == strlen("[::1]") && !strncmp(host, "[::1]", n)) ||
           (n == strlen("localhost") && !strncasecmp(host, "localhost", n));
}

static bool leads_to_loopback(const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t n = strcspn(host, "/?#");
    const char *at = memrchr(host, '@', n);
    return is_loopback(at ? at + 1 : host);
}

/* `login` is USER:PASSWORD from elsewhere; NULL: what is before the URL's host, if anything. */
static int add_at(struct index *x, const char *url, size_t n, const char *login, bool slash)
{
    const char *host = memmem(url, n, "://", 3), *at = NULL;
    OWN_BUF plain = BUF_INIT;

    if (!host || x->n == INDEX_MAX)
        return -1;
    host += 3;
    size_t rest = n - (size_t)(host - url), authority = rest;
    for (size_t i = 0; i < rest && authority == rest; i++)
        if (strchr("/?#", host[i]))
            authority = i;
    at = memrchr(host, '@', authority);
    buf_append(&plain, url, (size_t)(host - url));
    buf_append(&plain, at ? at + 1 : host, n - (size_t)((at ? at + 1 : host) - url));
    if (slash && plain.n && plain.data[plain.n - 1] != '/')
        buf_text(&plain, "/");
    struct index_at *to = &x->at[x->n];
    to->url = buf_take(&plain);
    to->authorization = login ? basic(login, strlen(login))
                        : at  ? basic(host, (size_t)(at - host)) : NULL;
    if (!to->url || ((login || at) && !to->authorization)) {
        free(TAKE(to->url));
        return -1;
    }
    x->relayed |= to->authorization != NULL || is_loopback(at ? at + 1 : host);
    return x->n++;
}

/* uv has user and password of an index NAME in variables of their own. */
static char *named_login(char *const *environ_, const char *name, size_t n)
{
    char key[128], *login = NULL;
    int m = snprintf(key, sizeof key, "UV_INDEX_%.*s_", (int)n, name);

    if (m < 0 || m > 100)
        return NULL;
    for (char *p = key; *p; p++)
        *p = isalnum((unsigned char)*p) ? (char)toupper((unsigned char)*p) : '_';
    snprintf(key + m, sizeof key - (size_t)m, "USERNAME");
    const char *user = value_of(environ_, key);
    snprintf(key + m, sizeof key - (size_t)m, "PASSWORD");
    const char *password = value_of(environ_, key);
    if ((user || password) &&
        asprintf(&login, "%s:%s", user ? user : "", password ? password : "") < 0)
        return NULL;
    return login;
}

/* ------------------------------------------------------------------ one variable */

static int add_variable(struct index *x, const char *name, char *value)
{
    struct index_variable *grown = realloc(x->variables, (x->n_variables + 1) * sizeof *grown);
    char *copy = strdup(name);

    if (grown)
        x->variables = grown;
    if (!grown || !copy || !value) {
        free(copy);
        free(value);
        return -1;
    }
    x->variables[x->n_variables++] = (struct index_variable){ copy, value };
    return 0;
}

/* Each URL of it becomes one of the relay's; paths stay. */
static int add_urls(struct index *x, char *const *environ_, const char *name, const char *value,
                    enum kind kind)
{
    const char *between = kind == LINKS ? " \t\n," : " \t\n";
    OWN_BUF out = BUF_INIT;

    for (const char *p = value + strspn(value, between); *p; p += strspn(p, between)) {
        size_t n = strcspn(p, between), named = 0;
        const char *equals = memchr(p, '=', n), *scheme = memmem(p, n, "://", 3);
        OWN_MEM char *login = NULL;
        if (kind == INDEXES && equals && scheme && equals < scheme) {
            named = (size_t)(equals - p) + 1;
            login = named_login(environ_, p, named - 1);
        }
        buf_text(&out, out.n ? (kind == LINKS && value[strcspn(value, ",")] ? "," : " ") : "");
        buf_append(&out, p, named);
        if (scheme && !strncmp(p + named, "http", 4)) {
            int at = add_at(x, p + named, n - named, login, kind != LINKS);
            if (at < 0)
                return -1;
            buf_printf(&out, "\1%c", 'A' + at);
        } else {
            buf_append(&out, p + named, n - named);
        }
        p += n;
    }
    return add_variable(x, name, buf_take(&out));
}

int index_new(char *const *environ_, struct index **out, struct err *err)
{
    OWN(index) x = calloc(1, sizeof *x);
    bool ok = x != NULL, proxy = false;

    for (size_t i = 0; ok && i < sizeof settings / sizeof settings[0]; i++) {
        const char *value = value_of(environ_, settings[i].name);
        if (!value)
            continue;
        ok = settings[i].kind == PLAIN
                 ? add_variable(x, settings[i].name, strdup(value)) == 0
                 : add_urls(x, environ_, settings[i].name, value, settings[i].kind) == 0;
    }
    for (size_t i = 0; ok && i < sizeof proxies / sizeof proxies[0]; i++) {
        const char *value = value_of(environ_, proxies[i]);
        proxy |= value && (index_has_credentials(value) || leads_to_loopback(value));
    }
    /* Only the relay can go through such a proxy, so that it has to be told of PyPI too. */
    if (ok && proxy && !value_of(environ_, "PIP_INDEX_URL"))
        ok = add_urls(x, environ_, "PIP_INDEX_URL", PYPI, INDEX) == 0;
    if (ok && proxy && !value_of(environ_, "UV_INDEX_URL") &&
        !value_of(environ_, "UV_DEFAULT_INDEX"))
        ok = add_urls(x, environ_, "UV_DEFAULT_INDEX", PYPI, INDEX) == 0;
    if (!ok)
        return err_set(err, x && x->n == INDEX_MAX ? ERR_INVALID : ERR_NOMEM,
                       x && x->n == INDEX_MAX
                           ? "pip and uv are told of more than %d indexes (PIP_EXTRA_INDEX_URL, "
                             "UV_INDEX and the like)" : "no memory for %d indexes", INDEX_MAX);
    x->relayed |= proxy;
    *out = TAKE(x);
    return 0;
}

void index_free(struct index *x)
{
    if (!x)
        return;
    if (x->relay > 0) {
        kill(x->relay, SIGKILL);
        while (waitpid(x->relay, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (x->shared)
        munmap(x->shared, sizeof *x->shared);
    for (int i = 0; i < x->n; i++) {
        free(x->at[i].url);
        if (x->at[i].authorization)
            explicit_bzero(x->at[i].authorization, strlen(x->at[i].authorization));
        free(x->at[i].authorization);
    }
    for (size_t i = 0; i < x->n_variables; i++) {
        free(x->variables[i].name);
        free(x->variables[i].value);
    }
    free(x->variables);
    free(x);
}

bool index_wants_relay(const struct index *x)
{
    return x->relayed;
}

void index_settings(const struct index *x,
                    void (*set)(void *arg, const char *name, const char *value), void *arg)
{
    for (size_t i = 0; i < x->n_variables; i++) {
        OWN_BUF value = BUF_INIT;
        for (const char *p = x->variables[i].value; *p; p++)
            if (*p != '\1')
                buf_append(&value, p, 1);
            else if (x->port)
                buf_printf(&value, "http://127.0.0.1:%d/%d/", x->port, *++p - 'A');
            else
                buf_text(&value, x->at[*++p - 'A'].url);
        set(arg, x->variables[i].name, value.data ? value.data : "");
    }
    if (x->port)
        set(arg, "no_proxy", "127.0.0.1");
}

const char *index_trouble(const struct index *x)
{
    return x->shared && atomic_load(&x->shared->state) == 2 ? x->shared->trouble : NULL;
}

/* ------------------------------------------------------------------ the relay's process */

int index_serve(struct index *x, int listener, int port, struct err *err)
{
    pid_t keeper = getpid();

    if (getrandom(x->key, sizeof x->key, 0) != (ssize_t)sizeof x->key)
        return err_set(err, ERR_IO, "the system gives no random bytes: %s", strerror(errno));
    void *shared = mmap(NULL, sizeof *x->shared, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return err_set(err, ERR_NOMEM, "no memory for the package index");
    x->shared = shared;
    pid_t pid = fork();
    if (pid < 0)
        return err_set(err, ERR_AGAIN, "no process for the package index: %s", strerror(errno));
    if (pid == 0) {
        /* It needs the network and nothing of root's. */
        if (geteuid() == 0 && (setgroups(0, NULL) < 0 ||
                               setresgid(SANDBOX_USER, SANDBOX_USER, SANDBOX_USER) < 0 ||
                               setresuid(SANDBOX_USER, SANDBOX_USER, SANDBOX_USER) < 0))
            _exit(125);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != keeper)
            _exit(125);
        index_relay(x, listener);
    }
    x->relay = pid;
    x->port = port;
    return 0;
}
