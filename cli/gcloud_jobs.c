/* cli/gcloud_jobs.c - gcloud ai-platform jobs: describe, list, cancel, stream-logs */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/http.h"
#include "base/own.h"
#include "base/terminal.h"
#include "cli/gcloud_int.h"

/* ------------------------------------------------------------ showing */

static bool is_plain(const char *text)
{
    static const char *const words[] = { "true", "false", "null", "yes", "no",
                                         "on",   "off",   "~",    NULL };
    struct tm tm;
    size_t n = strlen(text);
    char *end;
    for (int i = 0; words[i]; i++)
        if (!strcasecmp(words[i], text))
            return false;
    strtod(text, &end);
    if (!n || !*end || strptime(text, "%Y-%m-%d", &tm) || strchr(" ,[]{}#&*!|>'\"%@`?:", *text))
        return false; /* empty, a number, a time, or a sign that means something */
    if (*text == '-' && (n == 1 || text[1] == ' ' || text[1] == '-'))
        return n > 3 && text[1] == '-' && text[2] != '-' && !strpbrk(text, "\n") &&
               !strstr(text, ": ");
    return !strstr(text, ": ") && !strstr(text, " #") && !strpbrk(text, "\n") &&
           text[n - 1] != ':' && text[n - 1] != ' ';
}

static void print_text(const char *text)
{
    if (is_plain(text)) {
        fputs(text, stdout);
        return;
    }
    putchar('\'');
    for (; *text; text++) {
        if (*text == '\'')
            putchar('\'');
        putchar(*text);
    }
    putchar('\'');
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void print_yaml(const json_t *v, int indent);

static void print_member(const char *key, const json_t *v, int indent)
{
    printf("%s:", key);
    bool nested =
        (json_is_object(v) && json_object_size(v)) || (json_is_array(v) && json_array_size(v));
    putchar(nested ? '\n' : ' ');
    if (nested && json_is_object(v))
        printf("%*s", indent + 2, "");
    print_yaml(v, json_is_object(v) ? indent + 2 : indent);
}

/* As gcloud writes it: keys in order, lists not indented. Begins where the line stands. */
static void print_yaml(const json_t *v, int indent)
{
    if (json_is_object(v) && json_object_size(v)) {
        size_t n = 0;
        const char *keys[json_object_size(v)], *key;
        json_t *member;
        json_object_foreach ((json_t *)v, key, member)
            keys[n++] = key;
        qsort(keys, n, sizeof keys[0], by_name);
        for (size_t i = 0; i < n; i++) {
            if (i)
                printf("%*s", indent, "");
            print_member(keys[i], json_object_get(v, keys[i]), indent);
        }
    } else if (json_is_array(v) && json_array_size(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            printf("%*s- ", indent, "");
            print_yaml(json_array_get(v, i), indent + 2);
        }
    } else if (json_is_string(v)) {
        print_text(json_string_value(v));
        putchar('\n');
    } else {
        OWN_MEM char *text = json_dumps(v, JSON_ENCODE_ANY);
        puts(text ? text : "");
    }
}

static int print(const json_t *v, const char *format, struct err *err)
{
    if (format && !strcmp(format, "json")) {
        OWN_MEM char *text = json_dumps(v, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENCODE_ANY);
        puts(text ? text : "");
        return 0;
    }
    if (format && strcmp(format, "yaml") && strcmp(format, "default"))
        return err_set(err, ERR_INVALID, "--format: json and yaml are taken, not \"%.60s\"",
                       format);
    print_yaml(v, 0);
    return 0;
}

/* "2026-11-15T17:25:01", in the user's time zone. */
static json_t *local_time(const char *stamp)
{
    struct tm tm = { 0 };
    char text[40];
    if (!stamp || !strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm))
        return json_null();
    time_t t = timegm(&tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", localtime_r(&t, &tm));
    return json_string(text);
}

void gcloud_show_job(const json_t *job)
{
    static const char *const times[] = { "startTime", "endTime" };
    OWN_JSON json_t *out = json_pack("{s:O, s:O}", "jobId", json_object_get(job, "jobId"), "state",
                                     json_object_get(job, "state"));
    for (int i = 0; i < 2; i++) {
        const char *stamp = json_string_value(json_object_get(job, times[i]));
        if (stamp)
            json_object_set_new(out, times[i], local_time(stamp));
    }
    print_yaml(out, 0);
}

void gcloud_say_active(const char *job)
{
    fprintf(stderr,
            "Your job is still active. You may view the status of your job with the command\n\n"
            "  $ gcloud ai-platform jobs describe %s\n\nor continue streaming the logs with the "
            "command\n\n  $ gcloud ai-platform jobs stream-logs %s\n",
            job, job);
}

/* ------------------------------------------------------------ following */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static void print_entry(const json_t *entry, FILE *to)
{
    const char *severity = json_string_value(json_object_get(entry, "severity"));
    const char *stamp = json_string_value(json_object_get(entry, "timestamp"));
    const json_t *labels = json_object_get(json_object_get(entry, "resource"), "labels");
    const char *task = json_string_value(json_object_get(labels, "task_name"));
    const char *text =
        json_string_value(json_object_get(json_object_get(entry, "jsonPayload"), "message"));
    struct tm tm = { 0 };
    char when[40] = "";
    if (stamp && strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm)) {
        time_t t = timegm(&tm);
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S %z", localtime_r(&t, &tm));
    }
    fprintf(to, "%s\t%s\t%s\t\t", severity ? severity : "DEFAULT", when,
            task ? task : "unknown_task");
    terminal_write(to, text, text ? strlen(text) : 0);
    putc('\n', to);
}

