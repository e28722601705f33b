/* cli/verb.c - commands that are several: muster jobs list, muster jobs cancel */
#include "cli/verb.h"

#include <string.h>

#include "cli/jobs.h"

int verb_run(const struct command *command, const struct verb *table, int argc, char **argv,
             void *args, struct err *err)
{
    OWN(client) s = NULL;
    char *few[VERB_NAMES + 1] = { NULL };
    const struct verb *v = table;
    int n = options_parse(command->options, argc, argv, args, err);

    if (n < 0)
        return n;
    while (n > 0 && v->name && strcmp(v->name, argv[0]))
        v++;
    if (n == 0 || !v->name)
        return cli_usage(command, err);
    n--;
    argv++;
    if (n < v->min || n > v->max)
        return err_set(err, ERR_INVALID, "usage: muster %s %s %s", command->name, v->name, v->args);
    argv[n] = NULL;             /* argv of main ends so, and options have moved behind */
    if (v->max <= VERB_NAMES)
        argv = memcpy(few, argv, (size_t)n * sizeof argv[0]);
    if (job_client(*(const char **)args, &s, err) < 0)
        return -(int)err->code;
    return v->run(s, args, argv, err);
}
