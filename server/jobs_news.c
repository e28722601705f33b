/* server/jobs_news.c - what happened to any job since: for those who wait for jobs to end */
#include "server/jobs_int.h"
#include "server/server.h"

struct reader {
    int (*each)(void *arg, const struct job_news *n);
    void *arg;
};

static int read_row(void *arg, sqlite3_stmt *st)
{
    const struct reader *r = arg;

    return r->each(r->arg, &(struct job_news){ sqlite3_column_int64(st, 0),
                                               sqlite3_column_int64(st, 1),
                                               sqlite3_column_double(st, 2),
                                               (const char *)sqlite3_column_text(st, 3),
                                               (const char *)sqlite3_column_text(st, 4) });
}

int jobs_news(struct server *s, int64_t after, int (*each)(void *arg, const struct job_news *n),
              void *arg, int64_t *out_last, struct err *err)
{
    return store_read_since(s->store,
                            "SELECT seq, job, t, type, body FROM events WHERE seq > ? ORDER BY seq",
                            after, read_row, &(struct reader){ each, arg }, out_last, err);
}