struct follow {
    struct client *g;
    const char *job, *task; /* task NULL: all */
    char since[64], id[64]; /* the last entry that was printed; "": none */
    FILE *to;
};

/* Prints what is new; *out_n: how many lines. */
static int poll_entries(struct follow *f, size_t *out_n, struct err *err)
{
    OWN_BUF filter = BUF_INIT;
    OWN_JSON json_t *body = NULL, *answer = NULL;
    char project[200];
    buf_printf(&filter,
               "(resource.type=\"ml_job\" OR resource.type=\"cloudml_job\") AND "
               "resource.labels.job_id=\"%s\"",
               f->job);
    if (f->task)
        buf_printf(&filter, " AND resource.labels.task_name=\"%s\"", f->task);
    if (*f->since)
        buf_printf(&filter, " AND ((timestamp=\"%s\" AND insertId>\"%s\") OR timestamp>\"%s\")",
                   f->since, f->id, f->since);
    snprintf(project, sizeof project, "projects/%s", f->g->project);
    body = json_pack("{s:s, s:s, s:i, s:[s]}", "filter", filter.data, "orderBy", "timestamp asc",
                     "pageSize", 1000, "resourceNames", project);
    if (client_call(f->g, "POST", "/v2/entries:list", body, &answer, err) < 0)
        return -(int)err->code;
    const json_t *entries = json_object_get(answer, "entries");
    size_t i;
    json_t *entry;
    json_array_foreach ((json_t *)entries, i, entry) {
        print_entry(entry, f->to);
        const char *t = json_string_value(json_object_get(entry, "timestamp"));
        const char *id = json_string_value(json_object_get(entry, "insertId"));
        snprintf(f->since, sizeof f->since, "%s", t ? t : "");
        snprintf(f->id, sizeof f->id, "%s", id ? id : "");
    }
    fflush(f->to);
    *out_n = json_array_size(entries);
    return 0;
}

static int get_job(struct client *g, const char *job, json_t **out, struct err *err)
{
    OWN_BUF path = BUF_INIT;
    buf_printf(&path, "/v1/projects/%s/jobs/", g->project);
    http_escape(&path, job);
    return client_call(g, "GET", path.data, NULL, out, err);
}

static int follow(struct follow *f, json_t **out_job, struct err *err)
{
    enum { PAUSE_MS = 250 };
    json_t *job = NULL;
    int misses = 0;
    while (!interrupted) {
        size_t n = 0;
        /* The job is asked before its lines: what it said before its end is printed then. */
        int rc = get_job(f->g, f->job, &job, err);
        if (rc == 0)
            rc = poll_entries(f, &n, err);
        bool ended = rc == 0 && json_object_get(job, "endTime") && n < 1000;
        if (ended) {
            *out_job = job;
            return 0;
        }
        json_decref(TAKE(job));
        /* A server that is being started again is waited for. */
        if (rc < 0 && (rc != -ERR_AGAIN || ++misses > 120))
            return rc;
        if (rc == 0)
            misses = 0;
        if (n < 1000)
            usleep(PAUSE_MS * 1000);
    }
    *out_job = NULL;
    return 0;
}

static int follow_until(struct follow *f, json_t **out_job, struct err *err)
{
    struct sigaction on = { .sa_handler = on_interrupt }, before;
    interrupted = 0;
    sigaction(SIGINT, &on, &before);
    int rc = follow(f, out_job, err);
    sigaction(SIGINT, &before, NULL);
    if (rc == 0 && !*out_job) {
        fputs("Received keyboard interrupt.\n\n", stderr);
        gcloud_say_active(f->job);
    }
    return rc;
}

int gcloud_follow(struct client *g, const char *job, FILE *to, json_t **out_job, struct err *err)
{
    return follow_until(&(struct follow){ .g = g, .job = job, .to = to }, out_job, err);
}

/* ------------------------------------------------------------ the commands */

struct args {
    struct gcloud_common common;
    const char *filter, *task, *sort;
    long limit, page, polling;
    int uri, multiline, summarize;
};
#define AT(field) offsetof(struct args, field)
const struct option gcloud_jobs_options[] = {
    GCLOUD_COMMON(struct args),
    { "filter", 0, "EXPRESSION", "of the jobs listed", OPTION_TEXT, AT(filter) },
    { "limit", 0, "N", "so many at most", OPTION_INT, AT(limit) },
    { "page-size", 0, "N", "so many in a request", OPTION_INT, AT(page) },
    { "sort-by", 0, "FIELD", "ignored: the newest is first", OPTION_TEXT, AT(sort) },
    { "uri", 0, NULL, "names alone", OPTION_FLAG, AT(uri) },
    { "summarize", 0, NULL, "ignored", OPTION_FLAG, AT(summarize) },
    { "task-name", 0, "TASK", "of this task alone", OPTION_TEXT, AT(task) },
    { "polling-interval", 0, "S", "ignored: lines come at once", OPTION_INT, AT(polling) },
    { "allow-multiline-logs", 0, NULL, "ignored", OPTION_FLAG, AT(multiline) },
    { 0 }
};

