/* protocols/native_jobs.c - /api/jobs: submit, look, follow, change */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "protocols/native.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/scalars.h"
#include "server/server.h"

enum { LINES_DEFAULT = 1000, LINES_MAX = 10000, FILES_MAX = 2000, DEPTH_MAX = 16, BEAT_S = 15,
       PATH_SIZE = 4096 };

/* The job that the path names, when the token may see it. */
struct job_name { const char *project, *name; };

static int job_of(const struct request *q, struct job_name *out, struct err *err)
{
    *out = (struct job_name){ request_arg(q, "project"), request_arg(q, "name") };
    if (request_job(q) && strcmp(request_job(q), out->name))
        return err_set(err, ERR_DENIED, "this is the token of job \"%s\", and of no other",
                       request_job(q));
    return request_allows(q, out->project, err);
}

static int query_number(const struct request *q, const char *name, long least, long most,
                        long *out, struct err *err)
{
    const char *text = request_query(q, name);
    char *end;

    if (!text || !*text)
        return 0;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*end || errno || n < least || n > most)
        return err_set(err, ERR_INVALID, "?%s takes a number from %ld to %ld, not \"%.32s\"", name,
                       least, most, text);
    *out = n;
    return 0;
}

/* ------------------------------------------------------------ lists and single ones */

