/* protocols/native_jobs.c - /api/jobs: submit, look, follow, change */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "protocols/native.h"
#include "protocols/native_logs.h"
#include "server/jobs.h"
#include "server/scalars.h"
#include "server/server.h"

enum { FILES_MAX = 2000, DEPTH_MAX = 16, PATH_SIZE = 4096 };

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

/* ------------------------------------------------------------ lists and single ones */

static int list_jobs(struct request *q, struct err *err)
{
    const char *named = request_query(q, "project");
    struct jobs_query query = { .project = named && *named ? named : request_project(q),
                                .state = request_query(q, "state"),
                                .text = request_query(q, "text"),
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
        || native_number(q, "limit", 1, 1000, &limit, err) < 0)
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
        return err_set(err, ERR_INVALID,
                       "the body is {\"spec\": {...}} with the job's document in it");
    if (name && !json_is_string(name))
        return err_set(err, ERR_INVALID, "\"name\" is a text");
    /* Whoever has the server's own token owns the machine; a project's reads what it put in
     * buckets. */
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
    json_object_set_new(job, "not_kept",
                        server_not_kept(request_server(q), json_object_get(job, "spec")));
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
    /* The owner's rights take the owner again: a package in a bucket may be another one by now. */
    if (request_project(q))
        json_object_set_new(spec, "host_files", json_false());
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
    OWN_JSON json_t *job = NULL;
    json_t *out = NULL;

    if (job_of(q, &j, err) < 0 ||
        jobs_get(request_server(q), j.project, j.name, &job, err) < 0)
        return -(int)err->code;
    if (json_object_get(job, "files_removed"))
        return respond_json(q, 200, json_object());
    if (jobs_dir(request_server(q), j.project, j.name, dir, sizeof dir, err) < 0
        || (*dir && scalars_read(dir, &out, err) < 0))
        return -(int)err->code;
    return respond_json(q, 200, *dir ? out : json_object());
}

/* ------------------------------------------------------------ what it said */

static int get_events(struct request *q, struct err *err)
{
    struct job_name j;

    return job_of(q, &j, err) < 0 ? -(int)err->code : native_events(q, j.project, j.name, err);
}

static int get_logs(struct request *q, struct err *err)
{
    struct job_name j;

    return job_of(q, &j, err) < 0 ? -(int)err->code : native_logs(q, j.project, j.name, err);
}

/* ------------------------------------------------------------ what a job left behind */

/* Never out of `dir`, through no link: jobs made what is in there. */
static int open_beneath(int dir, const char *path, int flags)
{
    struct open_how how = { .flags = (uint64_t)(flags | O_CLOEXEC),
                            .resolve =
                                RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
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
