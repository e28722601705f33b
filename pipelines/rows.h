/* pipelines/rows.h - lists of documents: pipelines, versions, experiments, runs, recurring runs
 *
 * Each kind is a table of JSON documents. What lists are looked through by (id, project, name,
 * parent, created, state, archived) is beside the document as columns, written from it; all else is
 * found inside it. A page ends with a token that says after which row the next one begins, so what
 * is added or removed meanwhile neither repeats nor hides another row.
 *
 * Threads: any; those that take a `db` are for inside store_read and store_write.
 */
#ifndef MUSTER_PIPELINES_ROWS_H
#define MUSTER_PIPELINES_ROWS_H

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct server;

enum { ROWS_ID = 37 };          /* a UUID with its NUL */

struct rows_kind {
    const char *table;
    const char *what;           /* "pipeline": for messages */
    const char *parent;         /* the key of the document that is the column: "experiment"; NULL */
};
extern const struct rows_kind rows_pipelines, rows_versions, rows_experiments, rows_runs,
    rows_recurring;

/* What a list is asked for; all fields may be 0 but that archived -1 is both. */
struct rows_query {
    const char *project;        /* NULL: all */
    const char *parent;         /* of versions: the pipeline; of runs, recurring: the experiment */
    const char *text;           /* part of the name, whatever case */
    const char *sort;           /* "KEY", "KEY asc" or "KEY desc"; NULL: "created desc" */
    /* [{"key", "op", "value"}], all of which hold; op: EQUALS NOT_EQUALS GREATER_THAN
     * GREATER_THAN_EQUALS LESS_THAN LESS_THAN_EQUALS IN (value: a list) IS_SUBSTRING; times are
     * Unix seconds. A key is one of the document's. */
    const json_t *filter;
    const char *token;          /* of the page before; NULL or "": the first */
    int limit;                  /* 0: 20; at most 1000 */
    int archived;               /* 0: those that are not, 1: those that are, -1: both */
};

/* *out: an array of documents, yours; *out_token: "" at the end, the caller frees it; *out_total
 * (may be NULL): how many there are on all pages. ERR_INVALID: the sort, the filter or the token. */
int rows_list(struct server *s, const struct rows_kind *k, const struct rows_query *q,
              json_t **out, char **out_token, int64_t *out_total, struct err *err);
/* project NULL: any. ERR_MISSING. */
int rows_get(struct server *s, const struct rows_kind *k, const char *project, const char *id,
             json_t **out, struct err *err);
int rows_find(struct server *s, const struct rows_kind *k, const char *project,
              const char *parent, const char *name, json_t **out, struct err *err);

/* Makes the tables. */
int rows_init(struct server *s, struct err *err);
void rows_new_id(char out[ROWS_ID]);

/* Within a transaction. rows_insert: ERR_CONFLICT when the name is taken. rows_update puts `doc` in
 * the place of the one with its id. */
int rows_insert(sqlite3 *db, const struct rows_kind *k, const json_t *doc, struct err *err);
int rows_update(sqlite3 *db, const struct rows_kind *k, const json_t *doc, struct err *err);
int rows_read(sqlite3 *db, const struct rows_kind *k, const char *project, const char *id,
              json_t **out, struct err *err);
int rows_remove(sqlite3 *db, const struct rows_kind *k, const char *id, struct err *err);

/* Texts by their digest, each once; a text that no row names any more is removed with the last. */
int rows_text_put(sqlite3 *db, const char *text, size_t n, const char *flow, char out_digest[65],
                  struct err *err);
/* The text as it came, and the flow document made of it; either may be NULL. Caller frees. */
int rows_text_get(sqlite3 *db, const char *digest, char **out_text, size_t *out_n, char **out_flow,
                  struct err *err);

#endif
