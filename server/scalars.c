/* server/scalars.c - numbers over time, out of what a job writes
 *
 * DESIGN. A `board` is what is known of one attempt: its files with the offset up to which each
 * was read, and its tags with their points. Boards are kept for the jobs that were looked at
 * last. When a file has become shorter (a run that was resumed cuts its metrics back) the board
 * is read anew.
 */
#include "server/scalars.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/driver.h"
#include "server/tfevents.h"

enum {
    BOARDS = 32,
    DEPTH_MAX = 6,
    ENTRIES_MAX = 20000,        /* looked at in a walk: data sets live in work directories too */
    READ_MAX = 8 << 20,         /* of a file in one piece */
    CALL_MAX = 64 << 20,        /* of all files in one call; the rest comes with the next */
    KEEP_MAX = 2 * SCALARS_POINTS,
};

struct point {
    double time, value;
    int64_t step;
};

struct series {
    char *tag;
    struct point *points;       /* KEEP_MAX + 1: the one behind the kept ones is the newest */
    int n;
    int64_t stride, seen;       /* every stride-th point is kept */
    struct point last;
};

struct source {
    char *path;                 /* below the work directory */
    bool lines;                 /* metrics.jsonl */
    bool bad;
    int64_t offset;
};

struct board {
    char dir[PATH_MAX];
    uint64_t used;
    struct series *series;
    struct source *sources;
    int n_series, n_sources;
};

static struct board *boards[BOARDS];
static uint64_t use_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------ boards */

static void board_free(struct board *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n_series; i++) {
        free(b->series[i].tag);
        free(b->series[i].points);
    }
    for (int i = 0; i < b->n_sources; i++)
        free(b->sources[i].path);
    free(b->series);
    free(b->sources);
    free(b);
}

/* Borrowed under the lock; NULL: no memory. */
static struct board *board_of(const char *dir)
{
    int oldest = 0;
    for (int i = 0; i < BOARDS; i++) {
        if (boards[i] && !strcmp(boards[i]->dir, dir)) {
            boards[i]->used = ++use_count;
            return boards[i];
        }
        if (!boards[i] || (boards[oldest] && boards[i]->used < boards[oldest]->used))
            oldest = i;
    }
    struct board *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    snprintf(b->dir, sizeof b->dir, "%s", dir);
    b->used = ++use_count;
    board_free(boards[oldest]);
    return boards[oldest] = b;
}

void scalars_forget(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BOARDS; i++) {
        board_free(boards[i]);
        boards[i] = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------ points */

static struct series *series_of(struct board *b, const char *folder, const char *tag, size_t tag_n)
{
    char name[1024];
    snprintf(name, sizeof name, "%s%s%.*s", folder, *folder ? "/" : "", (int)tag_n, tag);
    for (int i = 0; i < b->n_series; i++)
        if (!strcmp(b->series[i].tag, name))
            return &b->series[i];
    if (b->n_series == SCALARS_TAGS_MAX)
        return NULL;
    struct series *more = realloc(b->series, (size_t)(b->n_series + 1) * sizeof *more);
    if (!more)
        return NULL;
    b->series = more;
    struct series s = { .tag = strdup(name), .points = malloc(KEEP_MAX * sizeof(struct point)),
                        .stride = 1 };
    if (!s.tag || !s.points) {
        free(s.tag);
        free(s.points);
        return NULL;
    }
    b->series[b->n_series] = s;
    return &b->series[b->n_series++];
}

/* When there are twice as many as wanted, every other one goes. */
static void add_point(struct series *s, struct point p)
{
    if (!s || !isfinite(p.value) || !isfinite(p.time))
        return;
    s->last = p;
    if (s->seen++ % s->stride)
        return;
    if (s->n == KEEP_MAX) {
        for (int i = 0; i < KEEP_MAX / 2; i++)
            s->points[i] = s->points[2 * i];
        s->n = KEEP_MAX / 2;
        s->stride *= 2;
        if ((s->seen - 1) % s->stride)
            return;
    }
    s->points[s->n++] = p;
}

/* ------------------------------------------------------------------ files */

struct reading {
    struct board *board;
    const char *folder;
    double file_time;           /* stands for the time of a line that has none */
};

static void take_scalar(void *arg, const struct tfevents_scalar *s)
{
    struct reading *r = arg;
    add_point(series_of(r->board, r->folder, s->tag, s->tag_n),
              (struct point){ s->time, s->value, s->step });
}

static double number_of(const json_t *object, const char *const *names, double otherwise)
{
    for (; *names; names++) {
        const json_t *v = json_object_get(object, *names);
        if (json_is_number(v))
            return json_number_value(v);
    }
    return otherwise;
}

static const char *const step_names[] = { "step", "global_step", "iteration", NULL };
static const char *const time_names[] = { "t", "time", "wall_time", "timestamp", NULL };

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(name, *names))
            return true;
    return false;
}

