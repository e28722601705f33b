/* server/retention_use.c - what projects take of the disk, where that is limited
 *
 * DESIGN. A project that is over its limit has no room for more; who is ended is who writes: a job
 * whose directory has grown since it was measured last, or which mounts volumes when those have grown.
 * Jobs that write little go on.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/tree.h"
#include "server/auth.h"
#include "server/jobs_int.h"
#include "server/quota.h"
#include "server/retention_int.h"
#include "server/server.h"

static const int64_t LITTLE_BYTES = 1 << 20;
/* Between two looks, with and without jobs that run; measuring may take a twentieth of the time. */
static const double BUSY_S = 0.5, IDLE_S = 5;
enum { MEASURE_PART = 20 };

struct reading {
    const char *project;
    int64_t buckets, ended;
    struct area *area;          /* its jobs, not measured yet */
};

static bool mounts_volume(const json_t *spec)
{
    const json_t *mounts = json_object_get(json_object_get(spec, "step"), "mounts"), *mount;
    size_t i;

    json_array_foreach((json_t *)mounts, i, mount) {
        const char *from = json_string_value(json_object_get(mount, "from"));
        if (from && !strncmp(from, "volume:", 7))
            return true;
    }
    return false;
}

static int read_running(sqlite3 *db, struct area *a, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT id, attempt FROM jobs WHERE project = ? AND state < 4 "
                                 "AND attempt > 0", err);
    int rc;

    if (!st || store_bind(st, err, "s", a->project) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        struct measured *more = realloc(a->jobs, (size_t)(a->n + 1) * sizeof *more);
        if (!more) {
            sqlite3_reset(st);
            return err_set(err, ERR_NOMEM, "no memory to look at jobs' files");
        }
        a->jobs = more;
        a->jobs[a->n++] = (struct measured){ .job = sqlite3_column_int64(st, 0),
                                             .attempt = sqlite3_column_int(st, 1) };
    }
    for (int i = 0; rc == 0 && i < a->n; i++) {
        json_t *spec = NULL;
        rc = job_spec_of(db, a->jobs[i].job, &spec, err);
        a->jobs[i].volumes = rc == 0 && mounts_volume(spec);
        json_decref(spec);
    }
    return rc;
}

static int read_project(sqlite3 *db, void *arg, struct err *err)
{
    struct reading *r = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT ifnull(sum(bytes), 0) FROM jobs JOIN job_files ON job = "
                                 "id WHERE project = ? AND removed = ''", err);

    if (!st || store_bind(st, err, "s", r->project) < 0 || store_step(st, err) < 0)
        return -(int)err->code;
    r->ended = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    if (quota_bucket_bytes(db, r->project, &r->buckets, err) < 0)
        return -(int)err->code;
    return read_running(db, r->area, err);
}

static void area_free(struct area *a)
{
    if (!a)
        return;
    free(a->jobs);
    free(a);
}
OWN_DEFINE(area)

static const struct measured *measured_before(const struct area *a, int64_t job)
{
    for (int i = 0; a && i < a->n; i++)
        if (a->jobs[i].job == job)
            return &a->jobs[i];
    return NULL;
}

static void end_job(struct retention *r, const struct measured *m, const char *reason)
{
    char dir[4096], path[sizeof dir + 8];
    struct err err = { 0 };

    if (job_path(r->server, m->job, m->attempt, dir, sizeof dir, &err) < 0)
        return;
    snprintf(path, sizeof path, "%s/full", dir);
    if (files_write(path, reason, strlen(reason), &err) < 0)
        log_event(LEVEL_WARN, "job.not_told", "{s:I, s:s}", "uid", (json_int_t)m->job, "reason",
                  err.text);
}

/* Those that have grown since the time before. */
static void end_writers(struct retention *r, const struct area *before, const struct area *now)
{
    char text[300], reason[400];
    bool volumes = before && now->volumes > before->volumes + LITTLE_BYTES;

    quota_say_full(r->server->quota, now->project, text, sizeof text);
    snprintf(reason, sizeof reason, "killed: %.190s", text);
    for (int i = 0; i < now->n; i++) {
        const struct measured *m = &now->jobs[i], *then = measured_before(before, m->job);
        if ((then && m->bytes > then->bytes + LITTLE_BYTES) || (volumes && m->volumes))
            end_job(r, m, reason);
    }
}

static int measure_project(struct retention *r, const char *project, struct area **at,
                           struct err *err)
{
    OWN(area) now = calloc(1, sizeof *now);
    struct reading read = { .project = project, .area = now };
    char path[PATH_MAX];

    if (!now)
        return err_set(err, ERR_NOMEM, "no memory to look at jobs' files");
    snprintf(now->project, sizeof now->project, "%s", project);
    if (store_read(r->server->store, read_project, &read, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%s/volumes/%s", r->server->data_dir, project);
    int64_t files = read.ended + (now->volumes = tree_bytes(path, NULL));
    for (int i = 0; i < now->n; i++) {
        if (job_path(r->server, now->jobs[i].job, 0, path, sizeof path, err) < 0)
            return -(int)err->code;
        files += now->jobs[i].bytes = tree_bytes(path, NULL);
    }
    quota_measured(r->server->quota, project, read.buckets, files);
    if (quota_left(r->server->quota, project) == 0)
        end_writers(r, *at, now);
    if (*at) {
        now->next = (*at)->next;
        area_free(*at);
    }
    *at = TAKE(now);
    return 0;
}

static struct area **area_at(struct retention *r, const char *project)
{
    struct area **at = &r->areas;

    while (*at && strcmp((*at)->project, project))
        at = &(*at)->next;
    return at;
}

double use_measure(struct retention *r)
{
    const double began = clock_seconds();
    OWN_JSON json_t *list = NULL;
    struct err err = { 0 };
    double again = IDLE_S;
    size_t i;
    json_t *row;

    if (!r->server->auth || !quota_limits_disk(r->server->quota) ||
        auth_project_list(r->server->auth, &list, &err) < 0)
        return 0;
    json_array_foreach(list, i, row) {
        const char *project = json_string_value(json_object_get(row, "name"));
        struct quota_limits limits;
        quota_of(r->server->quota, project, NULL, NULL, &limits);
        if (limits.disk <= 0 || r->ending)
            continue;
        struct area **at = area_at(r, project);
        if (measure_project(r, project, at, &err) < 0)
            log_event(LEVEL_WARN, "retention.trouble", "{s:s}", "reason", err.text);
        else if ((*at)->n > 0)
            again = BUSY_S;
    }
    double took = (clock_seconds() - began) * MEASURE_PART;
    return took > again ? took : again;
}

void use_free(struct retention *r)
{
    while (r->areas) {
        struct area *a = r->areas;
        r->areas = a->next;
        area_free(a);
    }
}
