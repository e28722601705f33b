/* protocols/native_logs.c - a job's log and its events: read, followed, downloaded
 *
 * DESIGN. Four forms of a line (struct form) and two ways to hand them out: one answer with at most
 * so many, or a stream that is asked for more. A stream holds one batch, whatever the log's size.
 */
#include "protocols/native_logs.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/server.h"

enum { LINES_DEFAULT = 1000, LINES_MAX = 100000, BEAT_S = 15, PATH_SIZE = 4096,
       BATCH_BYTES = 256 << 10, ANSWER_BYTES = 4 << 20 };

int native_number(const struct request *q, const char *name, long least, long most, long *out,
                  struct err *err)
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

/* ------------------------------------------------------------ places */

struct place {
    int attempt;                /* 0: before the first */
    struct log_cursor at;
};

static bool same(const struct place *a, const struct place *b)
{
    return a->attempt == b->attempt && a->at.file == b->at.file && a->at.offset == b->at.offset;
}

static void add_place(struct buf *b, const struct place *p)
{
    buf_printf(b, "%d-%d-%lld", p->attempt, p->at.file, (long long)p->at.offset);
}

static int read_place(const char *text, struct place *out, struct err *err)
{
    int attempt, file;
    long long offset;
    char rest;

    if (sscanf(text, "%d-%d-%lld%c", &attempt, &file, &offset, &rest) != 3 || attempt < 0 ||
        file < 0 || offset < 0)
        return err_set(err, ERR_INVALID, "?after takes the \"next\" of an answer, not \"%.32s\"",
                       text);
    *out = (struct place){ attempt, { file, offset } };
    return 0;
}

/* ------------------------------------------------------------ forms */

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

static void add_json(struct buf *b, const struct log_line *l)
{
    buf_printf(b, "{\"t\":%.6f,\"stream\":\"%c\",\"worker\":%d,\"text\":", l->t, l->stream,
               l->worker);
    add_json_text(b, l->text, l->n);
    buf_append(b, "}", 1);
}

static void add_item(struct buf *b, const struct log_line *l, int attempt, long n)
{
    (void)attempt;
    buf_text(b, n ? "," : "");
    add_json(b, l);
}

static void add_event(struct buf *b, const struct log_line *l, int attempt, long n)
{
    const struct place next = { attempt, l->next };

    (void)n;
    buf_text(b, "data: ");
    add_json(b, l);
    buf_text(b, "\nid: ");
    add_place(b, &next);
    buf_text(b, "\n\n");
}

static void add_text(struct buf *b, const struct log_line *l, int attempt, long n)
{
    (void)attempt;
    (void)n;
    buf_append(b, l->text, l->n);
    buf_append(b, "\n", 1);
}

/* "oTEXT": for one who tells the streams apart, in a seventh of the bytes. */
static void add_tagged(struct buf *b, const struct log_line *l, int attempt, long n)
{
    buf_append(b, &l->stream, 1);
    add_text(b, l, attempt, n);
}

/* ------------------------------------------------------------ reading */

struct lines {
    struct buf *out;
    void (*add)(struct buf *b, const struct log_line *l, int attempt, long n);
    long n, most;
    size_t enough;              /* bytes */
    const struct place *end;    /* nothing from there on; NULL: all there is */
    int attempt;
    bool full;
};

static int take_line(void *arg, const struct log_line *l)
{
    struct lines *t = arg;

    t->full = t->n == t->most || t->out->n >= t->enough || t->out->failed;
    if (t->full)
        return 1;
    if (t->end && t->attempt == t->end->attempt &&
        (l->at.file > t->end->at.file ||
         (l->at.file == t->end->at.file && l->at.offset >= t->end->at.offset)))
        return 1;
    t->add(t->out, l, t->attempt, t->n);
    t->n++;
    return 0;
}

/* A stretch of lines from p on, which is moved; an attempt that is over is followed by the next.
 * The end was reached where p does not move. */
static int read_lines(const char *home, int newest, struct place *p, const char *search,
                      struct lines *t, struct err *err)
{
    char dir[PATH_SIZE + 16];

    if (p->attempt == 0 && newest > 0)
        *p = (struct place){ 1, { 0, 0 } };
    while (p->attempt > 0) {
        const struct place before = *p;
        t->attempt = p->attempt;
        snprintf(dir, sizeof dir, "%s/%d", home, p->attempt);
        if (logs_read(dir, &p->at, search, take_line, t, err) < 0)
            return -(int)err->code;
        if (t->full || !same(p, &before) || p->attempt >= newest)
            break;
        *p = (struct place){ p->attempt + 1, { 0, 0 } };
    }
    return 0;
}