static int one_job(struct cli *c, int argc, char **argv, struct args *a, const char *command,
                   struct err *err)
{
    char usage[100];
    snprintf(usage, sizeof usage, "ai-platform jobs %s JOB", command);
    return gcloud_parse(c, gcloud_jobs_options, argc, argv, a, 1, usage, err);
}

int gcloud_describe(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) g = NULL;
    OWN_JSON json_t *job = NULL;
    if (one_job(c, argc, argv, &a, "describe", err) < 0 ||
        gcloud_open(a.common.project, &g, err) < 0 || get_job(g, argv[0], &job, err) < 0)
        return -(int)err->code;
    if (print(job, a.common.format, err) < 0)
        return -(int)err->code;
    fflush(stdout);
    fprintf(stderr, "\nView logs with:\n  $ gcloud ai-platform jobs stream-logs %s\n", argv[0]);
    return 0;
}

int gcloud_cancel(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) g = NULL;
    OWN_BUF path = BUF_INIT;
    OWN_JSON json_t *none = json_object();
    if (one_job(c, argc, argv, &a, "cancel", err) < 0 || gcloud_open(a.common.project, &g, err) < 0)
        return -(int)err->code;
    buf_printf(&path, "/v1/projects/%s/jobs/", g->project);
    http_escape(&path, argv[0]);
    buf_text(&path, ":cancel");
    return client_call(g, "POST", path.data, none, NULL, err);
}

int gcloud_stream_logs(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) g = NULL;
    OWN_JSON json_t *job = NULL;
    if (one_job(c, argc, argv, &a, "stream-logs", err) < 0 ||
        gcloud_open(a.common.project, &g, err) < 0)
        return -(int)err->code;
    struct follow f = { .g = g, .job = argv[0], .task = a.task, .to = stdout };
    return follow_until(&f, &job, err);
}

static int list_page(struct client *g, const struct args *a, const char *token, json_t **out,
                     struct err *err)
{
    OWN_BUF path = BUF_INIT;
    buf_printf(&path, "/v1/projects/%s/jobs?pageSize=%ld", g->project, a->page > 0 ? a->page : 100);
    if (a->filter) {
        buf_text(&path, "&filter=");
        http_escape(&path, a->filter);
    }
    if (token) {
        buf_text(&path, "&pageToken=");
        http_escape(&path, token);
    }
    return client_call(g, "GET", path.data, NULL, out, err);
}

static void print_table(const json_t *jobs, const struct args *a)
{
    size_t i;
    json_t *job;
    int width = (int)strlen("JOB_ID");
    json_array_foreach ((json_t *)jobs, i, job) {
        int n = (int)strlen(json_string_value(json_object_get(job, "jobId")));
        width = n > width ? n : width;
    }
    if (!a->uri)
        printf("%-*s  %-10s  %s\n", width, "JOB_ID", "STATUS", "CREATED");
    json_array_foreach ((json_t *)jobs, i, job) {
        OWN_JSON json_t *when = local_time(json_string_value(json_object_get(job, "createTime")));
        const char *id = json_string_value(json_object_get(job, "jobId"));
        const char *state = json_string_value(json_object_get(job, "state"));
        if (a->uri)
            puts(id);
        else
            printf("%-*s  %-10s  %s\n", width, id, state, json_string_value(when));
    }
}

int gcloud_list(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) g = NULL;
    OWN_JSON json_t *jobs = json_array();
    OWN_MEM char *token = NULL;
    if (gcloud_parse(c, gcloud_jobs_options, argc, argv, &a, 0,
                     "ai-platform jobs list [--filter F] [--limit N]", err) < 0 ||
        gcloud_open(a.common.project, &g, err) < 0)
        return -(int)err->code;
    do {
        OWN_JSON json_t *page = NULL;
        size_t i;
        json_t *job;
        if (list_page(g, &a, token, &page, err) < 0)
            return -(int)err->code;
        json_array_foreach (json_object_get(page, "jobs"), i, job)
            if (a.limit <= 0 || (long)json_array_size(jobs) < a.limit)
                json_array_append(jobs, job);
        const char *next = json_string_value(json_object_get(page, "nextPageToken"));
        free(token);
        token =
            next && (a.limit <= 0 || (long)json_array_size(jobs) < a.limit) ? strdup(next) : NULL;
    } while (token);
    if (a.common.format)
        return print(jobs, a.common.format, err);
    if (json_array_size(jobs))
        print_table(jobs, &a);
    else
        fputs("Listed 0 items.\n", stderr);
    return 0;
}
