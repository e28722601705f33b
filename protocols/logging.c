/* protocols/logging.c - Cloud Logging: what a job printed, as entries
 *
 * A line's insertId is its place (attempt, file, offset), written so that texts compare as places
 * do: it never changes, and a client tells two lines of one microsecond apart by it. A page's token
 * is the place where the next one begins (descending: where this one ended, and lines before it
 * follow).
 */
#include "protocols/logging.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/own.h"
#include "protocols/filter.h"
#include "protocols/google.h"
#include "protocols/logging_int.h"
#include "protocols/stamp.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/server.h"

/* A request holds a thread no longer than this takes: then the page ends, and the next goes on. */
enum { LINES_MAX = 200000, ANSWER_MAX = 4 << 20 };

struct place {
    int attempt;
    struct log_cursor at;
};

struct reading {
    const struct logging_query *query;
    const char *job;
    struct place now; /* asc: the line that is looked at; desc: the attempt */
    struct place stop; /* desc: nothing from there on */
    json_t *entries; /* desc: the newest `size` of them, oldest first */
    long lines;
    size_t bytes;
    bool full; /* asc: there is more */
    struct place next;
    struct place *places; /* desc: of each entry, beside it */
};

static bool before(const struct place *a, const struct place *b)
{
    if (a->attempt != b->attempt)
        return a->attempt < b->attempt;
    return a->at.file != b->at.file ? a->at.file < b->at.file : a->at.offset < b->at.offset;
}

static void format_place(const struct place *p, char *out, size_t size)
{
    snprintf(out, size, "%04d-%06d-%012" PRId64, p->attempt, p->at.file, p->at.offset);
}

static int parse_place(const char *text, struct place *out, struct err *err)
{
    struct place p;
    char end;
    if (sscanf(text, "%4d-%6d-%12" SCNd64 "%c", &p.attempt, &p.at.file, &p.at.offset, &end) != 3 ||
        p.attempt < 1 || p.at.file < 0 || p.at.offset < 0)
        return err_set(err, ERR_INVALID, "Field: pageToken Error: It is none that was given out.");
    *out = p;
    return 0;
}

/* ------------------------------------------------------------ a line as an entry */

struct line {
    const struct reading *r;
    const struct log_line *l;
    char id[32], task[32];
    char *text; /* a copy with a NUL, made when it is asked for */
};

static void name_task(const struct log_line *l, char *out, size_t size)
{
    if (l->stream == 'm')
        snprintf(out, size, "service");
    else if (l->worker <= 0)
        snprintf(out, size, "master-replica-0");
    else
        snprintf(out, size, "worker-replica-%d", l->worker - 1);
}

/* What a program prints to stderr is an error there, too, whatever it says. */
static const char *severity_of(const struct log_line *l)
{
    return l->stream == 'e' ? "ERROR" : "INFO";
}

static void line_field(void *arg, const char *path, struct filter_value *out)
{
    struct line *line = arg;
    const char *text = NULL;
    if (!strcmp(path, "timestamp") || !strcmp(path, "receiveTimestamp")) {
        *out = (struct filter_value){ .kind = FILTER_TIME, .time = stamp_of(line->l->t) };
        return;
    }
    if (!strcmp(path, "severity")) {
        *out = (struct filter_value){ .kind = FILTER_SEVERITY,
                                      .number = filter_severity(severity_of(line->l)) };
        return;
    }
    if (!strcmp(path, "insertId")) {
        text = line->id;
    } else if (!strcmp(path, "resource.type")) {
        text = "ml_job";
    } else if (!strcmp(path, "resource.labels.job_id") || !strcmp(path, "labels.job_id")) {
        text = line->r->job;
    } else if (!strcmp(path, "resource.labels.project_id")) {
        text = line->r->query->project;
    } else if (!strcmp(path, "resource.labels.task_name") || !strcmp(path, "labels.task_name")) {
        text = line->task;
    } else if (!strcmp(path, "jsonPayload.message") || !strcmp(path, "textPayload")) {
        if (!line->text)
            line->text = strndup(line->l->text, line->l->n);
        text = line->text;
    }
    if (text)
        *out = (struct filter_value){ .kind = FILTER_TEXT, .text = text };
}

static json_t *entry_of(const struct line *line)
{
    const struct logging_query *query = line->r->query;
    char when[STAMP_SIZE], log[200];
    stamp_format(stamp_of(line->l->t), when);
    snprintf(log, sizeof log, "projects/%s/logs/%s", query->project, line->task);
    json_t *message = json_stringn(line->l->text, line->l->n);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:{s:s, s:{s:s, s:s, s:s}}, s:{s:s, s:s}, s:{s:o}}",
                     "timestamp", when, "receiveTimestamp", when, "severity", severity_of(line->l),
                     "insertId", line->id, "logName", log, "resource", "type", "ml_job", "labels",
                     "job_id", line->r->job, "project_id", query->project, "task_name", line->task,
                     "labels", "ml.googleapis.com/job_id", line->r->job,
                     "ml.googleapis.com/task_name", line->task, "jsonPayload", "message",
                     message ? message : json_string("(not a text)"));
}

