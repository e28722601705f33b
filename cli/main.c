/* cli/main.c - the table of commands: finds one, runs it, says what went wrong */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/http.h"
#include "base/near.h"
#include "cli/cli.h"
#include "cli/gcloud.h"

static const struct command *const commands[] = {
#define X(name) &command_##name,
    COMMANDS(X)
#undef X
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

const struct command *cli_find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static int unknown(const char *name, struct err *err)
{
    struct near near = near_to(name);
    for (int i = 0; i < N_COMMANDS; i++)
        if (!commands[i]->hidden)
            near_try(&near, commands[i]->name);
    if (near.word)
        return err_set(err, ERR_INVALID, "there is no command \"%.64s\"; did you mean \"%s\"?",
                       name, near.word);
    return err_set(err, ERR_INVALID, "there is no command \"%.64s\" (muster help lists them)",
                   name);
}

int cli_usage(const struct command *c, struct err *err)
{
    return err_set(err, ERR_INVALID, "usage: muster %s%s%s%s (muster help %s says more)", c->name,
                   *c->args ? " " : "", c->args, c->options ? " [OPTIONS]" : "", c->name);
}

static void print_commands(FILE *to)
{
    enum { WIDTH = 25 };
    fprintf(to, "muster %s: trains models from one file, with the same bits on any machine\n\n"
            "usage: muster COMMAND [ARGUMENTS] [OPTIONS]\n\n", MUSTER_VERSION);
    for (int i = 0; i < N_COMMANDS; i++) {
        char left[WIDTH + 1];
        if (snprintf(left, sizeof left, "%s %s", commands[i]->name, commands[i]->args) > WIDTH)
            snprintf(left, sizeof left, "%s ...", commands[i]->name);
        if (!commands[i]->hidden)
            fprintf(to, "  %-*s  %s\n", WIDTH, left, commands[i]->summary);
    }
    fprintf(to, "\nmuster help COMMAND shows its options and an example; muster --version the "
            "version.\n");
}

static void print_command(const struct command *c, FILE *to)
{
    fprintf(to, "usage: muster %s%s%s%s\n\n%s\n", c->name, *c->args ? " " : "", c->args,
            c->options ? " [OPTIONS]" : "", c->summary);
    if (c->more)
        fprintf(to, "\n%s\n", c->more);
    if (c->options) {
        fprintf(to, "\noptions:\n");
        options_print(c->options, to);
    }
    fprintf(to, "\nexample:\n");
    for (const char *line = c->example; *line;) {
        int n = (int)strcspn(line, "\n");
        fprintf(to, "  %.*s\n", n, line);
        line += n + (line[n] == '\n');
    }
}

static int help(struct cli *cli, int argc, char **argv, struct err *err)
{
    (void)cli;
    int n = options_parse(NULL, argc, argv, NULL, err);
    if (n < 0)
        return n;
    if (n > 1)
        return cli_usage(&command_help, err);
    if (n == 0) {
        print_commands(stdout);
        return 0;
    }
    const struct command *c = cli_find(argv[0]);
    if (!c)
        return unknown(argv[0], err);
    print_command(c, stdout);
    return 0;
}

const struct command command_help = {
    .name = "help",
    .args = "[COMMAND]",
    .summary = "list the commands, or show one with its options and an example",
    .example = "muster help help",
    .run = help,
};

/* --help anywhere before "--" asks for the help of the command, whatever else is there. */
static int asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return 1;
    return 0;
}

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    if (argc == 0) {
        print_commands(stderr);
        return err_set(err, ERR_INVALID, "say which command to run");
    }
    if (!strcmp(argv[0], "--version") || !strcmp(argv[0], "-V")) {
        puts("muster " MUSTER_VERSION);
        return 0;
    }
    if (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))
        return help(cli, argc - 1, argv + 1, err);

    const struct command *c = cli_find(argv[0]);
    if (!c)
        return argv[0][0] == '-'
            ? err_set(err, ERR_INVALID, "the command comes first: muster COMMAND %.64s", argv[0])
            : unknown(argv[0], err);
    if (asks_for_help(argc - 1, argv + 1)) {
        print_command(c, stdout);
        return 0;
    }
    return c->run(cli, argc - 1, argv + 1, err);
}

static struct cli look_at_terminal(void)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    int may_color = term && strcmp(term, "dumb") && !(no && *no);
    struct cli cli = { .out_is_terminal = isatty(STDOUT_FILENO),
                       .err_is_terminal = isatty(STDERR_FILENO) };
    cli.color_err = may_color && cli.err_is_terminal;
    return cli;
}

static void say_note(const char *text)
{
    fprintf(stderr, "muster: %s\n", text);
}

int main(int argc, char **argv)
{
    struct cli cli = look_at_terminal();
    struct err err = { 0 };

    http_on_note(say_note);
    if (argc > 0 && gcloud_is(argv[0]))
        return gcloud_main(&cli, argc - 1, argv + 1);
    int rc = run(&cli, argc - (argc > 0), argv + (argc > 0), &err);

    /* Results that did not reach the disk are a failure too (`muster ... >/dev/full`). */
    if (fflush(stdout) != 0 && rc == 0)
        rc = err_set(&err, ERR_IO, "cannot write the output: %s", strerror(errno));
    if (rc == 0)
        return 0;
    fprintf(stderr, "%smuster:%s %s\n", cli.color_err ? "\033[1;31m" : "",
            cli.color_err ? "\033[0m" : "", err.text);
    return cli.exit_code ? cli.exit_code : err_exit(err.code);
}
