/* cli/jobs.c - muster jobs: the server's jobs, listed, described, followed, ended */
#include "cli/jobs.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/http.h"
#include "base/json.h"
#include "base/terminal.h"
#include "cli/listing.h"
#include "cli/verb.h"

struct args {
    const char *project, *state, *text, *label, *search, *since;
    long limit, tail;
    int json, follow, all, off;
    double since_t;             /* of `since`; 0: not given */
    struct cli *cli;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "of the jobs (default: MUSTER_PROJECT, or \"default\")", OPTION_TEXT,
      AT(project) },
    { "all", 'a', NULL, "list: of all projects", OPTION_FLAG, AT(all) },
    { "state", 0, "STATE", "list: queued, running, active, succeeded, failed ...", OPTION_TEXT,
      AT(state) },
    { "text", 0, "TEXT", "list: only names that contain it", OPTION_TEXT, AT(text) },
    { "label", 0, "KEY[=VALUE]", "list: only jobs with this label", OPTION_TEXT, AT(label) },
    { "limit", 0, "N", "list: at most so many, newest first (default: 100)", OPTION_INT,
      AT(limit) },
    { "follow", 'f', NULL, "logs: go on until the job has ended", OPTION_FLAG, AT(follow) },
    { "tail", 0, "N", "logs: only the last lines", OPTION_INT, AT(tail) },
    { "since", 0, "TIME", "logs: only from then on: 90s, 10m, 2h, 1d ago, or 2026-01-31T12:00",
      OPTION_TEXT, AT(since) },
    { "search", 0, "TEXT", "logs: only lines that contain it", OPTION_TEXT, AT(search) },
    { "off", 0, NULL, "keep: no longer", OPTION_FLAG, AT(off) },
    { "json", 0, NULL, "print what the server answers", OPTION_FLAG, AT(json) },
    { 0 }
};

/* Between two looks at a log: nobody notices. */
enum { LOOK_US = 100000 };
/* A server that does not answer is asked again after growing pauses, for so long. */
static const double PAUSE_MAX_S = 2, WAIT_S = 1800;

int job_client(const char *project, struct client **out, struct err *err)
{
    if (client_open(out, err) < 0)
        return -(int)err->code;
    if (!project)
        return 0;
    char *copy = strdup(project);
    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    free((*out)->project);
    (*out)->project = copy;
    return 0;
}

/* One call about one job: "METHOD /api/jobs/PROJECT/NAME" and the rest of the path. */
static int call(struct client *s, const char *method, const char *name, const char *rest,
                const json_t *body, json_t **out, struct err *err)
{
    OWN_MEM char *path = client_path("/api/jobs/%/%", s->project, name, NULL);
    OWN_MEM char *whole_path = NULL;

    if (!path || asprintf(&whole_path, "%s%s", path, rest) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    return client_call(s, method, whole_path, body, out, err);
}

static int ended(const json_t *job)
{
    const char *state = text_of(job, "state");
    return !strcmp(state, "succeeded") || !strcmp(state, "failed") || !strcmp(state, "cancelled");
}

/* ------------------------------------------------------------ list and describe */

static void print_stamp(double t)
{
    time_t whole_t = (time_t)t;
    struct tm tm;
    char stamp[40] = "";

    if (t > 0)
        strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&whole_t, &tm));
    printf("%-19s", stamp);
}

static void print_span(double seconds)
{
    if (seconds < 0)
        printf("%8s", "");
    else if (seconds < 100)
        printf("%6.1f s", seconds);
    else if (seconds < 6000)
        printf("%4.0f min", seconds / 60);
    else
        printf("%6.1f h", seconds / 3600);
}

/* How long it runs or ran; < 0: it did not. */
static double span_of(const json_t *job)
{
    double from = number_of(job, "started"), to = number_of(job, "ended");
    return from <= 0 ? -1 : (to > 0 ? to : clock_wall()) - from;
}

static void print_row(const json_t *job, const struct args *a)
{
    const json_t *workers = json_object_get(job, "workers");

    print_stamp(number_of(job, "created"));
    printf("  %-10s ", text_of(job, "state"));
    print_span(span_of(job));
    printf("  %3ld of %ld..%-3ld ", whole_of(workers, "now"), whole_of(workers, "min"),
           whole_of(workers, "max"));
    printf(" %s%s%s%s%s\n", a->all ? text_of(job, "project") : "", a->all ? "/" : "",
           text_of(job, "name"), *text_of(job, "reason") ? "  " : "", text_of(job, "reason"));
}

