/* cli/image.h - what the parts of `muster image` share; for cli/image*.c only
 *
 * An image here is directories, requirements and an environment under a name: what a Dockerfile of
 * "copy the code, install the requirements" comes to. It is kept in the bucket images-PROJECT
 * (pipelines/images.h), so there is nothing of it that `muster storage` could not show.
 */
#ifndef MUSTER_CLI_IMAGE_H
#define MUSTER_CLI_IMAGE_H

#include "cli/cli.h"
#include "cli/client.h"

/* An image that is put together: its document, and a folder of ours that holds what goes to PATH
 * at STAGE/PATH. */
struct image {
    json_t *doc;                /* as pipelines/images.h has it, "dirs" without objects */
    char stage[1024];           /* "": none yet */
    char *skip;                 /* lines of .dockerignore; NULL: none */
    const char *context;        /* where copied paths begin */
};
void image_done(struct image *m);       /* with the folder */
int image_stage(struct image *m, struct err *err);      /* makes the folder, once */

/* A file or directory of this machine to `to` (inside); one that ends in '/' is a directory to put
 * it into. */
int image_copy(struct image *m, const char *from, const char *to, struct err *err);

/* Follows a Dockerfile. What has no meaning here is refused with its line, or, when `lenient`, said
 * on stderr and left out. */
int image_follow(struct image *m, const char *path, int lenient, struct err *err);

#endif
