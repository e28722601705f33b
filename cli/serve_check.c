/* cli/serve_check.c - muster serve --check: is all that is kept what was written? */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/own.h"
#include "cli/serve_data.h"
#include "drivers/environment.h"
#include "drivers/runtimes.h"
#include "pipelines/runs.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/objects.h"
#include "server/server.h"
#include "server/store_pages.h"

struct report {
    const char *where;          /* before each sentence; "": nothing */
    int findings;
    int64_t jobs, runs, contents, bytes, pages, lines;
    int envs;
    double env_bytes;
};

static void tell(void *arg, const char *text)
{
    struct report *r = arg;

    printf("%s%s%s\n", r->where, *r->where ? "/" : "", text);
    r->findings += text[0] != ' ';      /* those that are set in say more about the one before */
}

static void tell_failure(struct report *r, int rc, const struct err *err)
{
    if (rc < 0)
        tell(r, err->text);
}

/* ------------------------------------------------------------ jobs/ID/ATTEMPT */

static void check_attempt(struct report *r, const char *dir)
{
    struct err err = { 0 };
    int64_t lines = 0;

    r->where = dir;
    tell_failure(r, logs_check(dir, tell, r, &lines, &err), &err);
    r->where = "";
    r->lines += lines;
}

/* Calls fn for each folder of `dir` whose name is a number. */
static void each_number(struct report *r, const char *dir,
                        void (*fn)(struct report *r, const char *dir))
{
    DIR *d = opendir(dir);

    for (const struct dirent *e; d && (e = readdir(d));) {
        char path[PATH_MAX];
        if (strspn(e->d_name, "0123456789") == strlen(e->d_name) &&
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path)
            fn(r, path);
    }
    if (d)
        closedir(d);
}

static void check_job_files(struct report *r, const char *dir)
{
    each_number(r, dir, check_attempt);
}

int64_t serve_check_logs(const char *dir)
{
    struct report r = { .where = "" };
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%.4000s/jobs", dir);
    each_number(&r, path, check_job_files);
    return r.findings;
}

/* ------------------------------------------------------------ the whole */

static void check_database(struct report *r, struct server *s)
{
    struct err err = { 0 };
    int rc;

    tell_failure(r, store_check(s->store, tell, r, &err), &err);
    rc = jobs_init(s, &err);
    tell_failure(r, rc < 0 ? rc : jobs_check(s, tell, r, &r->jobs, &err), &err);
    tell_failure(r, runs_check(s, tell, r, &r->runs, &err), &err);
    tell_failure(r, objects_check(s, tell, r, &r->contents, &r->bytes, &err), &err);
}

int serve_check(const char *dir, struct err *err)
{
    struct server s = { .data_dir = dir };
    struct report r = { .where = "" };
    struct err why = { 0 };
    char path[PATH_MAX];

    int rc = serve_open_store(dir, &s, &why);
    OWN(store) store = s.store;
    (void)store;                /* closed at the end */
    if (rc == -ERR_MISSING) {
        *err = why;
        return rc;
    }
    if (rc < 0) {               /* its pages can be looked at all the same */
        tell(&r, why.text);
        snprintf(path, sizeof path, "%.4000s/muster.db", dir);
        tell_failure(&r, pages_check(path, tell, &r, &r.pages, &why), &why);
    } else {
        check_database(&r, &s);
    }
    snprintf(path, sizeof path, "%.4000s/jobs", dir);
    each_number(&r, path, check_job_files);
    tell_failure(&r, environment_check(dir, &r.envs, &r.env_bytes, &why), &why);
    tell_failure(&r, runtimes_check(dir, &why), &why);
    fflush(stdout);
    if (r.findings)
        return err_set(err, ERR_IO, "%s is damaged: %d finding%s (restore a backup, or what is named "
                       "above from it)", dir, r.findings, r.findings == 1 ? "" : "s");
    printf("%s is sound: the database, %lld jobs and %lld runs with their events, %lld lines of "
           "logs, %lld contents (%.1f MB in files), %d environments (%.1f MB)\n", dir,
           (long long)r.jobs, (long long)r.runs, (long long)r.lines, (long long)r.contents,
           (double)r.bytes / 1e6, r.envs, r.env_bytes / 1e6);
    return 0;
}
