/* cli/serve.c - muster serve: one process that makes this machine the platform */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/serve_data.h"
#include "pipelines/runs.h"
#include "protocols/console.h"
#include "protocols/aiplatform.h"
#include "protocols/kfp.h"
#include "protocols/logging.h"
#include "protocols/native.h"
#include "protocols/storage.h"
#include "server/auth.h"
#include "server/server.h"

/* The languages it speaks: a line a file of protocols/. */
static const struct protocol *const protocols[] = {
    &protocol_native,
    &protocol_aiplatform,
    &protocol_logging,
    &protocol_native_jobs,
    &protocol_native_pipelines,
    &protocol_native_runs,
    &protocol_kfp_v1,
    &protocol_kfp_v1_runs,
    &protocol_kfp_v2,
    &protocol_kfp_v2_runs,
    &protocol_storage,
    &protocol_console,
    NULL
};

/* What is above the server itself. */
static const struct server_part *const parts[] = { &runs_part, NULL };

enum { DRAIN_MS = 10000 };

struct args {
    const char *data_dir, *listen, *tls_cert, *tls_key, *log_format, *load, *log_limit;
    long port, header_timeout, idle_timeout, connections, per_host;
    struct option_list names;
    int debug, check, detach, no_sandbox, strict, stop;
    const char *backup;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "data-dir", 0, "DIR", "where all is kept (default: ~/.local/share/muster)", OPTION_TEXT,
      AT(data_dir) },
    { "port", 'p', "N", "8470 when not given; 0: any free one", OPTION_INT, AT(port) },
    { "listen", 0, "ADDRESS", "127.0.0.1 when not given; beyond loopback only with TLS",
      OPTION_TEXT, AT(listen) },
    { "tls-cert", 0, "FILE", "certificate, PEM", OPTION_TEXT, AT(tls_cert) },
    { "tls-key", 0, "FILE", "its key, PEM", OPTION_TEXT, AT(tls_key) },
    { "name", 0, "HOST", "a further name that clients may call it by", OPTION_LIST, AT(names) },
    { "load", 0, "0.9", "how much of the machine's cores jobs may use", OPTION_TEXT, AT(load) },
    { "log-limit", 0, "SIZE", "log that a job may keep: 500M (10G, or a tenth of the disk)",
      OPTION_TEXT, AT(log_limit) },
    { "no-sandbox", 0, NULL, "let jobs run as the server's own user, with all that it may do",
      OPTION_FLAG, AT(no_sandbox) },
    { "strict", 0, NULL, "start only where every limit and the whole sandbox can be kept",
      OPTION_FLAG, AT(strict) },
    { "log-format", 0, "json|text", "what goes to stderr (text on a terminal)", OPTION_TEXT,
      AT(log_format) },
    { "debug", 0, NULL, "log every request, too", OPTION_FLAG, AT(debug) },
    { "connections", 0, "N", "at most so many at a time (4096)", OPTION_INT, AT(connections) },
    { "per-host", 0, "N", "of these from one address (1024)", OPTION_INT, AT(per_host) },
    { "header-timeout", 0, "S", "seconds for the head of a request (10)", OPTION_INT,
      AT(header_timeout) },
    { "detach", 0, NULL, "go to the background once it answers; logs to DIR/server.log. Where one "
      "runs already it says so, and where", OPTION_FLAG, AT(detach) },
    { "stop", 0, NULL, "end the server that runs on the data directory, and wait until it is gone",
      OPTION_FLAG, AT(stop) },
    { "check", 0, NULL, "compare all that is kept with its checksums, list what is damaged, and stop",
      OPTION_FLAG, AT(check) },
    { "backup", 0, "DIR", "copy all that is kept there, also while a server runs, and stop",
      OPTION_TEXT, AT(backup) },
    { "idle-timeout", 0, "S", "seconds without a byte (75)", OPTION_INT, AT(idle_timeout) },
    { 0 }
};

/* ------------------------------------------------------------ systemd */

/* The first socket that a service manager passed; -1: none. */
static int passed_socket(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    const int fd = 3;           /* SD_LISTEN_FDS_START */

    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid() || strtol(n, NULL, 10) < 1)
        return -1;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return fd;
}

/* One datagram to the service manager, when there is one. */
static void notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    size_t n = path ? strlen(path) : 0;

    if (n < 2 || n >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@')
        to.sun_path[0] = 0;
    OWN_FD int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&to,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
        log_event(LEVEL_WARN, "server.notify", "{s:s}", "error", strerror(errno));
}

/* ------------------------------------------------------------ serve */

static int read_load(const char *text, double *out, struct err *err)
{
    char *end;

    if (!text)
        return 0;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out > 0) || *out > 16)
        return err_set(err, ERR_INVALID, "--load takes a number such as 0.9, not \"%.32s\"", text);
    return 0;
}

