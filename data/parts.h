/* data/parts.h - files of which a process reads the blocks that it needs
 *
 * A part is a file in memory of which only what was asked for is there: the memory of all else is
 * never touched, so it costs nothing. Blocks are read in order of their place, neighbours in one
 * piece, each is checked against the list (data/blocks.h) before anybody sees it, and is then kept.
 * A thread reads ahead what is told to it; who needs a block meanwhile goes first.
 *
 * Where the bytes come from is the source's affair: a local file, ranges of a URL, or what the
 * caller has. A source is used by one thread at a time.
 *
 * Threads: part_need and part_ahead from one thread at a time; the counters from any.
 */
#ifndef MUSTER_DATA_PARTS_H
#define MUSTER_DATA_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"
#include "data/blocks.h"

struct part_source {
    /* Exactly n bytes from `at` on. */
    int (*read)(void *arg, uint64_t at, void *to, size_t n, struct err *err);
    void (*stop)(void *arg);            /* a read ends soon, from another thread; may be NULL */
    void (*close)(void *arg);           /* may be NULL */
    void *arg;
};

/* A path of this host or a URL; its length must be `size`, else ERR_CONFLICT. */
int part_source_open(const char *path, uint64_t size, struct part_source *out, struct err *err);

struct part;

/* `name` is what messages call the file. The head is read at once. Takes `blocks` and the source,
 * also when it fails. */
int part_new(const char *name, struct blocks *blocks, const struct part_source *source,
             struct part **out, struct err *err);
void part_free(struct part *p);
OWN_DEFINE(part)

const struct blocks *part_blocks(const struct part *p);
const char *part_name(const struct part *p);
uint8_t *part_data(struct part *p);     /* of the file's byte 0; read only what was asked for */

/* A block has so many rows that who wants some of them at random wants nearly every block. */
int part_is_dense(const struct part *p);

/* Waits until these rows are there. ERR_CONFLICT: they are not what the list says; ERR_MISSING:
 * they cannot be had. Rows that are there stay. */
int part_need(struct part *p, const uint32_t *row, long n, struct err *err);
/* Has these read meanwhile, in place of what was told before. Failing is left to part_need. */
void part_ahead(struct part *p, const uint32_t *row, long n);

/* ------------------------------------------------------------------ those of a job */

enum { PARTS_MAX = 2 };         /* the training images, the test images */

struct parts {
    int n;
    struct { char *path; struct part *part; } file[PARTS_MAX];
    char digest[SHA256_HEX];    /* of the list, which stands for all of them */
};

void parts_done(struct parts *p);
/* The part that is read in place of the file at `path`; NULL: there is none. `p` may be NULL. */
struct part *parts_find(const struct parts *p, const char *path);
uint64_t parts_bytes(const struct parts *p);    /* read so far */
int parts_failed(const struct parts *p);        /* part_need has failed */

#endif
