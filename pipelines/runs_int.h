/* pipelines/runs_int.h - the runs that have not ended, their log, and who works on them
 *
 * One thread changes graphs, always by reading an event from the log: what it decides itself is put
 * on record first and read back, as what others say is. So the graph of a run is the fold of its log
 * at any moment, and a replay cannot differ.
 *
 * Locks: runs.lock guards the list of runs and their counts of references; a run's own lock guards
 * its graph. The thread alone adds to and takes from the list. Nobody holds one of them while waiting
 * for the disk.
 */
#ifndef MUSTER_PIPELINES_RUNS_INT_H
#define MUSTER_PIPELINES_RUNS_INT_H

#include <pthread.h>

#include "base/clock.h"
#include "pipelines/graph.h"
#include "pipelines/runs.h"

struct server;

/* ------------------------------------------------------------ a run that has not ended */

struct live {
    struct live *next;
    int refs;
    pthread_mutex_t lock;       /* of the graph */
    char id[ROWS_ID], project[64];
    json_t *doc;                /* the run's document as it was loaded */
    json_t *flow;
    json_t *volumes;            /* of the flow, resolved */
    struct run_graph *graph;
    bool wants_result;          /* something of the flow speaks of outputs.result */
    bool changed;               /* since what is wanted was last asked for */
    bool terminating, deleting, deadline_said, end_said;
    int64_t folded;             /* events up to this number are in the graph */
    double looked;              /* of one that has ended: when somebody last did */
    double deadline;            /* of the run; 0: none */
    struct later *later;        /* nodes whose time has not come */
    int n_later, later_cap;
};

/* A node that waits for its time: a leaf that is begun then, a suspended one that goes on by itself,
 * a dag whose deadline is then, a leaf that could not be stopped yet (a full disk). */
enum later_what { LATER_BEGIN, LATER_RESUME, LATER_DEADLINE, LATER_STOP };
struct later {
    const struct node *node;
    int attempt;
    enum later_what what;
    double at;
};

/* What can be known of a run: the graph of one that runs, or made again from the log. The last few
 * that were made so are kept for a while (looked); one whose log has grown since is made anew. The
 * run's lock is held between the two calls. */
struct view {
    struct live *live;          /* NULL: made for this view alone */
    struct run_graph *graph;
    json_t *doc, *flow;
    struct runs *runs;
};
int view_open(struct server *s, const char *project, const char *id, struct view *out,
              struct err *err);
void view_done(struct view *v);
/* Lets go of those that are too many, and of those that nobody looked at since `before`. */
void views_forget(struct runs *r, double before);
#define OWN_VIEW __attribute__((cleanup(view_done))) struct view

/* The run's graph with all its events in it, up to number *out_last (may be NULL). It borrows `doc`
 * and `flow`. */
int runs_fold(sqlite3 *db, const json_t *doc, const json_t *flow, struct run_graph **out,
              int64_t *out_last, struct err *err);

/* ------------------------------------------------------------ the log */

/* One entry: an event, and what changes in the run's document with it. */
struct record {
    char run[ROWS_ID];
    const char *type;           /* a literal; NULL: only the document changes */
    json_t *body;               /* owned */
    json_t *patch;              /* keys of the document; NULL: none. Owned */
    json_t *cache;              /* {"key", "outputs", "node"}: to be found again; NULL. Owned */
};
void record_done(struct record *e);

int runs_log_init(struct server *s, struct err *err);
/* Within a transaction. */
int runs_log_add(sqlite3 *db, const struct record *e, struct err *err);
/* All of them in one transaction; then they are done with. After a failure they are as they were. */
int runs_log_write(struct server *s, struct record *entries, int n, struct err *err);

struct run_news {
    int64_t seq;
    double t;
    const char *run, *type, *body;
};
int runs_log_read(struct server *s, int64_t after, int (*each)(void *arg, const struct run_news *n),
                  void *arg, int64_t *out_last, struct err *err);

/* ------------------------------------------------------------ all of them */

struct hands;                   /* threads that carry artifacts */

struct runs {
    struct server *server;
    pthread_t thread;
    bool has_thread;
    _Atomic bool ending;
    pthread_mutex_t lock;
    struct live *first;
    struct live *looked;        /* runs that have ended and were looked at, the last one first */
    int64_t seen_runs, seen_jobs;       /* of the logs */
    void *leaves;               /* tree by job's uid: struct leaf */
    int n_leaves;
    bool deaf;                  /* nobody is waited for: seen_jobs stands still */
    struct record *pending;
    int n_pending, pending_cap;
    struct hands *hands;
    bool remove;                /* a run that is to be removed has ended */
    struct clock_watch clock;
    double due;                 /* of recurring runs; 0: nothing is */
    double ttl_due;             /* of the next run that is to be archived; 0: none */
    bool ttl_changed;           /* one has ended that is to be, or nobody has looked yet */
    _Atomic bool schedule_changed;
};

/* The config maps that the flow's inputs read, as they are now: {map: {key: text}}. *out stays NULL
 * where it reads none. */
int runs_configs(struct server *s, const char *project, const json_t *flow, json_t **out,
                 struct err *err);

