/* server/jobs_int.h - a job's row, and how an event changes it */
#ifndef MUSTER_SERVER_JOBS_INT_H
#define MUSTER_SERVER_JOBS_INT_H

#include "server/jobs.h"
#include "server/store.h"

struct job_row {
    int64_t id;
    char project[64], name[JOB_NAME_MAX + 1], kind[16];
    enum job_state state;
    bool live;                  /* attempt number `attempt` was begun and has not ended */
    int priority;
    int attempt, retries;       /* the last one begun; how many were begun again */
    int min, max, now;          /* workers */
    unsigned user;              /* of that attempt, under a server that is root; 0: none */
    double cpu;                 /* of a worker, in cores; */
    int64_t memory;             /* in bytes, 0: any; */
    int gpu;
    int processes;              /* of the job, 0: it does not say */
    double created, started, ended;
    double retry_at;            /* not before; 0: at once */
    char reason[512];
    char removed[256];          /* when and why its files went; "": they are there */
    char *labels;               /* JSON text, NULL: none; owned */
};
void job_row_done(struct job_row *r);
#define OWN_ROW __attribute__((cleanup(job_row_done))) struct job_row

/* Changes the row as the event says; false: it says nothing new, and is not stored. */
bool job_fold(struct job_row *r, double t, const char *type, const json_t *body);

/* Is this a job document? ERR_INVALID with the key. */
int job_spec_check(const json_t *spec, struct err *err);
int job_name_check(const char *name, struct err *err);
int job_labels_check(const json_t *labels, struct err *err);
/* Amounts of resources that are texts ("500m", "100Mi") as numbers: *out is the document, or a copy
 * where something changed; a new reference. */
int job_spec_amounts(const json_t *spec, json_t **out, struct err *err);

#define JOB_COLUMNS "id, project, name, kind, state, live, priority, attempt, retries, min, max, now, " \
    "cpu, memory, gpu, created, started, ended, retry_at, reason, labels, user, processes, removed"
void job_row_read(sqlite3_stmt *st, struct job_row *out);       /* of SELECT JOB_COLUMNS */
int job_row_write(sqlite3 *db, const struct job_row *r, struct err *err);
int job_row_find(sqlite3 *db, const char *project, const char *name, struct job_row *out,
                 struct err *err);
int job_row_of(sqlite3 *db, int64_t id, struct job_row *out, struct err *err);   /* ERR_MISSING */
bool job_row_equal(const struct job_row *a, const struct job_row *b);

/* The document of a job; yours. */
int job_spec_of(sqlite3 *db, int64_t id, json_t **out, struct err *err);

/* Several events in one transaction; those of jobs that have ended or are gone are dropped. The bodies
 * are taken, whatever happens. */
struct job_event {
    int64_t job;
    const char *type;
    json_t *body;
};
int jobs_append_all(struct server *s, struct job_event *events, int n, struct err *err);

/* jobs/ID of the data directory, or jobs/ID/ATTEMPT for an attempt > 0. */
int job_path(const struct server *s, int64_t id, int attempt, char *out, size_t size,
             struct err *err);

#endif