static int list_jobs(struct request *q, struct err *err)
{
    const char *named = request_query(q, "project");
    struct jobs_query query = { .project = named && *named ? named : request_project(q),
                                .state = request_query(q, "state"), .text = request_query(q, "text"),
                                .label_key = request_query(q, "label"),
                                .label_value = request_query(q, "value"),
                                .token = request_query(q, "token") };
    char next[JOB_TOKEN] = "";
    json_t *rows;
    long limit = 0;

    if (query.state && !*query.state)
        query.state = NULL;
    if (query.text && !*query.text)
        query.text = NULL;
    if ((query.project && request_allows(q, query.project, err) < 0)
        || query_number(q, "limit", 1, 1000, &limit, err) < 0)
        return -(int)err->code;
    query.limit = (int)limit;
    if (jobs_list(request_server(q), &query, &rows, next, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o, s:s}", "jobs", rows, "next", next));
}

/* {"project", "name", "spec"}; only the last is needed. */
static int submit_job(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    json_t *job;
    const char *project;

    if (request_json(q, &doc, err) < 0)
        return -(int)err->code;
    json_t *spec = json_object_get(doc, "spec");
    const json_t *name = json_object_get(doc, "name");
    if (!json_is_object(spec))
        return err_set(err, ERR_INVALID, "the body is {\"spec\": {...}} with the job's document in it");
    if (name && !json_is_string(name))
        return err_set(err, ERR_INVALID, "\"name\" is a text");
    /* Whoever has the server's own token owns the machine; a project's reads what it put in buckets. */
    json_object_set_new(spec, "host_files", json_boolean(!request_project(q)));
    if (native_project(q, json_string_value(json_object_get(doc, "project")), &project, err) < 0
        || jobs_submit(request_server(q), project, json_string_value(name), spec, &job, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, job);
}

static int get_job(struct request *q, struct err *err)
{
    struct job_name j;
    json_t *job;

    if (job_of(q, &j, err) < 0 || jobs_get(request_server(q), j.project, j.name, &job, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, job);
}

static int delete_job(struct request *q, struct err *err)
{
    struct job_name j;

    if (job_of(q, &j, err) < 0 || jobs_delete(request_server(q), j.project, j.name, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

static int cancel_job(struct request *q, struct err *err)
{
    struct job_name j;

    if (job_of(q, &j, err) < 0
        || jobs_cancel(request_server(q), j.project, j.name, "user", err) < 0)
        return -(int)err->code;
    return get_job(q, err);
}

static int resize_job(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct job_name j;
    int min, max;

    if (job_of(q, &j, err) < 0 || request_json(q, &doc, err) < 0)
        return -(int)err->code;
    if (json_unpack(doc, "{s:i, s:i}", "min", &min, "max", &max) < 0 || min < 1 || max < min)
        return err_set(err, ERR_INVALID, "the body is {\"min\": N, \"max\": N}, 1 or more each");
    if (jobs_resize(request_server(q), j.project, j.name, min, max, err) < 0)
        return -(int)err->code;
    return get_job(q, err);
}

static int rerun_job(struct request *q, struct err *err)
{
    OWN_JSON json_t *job = NULL;
    struct job_name j;
    json_t *again;

    if (job_of(q, &j, err) < 0
        || jobs_get(request_server(q), j.project, j.name, &job, err) < 0)
        return -(int)err->code;
    json_t *spec = json_object_get(job, "spec");
    if (!json_object_get(spec, "name"))
        json_object_set_new(spec, "name", json_string(j.name));
    if (jobs_submit(request_server(q), j.project, NULL, spec, &again, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, again);
}

static int patch_job(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct job_name j;

    if (job_of(q, &j, err) < 0 || request_json(q, &doc, err) < 0)
        return -(int)err->code;
    if (!json_is_object(json_object_get(doc, "labels")))
        return err_set(err, ERR_INVALID, "the body is {\"labels\": {...}}");
    if (jobs_patch_labels(request_server(q), j.project, j.name, json_object_get(doc, "labels"),
                          err) < 0)
        return -(int)err->code;
    return get_job(q, err);
}

static int get_scalars(struct request *q, struct err *err)
{
    char dir[PATH_SIZE];
    struct job_name j;
    json_t *out = NULL;

    if (job_of(q, &j, err) < 0
        || jobs_dir(request_server(q), j.project, j.name, dir, sizeof dir, err) < 0
        || (*dir && scalars_read(dir, &out, err) < 0))
        return -(int)err->code;
    return respond_json(q, 200, *dir ? out : json_object());
}

/* ------------------------------------------------------------ what is followed */

/* A job's log or its events, told as they come. Owned by one connection. */
struct follow {
    struct server *server;
    char *project, *name, *search;
    bool is_log;
    int64_t clock, seq;         /* of all jobs' events; of this job's own */
    bool looked, ended;
    char dir[PATH_SIZE];
    struct log_cursor at;
    struct buf out;             /* not yet taken */
    size_t taken;
    double beat;
};

static void follow_free(void *arg)
{
    struct follow *f = arg;

    free(f->project);
    free(f->name);
    free(f->search);
    buf_done(&f->out);
    free(f);
}

static void add_json_text(struct buf *b, const char *text, size_t n)
{
    static const char hex[] = "0123456789abcdef";

    buf_append(b, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && (unsigned char)text[run] >= 0x20 && text[run] != '"' && text[run] != '\\')
            run++;
        if (run > i)
            buf_append(b, text + i, run - i);
        if (run < n) {
            unsigned char c = (unsigned char)text[run++];
            char escape[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
            if (c == '"' || c == '\\')
                buf_append(b, (char[]){ '\\', (char)c }, 2);
            else
                buf_append(b, escape, 6);
        }
        i = run;
    }
    buf_append(b, "\"", 1);
}

static void add_line(struct buf *b, const struct log_line *l)
{
    buf_printf(b, "{\"t\":%.6f,\"stream\":\"%c\",\"worker\":%d,\"text\":", l->t, l->stream, l->worker);
    add_json_text(b, l->text, l->n);
    buf_append(b, "}", 1);
}

struct lines {
    struct buf *out;
    long n, most;
    size_t enough;              /* bytes */
    bool events;                /* as server-sent events, else as an array's items */
};

static int take_line(void *arg, const struct log_line *l)
{
    struct lines *t = arg;

    if (t->n == t->most || t->out->n >= t->enough)
        return 1;
    buf_text(t->out, t->events ? "data: " : t->n ? "," : "");
    add_line(t->out, l);
    buf_text(t->out, t->events ? "\n\n" : "");
    t->n++;
    return 0;
}

/* Is there a new attempt, has it ended? Before the log is read: what it printed is there by then. */
static int look_at_job(struct follow *f, struct err *err)
{
    const int64_t clock = jobs_clock(f->server);
    char dir[PATH_SIZE];
    OWN_JSON json_t *job = NULL;
    const char *state;

    if (f->looked && clock == f->clock)
        return 0;
    if (jobs_get(f->server, f->project, f->name, &job, err) < 0
        || jobs_dir(f->server, f->project, f->name, dir, sizeof dir, err) < 0)
        return -(int)err->code;
    state = json_string_value(json_object_get(job, "state"));
    f->ended = state && (!strcmp(state, "succeeded") || !strcmp(state, "failed")
                         || !strcmp(state, "cancelled"));
    if (f->looked && strcmp(dir, f->dir))
        f->at = (struct log_cursor){ 0, 0 };
    memcpy(f->dir, dir, sizeof dir);
    f->looked = true;
    f->clock = clock;
    return 0;
}

/* Fills f->out with what is new; *out_n: how much there was. */
static int more_lines(struct follow *f, size_t enough, long *out_n, struct err *err)
{
    struct lines t = { .out = &f->out, .most = LINES_MAX, .enough = enough, .events = true };
    struct log_cursor before = f->at;

    if (look_at_job(f, err) < 0)
        return -(int)err->code;
    if (f->dir[0] && logs_read(f->dir, &f->at, f->search, take_line, &t, err) < 0)
        return -(int)err->code;
    *out_n = t.n;
    if (t.n)
        buf_printf(&f->out, "id: %d-%lld\n\n", f->at.file, (long long)f->at.offset);
    /* A search reads a stretch at a time: it is not at the end while it moves. */
    else if (before.file != f->at.file || before.offset != f->at.offset)
        *out_n = 1;
    return 0;
}

static int more_events(struct follow *f, long *out_n, struct err *err)
{
    OWN_JSON json_t *rows = NULL;
    json_t *e;
    size_t i;

    if (f->looked && jobs_clock(f->server) == f->clock)
        return 0;
    if (look_at_job(f, err) < 0
        || jobs_events(f->server, f->project, f->name, f->seq, &rows, err) < 0)
        return -(int)err->code;
    json_array_foreach(rows, i, e) {
        OWN_MEM char *text = json_dumps(e, JSON_COMPACT);
        f->seq = json_integer_value(json_object_get(e, "seq"));
        buf_printf(&f->out, "id: %lld\ndata: %s\n\n", (long long)f->seq, text ? text : "{}");
        ++*out_n;
    }
    return 0;
}

static long follow_more(void *arg, char *out, size_t max)
{
    struct follow *f = arg;
    struct err err = { 0 };
    const double now = clock_seconds();
    long n = 0;

    if (f->taken == f->out.n) {
        buf_clear(&f->out);
        f->taken = 0;
        if (f->ended && f->seq < 0)
            return -1;          /* the last words are told */
        int rc = f->is_log ? more_lines(f, max, &n, &err) : more_events(f, &n, &err);
        if (rc < 0 || f->out.failed || (n == 0 && f->ended)) {
            /* A job that was deleted meanwhile ends its stream like one that is done. */
            buf_text(&f->out, "event: end\ndata: {}\n\n");
            f->ended = true;
            f->seq = -1;
        } else if (f->out.n == 0 && now > f->beat + BEAT_S) {
            buf_text(&f->out, ":\n\n");
        }
    }
    size_t take = f->out.n - f->taken < max ? f->out.n - f->taken : max;
    if (take) {
        memcpy(out, f->out.data + f->taken, take);
        f->taken += take;
        f->beat = now;
    }
    return (long)take;
}

static int start_follow(struct request *q, const struct job_name *j, const struct follow *from,
                        struct err *err)
{
    struct follow *f = malloc(sizeof *f);

    if (f) {
        *f = *from;
        f->server = request_server(q);
        f->project = strdup(j->project);
        f->name = strdup(j->name);
        f->search = from->search ? strdup(from->search) : NULL;
    }
    if (!f || !f->project || !f->name || (from->search && !f->search)) {
        if (f)
            follow_free(f);
        return err_set(err, ERR_NOMEM, "no memory to follow a job");
    }
    respond_header(q, "Cache-Control", "no-cache");
    respond_header(q, "X-Accel-Buffering", "no");
    return respond_stream(q, 200, "text/event-stream; charset=utf-8", follow_more, f, follow_free);
}

static bool wants_follow(const struct request *q)
{
    const char *text = request_query(q, "follow");
    return text && strcmp(text, "0") && *text;
}

static int get_events(struct request *q, struct err *err)
{
    struct job_name j;
    const char *last = request_header(q, "Last-Event-ID");
    json_t *rows;
    long after = last ? strtol(last, NULL, 10) : 0;

    if (job_of(q, &j, err) < 0 || query_number(q, "after", 0, 1L << 60, &after, err) < 0
        || jobs_events(request_server(q), j.project, j.name, after, &rows, err) < 0)
        return -(int)err->code;
    if (!wants_follow(q))
        return respond_json(q, 200, json_pack("{s:o}", "events", rows));
    json_decref(rows);
    return start_follow(q, &j, &(struct follow){ .seq = after > 0 ? after : 0 }, err);
}

/* "FILE-OFFSET", as of an answer's "next" and of an event's id. */
static int read_cursor(const char *text, struct log_cursor *out, struct err *err)
{
    int file;
    long long offset;
    char rest;

    if (sscanf(text, "%d-%lld%c", &file, &offset, &rest) != 2 || file < 0 || offset < 0)
        return err_set(err, ERR_INVALID, "?after takes the \"next\" of an answer, not \"%.32s\"", text);
    *out = (struct log_cursor){ file, offset };
    return 0;
}

/* Where to begin: ?after, the browser's last event, ?tail, or the first line. */
static int begin_log(const struct request *q, const char *dir, struct log_cursor *out,
                     struct err *err)
{
    const char *after = request_query(q, "after"), *last = request_header(q, "Last-Event-ID");
    long tail = -1;

    if (query_number(q, "tail", 0, 1000000, &tail, err) < 0)
        return -(int)err->code;
    if (after && *after)
        return read_cursor(after, out, err);
    if (last && *last)
        return read_cursor(last, out, err);
    return tail >= 0 && *dir ? logs_seek_tail(dir, tail, out, err) : 0;
}

static int get_logs(struct request *q, struct err *err)
{
    struct job_name j;
    struct log_cursor at = { 0, 0 };
    const char *search = request_query(q, "search");
    char dir[PATH_SIZE];
    long limit = LINES_DEFAULT;
    OWN_BUF b = BUF_INIT;

    search = search && *search ? search : NULL;
    if (job_of(q, &j, err) < 0 || query_number(q, "limit", 1, LINES_MAX, &limit, err) < 0
        || jobs_dir(request_server(q), j.project, j.name, dir, sizeof dir, err) < 0
        || begin_log(q, dir, &at, err) < 0)
        return -(int)err->code;
    if (wants_follow(q)) {
        struct follow from = { .is_log = true, .at = at, .search = (char *)search };
        /* Not looked yet, so that an attempt that begins meanwhile is read from its start. */
        memcpy(from.dir, dir, sizeof dir);
        return start_follow(q, &j, &from, err);
    }
    struct lines t = { .out = &b, .most = limit, .enough = HTTP_BODY_MAX };
    struct log_cursor before;
    buf_text(&b, "{\"lines\":[");
    do {
        before = at;
        if (*dir && logs_read(dir, &at, search, take_line, &t, err) < 0)
            return -(int)err->code;
    } while (t.n < limit && (at.file != before.file || at.offset != before.offset));
    buf_printf(&b, "],\"next\":\"%d-%lld\"}", at.file, (long long)at.offset);
    if (buf_ok(&b, err) < 0)
        return -(int)err->code;
    return respond_bytes(q, 200, "application/json; charset=utf-8", b.data, b.n);
}

/* ------------------------------------------------------------ what a job left behind */

/* Never out of `dir`, through no link: jobs made what is in there. */
static int open_beneath(int dir, const char *path, int flags)
{
    struct open_how how = { .flags = (uint64_t)(flags | O_CLOEXEC),
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

static int open_work(struct request *q, int *out, struct err *err)
{
    char dir[PATH_SIZE];
    struct job_name j;

    if (job_of(q, &j, err) < 0
        || jobs_dir(request_server(q), j.project, j.name, dir, sizeof dir, err) < 0)
        return -(int)err->code;
    OWN_FD int attempt = *dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    *out = attempt < 0 ? -1 : open_beneath(attempt, "work", O_RDONLY | O_DIRECTORY);
    return 0;
}

static void list_folder(int fd, struct buf *path, int depth, json_t *rows)
{
    DIR *dir = fdopendir(fd);
    const size_t n = path->n;

    for (struct dirent *e; dir && (e = readdir(dir)) && json_array_size(rows) < FILES_MAX;) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")
            || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        buf_printf(path, "%s%s", n ? "/" : "", e->d_name);
        if (S_ISREG(st.st_mode)) {
            json_t *name = json_string(path->data);     /* NULL: not UTF-8, cannot be named */
            if (name)
                json_array_append_new(rows, json_pack("{s:o, s:I, s:f}", "path", name, "size",
                    (json_int_t)st.st_size, "changed", (double)st.st_mtim.tv_sec));
        } else if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX) {
            int inner = open_beneath(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY);
            if (inner >= 0)
                list_folder(inner, path, depth + 1, rows);
        }
        path->n = n;
        path->data[n] = 0;
    }
    if (dir)
        closedir(dir);
    else
        close(fd);
}

static int list_files(struct request *q, struct err *err)
{
    OWN_BUF path = BUF_INIT;
    int work;

    if (open_work(q, &work, err) < 0)
        return -(int)err->code;
    json_t *rows = json_array();
    if (work >= 0)
        list_folder(work, &path, 0, rows);
    return respond_json(q, 200, json_pack("{s:o}", "files", rows));
}

/* "bytes=0-99", one range; anything else is the whole. */
static void read_range(const struct request *q, uint64_t size, uint64_t *from, uint64_t *n,
                       int *status)
{
    const char *text = request_header(q, "Range");
    unsigned long long a, b;
    char rest;

    *from = 0;
    *n = size;
    *status = 200;
    if (!text || sscanf(text, "bytes=%llu-%llu%c", &a, &b, &rest) != 2 || a > b || a >= size)
        return;
    *from = a;
    *n = (b < size ? b + 1 : size) - a;
    *status = 206;
}

static int get_file(struct request *q, struct err *err)
{
    const char *path = request_arg(q, "path");
    struct stat st;
    uint64_t from, n;
    int status, found;

    if (open_work(q, &found, err) < 0)
        return -(int)err->code;
    OWN_FD int work = found;
    OWN_FD int fd = work < 0 ? -1 : open_beneath(work, path, O_RDONLY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_MISSING, "the job has no file \"%.200s\"", path);
    read_range(q, (uint64_t)st.st_size, &from, &n, &status);
    if (status == 206) {
        char range[96];
        snprintf(range, sizeof range, "bytes %lu-%lu/%lu", from, from + n - 1,
                 (uint64_t)st.st_size);
        respond_header(q, "Content-Range", range);
    }
    respond_file(q, status, "application/octet-stream", fd, from, n);
    fd = -1;
    return 0;
}

static const struct http_route routes[] = {
    { "GET", "/api/jobs", 0, list_jobs, NULL },
    { "POST", "/api/jobs", HTTP_WAITS, submit_job, NULL },
    { "GET", "/api/jobs/{project}/{name}", HTTP_JOB, get_job, NULL },
    { "DELETE", "/api/jobs/{project}/{name}", HTTP_WAITS, delete_job, NULL },
    { "PATCH", "/api/jobs/{project}/{name}", HTTP_WAITS, patch_job, NULL },
    { "POST", "/api/jobs/{project}/{name}/cancel", HTTP_WAITS, cancel_job, NULL },
    { "POST", "/api/jobs/{project}/{name}/resize", HTTP_WAITS, resize_job, NULL },
    { "POST", "/api/jobs/{project}/{name}/rerun", HTTP_WAITS, rerun_job, NULL },
    { "GET", "/api/jobs/{project}/{name}/events", HTTP_JOB, get_events, NULL },
    { "GET", "/api/jobs/{project}/{name}/logs", HTTP_WAITS | HTTP_JOB, get_logs, NULL },
    { "GET", "/api/jobs/{project}/{name}/scalars", HTTP_WAITS | HTTP_JOB, get_scalars, NULL },
    { "GET", "/api/jobs/{project}/{name}/files", HTTP_WAITS | HTTP_JOB, list_files, NULL },
    { "GET", "/api/jobs/{project}/{name}/files/{path*}", HTTP_WAITS | HTTP_JOB, get_file, NULL },
    { 0 }
};

const struct protocol protocol_native_jobs = { "jobs", routes, native_error };
