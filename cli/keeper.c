/* cli/keeper.c - muster keeper: looks after one attempt of a job; started by the server */
#include <limits.h>
#include <string.h>

#include "cli/cli.h"
#include "drivers/keeper.h"

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    (void)c;
    int n = options_parse(NULL, argc, argv, NULL, err);
    if (n < 0)
        return n;
    if (n < 1 || n > 2 || (n == 2 && strcmp(argv[0], "-")))
        return cli_usage(&command_keeper, err);
    char dir[PATH_MAX];
    if (strcmp(argv[0], "-"))
        return keeper_run(argv[0], err);
    if (keeper_wait(n > 1 ? argv[1] : NULL, dir, sizeof dir, err) < 0)
        return -(int)err->code;
    return keeper_run(dir, err);
}

const struct command command_keeper = {
    .name = "keeper",
    .args = "DIR|- [SERVER]",
    .summary = "look after one attempt of a job (started by the server)",
    .example = "muster keeper jobs/7/1",
    .run = run,
    .hidden = 1,
};