/* ------------------------------------------------------------ reading */

static bool wanted(struct reading *r, const struct log_line *l, struct line *line)
{
    *line = (struct line){ .r = r, .l = l };
    format_place(&r->now, line->id, sizeof line->id);
    name_task(l, line->task, sizeof line->task);
    bool is = filter_match(r->query->filter, line_field, line);
    free(line->text);
    return is;
}

static int each_ascending(void *arg, const struct log_line *l)
{
    struct reading *r = arg;
    struct line line;
    r->now.at = l->at;
    if (stamp_of(l->t) >= r->query->to)
        return 1; /* times never go back: nothing later is earlier */
    if (r->lines == LINES_MAX || r->bytes > ANSWER_MAX) {
        r->full = true;
        r->next = r->now;
        return 1;
    }
    r->lines++;
    if (!wanted(r, l, &line))
        return 0;
    if ((int)json_array_size(r->entries) == r->query->size) {
        r->full = true;
        r->next = r->now;
        return 1;
    }
    r->bytes += l->n + 500;
    json_array_append_new(r->entries, entry_of(&line));
    return 0;
}

static int each_descending(void *arg, const struct log_line *l)
{
    struct reading *r = arg;
    struct line line;
    r->now.at = l->at;
    if (stamp_of(l->t) >= r->query->to || !before(&r->now, &r->stop))
        return 1;
    if (!wanted(r, l, &line))
        return 0;
    size_t n = json_array_size(r->entries);
    if (n == (size_t)r->query->size + 1) { /* one more tells that there is more */
        json_array_remove(r->entries, 0);
        memmove(r->places, r->places + 1, (n - 1) * sizeof *r->places);
        n--;
    }
    r->places[n] = r->now;
    json_array_append_new(r->entries, entry_of(&line));
    return 0;
}

static int read_attempt(struct reading *r, const char *parent, const struct place *from,
                        int (*each)(void *arg, const struct log_line *l), struct err *err)
{
    char dir[PATH_MAX];
    struct log_cursor at = { 0, 0 };
    if (snprintf(dir, sizeof dir, "%s/%d", parent, r->now.attempt) >= (int)sizeof dir)
        return err_set(err, ERR_IO, "the path of the job is too long");
    if (from && from->attempt == r->now.attempt)
        at = from->at;
    else if (r->query->from > 0 &&
             logs_seek_time(dir, (double)(r->query->from / 1000) * 1e-6 - 1e-6, &at, err) < 0)
        return -(int)err->code;
    return logs_read(dir, &at, NULL, each, r, err) < 0 ? -(int)err->code : 0;
}

static int read_ascending(struct reading *r, const char *parent, int last,
                          const struct place *token, struct err *err)
{
    for (r->now.attempt = token ? token->attempt : 1; r->now.attempt <= last && !r->full;
         r->now.attempt++)
        if (read_attempt(r, parent, token, each_ascending, err) < 0)
            return -(int)err->code;
    return 0;
}

/* The newest attempt first; each is read forwards, and its last lines are kept. */
static int read_descending(struct reading *r, const char *parent, int last,
                           const struct place *token, json_t *out, struct err *err)
{
    struct place end = { INT_MAX, { INT_MAX, INT64_MAX } };
    r->stop = token ? *token : end;
    r->places = calloc((size_t)r->query->size + 1, sizeof *r->places);
    if (!r->places)
        return err_set(err, ERR_NOMEM, "no memory for a page of a log");
    for (int a = token && token->attempt < last ? token->attempt : last; a >= 1 && !r->full; a--) {
        json_array_clear(r->entries);
        r->now.attempt = a;
        if (read_attempt(r, parent, NULL, each_descending, err) < 0)
            return -(int)err->code;
        for (size_t i = json_array_size(r->entries); i-- > 0;) {
            if ((int)json_array_size(out) == r->query->size) {
                r->full = true;
                break;
            }
            json_array_append(out, json_array_get(r->entries, i));
            r->next = r->places[i];
        }
    }
    return 0;
}