static void list_query(const struct args *a, const struct client *s, long limit, const char *token,
                       struct buf *path)
{
    const char *equals = a->label ? strchr(a->label, '=') : NULL;
    OWN_MEM char *key = a->label ? strndup(a->label, strcspn(a->label, "=")) : NULL;
    const struct { const char *name, *value; } parts[] = {
        { "project", a->all ? NULL : s->project }, { "state", a->state }, { "text", a->text },
        { "label", key }, { "value", equals ? equals + 1 : NULL }, { "token", token },
    };

    buf_printf(path, "/api/jobs?limit=%ld", limit);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].value && *parts[i].value) {
            buf_printf(path, "&%s=", parts[i].name);
            http_escape(path, parts[i].value);
        }
}

static int list(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *all = json_array();
    char token[64] = "";
    long left = a->limit > 0 ? a->limit : 100;

    (void)names;
    do {
        OWN_BUF path = BUF_INIT;
        OWN_JSON json_t *doc = NULL;
        list_query(a, s, left < 1000 ? left : 1000, token, &path);
        if (buf_ok(&path, err) < 0 || client_call(s, "GET", path.data, NULL, &doc, err) < 0)
            return -(int)err->code;
        json_array_extend(all, json_object_get(doc, "jobs"));
        left -= (long)json_array_size(json_object_get(doc, "jobs"));
        snprintf(token, sizeof token, "%s", text_of(doc, "next"));
    } while (*token && left > 0);
    if (a->json) {
        listing_json(all);
        return 0;
    }
    for (size_t i = 0; i < json_array_size(all); i++)
        print_row(json_array_get(all, i), a);
    if (*token)
        fprintf(stderr, "there are more (--limit N)\n");
    return 0;
}

static void print_event(const json_t *e, double from)
{
    static const char *const known[] = {
        "seq", "t", "type", "spec", "project", "name", "dir", NULL
    };
    const char *key;
    json_t *value;

    printf("  %+9.3f s  %-21s", number_of(e, "t") - from, text_of(e, "type"));
    json_object_foreach((json_t *)e, key, value) {
        int skip = 0;
        for (int i = 0; known[i]; i++)
            skip |= !strcmp(known[i], key);
        if (skip || (json_is_string(value) && !*json_string_value(value)))
            continue;
        OWN_MEM char *text =
            json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        printf(" %s=%s", key, text ? text : "");
    }
    putchar('\n');
}

static int describe(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *job = NULL;
    OWN_JSON json_t *log = NULL;
    size_t i;
    json_t *e;

    if (call(s, "GET", names[0], "", NULL, &job, err) < 0 ||
        call(s, "GET", names[0], "/events", NULL, &log, err) < 0)
        return -(int)err->code;
    if (a->json) {
        json_object_set(job, "events", json_object_get(log, "events"));
        listing_json(job);
        return 0;
    }
    const json_t *workers = json_object_get(job, "workers");
    printf("%s  %s%s%s\n", text_of(job, "name"), text_of(job, "state"),
           *text_of(job, "reason") ? ": " : "", text_of(job, "reason"));
    printf("  project %s, %s, priority %ld, attempt %ld, %ld of %ld..%ld workers\n",
           text_of(job, "project"), text_of(job, "kind"), whole_of(job, "priority"),
           whole_of(job, "attempt"), whole_of(workers, "now"), whole_of(workers, "min"),
           whole_of(workers, "max"));
    printf("  submitted ");
    print_stamp(number_of(job, "created"));
    if (number_of(job, "started") > 0) {
        printf("  ran");
        print_span(span_of(job));
    }
    putchar('\n');
    if (*text_of(job, "files_removed"))
        printf("  %s\n", text_of(job, "files_removed"));
    json_array_foreach(json_object_get(job, "not_kept"), i, e)
        printf("  not kept here: %s\n", json_string_value(e));
    json_array_foreach(json_object_get(log, "events"), i, e)
        print_event(e, number_of(job, "created"));
    return 0;
}

/* ------------------------------------------------------------ logs */

