/* cli/env.c - muster env: what points gcloud, gcsfs, pandas, kfp and muster itself to the server */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/sha256.h"
#include "cli/cli.h"
#include "cli/client.h"

struct args {
    int unset;
    const char *project;
};
static const struct option options[] = {
    { "project", 0, "NAME", "the project that commands mean (\"default\")", OPTION_TEXT,
      offsetof(struct args, project) },
    { "unset", 0, NULL, "print what takes it all back", OPTION_FLAG, offsetof(struct args, unset) },
    { 0 }
};

/* What stands in a value: %s the server, %t its token, %f a file with the token, %p the project, %d
 * the data directory. */
static const struct { const char *name, *value; } vars[] = {
    { "MUSTER_SERVER", "%s" },
    { "MUSTER_TOKEN", "%t" },
    { "MUSTER_PROJECT", "%p" },
    /* google-cloud-storage, gcsfs, pandas: they send no header, so the token is in the path. */
    { "STORAGE_EMULATOR_HOST", "%s/k/%t" },
    { "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false" },   /* or it warns at each access */
    { "GOOGLE_CLOUD_PROJECT", "%p" },
    { "NO_GCE_CHECK", "true" },                         /* no probes of a metadata server */
    /* kfp */
    { "KF_PIPELINES_ENDPOINT", "%s/k/%t" },
    /* gcloud: a configuration of its own, so that the user's stays as it is */
    { "CLOUDSDK_CONFIG", "%d/gcloud" },
    { "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "%f" },
    { "CLOUDSDK_CORE_PROJECT", "%p" },
    { "CLOUDSDK_CORE_CHECK_GCE_METADATA", "false" },
    { "CLOUDSDK_CORE_DISABLE_PROMPTS", "1" },
    { "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING", "true" },
    { "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK", "true" },
    { "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL", "1" },     /* of --stream-logs; 60 by itself */
    { "CLOUDSDK_API_ENDPOINT_OVERRIDES_ML", "%s/" },
    { "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "%s/storage/v1/" },
    { "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING", "%s/" },
};
enum { VARS = sizeof vars / sizeof vars[0] };

/* DATA/token when it holds this one; else a file of this user's own. */
static int token_file(const struct client *c, char **out, struct err *err)
{
    OWN_MEM char *file = NULL, *text = NULL, *path = NULL;
    char hash[SHA256_HEX];
    struct err unread = { 0 };

    if (asprintf(&file, "%s/token", c->data_dir) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (files_read(file, 4096, &text, NULL, &unread) == 0) {
        text[strcspn(text, " \t\r\n")] = 0;
        if (!strcmp(text, c->token)) {
            *out = TAKE(file);
            return 0;
        }
    }
    sha256_hex_of(c->token, strlen(c->token), hash);
    if (asprintf(&path, "%s/tokens", c->data_dir) < 0 || files_mkdir(path, err) < 0)
        return path ? -(int)err->code : err_set(err, ERR_NOMEM, "no memory for a path");
    free(TAKE(file));
    if (asprintf(&file, "%s/%.12s", path, hash) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    const mode_t before = umask(077);
    int rc = files_write(file, c->token, strlen(c->token), err);
    umask(before);
    if (rc == 0)
        *out = TAKE(file);
    return rc;
}

/* For a shell: in single quotes, whatever is in it. */
static void print_quoted(const char *text)
{
    putchar('\'');
    for (; *text; text++)
        if (*text == '\'')
            printf("'\\''");
        else
            putchar(*text);
    putchar('\'');
}

static void add_value(struct buf *b, const char *form, const struct client *c, const char *file)
{
    for (; *form; form++) {
        if (*form != '%') {
            buf_append(b, form, 1);
            continue;
        }
        switch (*++form) {
        case 's': buf_text(b, c->server); break;
        case 't': buf_text(b, c->token); break;
        case 'f': buf_text(b, file); break;
        case 'p': buf_text(b, c->project); break;
        case 'd': buf_text(b, c->data_dir); break;
        }
    }
}

/* ------------------------------------------------------------ a gcloud where there is none */

static bool on_path(const char *name)
{
    const char *path = getenv("PATH");

    for (; path && *path; path += strcspn(path, ":"), path += *path == ':') {
        OWN_MEM char *file = NULL;
        if (asprintf(&file, "%.*s/%s", (int)strcspn(path, ":"), path, name) >= 0
            && access(file, X_OK) == 0)
            return true;
    }
    return false;
}

/* muster knows gcloud's words when it is called by that name: DATA/bin/gcloud is a link to it. */
static void offer_gcloud(const struct client *c)
{
    OWN_MEM char *bin = NULL, *link = NULL, *self = realpath("/proc/self/exe", NULL);
    struct err none = { 0 };

    if (on_path("gcloud") || !self || asprintf(&bin, "%s/bin", c->data_dir) < 0
        || asprintf(&link, "%s/gcloud", bin) < 0 || files_mkdir(bin, &none) < 0)
        return;
    unlink(link);
    if (symlink(self, link) < 0)
        return;
    printf("export PATH=");
    print_quoted(bin);
    printf(":\"$PATH\"\n");
}

static int print_unset(struct err *err)
{
    OWN_MEM char *dir = client_data_dir(NULL);

    if (!dir)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    printf("unset");
    for (int i = 0; i < VARS; i++)
        printf(" %s", vars[i].name);
    printf("\nexport PATH=\"${PATH#");
    print_quoted(dir);
    printf("/bin:}\"\n");
    return 0;
}

/* Opens the server that is to be pointed to, once it has answered. One that an earlier `muster env`
 * named and that is gone is not repeated: that of the data directory takes its place, if it runs. */
static int open_answering(struct client **out, struct err *err)
{
    OWN(client) c = NULL;
    OWN_MEM char *dir = client_data_dir(NULL);
    const char *named = getenv("MUSTER_SERVER");

    if (client_open(&c, err) == 0 && client_call(c, "GET", "/api/whoami", NULL, NULL, err) == 0) {
        *out = TAKE(c);
        return 0;
    }
    if (!named || !*named || !dir || err->code != ERR_AGAIN ||
        !client_running(dir, NULL))
        return -(int)err->code;
    OWN_MEM char *stale = strdup(named);
    struct err first = *err;
    unsetenv("MUSTER_SERVER");
    client_free(TAKE(c));
    if (client_open(&c, err) < 0 || client_call(c, "GET", "/api/whoami", NULL, NULL, err) < 0) {
        *err = first;
        return -(int)err->code;
    }
    fprintf(stderr, "muster: %s, which MUSTER_SERVER names, does not answer any more: the server of "
            "%s is at %s\n", stale ? stale : "the server", dir, c->server);
    *err = (struct err){ 0 };
    *out = TAKE(c);
    return 0;
}

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) c = NULL;
    OWN_MEM char *file = NULL;
    int n = options_parse(options, argc, argv, &a, err);

    if (n < 0)
        return n;
    if (n != 0)
        return cli_usage(&command_env, err);
    if (a.unset)
        return print_unset(err);
    /* The project of an earlier `muster env` is this one's, too, unless another is named. */
    if (a.project)
        setenv("MUSTER_PROJECT", a.project, 1);
    if (open_answering(&c, err) < 0 || token_file(c, &file, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < VARS; i++) {
        OWN_BUF value = BUF_INIT;
        add_value(&value, vars[i].value, c, file);
        if (buf_ok(&value, err) < 0)
            return -(int)err->code;
        printf("export %s=", vars[i].name);
        print_quoted(value.data ? value.data : "");
        printf("\n");
    }
    offer_gcloud(c);
    if (cli->out_is_terminal)
        fprintf(stderr, "# to set all this in your shell:  eval \"$(muster env)\"\n");
    return 0;
}

const struct command command_env = {
    .name = "env",
    .args = "",
    .summary = "print the exports that point gcloud, gcsfs, pandas and kfp to the server",
    .example = "eval \"$(muster env)\"\neval \"$(muster env --unset)\"",
    .more = "The values hold the token: whoever reads them may do what you may do.\n"
            "Where there is no gcloud, muster itself goes by that name.",
    .options = options,
    .run = run,
};