static int read_job(struct server *s, const struct logging_query *query, const char *job,
                    const char *token, json_t *out, struct buf *next, struct err *err)
{
    char dir[PATH_MAX];
    OWN_JSON json_t *entries = json_array();
    struct reading r = { .query = query, .job = job, .entries = query->descending ? entries : out };
    struct place from;
    int rc = jobs_dir(s, query->project, job, dir, sizeof dir, err);
    if (rc == -ERR_MISSING)
        return 0; /* as there: a job that nobody knows has printed nothing */
    if (rc < 0 || (*token && parse_place(token, &from, err) < 0))
        return -(int)err->code;
    char *slash = strrchr(dir, '/');
    if (!slash)
        return 0; /* it has not begun */
    int last = (int)strtol(slash + 1, NULL, 10);
    *slash = 0;
    const struct place *at = *token ? &from : NULL;
    rc = query->descending ? read_descending(&r, dir, last, at, out, err)
                           : read_ascending(&r, dir, last, at, err);
    free(r.places);
    if (rc < 0)
        return rc;
    if (r.full) {
        char text[32];
        format_place(&r.next, text, sizeof text);
        buf_text(next, text);
    }
    return 0;
}

/* ------------------------------------------------------------ the calls */

/* The one project that is asked about. */
static int find_project(const struct request *q, const json_t *body, const char **out,
                        struct err *err)
{
    const json_t *names = json_object_get(body, "resourceNames"),
                 *ids = json_object_get(body, "projectIds");
    const char *name = json_string_value(json_array_get(names, 0));
    if (!name)
        name = json_string_value(json_array_get(ids, 0));
    if (name && !strncmp(name, "projects/", 9))
        name += 9;
    if (!name || !*name || strchr(name, '/') || json_array_size(names) + json_array_size(ids) != 1)
        return err_set(err, ERR_INVALID,
                       "Field: resourceNames Error: One project is wanted (projects/NAME).");
    *out = name;
    return request_allows(q, name, err);
}

static int read_query(const json_t *body, struct logging_query *query, struct err *err)
{
    const char *order = json_string_value(json_object_get(body, "orderBy"));
    const json_t *size = json_object_get(body, "pageSize");
    static const char *const texts[] = { "filter", "orderBy", "pageToken", NULL };
    for (int i = 0; texts[i]; i++) {
        const json_t *v = json_object_get(body, texts[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return err_set(err, ERR_INVALID, "Field: %s Error: This is to be a text.", texts[i]);
    }
    query->descending = order && !strcmp(order, "timestamp desc");
    if (order && *order && !query->descending && strcmp(order, "timestamp asc") &&
        strcmp(order, "timestamp"))
        return err_set(err, ERR_INVALID,
                       "Field: orderBy Error: \"%.60s\" is none of \"timestamp asc\", "
                       "\"timestamp desc\".",
                       order);
    if (size && (!json_is_integer(size) || json_integer_value(size) < 0))
        return err_set(err, ERR_INVALID,
                       "Field: pageSize Error: This is to be a number of entries.");
    json_int_t n = json_integer_value(size);
    query->size = n == 0 ? 50 : n > LOGGING_PAGE ? LOGGING_PAGE : (int)n;
    return 0;
}

static int list_entries(struct request *q, struct err *err)
{
    OWN_JSON json_t *body = NULL, *entries = json_array();
    OWN(filter) filter = NULL;
    OWN_BUF next = BUF_INIT;
    struct logging_query query = { 0 };
    bool part;
    if (request_json(q, &body, err) < 0 || find_project(q, body, &query.project, err) < 0 ||
        read_query(body, &query, err) < 0 ||
        filter_parse(json_string_value(json_object_get(body, "filter")), &filter, err) < 0)
        return -(int)err->code;
    query.filter = filter;
    filter_times(filter, "timestamp", &query.from, &query.to);
    const char *token = json_string_value(json_object_get(body, "pageToken"));
    const char *job = filter_wants(filter, "resource.labels.job_id", &part);
    token = token ? token : "";
    if (request_job(q) && (!job || part || strcmp(job, request_job(q))))
        return err_set(err, ERR_DENIED, "a job's token reads the job's own log: "
                       "resource.labels.job_id=\"%s\"", request_job(q));
    int rc = job && !part
                 ? read_job(request_server(q), &query, job, token, entries, &next, err)
                 : logging_read_written(request_server(q), &query, token, entries, &next, err);
    if (rc < 0)
        return rc;
    json_t *answer = json_object();
    if (json_array_size(entries))
        json_object_set(answer, "entries", entries);
    if (next.n)
        json_object_set_new(answer, "nextPageToken", json_string(next.data));
    return respond_json(q, 200, answer);
}

static const struct http_route routes[] = {
    { "POST", "/v2/entries:list", HTTP_WAITS | HTTP_JOB, list_entries, NULL },
    { "POST", "/v2/entries:write", HTTP_WAITS | HTTP_JOB, logging_write, NULL },
    { 0 },
};

const struct protocol protocol_logging = { "logging", routes, google_error };