static void take_line(struct reading *r, const char *line, size_t n)
{
    json_error_t wrong;
    OWN_JSON json_t *object = json_loadb(line, n, 0, &wrong);
    const char *key;
    json_t *value;

    struct point p = { .time = number_of(object, time_names, r->file_time) };
    double step = number_of(object, step_names, 0);
    p.step = fabs(step) < 9e15 ? (int64_t)step : 0;
    json_object_foreach(object, key, value) {
        if (!json_is_number(value) || is_one_of(key, step_names) || is_one_of(key, time_names))
            continue;
        p.value = json_number_value(value);
        add_point(series_of(r->board, r->folder, key, strlen(key)), p);
    }
}

static int64_t take_lines(struct reading *r, const char *bytes, size_t n)
{
    size_t at = 0;
    for (const char *end; at < n && (end = memchr(bytes + at, '\n', n - at));) {
        take_line(r, bytes + at, (size_t)(end - bytes) - at);
        at = (size_t)(end + 1 - bytes);
    }
    return (int64_t)at;
}

/* The folder of a path, as tags are named: "" for the work directory and for "run". */
static void folder_of(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, size, "%.*s", slash ? (int)(slash - path) : 0, path);
    if (!strcmp(out, "run"))
        out[0] = '\0';
}

/* Returns bytes read; -1: the file has become shorter, all is to be read anew. */
static int64_t read_source(struct board *b, struct source *s, int fd, char *bytes)
{
    char folder[512];
    struct stat st;
    struct reading r = { .board = b, .folder = folder };
    int64_t total = 0;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (st.st_size < s->offset)
        return -1;
    folder_of(s->path, folder, sizeof folder);
    r.file_time = (double)st.st_mtime;
    while (!s->bad && s->offset < st.st_size && total < CALL_MAX) {
        ssize_t n = pread(fd, bytes, READ_MAX, s->offset);
        if (n <= 0)
            break;
        int64_t used = s->lines ? take_lines(&r, bytes, (size_t)n)
                                : tfevents_read((const uint8_t *)bytes, (size_t)n, take_scalar, &r);
        if (used < 0 || (used == 0 && n == READ_MAX))
            s->bad = true;
        if (used <= 0)
            break;
        s->offset += used;
        total += used;
    }
    return total;
}

/* ------------------------------------------------------------------ the walk */

struct walk {
    struct board *board;
    int entries;
};

static struct source *source_of(struct board *b, const char *path, bool lines)
{
    for (int i = 0; i < b->n_sources; i++)
        if (!strcmp(b->sources[i].path, path))
            return &b->sources[i];
    if (b->n_sources == SCALARS_FILES_MAX)
        return NULL;
    struct source *more = realloc(b->sources, (size_t)(b->n_sources + 1) * sizeof *more);
    if (!more)
        return NULL;
    b->sources = more;
    char *copy = strdup(path);
    if (!copy)
        return NULL;
    b->sources[b->n_sources] = (struct source){ .path = copy, .lines = lines };
    return &b->sources[b->n_sources++];
}

