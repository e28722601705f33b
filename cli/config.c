/* cli/config.c - muster config: config values of a project */
#include "cli/value.h"

static const struct value_kind kind = { "config", "config value", 1, &command_config };

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    return value_run(&kind, cli, argc, argv, err);
}

const struct command command_config = {
    .name = "config",
    .args = "set NAME | list | remove NAME",
    .summary = "keep values that jobs share: set, list, remove",
    .example = "echo europe-west1 | muster config set REGION\nmuster config list",
    .more = "Every job of the project finds it in its environment under its name, unless "
            "its spec says otherwise.",
    .options = value_options,
    .run = run,
};
