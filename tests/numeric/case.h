/* tests/numeric/case.h - recorded cases and plans for them
 *
 * make_fixtures.py says what a case holds. A plan is made in a given way (instruction set, threads,
 * fused or plain stages); whatever the way, the bits are to be the same within fused and within
 * plain stages.
 */
#ifndef MUSTER_TESTS_NUMERIC_CASE_H
#define MUSTER_TESTS_NUMERIC_CASE_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/graph.h"
#include "engine/plan.h"

/* A tensor of a fixture file, in the file's memory. */
struct blob {
    char name[96];
    long count;
    bool ints;                  /* I32, else F32 */
    const void *data;
};

enum { BLOBS_MAX = 128, CASE_FIELDS = 16 };

struct fixture {
    const json_t *doc;          /* the case */
    const char *name;
    char *bytes;                /* of NAME.safetensors */
    struct blob blob[BLOBS_MAX];
    int n_blobs;
    struct field field[CASE_FIELDS];
    int n_fields;
    int batch, rows;
    long steps;
    uint32_t *order;            /* (steps * batch) */
    struct graph *graph;
    double tol;
};

/* cases.json; the process ends with a message when it cannot be read. */
json_t *cases_read(void);
/* Everything that a "train" case needs; fails the test with the case's name. */
void case_open(struct fixture *f, const json_t *doc);
void case_close(struct fixture *f);
const struct blob *case_find(const struct fixture *f, const char *name);        /* NULL: none */

/* The tensors of NAME.safetensors alone. */
void case_read(struct fixture *f, const json_t *doc);

struct way {
    const char *isa;            /* NULL: the machine's best */
    int threads;
    bool plain, keep_grads;
    int shards;                 /* 0: the default of the batch */
};

/* A plan with the recorded first weights. */
struct plan *case_plan(const struct fixture *f, struct way way);
struct stretch case_stretch(const struct fixture *f);

/* Largest |got - want| over max(scale, largest |want|); infinite where one is not a number. */
double distance(const float *got, const float *want, long n, double scale);

/* FNV-1a over floats' bits, to compare whole runs. */
uint64_t bits_of(uint64_t hash, const float *v, long n);
#define BITS_START UINT64_C(1469598103934665603)

#endif
