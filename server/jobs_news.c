/* server/jobs_news.c - what happened to any job since: for those who wait for jobs to end */
#include "server/jobs_int.h"
#include "server/server.h"

struct look {
    int64_t after, *last;
    int (*each)(void *arg, const struct job_news *n);
    void *arg;
};

static int read_news(sqlite3 *db, void *arg, struct err *err)
{
    const struct look *l = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT seq, job, t, type, body FROM events WHERE seq > ? "
                                 "ORDER BY seq", err);
    int64_t last = l->after;
    int rc;

    if (!st || store_bind(st, err, "i", l->after) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        const struct job_news n = { sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1),
                                    sqlite3_column_double(st, 2),
                                    (const char *)sqlite3_column_text(st, 3),
                                    (const char *)sqlite3_column_text(st, 4) };
        if (l->each(l->arg, &n)) {
            sqlite3_reset(st);
            break;
        }
        last = n.seq;
    }
    if (rc < 0)
        return rc;
    *l->last = last;
    return 0;
}

int jobs_news(struct server *s, int64_t after, int (*each)(void *arg, const struct job_news *n),
              void *arg, int64_t *out_last, struct err *err)
{
    return store_read(s->store, read_news, &(struct look){ after, out_last, each, arg }, err);
}