void runs_wake(struct server *s);
void runs_forget(struct runs *r);       /* leaves and runs, when the thread has ended */
/* An ended one, with all that it left. */
int runs_remove(struct server *s, const char *project, const char *id, struct err *err);
void live_unref(struct runs *r, struct live *l);

/* ------------------------------------------------------------ leaves */

/* A leaf whose job has been submitted. */
struct leaf {
    int64_t uid;
    struct runs *run_of;
    struct live *run;           /* a reference */
    const struct node *node;    /* lives as long as the run's graph */
    int attempt;
    const char *name;           /* of the node; borrowed from it */
    char job[160];
    char reason[256];
    double started, ended;
    int code, signal;
    bool good, cancelled, lost; /* succeeded; asked to stop; its keeper was killed */
    _Atomic bool leave;         /* what it left is not wanted any more */
    json_t *body;               /* of node.ended, when it is made */
    json_t *cache;
    json_t *metrics;
    struct leaf *next;          /* in the hands of others */
};
void leaf_free(struct leaf *f);
OWN_DEFINE(leaf)

/* What node.ended says, its outputs kept as objects first: all that may take long. Any thread; the
 * order is as of run_graph_order. */
void leaf_collect(struct server *s, struct leaf *f, const json_t *order);

/* The hands: leaf_collect on threads of their own, `done` being called after each. */
int hands_new(struct runs *r, struct hands **out, struct err *err);
void hands_free(struct hands *h);
void hands_give(struct hands *h, struct leaf *f, json_t *order);        /* takes both */
/* A node whose outputs are being carried needs them no more; false: they are not. It ends all the
 * same, and is taken like any other. */
bool hands_leave(struct hands *h, const struct node *n);
struct leaf *hands_take(struct hands *h);       /* one that is done; NULL: none. Yours */

/* ------------------------------------------------------------ steps.c */

/* What a step's job is told. ERR_INVALID: it cannot be; the step ends with that sentence. */
int step_job(struct server *s, const struct live *l, const struct node *n, const json_t *order,
             json_t **out, struct err *err);
/* The outputs of a job that has ended, kept as objects; {"parameters": {}, "artifacts": {}, "result"?}.
 * ERR_MISSING with the output that the step did not leave. */
int step_outputs(struct server *s, const struct leaf *f, const json_t *order, json_t **out,
                 struct err *err);
/* What a step of kfp 2 is told is put into its order; others' stay as they are. */
int step_fill(const struct live *l, const struct node *n, json_t *order, struct err *err);
/* "artifacts-PROJECT"; made when it is not there. */
int step_bucket(struct server *s, const char *project, char *out, size_t size, struct err *err);
/* A value of a Secret or a ConfigMap is kept as NAME.KEY; yours. ERR_MISSING. */
int step_config(struct server *s, const char *project, const char *name, const char *key,
                char **out, struct err *err);

/* ------------------------------------------------------------ resource_steps.c */

/* Does what a resource template says; *out: its outputs, *out_configs: {name: {key: text}} of the
 * config map that it changed, or NULL. */
int resource_do(struct server *s, const struct live *l, const struct node *n, const json_t *order,
                json_t **out, json_t **out_configs, struct err *err);
/* A TrainingJob that is to be created: *out is its job's document, and the step is that job. False: it
 * is nothing of that kind. */
bool resource_job(const struct live *l, const struct node *n, const json_t *order, json_t **out,
                  int *out_rc, struct err *err);
/* What that step has for outputs when the job has ended. */
int resource_outputs(struct server *s, const struct leaf *f, const json_t *order, json_t **out,
                     struct err *err);
/* training_job.c */
int training_job(const struct live *l, const struct node *n, const json_t *manifest, json_t **out,
                 struct err *err);
int training_job_find(struct server *s, const char *project, const char *name, json_t **out,
                      struct err *err);
/* Workers and labels of a manifest that is a patch; all else is refused. */
int training_job_patch(struct server *s, const char *project, const char *name,
                       const json_t *patch, struct err *err);
int training_job_stop(struct server *s, const char *project, const char *name, struct err *err);
/* Is this step's command one that the server does itself (kubectl delete)? Then it is done: *out is
 * what it prints. False: it is not. */
bool resource_command(struct server *s, const struct live *l, const json_t *order, json_t **out,
                      int *out_rc, struct err *err);

/* ------------------------------------------------------------ runs_ttl.c */

/* Seconds after its end when a run is archived; below 0: never. */
double runs_ttl_of(const json_t *flow, bool succeeded);
/* Archives those whose time has come; *next: not later than when the next one's does. */
int runs_ttl(struct runs *r, double now, double *next, struct err *err);

/* ------------------------------------------------------------ runs_thread.c */

/* Before a job is submitted: from now on events of jobs are heard. */
void runs_hear(struct runs *r);

void *runs_thread(void *runs);
/* Adds an entry that is written with the next ones; takes body, patch and cache. */
void runs_pending(struct runs *r, const struct live *l, const char *type, json_t *body,
                  json_t *patch, json_t *cache);

#endif