/* The directory of the job's attempts, and how many there are. */
static int find_home(struct server *s, const char *project, const char *name, char home[PATH_SIZE],
                     int *out_newest, struct err *err)
{
    if (jobs_dir(s, project, name, home, PATH_SIZE, err) < 0)
        return -(int)err->code;
    char *slash = strrchr(home, '/');
    *out_newest = slash ? (int)strtol(slash + 1, NULL, 10) : 0;
    if (slash)
        *slash = '\0';
    return 0;
}

/* ------------------------------------------------------------ what is followed */

/* A job's log or its events, told as they come. Owned by one connection. */
struct follow {
    struct server *server;
    char *project, *name, *search;
    bool is_log, is_text;       /* text: lines as they are, not server-sent events */
    bool snapshot;              /* ends at `end` */
    int64_t clock, seq;         /* of all jobs' events; of this job's own */
    bool looked, ended;
    char home[PATH_SIZE];
    int newest;
    struct place at, end;
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

/* Is there a new attempt, has it ended? Before the log is read: what it printed is there then. */
static int look_at_job(struct follow *f, struct err *err)
{
    const int64_t clock = jobs_clock(f->server);
    OWN_JSON json_t *job = NULL;
    const char *state;

    if (f->snapshot) {
        f->ended = true;
        return 0;
    }
    if (f->looked && clock == f->clock)
        return 0;
    if (jobs_get(f->server, f->project, f->name, &job, err) < 0 ||
        find_home(f->server, f->project, f->name, f->home, &f->newest, err) < 0)
        return -(int)err->code;
    state = json_string_value(json_object_get(job, "state"));
    f->ended = state && (!strcmp(state, "succeeded") || !strcmp(state, "failed") ||
                         !strcmp(state, "cancelled"));
    f->looked = true;
    f->clock = clock;
    return 0;
}

/* Fills f->out with what is new; *out_n: how much there was. */
static int more_lines(struct follow *f, long *out_n, struct err *err)
{
    struct lines t = { .out = &f->out, .most = LINES_MAX, .enough = BATCH_BYTES,
                       .add = f->is_text ? add_text : add_event,
                       .end = f->snapshot ? &f->end : NULL };
    const struct place before = f->at;

    if (look_at_job(f, err) < 0 ||
        read_lines(f->home, f->newest, &f->at, f->search, &t, err) < 0)
        return -(int)err->code;
    /* A search reads a stretch at a time: it is not at the end while it moves. */
    *out_n = t.n ? t.n : !same(&before, &f->at);
    return 0;
}

static int more_events(struct follow *f, long *out_n, struct err *err)
{
    OWN_JSON json_t *rows = NULL;
    json_t *e;
    size_t i;

    if (f->looked && jobs_clock(f->server) == f->clock)
        return 0;
    if (look_at_job(f, err) < 0 ||
        jobs_events(f->server, f->project, f->name, f->seq, &rows, err) < 0)
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
        int rc = f->is_log ? more_lines(f, &n, &err) : more_events(f, &n, &err);
        if (rc < 0 || f->out.failed || (n == 0 && f->ended)) {
            /* A job that was deleted meanwhile ends its stream like one that is done. */
            if (f->is_text)
                return -1;
            buf_text(&f->out, "event: end\ndata: {}\n\n");
            f->ended = true;
            f->seq = -1;
        } else if (f->out.n == 0 && now > f->beat + BEAT_S && !f->is_text) {
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

static int start_follow(struct request *q, const char *project, const char *name,
                        const struct follow *from, struct err *err)
{
    struct follow *f = malloc(sizeof *f);

    if (f) {
        *f = *from;
        f->server = request_server(q);
        f->project = strdup(project);
        f->name = strdup(name);
        f->search = from->search ? strdup(from->search) : NULL;
    }
    if (!f || !f->project || !f->name || (from->search && !f->search)) {
        if (f)
            follow_free(f);
        return err_set(err, ERR_NOMEM, "no memory to follow a job");
    }
    respond_header(q, "Cache-Control", "no-cache");
    respond_header(q, "X-Accel-Buffering", "no");
    return respond_stream(q, 200,
                          f->is_text ? "text/plain; charset=utf-8"
                                     : "text/event-stream; charset=utf-8",
                          follow_more, f, follow_free);
}

static bool wants_follow(const struct request *q)
{
    const char *text = request_query(q, "follow");
    return text && strcmp(text, "0") && *text;
}

int native_events(struct request *q, const char *project, const char *name, struct err *err)
{
    const char *last = request_header(q, "Last-Event-ID");
    json_t *rows;
    long after = last ? strtol(last, NULL, 10) : 0;

    if (native_number(q, "after", 0, 1L << 60, &after, err) < 0 ||
        jobs_events(request_server(q), project, name, after, &rows, err) < 0)
        return -(int)err->code;
    if (!wants_follow(q))
        return respond_json(q, 200, json_pack("{s:o}", "events", rows));
    json_decref(rows);
    return start_follow(q, project, name, &(struct follow){ .seq = after > 0 ? after : 0 }, err);
}

/* ------------------------------------------------------------ logs */

/* Where to begin: ?after, the browser's last event, ?tail, ?since, or the first line. */
static int begin_log(const struct request *q, const char *home, int newest, struct place *out,
                     struct err *err)
{
    const char *after = request_query(q, "after"), *last = request_header(q, "Last-Event-ID"),
               *since = request_query(q, "since");
    char dir[PATH_SIZE + 16], *end;
    long tail = -1;

    *out = (struct place){ newest, { 0, 0 } };
    if (native_number(q, "tail", 0, 1L << 40, &tail, err) < 0)
        return -(int)err->code;
    if (after && *after)
        return read_place(after, out, err);
    if (last && *last)
        return read_place(last, out, err);
    snprintf(dir, sizeof dir, "%s/%d", home, newest);
    if (tail >= 0)
        return newest ? logs_seek_tail(dir, tail, &out->at, err) : 0;
    if (!since || !*since)
        return 0;
    double t = strtod(since, &end);
    if (*end || !(t >= 0))
        return err_set(err, ERR_INVALID, "?since takes seconds since 1970, not \"%.32s\"", since);
    return newest ? logs_seek_time(dir, t, &out->at, err) : 0;
}

/* At most so many lines, and where the next call goes on. */
static int answer_lines(struct request *q, const char *home, int newest, struct place at,
                        const char *search, bool tagged, struct err *err)
{
    OWN_BUF b = BUF_INIT;
    long limit = LINES_DEFAULT;
    struct lines t = { .out = &b, .add = tagged ? add_tagged : add_item,
                       .enough = tagged ? ANSWER_BYTES : HTTP_BODY_MAX };
    struct place before;

    if (native_number(q, "limit", 1, LINES_MAX, &limit, err) < 0)
        return -(int)err->code;
    t.most = limit;
    buf_text(&b, tagged ? "" : "{\"lines\":[");
    do {
        before = at;
        if (read_lines(home, newest, &at, search, &t, err) < 0)
            return -(int)err->code;
    } while (!t.full && !same(&at, &before));
    buf_text(&b, tagged ? t.full ? "+" : "." : "],\"next\":\"");
    add_place(&b, &at);
    buf_text(&b, tagged ? "\n" : "\"}");
    if (buf_ok(&b, err) < 0)
        return -(int)err->code;
    return respond_bytes(q, 200, tagged ? "text/plain; charset=utf-8"
                                        : "application/json; charset=utf-8", b.data, b.n);
}

int native_logs(struct request *q, const char *project, const char *name, struct err *err)
{
    const char *search = request_query(q, "search"), *format = request_query(q, "format");
    struct follow from = { .is_log = true, .snapshot = !wants_follow(q) };
    char dir[PATH_SIZE + 16], file[256];

    search = search && *search ? search : NULL;
    format = format && *format ? format : "json";
    from.is_text = !strcmp(format, "text");
    bool tagged = !strcmp(format, "tagged");
    if (!from.is_text && !tagged && strcmp(format, "json"))
        return err_set(err, ERR_INVALID, "?format is json, text or tagged, not \"%.32s\"", format);
    if (find_home(request_server(q), project, name, from.home, &from.newest, err) < 0 ||
        begin_log(q, from.home, from.newest, &from.at, err) < 0)
        return -(int)err->code;
    if (!from.is_text && (tagged || from.snapshot))
        return answer_lines(q, from.home, from.newest, from.at, search, tagged, err);
    if (from.is_text) {
        snprintf(file, sizeof file, "attachment; filename=\"%s.log\"", name);
        respond_header(q, "Content-Disposition", file);
    }
    /* Of a job that goes on printing, what there is now. */
    snprintf(dir, sizeof dir, "%s/%d", from.home, from.newest);
    from.end.attempt = from.newest;
    if (from.snapshot && from.newest && logs_seek_tail(dir, 0, &from.end.at, err) < 0)
        return -(int)err->code;
    from.search = (char *)search;
    return start_follow(q, project, name, &from, err);
}
