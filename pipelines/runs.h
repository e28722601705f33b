/* pipelines/runs.h - runs of pipelines: created, followed, ended
 *
 * A run is an append-only log of events (pipelines/graph.h folds them). One thread takes what the
 * graph wants, submits each step as a job of the server under a name that follows from the run, the
 * step and the attempt, hears of its end, keeps its outputs and appends node.ended. All that it does
 * may be done twice: a server that was killed starts again, folds the log, and finds the jobs that
 * it had begun by their names. Document of a run (times are Unix seconds, 0: not yet):
 *   {"id","project","name","workflow": name of the workflow,"description","experiment","pipeline",
 *    "version","recurring": ids or "","state": "pending|running|succeeded|failed|error|terminating|
 *    terminated","phase": Argo's word,"message","created","scheduled","started","ended","archived",
 *    "parameters": {},"metrics": [{"name","node","value","format"}],"dialect","digest",
 *    "service_account","api","nodes": how many there are,"done": how many of them have ended,
 *    "configs"?: {map: {key: text}}, what its inputs read of config maps when it was created}
 * Lists: rows_list with rows_runs (pipelines/rows.h), parent: the experiment.
 *
 * Node: {"id","name","display","kind","phase","task","template","parent": id or "","children": [ids],
 *   "message","started","ended","attempt","inputs","outputs": {"parameters": {},"artifacts": {name:
 *   ART},"result"?,"code"?},"cached": bool,"job": name or ""}
 *   kind: "DAG" "Steps" "TaskGroup" "StepGroup" "Retry" "Pod" "Resource" "Suspend" "Importer" "Skipped"
 * ART: {"uri": "gs://BUCKET/KEY","sha256","size","dir": it is a tar,"type"?,"metadata"?,"name"?}
 *
 * Threads: any. What changes something is durable when it returns. `project` NULL: any.
 */
#ifndef MUSTER_PIPELINES_RUNS_H
#define MUSTER_PIPELINES_RUNS_H

#include "base/own.h"
#include "pipelines/rows.h"

struct runs;
struct server_part;

/* The tables, and the thread; handed to server_start by who serves. */
extern const struct server_part runs_part;

struct run_request {
    const char *project, *name;         /* name NULL: of the workflow */
    const char *description;
    const char *experiment;             /* id; NULL: "Default" */
    const char *pipeline, *version;     /* ids; version NULL: the default one of the pipeline */
    const char *recurring;
    const char *service_account;
    const json_t *parameters;           /* an object: texts (argo) or values (ir); NULL: none */
    const char *text;                   /* inline manifest or spec; NULL: of the version */
    size_t text_n;
    const char *file;                   /* its name, for messages; NULL: "pipeline.yaml" */
    const char *api;                    /* who asked: "v1beta1" ...; kept */
    double scheduled;                   /* 0: now */
    bool no_cache;                      /* every step runs, whatever it says */
    bool host_files;                    /* steps may mount directories of this machine: the server's
                                           own token asked */
    const char *host_version;           /* of this version alone, whatever is newest; NULL: of any */
};
/* ERR_INVALID: it cannot be run (with file and line), a parameter is missing or is not one of its
 * inputs; ERR_MISSING: no such experiment, pipeline, version. */
int runs_create(struct server *s, const struct run_request *q, json_t **out, struct err *err);
/* `also` is done in the same transaction, with the document of the run. */
int runs_create_with(struct server *s, const struct run_request *q,
                     int (*also)(sqlite3 *db, void *arg, const json_t *run, struct err *err),
                     void *arg, json_t **out, struct err *err);

int runs_get(struct server *s, const char *project, const char *id, json_t **out, struct err *err);
/* The manifest as it came and the flow document; either may be NULL. Caller frees. */
int runs_text(struct server *s, const char *project, const char *id, char **out_text,
              size_t *out_n, json_t **out_flow, struct err *err);
/* Parents before children. */
int runs_nodes(struct server *s, const char *project, const char *id, json_t **out,
               struct err *err);
/* One of them, by id or name. */
int runs_node(struct server *s, const char *project, const char *id, const char *node,
              json_t **out, struct err *err);
/* [{"seq","t","type",...}] after `seq`. */
int runs_events(struct server *s, const char *project, const char *id, int64_t after,
                json_t **out, struct err *err);

/* Asks; ERR_CONFLICT when it has ended. */
int runs_terminate(struct server *s, const char *project, const char *id, const char *by,
                   struct err *err);
/* What failed runs again, what succeeded stays. ERR_CONFLICT unless it failed or was terminated. */
int runs_retry(struct server *s, const char *project, const char *id, struct err *err);
/* Of a node that is suspended; node NULL: all of them. */
int runs_resume(struct server *s, const char *project, const char *id, const char *node,
                struct err *err);
int runs_archive(struct server *s, const char *project, const char *id, bool archive,
                 struct err *err);
/* With its jobs, logs and artifacts; one that runs is terminated first, and goes when it has. */
int runs_delete(struct server *s, const char *project, const char *id, struct err *err);

/* An output artifact of a node (its id or name). *out_fd: its content; may be NULL. `main-logs` is
 * what the step printed. ERR_MISSING. */
int runs_artifact(struct server *s, const char *project, const char *id, const char *node,
                  const char *name, json_t **out_art, int *out_fd, struct err *err);

/* [{"name","node","value": number,"format": "RAW"|"PERCENTAGE"}]; one that is there already (name and
 * node) is left, and named in *out_known (may be NULL). */
int runs_metrics(struct server *s, const char *project, const char *id, const json_t *metrics,
                 json_t **out_known, struct err *err);

/* Of every step: {"node","name","phase","cached": bool,"why": a sentence,"key","run"?: whose outputs
 * were taken}. */
int runs_explain(struct server *s, const char *project, const char *id, json_t **out,
                 struct err *err);

/* Does every run's log fold to what its row says? `each` gets a sentence for those that do not; for
 * `serve --check`: of the server only data_dir and store are needed. */
int runs_check(struct server *s, void (*each)(void *arg, const char *text), void *arg,
               int64_t *out_n, struct err *err);

/* Grows with every event of any run; http_wake is called when it has. */
int64_t runs_clock(struct server *s);

#endif