/* "oTEXT" lines, then "+PLACE" (there is more) or ".PLACE": where the next call goes on. Nothing is
 * printed of an answer without that end. */
static int print_lines(struct buf *answer, char place[64], bool *out_more, struct err *err)
{
    char *at = answer->data, *end = at + answer->n;
    const char *last = answer->n > 1 ? memrchr(at, '\n', answer->n - 1) : NULL;
    last = last ? last + 1 : at;

    if (end == at || (*last != '+' && *last != '.') || end[-1] != '\n' || end - last > 63)
        return err_set(err, ERR_AGAIN, "the server's answer is not whole");
    while (at < last) {
        /* Lines of one stream are put together in their place, and written at once. */
        FILE *to = *at == 'o' ? stdout : stderr;
        char *run = at;
        size_t n = 0;
        while (at < last && (*at == 'o') == (to == stdout)) {
            const char *stop = memchr(at, '\n', (size_t)(end - at));
            size_t line = (size_t)(stop - at);
            memmove(run + n, at + 1, line);
            n += line;
            at += line + 1;
        }
        terminal_write(to, run, n);
        fflush(to);             /* on a terminal the two are one */
    }
    snprintf(place, 64, "%.*s", (int)(end - last) - 2, last + 1);
    *out_more = *last == '+';
    return 0;
}

/* From a place ("": as the options say) to the end of what is there now; moves it. */
static int read_log(struct client *s, const char *name, const struct args *a, char place[64],
                    struct err *err)
{
    for (bool more = true; more;) {
        OWN_MEM char *path = client_path("/api/jobs/%/%/logs?format=tagged&limit=100000",
                                         s->project, name, NULL);
        OWN_BUF url = BUF_INIT;
        OWN_BUF answer = BUF_INIT;
        buf_text(&url, path ? path : "");
        if (*place)
            buf_printf(&url, "&after=%s", place);
        else if (a->tail >= 0)
            buf_printf(&url, "&tail=%ld", a->tail);
        else if (a->since_t > 0)
            buf_printf(&url, "&since=%.6f", a->since_t);
        if (a->search) {
            buf_text(&url, "&search=");
            http_escape(&url, a->search);
        }
        if (buf_ok(&url, err) < 0 || client_text(s, url.data, &answer, err) < 0 ||
            print_lines(&answer, place, &more, err) < 0)
            return -(int)err->code;
        if (ferror(stdout))
            return err_set(err, ERR_IO, "the lines cannot be written: %s", strerror(errno));
    }
    return 0;
}

/* The server may come back at another address. */
static void look_for_server(struct client **s)
{
    struct client *again = NULL;
    struct err none;

    if (job_client((*s)->project, &again, &none) < 0) {
        client_free(again);
        return;
    }
    client_free(*s);
    *s = again;
}

/* One look; *out_job is the job as it was before its log was read: what it printed is in the log by
 * the time it has ended. */
static int look(struct client *s, const struct args *a, const char *name, char place[64],
                json_t **out_job, struct err *err)
{
    OWN_JSON json_t *job = NULL;

    if (call(s, "GET", name, "", NULL, &job, err) < 0 || read_log(s, name, a, place, err) < 0)
        return -(int)err->code;
    *out_job = TAKE(job);
    return 0;
}

/* A server that is gone is waited for, and the log goes on from where it was: a line is printed
 * when the answer with the place after it is whole. */
static int follow(struct client *first, const struct args *a, const char *name,
                  struct err *err)
{
    OWN(client) s = NULL;
    char place[64] = "";
    double since = 0, pause_s = LOOK_US * 1e-6;

    if (job_client(first->project, &s, err) < 0)
        return -(int)err->code;
    for (bool heard = false;; usleep((useconds_t)(pause_s * 1e6))) {
        OWN_JSON json_t *job = NULL;
        int rc = look(s, a, name, place, &job, err);
        if (rc == -ERR_AGAIN && heard && (since == 0 || clock_seconds() < since + WAIT_S)) {
            if (since == 0) {
                since = clock_seconds();
                fprintf(stderr,
                        "%s: the server does not answer; waiting for it (the job goes on)\n", name);
            }
            pause_s = fmin(pause_s * 2, PAUSE_MAX_S);
            look_for_server(&s);
            continue;
        }
        if (rc < 0)
            return rc;
        heard = true;
        since = 0;
        pause_s = LOOK_US * 1e-6;
        if (!strcmp(text_of(job, "state"), "succeeded")) {
            fprintf(stderr, "%s: succeeded\n", name);
            return 0;
        }
        if (ended(job)) {
            a->cli->exit_code = 1;
            return err_set(err, ERR_IO, "%s: %s%s%s", name, text_of(job, "state"),
                           *text_of(job, "reason") ? ": " : "", text_of(job, "reason"));
        }
    }
}

