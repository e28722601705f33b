/* pipelines/schedule.h - runs that begin by the clock
 *
 * A trigger is a cron line or a period. When it is due next follows from when it was last, so a
 * server that was off finds out what it missed: with catch-up each time that was missed gets its
 * run, without only the last of them. A run, and that it was the one for that time, are one
 * transaction: no time gets two. Document:
 *   {"id","project","name","description","experiment","pipeline","version","parameters",
 *    "state": "enabled|disabled","max_concurrency","no_catchup","service_account",
 *    "trigger": {"cron": text | "interval_s": n,"start": time or 0,"end": time or 0},"created",
 *    "updated","since": made or enabled,"last": when the last was due, or 0,"next": time or 0,
 *    "index": runs so far,"digest","dialect","message": why the last failed,"api"}
 * Lists: rows_list with rows_recurring.
 *
 * In the texts of its parameters [[ScheduledTime]], [[CurrentTime]], [[Index]] and [[RunUUID]] stand
 * for what they say, times as 20060102150405 or, after a dot, in Go's layout:
 * [[ScheduledTime.2006-01-02]].
 *
 * Threads: any for recurring_*; trigger_* and cron_* are pure.
 */
#ifndef MUSTER_PIPELINES_SCHEDULE_H
#define MUSTER_PIPELINES_SCHEDULE_H

#include <stdint.h>

#include "pipelines/rows.h"

/* ------------------------------------------------------------ when: pure */

/* Sets of the numbers that match, a bit each. */
struct cron {
    uint64_t seconds, minutes;
    uint32_t hours, days, months, weekdays;     /* days 1..31, months 1..12, weekdays 0..6 */
    bool any_day, any_weekday;  /* both are restricted: either is enough */
    int64_t every_s;            /* "@every 90s"; 0: by the sets */
};
/* Five fields (minute first) or six (second first), names of months and days, steps, lists, ranges,
 * '?' as '*'; @yearly @monthly @weekly @daily @hourly, @every 1h30m. ERR_INVALID with the field. */
int cron_parse(const char *text, struct cron *out, struct err *err);
/* The first time after `after` (Unix seconds, UTC); 0: never (30 February). */
int64_t cron_next(const struct cron *c, int64_t after);

struct trigger {
    struct cron cron;
    bool is_cron;
    int64_t interval_s;
    int64_t start, end;         /* 0: none */
    bool no_catchup;
};
/* Of a document's "trigger" and "no_catchup". */
int trigger_parse(const json_t *doc, struct trigger *out, struct err *err);
/* When it is due next: `last` is when it was due before (0: never yet), `created` when it was made
 * or enabled. May be in the past (something was missed); 0: never again. */
int64_t trigger_next(const struct trigger *s, int64_t created, int64_t last, int64_t now);

/* ------------------------------------------------------------ recurring runs */

struct recurring_request {
    const char *project, *name, *description;
    const char *experiment;     /* id; NULL: "Default" */
    const char *pipeline, *version;     /* ids; version NULL: the pipeline's default, each time */
    const char *text;           /* inline manifest or spec; NULL: of the version */
    size_t text_n;
    const json_t *parameters;   /* an object; NULL: none */
    const json_t *trigger;      /* as in the document */
    const char *service_account, *api;
    int max_concurrency;        /* 0: 1; at most 10 */
    bool no_catchup, disabled, no_cache, host_files;
};
int recurring_create(struct server *s, const struct recurring_request *q, json_t **out,
                     struct err *err);
int recurring_get(struct server *s, const char *project, const char *id, json_t **out,
                  struct err *err);
/* Time that passes while it is disabled is not caught up with. */
int recurring_enable(struct server *s, const char *project, const char *id, bool enable,
                     struct err *err);
/* Its runs stay. */
int recurring_delete(struct server *s, const char *project, const char *id, struct err *err);

/* Begins what is due at `now`; *out_next: when something is due next, 0: nothing is. For the thread
 * of runs. */
int recurring_begin(struct server *s, double now, double *out_next, struct err *err);

#endif
