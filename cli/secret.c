/* cli/secret.c - muster secret: secrets of a project */
#include "cli/value.h"

static const struct value_kind kind = { "secrets", "secret", 0, &command_secret };

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    return value_run(&kind, cli, argc, argv, err);
}

const struct command command_secret = {
    .name = "secret",
    .args = "set NAME | list | remove NAME",
    .summary = "keep what jobs need and nobody may read: set, list, remove",
    .example = "echo $WANDB_KEY | muster secret set wandb\nmuster secret list",
    .more = "A job names it in its spec, \"secrets\": {\"ENVNAME\": \"NAME\"}, and finds "
            "it in its environment.",
    .options = value_options,
    .run = run,
};