/* "500M": K, M, G or T are of 1024. */
static int read_size(const char *text, int64_t *out, struct err *err)
{
    static const char units[] = "KMGT";
    char *end;

    if (!text)
        return 0;
    double n = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit)
        n *= (double)(1LL << (10 * (unit - units + 1)));
    if (end == text || (unit ? end[1] : *end) || !(n >= 1 << 20) || n > 1e18)
        return err_set(err, ERR_INVALID, "--log-limit takes a size of 1M or more, such as 500M, "
                       "not \"%.32s\"", text);
    *out = (int64_t)n;
    return 0;
}

static int read_format(const struct args *a, const struct cli *c, struct err *err)
{
    enum log_format format = c->err_is_terminal ? LOG_TEXT : LOG_JSON;

    if (a->log_format) {
        if (!strcmp(a->log_format, "json"))
            format = LOG_JSON;
        else if (!strcmp(a->log_format, "text"))
            format = LOG_TEXT;
        else
            return err_set(err, ERR_INVALID, "--log-format is json or text, not \"%.32s\"",
                           a->log_format);
    }
    log_open(format, a->debug ? LEVEL_DEBUG : LEVEL_INFO);
    return 0;
}

/* What goes to the journal of systemd is kept, and others read it. */
static bool prints_to_journal(void)
{
    const char *where = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return where && sscanf(where, "%llu:%llu", &device, &inode) == 2 && fstat(1, &st) == 0 &&
           st.st_dev == device && st.st_ino == inode;
}

/* The link is for a person who looks on, or for who asked by --detach. */
static void greet(const char *what, const char *address, const char *data_dir, const char *token,
                  bool asked)
{
    const bool kept = prints_to_journal() || !(asked || isatty(STDOUT_FILENO));

    printf(
        "%s at %s, data in %s\n"
        "  console   %s%s%s\n"
        "  clients   eval \"$(muster env)\" and then gcloud, kfp, pandas with gs:// ... as ever\n"
        "  stop      muster serve --stop, or Ctrl-C: jobs go on, the next start finds them\n",
        what, address, data_dir, address, kept ? "/" : "/#token=",
        kept ? " (muster serve --detach prints the link that logs you in)" : token);
    fflush(stdout);
}

/* --detach where a server has the directory: says so, and where. It is as good as a new one unless
 * another port was asked for. `err` holds why none was started. */
static int greet_running(const char *dir, const struct args *a, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    OWN_MEM char *path = NULL, *token = NULL, *what = NULL;
    struct err ignored;

    const bool runs = client_running(dir, &doc);
    const char *address = json_string_value(json_object_get(doc, "address"));
    if (!runs || !address)
        return -(int)err->code;
    const char *colon = strrchr(address, ':');
    if (a->port > 0 && colon && strtol(colon + 1, NULL, 10) != a->port)
        return err_set(err, ERR_CONFLICT, "a server runs on %s already, at %s and not at port %ld: "
                       "none was started (muster serve --stop ends it)", dir, address, a->port);
    if (asprintf(&path, "%s/token", dir) < 0 ||
        asprintf(&what, "already running (process %lld): muster %s",
                 (long long)json_integer_value(json_object_get(doc, "pid")),
                 text_of(doc, "version")) < 0 ||
        files_read(path, 4096, &token, NULL, &ignored) < 0)
        return -(int)err->code;
    token[strcspn(token, "\n")] = 0;
    greet(what, address, dir, token, true);
    return 0;
}

/* ------------------------------------------------------------ in the background */

/* Forks; the parent waits for the child's word and passes on how it went. 1: this is the child,
 * which says *out_word when it answers. */
static int detach(int *out_word, struct err *err)
{
    int word[2];
    struct err said = { 0 };

    if (pipe2(word, O_CLOEXEC) < 0)
        return err_set(err, ERR_IO, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(word[0]);
        setsid();
        *out_word = word[1];
        return 1;
    }
    close(word[1]);
    ssize_t n = pid < 0 ? -1 : read(word[0], &said, sizeof said);
    close(word[0]);
    if (n != (ssize_t)sizeof said)
        return err_set(err, ERR_IO, "the server did not start");
    *err = said;
    return said.code ? -(int)said.code : 0;
}

/* How it went, to the parent; then the terminal is let go. */
static int let_go(int word, const char *dir, const struct err *how)
{
    OWN_MEM char *path = NULL;

    fflush(stdout);
    if (how->code == ERR_OK && asprintf(&path, "%s/server.log", dir) > 0) {
        OWN_FD int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        OWN_FD int none = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(none, 0);
        dup2(log >= 0 ? log : none, 1);
        dup2(log >= 0 ? log : none, 2);
    }
    ssize_t n = write(word, how, sizeof *how);
    close(word);
    return n == (ssize_t)sizeof *how ? 0 : -1;
}

