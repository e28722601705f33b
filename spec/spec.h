/* spec/spec.h - what was asked for
 *
 * A spec file becomes one JSON document in which every default is filled in, and a struct with the
 * parts that the runtime reads most. The vocabulary is a table (spec/keys.c); a wrong key, type or
 * value is refused with file, line, column and the nearest right word. The `data` and `model`
 * sections are checked for vocabulary here and for sense by data/ and engine/, whose errors begin
 * with a path such as `model[3].conv2d`; spec_locate turns that into a line and column.
 *
 * The normal form of the document is written down in spec/keys.h. `--set` takes a path as in an
 * error ("model[3].linear.out=64", "data.train.limit=100"; model[-1] is the last layer), YAML on
 * the right, null to remove a key, and the short names `limit` (data.train.limit) and `lr` (of the
 * optimizer). Setting a head (optimizer.adam.lr) takes the place of another one.
 */
#ifndef MUSTER_SPEC_SPEC_H
#define MUSTER_SPEC_SPEC_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

struct value;

enum every_unit { EVERY_NEVER, EVERY_STEPS, EVERY_EPOCHS, EVERY_SECONDS };
struct every { long n; enum every_unit unit; };

/* "test_loss below 0.2": the run stops at the first test that fulfils one of them. */
struct stop_rule { char metric[32]; int above; double bound; };
enum { STOP_MAX = 8, METRIC_MAX = 8 };

struct job_spec {
    json_t *doc;                /* normalised; owns everything that is borrowed below */
    char path[4096];            /* of the file, for messages; "-" for stdin */
    char dir[4096];             /* relative paths start here */
    const char *name;
    const json_t *data;         /* {} when the spec is a python or command job */
    const json_t *model;
    const json_t *loss;         /* {"cross_entropy": {}} */
    const json_t *optimizer;    /* {"sgd": {...}}, or {"wide": {...}, "deep": {...}} */
    const json_t *schedule;     /* NULL: constant */
    const json_t *clip;         /* NULL: none */
    const char *metric[METRIC_MAX];
    int n_metrics;
    int batch, epochs, shards, threads;
    struct every test, checkpoint;
    int checkpoint_keep;
    const char *checkpoint_best;        /* metric, NULL: no best checkpoint */
    struct stop_rule stop[STOP_MAX];
    int n_stops;
    int patience;                       /* tests without improvement of test_loss; 0: no limit */
    uint64_t seed;
    const char *init, *order;           /* files, NULL: none */
    int workers_min, workers_max;
    const char *run_on;
    const char *program;        /* "python" or "command": a program of the user's own, and data,
                                   model ... epochs say nothing; NULL: native training */
    struct value *values;       /* the file as written, for spec_locate */
    json_t *nothing;            /* {}: the data of a program */
};

/* Reads `path` ("-": stdin), applies `set` ("key.sub=value", YAML on the right), fills defaults. */
int spec_read(const char *path, const char *const *set, int n_set, struct job_spec **out,
              struct err *err);
/* The same from memory; `name` stands for the file in messages. */
int spec_parse(const char *text, size_t n, const char *name, const char *const *set, int n_set,
               struct job_spec **out, struct err *err);
void spec_free(struct job_spec *s);                     /* NULL is fine */
static inline void job_spec_own(struct job_spec **s) { spec_free(*s); }        /* OWN(job_spec) */

/* "file:line:column" of a path such as "model[3].conv2d.out" (the nearest parent that is in the
 * file); an err whose text begins with such a path gets it put in front. Returns -code. */
int spec_locate(const struct job_spec *s, struct err *err);

/* YAML of the normalised document, for --dry-run and run.json. Caller frees; NULL: no memory. */
char *spec_print(const struct job_spec *s);

/* Without name, workers, resources, run_on and threads: the part that decides the bits. */
json_t *spec_identity(const struct job_spec *s);        /* caller frees; NULL: no memory */

/* Expands ~ and $MUSTER_DATA and prefixes `dir` to a relative path. Caller frees. */
char *spec_resolve_path(const char *dir, const char *path);

#endif
