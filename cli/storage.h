/* cli/storage.h - what the verbs of `muster storage` share; for cli/storage*.c only */
#ifndef MUSTER_CLI_STORAGE_H
#define MUSTER_CLI_STORAGE_H

#include <stdint.h>

#include "base/buf.h"
#include "cli/cli.h"
#include "cli/client.h"

struct storage_args {
    int recursive, json, lengthy, quiet;
    const char *type;
};

struct storage {
    struct cli *cli;
    struct client *client;
    struct storage_args args;
    struct buf failures;        /* of a copy of many: a line each, told at the end */
};

/* gs://BUCKET/NAME; name is "" for a bucket. Both borrowed from storage_free's side: caller frees
 * `mem`. */
struct gs_place {
    char *mem, *bucket, *name;
};
#define OWN_GS __attribute__((cleanup(gs_done))) struct gs_place
void gs_done(struct gs_place *p);
int is_gs(const char *text);
int gs_parse(const char *text, struct gs_place *out, struct err *err);
int has_glob(const char *name);

/* "/storage/v1/b/BUCKET/o/NAME" and `after`; caller frees. */
char *object_path(const char *prefix, const char *bucket, const char *name, const char *after);

/* Each object whose name begins with `prefix` (or fits `glob`); with delimiter "/" prefixes too, as
 * strings. `each` non-zero ends it with that. */
struct storage_query {
    const char *bucket, *prefix, *glob, *delimiter;
};
int storage_each(struct storage *s, const struct storage_query *q,
                 int (*each)(void *arg, const json_t *item, struct err *err), void *arg,
                 struct err *err);

/* The number in a document, whether it is one or a text. */
int64_t doc_number(const json_t *doc, const char *key);
const char *doc_text(const json_t *doc, const char *key);

/* cp SOURCE... TARGET */
int storage_copy(struct storage *s, int n, char **paths, struct err *err);
/* To a descriptor or, with a path, a file that is whole or not there. */
int storage_fetch(struct storage *s, const char *bucket, const char *name, const char *path,
                  struct err *err);

#endif
