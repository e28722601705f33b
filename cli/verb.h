/* cli/verb.h - commands that are several: muster jobs list, muster jobs cancel
 *
 *     struct args { const char *project; int json; };
 *     static int cancel(struct client *s, const void *args, char **names, struct err *err)
 *     {
 *         const struct args *a = args;
 *         ...
 *     }
 *     static const struct verb verbs[] = {
 *         { "cancel", "JOB...", 1, VERB_MANY, cancel },
 *         { 0 }
 *     };
 */
#ifndef MUSTER_CLI_VERB_H
#define MUSTER_CLI_VERB_H

#include "cli/cli.h"
#include "cli/client.h"

enum {
    VERB_NAMES = 3,             /* a verb that takes no more may look at all of them: NULL, not given */
    VERB_MANY = 1000,
};

/* A table ends with a row without a name. */
struct verb {
    const char *name;
    const char *args;           /* for the usage: "RUN [STEP]" */
    int min, max;               /* how many */
    /* `names` ends with NULL. */
    int (*run)(struct client *s, const void *args, char **names, struct err *err);
};

/* Reads the command's options into `args`, whose first member is --project, and runs the verb that
 * the first argument names, with the server open. */
int verb_run(const struct command *command, const struct verb *table, int argc, char **argv,
             void *args, struct err *err);

#endif