/* Signals are blocked before the first thread is made, and taken here. */
static void take_signals(sigset_t *out)
{
    struct sigaction hup;

    sigemptyset(out);
    sigaddset(out, SIGTERM);
    sigaddset(out, SIGINT);
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)        /* not under nohup */
        sigaddset(out, SIGHUP);
    pthread_sigmask(SIG_BLOCK, out, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* `word`: where to tell the parent that it is up, when there is one. */
static int serve(const struct args *a, const struct server_config *config, int word,
                 struct err *err)
{
    struct server s;
    sigset_t signals;
    int got;

    take_signals(&signals);
    int rc = server_start(&s, config, protocols, err);
    /* Tokens are in its memory: no core file holds them, and no other process of the same user reads
     * them from there. Not before the start, which tries whether a sandbox can be made: that is a fork
     * of this process, which must own its files in /proc. */
    prctl(PR_SET_DUMPABLE, 0);
    if (rc == 0)
        greet("muster " MUSTER_VERSION, s.address, s.data_dir, auth_root_token(s.auth), a->detach);
    else if (!a->detach)
        return rc;
    if (a->detach &&
        (let_go(word, config->data_dir, rc < 0 ? err : &(struct err){ 0 }) < 0 || rc < 0))
        _exit(1);               /* the parent has told why */
    log_event(LEVEL_INFO, "server.started", "{s:s, s:s, s:i}", "address", s.address, "data_dir",
              s.data_dir, "pid", (int)getpid());
    notify("READY=1\n");
    sigwait(&signals, &got);
    log_event(LEVEL_INFO, "server.stopping", "{s:s}", "signal", strsignal(got));
    notify("STOPPING=1\n");
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);       /* the second one ends it at once */
    server_stop(&s, DRAIN_MS);
    log_event(LEVEL_INFO, "server.stopped", "{}");
    return 0;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .port = -1 };
    int word = -1;
    int n = options_parse(options, argc, argv, &a, err);

    if (n < 0)
        return n;
    if (n != 0)
        return cli_usage(&command_serve, err);
    if (a.port < -1 || a.header_timeout < 0 || a.idle_timeout < 0 || a.connections < 0 ||
        a.per_host < 0)
        return err_set(err, ERR_INVALID, "a port, a time-out and a limit are 0 or more");
    if (!a.tls_cert != !a.tls_key)
        return err_set(err, ERR_INVALID, "--tls-cert and --tls-key go together");
    OWN_MEM char *dir = client_data_dir(a.data_dir);
    const char *names[OPTION_LIST_MAX + 2] = { 0 };
    int n_names = 0;
    if (a.listen)
        names[n_names++] = a.listen;
    for (int i = 0; i < a.names.n; i++)
        names[n_names++] = a.names.item[i];
    struct server_config config = {
        .data_dir = dir, .listen = a.listen, .port = (int)a.port, .listen_fd = passed_socket(),
        .no_sandbox = a.no_sandbox, .strict = a.strict, .parts = parts,
        .http = { .names = names, .tls_cert = a.tls_cert, .tls_key = a.tls_key,
                  .connections = (int)a.connections, .per_host = (int)a.per_host,
                  .head_timeout_ms = 1000 * (int)a.header_timeout,
                  .idle_timeout_ms = 1000 * (int)a.idle_timeout },
    };
    if (!dir)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (a.stop)
        return serve_stop(dir, err);
    if (a.check || a.backup)
        return a.check ? serve_check(dir, err) : serve_backup(dir, a.backup, err);
    if (read_load(a.load, &config.load_limit, err) < 0 ||
        read_size(a.log_limit, &config.log_limit, err) < 0 || read_format(&a, c, err) < 0)
        return -(int)err->code;

    if (a.detach) {
        int rc = detach(&word, err);
        if (rc <= 0)
            return rc == -ERR_CONFLICT ? greet_running(dir, &a, err) : rc;
        log_open(LOG_JSON, a.debug ? LEVEL_DEBUG : LEVEL_INFO);
    }
    return serve(&a, &config, word, err);
}

const struct command command_serve = {
    .name = "serve",
    .args = "",
    .summary = "start the server: jobs, buckets and a console on this machine",
    .example = "muster serve\nmuster serve --detach\nmuster serve --stop\n"
               "muster serve --data-dir /srv/muster --port 8470",
    .more =
        "It answers on loopback alone and wants a token, which the first start makes (DIR/token).\n"
        "The line with \"console\" is a link that logs a browser in.",
    .options = options,
    .run = run,
};
