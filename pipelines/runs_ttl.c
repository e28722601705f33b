/* pipelines/runs_ttl.c - ttlStrategy: a run that has ended so long ago is archived
 *
 * The row of a run that ended says when (archive_at); nothing else is kept. Its steps' logs and its
 * artifacts stay: who wants them gone deletes the run.
 */
#include <math.h>

#include "base/json.h"
#include "pipelines/runs_int.h"
#include "server/server.h"

enum { SLACK_S = 1 };

double runs_ttl_of(const json_t *flow, bool succeeded)
{
    const json_t *s = json_object_get(json_object_get(flow, "ttl"), succeeded ? "succeeded"
                                                                               : "failed");
    return s ? json_number_value(s) : -1;
}

struct due {
    double now, next;
    json_t *ids;                /* of those to archive */
    json_t *longer;             /* [id, when] of those that would wait for longer than they should */
};

static int read_due(sqlite3 *db, void *arg, struct err *err)
{
    struct due *d = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT id, json_extract(doc, '$.archive_at'), "
                                 "json_extract(doc, '$.ended') FROM runs WHERE "
                                 "archived = 0 AND json_extract(doc, '$.archive_at') > 0", err);
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        const char *id = (const char *)sqlite3_column_text(st, 0);
        const double at = sqlite3_column_double(st, 1);
        const double most = d->now + fmax(at - sqlite3_column_double(st, 2), 0);
        if (at <= d->now)
            json_array_append_new(d->ids, json_string(id));
        else if (at > most + SLACK_S)
            json_array_append_new(d->longer, json_pack("[s, f]", id, most));
        if (at > d->now && (d->next == 0 || fmin(at, most) < d->next))
            d->next = fmin(at, most);
    }
    return rc;
}

static int write_patch(struct runs *r, const char *id, json_t *patch, struct err *err)
{
    struct record e = { .patch = patch };

    snprintf(e.run, sizeof e.run, "%s", id);
    int rc = runs_log_write(r->server, &e, 1, err);
    record_done(&e);
    return rc;
}

int runs_ttl(struct runs *r, double now, double *next, struct err *err)
{
    OWN_JSON json_t *ids = json_array(), *longer = json_array();
    struct due d = { now, 0, ids, longer };
    size_t i;
    json_t *id;

    if (r->ttl_changed || (r->ttl_due > 0 && now >= r->ttl_due)) {
        if (store_read(r->server->store, read_due, &d, err) < 0)
            return -(int)err->code;
        json_array_foreach(ids, i, id)
            if (write_patch(r, json_string_value(id),
                            json_pack("{s:b, s:f}", "archived", 1, "archive_at", 0.0), err) < 0)
                return -(int)err->code;
        /* The clock was set back since they ended. */
        json_array_foreach(longer, i, id)
            if (write_patch(r, json_string_value(json_array_get(id, 0)),
                            json_pack("{s:O}", "archive_at", json_array_get(id, 1)), err) < 0)
                return -(int)err->code;
        r->ttl_changed = false;
        r->ttl_due = d.next;
        if (json_array_size(ids) && r->server->http)
            http_wake(r->server);
    }
    if (r->ttl_due > 0 && (*next == 0 || r->ttl_due < *next))
        *next = r->ttl_due;
    return 0;
}