static bool is_events(const char *name)
{
    return !strncmp(name, "events.out.tfevents.", 20);
}

/* Takes fd. Names are remembered, folders entered; a link is neither. */
static void walk_folder(struct walk *w, int fd, const char *path, int depth)
{
    DIR *d = fdopendir(fd);
    struct dirent *e;
    char below[512];

    if (!d) {
        close(fd);
        return;
    }
    bool has_lines = faccessat(fd, "metrics.jsonl", R_OK, AT_SYMLINK_NOFOLLOW) == 0;
    while ((e = readdir(d)) && w->entries++ < ENTRIES_MAX) {
        if (e->d_name[0] == '.' || snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "",
                                            e->d_name) >= (int)sizeof below)
            continue;
        if (e->d_type == DT_REG && (has_lines ? !strcmp(e->d_name, "metrics.jsonl")
                                              : is_events(e->d_name)))
            source_of(w->board, below, has_lines);
        if (e->d_type == DT_DIR && depth < DEPTH_MAX) {
            int child = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (child >= 0)
                walk_folder(w, child, below, depth + 1);
        }
    }
    closedir(d);
}

static int read_sources(struct board *b, const char *work, char *bytes)
{
    int64_t total = 0;
    struct err none;
    for (int i = 0; i < b->n_sources && total < CALL_MAX; i++) {
        int fd;
        if (driver_open_below(work, b->sources[i].path, &fd, &none) < 0)
            continue;
        int64_t n = read_source(b, &b->sources[i], fd, bytes);
        close(fd);
        if (n < 0)
            return -1;
        total += n;
    }
    return 0;
}

static json_t *show(const struct board *b)
{
    json_t *all = json_object();
    for (int i = 0; all && i < b->n_series; i++) {
        const struct series *s = &b->series[i];
        json_t *points = json_array();
        /* Between one and two thousand are kept: one of two is shown when there are many. */
        int every = s->n > SCALARS_POINTS ? 2 : 1;
        for (int k = 0; k < s->n; k += every)
            json_array_append_new(points,
                                  json_pack("[f, I, f]", s->points[k].time,
                                            (json_int_t)s->points[k].step, s->points[k].value));
        int shown = s->n ? (s->n - 1) / every * every : -1;
        if (s->n &&
            (s->points[shown].step != s->last.step || s->points[shown].time != s->last.time))
            json_array_append_new(points, json_pack("[f, I, f]", s->last.time,
                                                    (json_int_t)s->last.step, s->last.value));
        if (json_object_set_new(all, s->tag, points) < 0)
            json_object_set_new(all, "?", json_array());        /* a tag that is no text */
    }
    return all;
}

int scalars_read(const char *dir, json_t **out, struct err *err)
{
    char work[PATH_MAX];

    if (snprintf(work, sizeof work, "%s/work", dir) >= (int)sizeof work)
        return err_set(err, ERR_INVALID, "%s: the path is too long", dir);
    return scalars_read_below(work, out, err);
}

int scalars_read_below(const char *work, json_t **out, struct err *err)
{
    OWN_MEM char *bytes = malloc(READ_MAX);

    pthread_mutex_lock(&lock);
    struct board *b = bytes ? board_of(work) : NULL;
    int fd = open(work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (b && fd >= 0) {
        struct walk w = { .board = b };
        walk_folder(&w, fd, "", 0);
        if (read_sources(b, work, bytes) < 0) {
            b->dir[0] = '\0';   /* nobody's: the next that is made takes its place */
            b->used = 0;
            b = board_of(work);
            fd = b ? open(work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
            w = (struct walk){ .board = b };
            if (fd >= 0) {
                walk_folder(&w, fd, "", 0);
                read_sources(b, work, bytes);
            }
        }
    }
    json_t *all = b ? show(b) : NULL;
    pthread_mutex_unlock(&lock);
    if (!all)
        return err_set(err, ERR_NOMEM, "no memory for the numbers of a job");
    *out = all;
    return 0;
}
