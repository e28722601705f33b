/* cli/value.h - secrets and config values: the same verbs over two kinds
 *
 * A value never stands on a command line, where others on the machine could read it: it comes from
 * standard input, or is typed at a prompt that shows nothing.
 */
#ifndef MUSTER_CLI_VALUE_H
#define MUSTER_CLI_VALUE_H

#include "cli/cli.h"

struct value_kind {
    const char *path;           /* "secrets", "config": in the API */
    const char *noun;
    int shown;                  /* may be read back */
    const struct command *command;
};

extern const struct option value_options[];
int value_run(const struct value_kind *kind, struct cli *cli, int argc, char **argv,
              struct err *err);

#endif
