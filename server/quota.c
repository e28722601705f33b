/* server/quota.c - what a job and a project may use, as runtimes.yaml says now */
#include "server/quota.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "drivers/limits.h"
#include "drivers/runtimes.h"
#include "server/server.h"
#include "server/store.h"

/* What a project has on the disk, of one whose disk is limited. */
struct usage {
    char project[64];
    int64_t buckets, files;
    struct usage *next;
};

struct quota {
    struct server *server;
    const char *data_dir;
    pthread_mutex_t lock;       /* of all below */
    json_t *table;
    struct timespec changed;    /* of the file that the table was read from */
    off_t size;
    struct usage *usages;
};

/* ------------------------------------------------------------ the table */

int quota_new(struct server *s, struct quota **out, struct err *err)
{
    OWN(quota) q = calloc(1, sizeof *q);

    if (!q)
        return err_set(err, ERR_NOMEM, "no memory for limits");
    pthread_mutex_init(&q->lock, NULL);
    q->server = s;
    q->data_dir = s->data_dir;
    if (runtimes_limits(s->data_dir, &q->table, err) < 0)
        return -(int)err->code;
    *out = TAKE(q);
    return 0;
}

void quota_free(struct quota *q)
{
    if (!q)
        return;
    while (q->usages) {
        struct usage *u = q->usages;
        q->usages = u->next;
        free(u);
    }
    json_decref(q->table);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* Under the lock. */
static void read_again(struct quota *q)
{
    struct err err = { 0 };
    json_t *table = NULL;
    struct stat st;
    char path[4096];

    snprintf(path, sizeof path, "%s/runtimes.yaml", q->data_dir);
    if (stat(path, &st) < 0 || (st.st_size == q->size && st.st_mtim.tv_sec == q->changed.tv_sec &&
                                st.st_mtim.tv_nsec == q->changed.tv_nsec))
        return;
    q->size = st.st_size;
    q->changed = st.st_mtim;
    if (runtimes_limits(q->data_dir, &table, &err) < 0) {
        log_event(LEVEL_WARN, "limits.unread", "{s:s, s:s}", "reason", err.text, "instead",
                  "the limits of before");
        return;
    }
    json_decref(q->table);
    q->table = table;
}

static struct quota_limits limits_in(const json_t *row)
{
    return (struct quota_limits){ json_number_value(json_object_get(row, "memory")),
                                  json_number_value(json_object_get(row, "cpu")),
                                  json_number_value(json_object_get(row, "processes")),
                                  json_number_value(json_object_get(row, "disk")),
                                  json_number_value(json_object_get(row, "jobs")) };
}

/* Under the lock. */
static struct quota_limits project_limits(struct quota *q, const char *project)
{
    OWN_JSON json_t *all = json_copy(json_object_get(q->table, "project"));

    json_object_update(all, json_object_get(json_object_get(q->table, "projects"), project));
    return limits_in(all);
}

/* The lesser of two limits, where 0 is none. */
static double lesser(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

void quota_of(struct quota *q, const char *project, struct quota_limits *job,
              struct quota_limits *job_max, struct quota_limits *of_project)
{
    struct quota_limits one = { 0 }, most = { 0 }, all = { 0 };

    if (q) {
        pthread_mutex_lock(&q->lock);
        read_again(q);
        one = limits_in(json_object_get(q->table, "job"));
        most = limits_in(json_object_get(q->table, "job_max"));
        all = project_limits(q, project);
        pthread_mutex_unlock(&q->lock);
        one.memory = lesser(one.memory, lesser(most.memory, all.memory));
        one.processes = lesser(one.processes, lesser(most.processes, all.processes));
        one.disk = lesser(one.disk, lesser(most.disk, all.disk));
    }
    if (job)
        *job = one;
    if (job_max)
        *job_max = most;
    if (of_project)
        *of_project = all;
}

void quota_keep(struct quota *q, double *out_days, double *out_bytes)
{
    *out_days = *out_bytes = 0;
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    read_again(q);
    const json_t *row = json_object_get(q->table, "jobs");
    *out_days = json_number_value(json_object_get(row, "days"));
    *out_bytes = json_number_value(json_object_get(row, "size"));
    pthread_mutex_unlock(&q->lock);
}

bool quota_limits_disk(struct quota *q)
{
    const char *name;
    json_t *row;

    if (!q)
        return false;
    pthread_mutex_lock(&q->lock);
    read_again(q);
    bool some = limits_in(json_object_get(q->table, "project")).disk > 0;
    json_object_foreach(json_object_get(q->table, "projects"), name, row)
        some |= limits_in(row).disk > 0;
    pthread_mutex_unlock(&q->lock);
    return some;
}

/* ------------------------------------------------------------ jobs */

struct asked { const char *key; double each, min, max; };       /* of a worker; of the job */

static struct asked ask_of(const json_t *spec, const char *key, bool of_worker)
{
    const json_t *workers = json_object_get(spec, "workers");
    const json_t *min = json_object_get(workers, "min"), *max = json_object_get(workers, "max");
    double least = of_worker && min ? json_number_value(min) : 1;
    double most = of_worker && max ? json_number_value(max) : least;
    double each = json_number_value(json_object_get(json_object_get(spec, "resources"), key));

    return (struct asked){ key, each, each * least, each * most };
}

static void print(const char *key, double n, char *out, size_t size)
{
    if (!strcmp(key, "memory") || !strcmp(key, "disk"))
        limits_print_bytes((long long)n, out, size);
    else
        snprintf(out, size, "%g", n);
}

static int refuse(const struct asked *a, double n, double limit, const char *whose,
                  const char *where, struct err *err)
{
    char asks[64], has[64];

    print(a->key, n, asks, sizeof asks);
    print(a->key, limit, has, sizeof has);
    return err_set(err, ERR_INVALID, "resources.%s: the job asks for %s%s, and %s may have %s (%s in "
                   "runtimes.yaml)", a->key, asks, n > a->each ? " with all its workers" : "", whose,
                   has, where);
}

int quota_check_job(struct quota *q, const char *project, const json_t *spec, struct err *err)
{
    const struct asked all[] = { ask_of(spec, "memory", true), ask_of(spec, "cpu", true),
                                 ask_of(spec, "processes", false), ask_of(spec, "disk", false) };
    struct quota_limits most, of_project;
    char whose[128];

    if (!q)
        return 0;
    quota_of(q, project, NULL, &most, &of_project);
    snprintf(whose, sizeof whose, "the jobs of project \"%.64s\" together", project);
    const double job_max[] = { most.memory, most.cpu, most.processes, most.disk };
    const double together[] = { of_project.memory, of_project.cpu, of_project.processes,
                                of_project.disk };
    for (int i = 0; i < 4; i++) {
        if (job_max[i] > 0 && all[i].max > job_max[i])
            return refuse(&all[i], all[i].max, job_max[i], "a job", "limits.job_max", err);
        if (together[i] > 0 && all[i].min > together[i])
            return refuse(&all[i], all[i].min, together[i], whose, "limits.project", err);
    }
    return quota_left(q, project) > 0 ? 0 : quota_room(q, project, 1, err);
}

/* ------------------------------------------------------------ disk */

/* Under the lock. NULL: nobody has measured it. */
static struct usage *usage_of(struct quota *q, const char *project)
{
    struct usage *u = q->usages;

    while (u && strcmp(u->project, project))
        u = u->next;
    return u;
}

void quota_measured(struct quota *q, const char *project, int64_t buckets, int64_t files)
{
    pthread_mutex_lock(&q->lock);
    struct usage *u = usage_of(q, project);
    if (!u && (u = calloc(1, sizeof *u))) {
        snprintf(u->project, sizeof u->project, "%s", project);
        u->next = q->usages;
        q->usages = u;
    }
    if (u) {
        if (buckets >= 0)
            u->buckets = buckets;
        u->files = files;
    }
    pthread_mutex_unlock(&q->lock);
}

/* *out_limit 0: it has none. */
static int64_t used_by(struct quota *q, const char *project, int64_t more, double *out_limit)
{
    pthread_mutex_lock(&q->lock);
    read_again(q);
    *out_limit = project_limits(q, project).disk;
    struct usage *u = *out_limit > 0 ? usage_of(q, project) : NULL;
    if (u)
        u->buckets += more;
    int64_t used = u ? u->buckets + u->files : 0;
    pthread_mutex_unlock(&q->lock);
    return used;
}

int64_t quota_left(struct quota *q, const char *project)
{
    double limit = 0;
    int64_t used = q ? used_by(q, project, 0, &limit) : 0;

    return limit <= 0 ? INT64_MAX : (double)used >= limit ? 0 : (int64_t)limit - used;
}

void quota_say_full(struct quota *q, const char *project, char *out, size_t size)
{
    char has[32], may[32];
    double limit = 0;
    int64_t used = used_by(q, project, 0, &limit);

    limits_print_bytes((long long)used, has, sizeof has);
    limits_print_bytes((long long)limit, may, sizeof may);
    snprintf(out, size, "the disk is full for project \"%.64s\": its buckets, volumes and jobs take %s "
             "of the %s that it may have (limits in runtimes.yaml)", project, has, may);
}

static int is_full(struct quota *q, const char *project, struct err *err)
{
    char text[400];

    quota_say_full(q, project, text, sizeof text);
    return err_set(err, ERR_IO, "%s: delete something and try again", text);
}

int quota_bucket_bytes(sqlite3 *db, const char *project, int64_t *out, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT ifnull(sum(size), 0) FROM objects WHERE bucket IN "
                                 "(SELECT id FROM buckets WHERE project = ?)", err);

    if (!st || store_bind(st, err, "s", project) < 0 || store_step(st, err) < 0)
        return -(int)err->code;
    *out = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return 0;
}

struct counting { struct quota *quota; const char *project; };

/* What was deleted or written over since it was counted is not there any more. */
static int count_again(sqlite3 *db, void *arg, struct err *err)
{
    const struct counting *c = arg;
    int64_t buckets;

    if (quota_bucket_bytes(db, c->project, &buckets, err) < 0)
        return -(int)err->code;
    pthread_mutex_lock(&c->quota->lock);
    struct usage *u = usage_of(c->quota, c->project);
    int64_t files = u ? u->files : 0;
    pthread_mutex_unlock(&c->quota->lock);
    quota_measured(c->quota, c->project, buckets, files);
    return 0;
}

int quota_room(struct quota *q, const char *project, int64_t n, struct err *err)
{
    struct counting c = { q, project };

    if (!q || quota_left(q, project) >= n)
        return 0;
    if (store_read(q->server->store, count_again, &c, err) < 0)
        return -(int)err->code;
    return quota_left(q, project) >= n ? 0 : is_full(q, project, err);
}

int quota_store(struct quota *q, sqlite3 *db, const char *project, int64_t n, struct err *err)
{
    struct counting c = { q, project };
    double limit = 0;

    if (!q || n <= 0)
        return 0;
    if (quota_left(q, project) < n) {
        if (count_again(db, &c, err) < 0)
            return -(int)err->code;
        if (quota_left(q, project) < n)
            return is_full(q, project, err);
    }
    used_by(q, project, n, &limit);
    return 0;
}