int job_follow(struct cli *c, struct client *s, const char *name, struct err *err)
{
    return follow(s, &(struct args){ .tail = -1, .cli = c }, name, err);
}

/* "90s", "10m", "2h", "1d": so long ago; or a time: "2026-01-31 12:00[:00]" here, or seconds. */
static int read_since(const char *text, double *out, struct err *err)
{
    static const struct { char unit; double s; } units[] = {
        { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
    static const char *const forms[] = { "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M",
                                         "%Y-%m-%dT%H:%M", "%Y-%m-%d" };
    char *end;
    double n = strtod(text, &end);

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (end > text && n >= 0 && *end == units[i].unit && !end[1]) {
            *out = clock_wall() - n * units[i].s;
            return 0;
        }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct tm tm = { .tm_isdst = -1 };
        const char *rest = strptime(text, forms[i], &tm);
        if (rest && (!*rest || !strcmp(rest, "Z"))) {
            *out = (double)(*rest ? timegm(&tm) : mktime(&tm));
            return 0;
        }
    }
    *out = n;
    return end > text && !*end && n > 0 ? 0
        : err_set(err, ERR_INVALID, "--since takes a while ago (90s, 10m, 2h, 1d) or a time "
                  "(2026-01-31 12:00), not \"%.40s\"", text);
}

static int logs(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    char place[64] = "";
    struct args with = *a;

    if (a->since && read_since(a->since, &with.since_t, err) < 0)
        return -(int)err->code;
    return a->follow ? follow(s, &with, names[0], err)
                     : read_log(s, names[0], &with, place, err);
}

/* ------------------------------------------------------------ changes */

static int show(const struct args *a, const json_t *job, const char *what)
{
    if (a->json)
        listing_json(job);
    else
        printf("%s%s\n", text_of(job, "name"), what);
    return 0;
}

static int cancel(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;

    for (; *names; names++) {
        OWN_JSON json_t *job = NULL;
        if (call(s, "POST", *names, "/cancel", NULL, &job, err) < 0)
            return -(int)err->code;
        show(a, job, ": is being cancelled");
    }
    return 0;
}

static int delete_jobs(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    for (; *names; names++) {
        if (call(s, "DELETE", *names, "", NULL, NULL, err) < 0)
            return -(int)err->code;
        printf("%s: deleted, with its logs and files\n", *names);
    }
    return 0;
}

static int rerun(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *job = NULL;

    if (call(s, "POST", names[0], "/rerun", NULL, &job, err) < 0)
        return -(int)err->code;
    show(a, job, "");
    return a->follow ? job_follow(a->cli, s, text_of(job, "name"), err) : 0;
}

int job_resize(struct client *s, const char *name, int min, int max, json_t **out,
               struct err *err)
{
    OWN_JSON json_t *body = json_pack("{s:i, s:i}", "min", min, "max", max);

    return call(s, "POST", name, "/resize", body, out, err);
}

static int resize(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *job = NULL;
    char what[64];
    int min, max;

    if (workers_parse(names[1], &min, &max, err) < 0)
        return -(int)err->code;
    if (!strstr(names[1], ".."))
        min = 1;                /* as muster resize takes it */
    if (job_resize(s, names[0], min, max, &job, err) < 0)
        return -(int)err->code;
    snprintf(what, sizeof what, ": %d..%d workers from now on", min, max);
    return show(a, job, what);
}

/* ------------------------------------------------------------ watching */

/* "loss 0.5310  test_loss 0.6": the last of each of the job's scalars. */
static void add_scalars(const json_t *scalars, struct buf *line)
{
    const char *name;
    json_t *points;

    json_object_foreach((json_t *)scalars, name, points) {
        const json_t *last = json_array_get(points, json_array_size(points) - 1);
        buf_printf(line, "  %s %.4g", name, json_number_value(json_array_get(last, 2)));
    }
}

int job_watch(struct cli *c, struct client *s, const char *name, int once, int json,
              struct err *err)
{
    OWN_MEM char *before = NULL;

    for (;;) {
        OWN_JSON json_t *job = NULL;
        OWN_JSON json_t *scalars = NULL;
        OWN_BUF line = BUF_INIT;
        if (call(s, "GET", name, "", NULL, &job, err) < 0 ||
            call(s, "GET", name, "/scalars", NULL, &scalars, err) < 0)
            return -(int)err->code;
        const json_t *workers = json_object_get(job, "workers");
        json_object_set(job, "scalars", scalars);
        buf_printf(&line, "%s  %s  %ld of %ld..%ld workers", name, text_of(job, "state"),
                   whole_of(workers, "now"), whole_of(workers, "min"), whole_of(workers, "max"));
        add_scalars(scalars, &line);
        if (*text_of(job, "reason"))
            buf_printf(&line, "  %s", text_of(job, "reason"));
        if (c->out_is_terminal && line.data && !once && !ended(job)) {
            int rows, columns;
            terminal_size(STDOUT_FILENO, &rows, &columns);
            terminal_cut(line.data, columns);   /* the next one is drawn over it */
        }
        if (json) {
            OWN_MEM char *text = json_dumps(job, JSON_COMPACT);
            printf("%s\n", text ? text : "{}");
        } else if (!before || !line.data || strcmp(before, line.data)) {
            printf("%s%s\n", c->out_is_terminal && before ? "\033[A\033[K" : "", line.data);
        }
        fflush(stdout);
        free(before);
        before = buf_take(&line);
        if (once || ended(job))
            return 0;
        usleep(2 * LOOK_US);
    }
}

/* ------------------------------------------------------------ the table */

/* The files of a job that has the label stay (server/retention.h). */
static int keep(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;

    for (; *names; names++) {
        OWN_JSON json_t *job = NULL;
        OWN_JSON json_t *after = NULL;
        if (call(s, "GET", *names, "", NULL, &job, err) < 0)
            return -(int)err->code;
        json_t *labels = json_object_get(job, "labels");
        if (*text_of(job, "files_removed"))
            return err_set(err, ERR_MISSING, "job \"%s\": %s", *names, text_of(job, "files_removed"));
        if (a->off)
            json_object_del(labels, "keep");
        else
            json_object_set_new(labels, "keep", json_string("true"));
        OWN_JSON json_t *body = json_pack("{s:O}", "labels", labels);
        if (call(s, "PATCH", *names, "", body, &after, err) < 0)
            return -(int)err->code;
        show(a, after, a->off ? ": its files may go in time" : ": its files stay until it is deleted");
    }
    return 0;
}

static const struct verb verbs[] = {
    { "list", "", 0, 0, list },
    { "describe", "JOB", 1, 1, describe },
    { "logs", "JOB", 1, 1, logs },
    { "cancel", "JOB...", 1, VERB_MANY, cancel },
    { "resize", "JOB N|MIN..MAX", 2, 2, resize },
    { "rerun", "JOB", 1, 1, rerun },
    { "keep", "JOB...", 1, VERB_MANY, keep },
    { "delete", "JOB...", 1, VERB_MANY, delete_jobs },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .tail = -1, .cli = c };

    return verb_run(&command_jobs, verbs, argc, argv, &a, err);
}

const struct command command_jobs = {
    .name = "jobs",
    .args = "list|describe|logs|cancel|resize|rerun|keep|delete [JOB...]",
    .summary = "look at the server's jobs, follow them, end them",
    .example = "muster jobs list --state active\n"
               "muster jobs logs fit-a-line-1 --since 10m\n"
               "muster jobs logs -f fit-a-line-1\n"
               "muster jobs resize fashion-lenet-2 2..8",
    .more =
        "logs -f ends when the job has, with 1 when it failed; Ctrl-C ends the printing alone.\n"
        "A server that is started again meanwhile is waited for.\n"
        "keep: files of ended jobs are removed in time (docs/guides/limits.md), but for those of a\n"
        "job that is kept.",
    .options = options,
    .run = run,
};
