/* cli/submit.c - muster submit: a spec, handed to the server */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/http.h"
#include "base/own.h"
#include "cli/cli.h"
#include "cli/gcloud.h"
#include "cli/jobs.h"
#include "spec/spec.h"

struct args {
    const char *project, *name, *workers, *priority, *staging, *network;
    long retries, time_limit;
    int json, follow, user_namespaces;
    struct option_list set, label, secret;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "whose job it is (default: MUSTER_PROJECT, or \"default\")",
      OPTION_TEXT, AT(project) },
    { "name", 0, "NAME", "of the job (default: the spec's name and a number)", OPTION_TEXT,
      AT(name) },
    { "set", 0, "KEY=VALUE", "change the spec, as in epochs=1, limit=2000", OPTION_LIST, AT(set) },
    { "workers", 0, "N|MIN..MAX", "so many workers, in place of the spec's", OPTION_TEXT,
      AT(workers) },
    { "priority", 0, "-100..100", "higher ones go first (default: 0)", OPTION_TEXT, AT(priority) },
    { "retries", 0, "N",
      "begin a failed job again so many times; training goes on from its "
      "last checkpoint",
      OPTION_INT, AT(retries) },
    { "time-limit", 0, "S", "end it after so many seconds", OPTION_INT, AT(time_limit) },
    { "network", 0, "outside|none|host",
      "what it reaches, in place of the spec's: the world, nothing, all that its machine does",
      OPTION_TEXT, AT(network) },
    { "label", 0, "KEY=VALUE", "a label, to find it by", OPTION_LIST, AT(label) },
    { "secret", 0, "VAR=NAME", "give it the secret NAME in the environment variable VAR",
      OPTION_LIST, AT(secret) },
    { "user-namespaces", 0, NULL, "let it make user namespaces: for bwrap, podman or Chromium inside",
      OPTION_FLAG, AT(user_namespaces) },
    { "staging-bucket", 0, "gs://B[/DIR]",
      "where a package of this machine goes (default: a bucket "
      "of the project's for packages)",
      OPTION_TEXT, AT(staging) },
    { "follow", 'f', NULL, "print what it prints, until it has ended", OPTION_FLAG, AT(follow) },
    { "json", 0, NULL, "print the job as the server has it", OPTION_FLAG, AT(json) },
    { 0 }
};

/* ------------------------------------------------------------ paths */

static int absolute(const struct job_spec *s, json_t *holder, const char *key, struct err *err)
{
    const char *path = json_string_value(json_object_get(holder, key));
    if (!path)
        return 0;
    OWN_MEM char *full = spec_resolve_path(s->dir, path);
    OWN_MEM char *real = full && !http_is_url(full) ? realpath(full, NULL) : NULL;
    if (!full)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    json_object_set_new(holder, key, json_string(real ? real : full));
    return 0;
}

static int absolute_list(const struct job_spec *s, json_t *paths, struct err *err)
{
    for (size_t i = 0; i < json_array_size(paths); i++) {
        OWN_JSON json_t *one = json_pack("{s:O}", "path", json_array_get(paths, i));
        if (absolute(s, one, "path", err) < 0)
            return -(int)err->code;
        json_array_set(paths, i, json_object_get(one, "path"));
    }
    return 0;
}

/* The server does not know where the spec lay: every path in it is made absolute. */
static int absolute_all(const struct job_spec *s, struct err *err)
{
    static const char *const sources[] = { "train", "test", NULL };
    static const char *const forms[] = { "idx", "csv", "json", "tfrecord", NULL };

    for (int i = 0; sources[i]; i++)
        for (int k = 0; forms[k]; k++)
            if (absolute_list(s, json_object_get(json_object_get(s->data, sources[i]), forms[k]),
                              err) < 0)
                return -(int)err->code;
    if (absolute(s, s->doc, "init", err) < 0)
        return -(int)err->code;
    return absolute(s, s->doc, "order", err);
}

/* ------------------------------------------------------------ the document */

static int add_train(const struct job_spec *s, json_t *job, struct err *err)
{
    if (absolute_all(s, err) < 0)
        return -(int)err->code;
    OWN_MEM char *text = spec_print(s);
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for the spec");
    json_object_set_new(job, "kind", json_string("train"));
    json_object_set_new(job, "train", json_pack("{s:s}", "spec", text));
    return 0;
}

/* Where local packages go when no place was named: a bucket of the project's, made when needed. */
static int make_bucket(struct client *c, char *out, size_t size, struct err *err)
{
    int n = snprintf(out, size, "gs://muster-packages-%.40s", c->project);
    for (int i = 5; i < n; i++)
        if (isupper((unsigned char)out[i]))
            out[i] = (char)tolower((unsigned char)out[i]);
    OWN_JSON json_t *body = json_pack("{s:s}", "name", out + 5);
    OWN_MEM char *path = client_path("/storage/v1/b?project=%", c->project, NULL);
    if (!body || !path)
        return err_set(err, ERR_NOMEM, "no memory for a bucket");
    int rc = client_call(c, "POST", path, body, NULL, err);
    return rc == -ERR_CONFLICT ? 0 : rc;        /* it is there */
}

/* A package in a bucket stays there; a file or a folder of this machine is put into one. */
static int add_packages(struct client *c, const struct job_spec *s, const char *staging,
                        json_t *job, struct err *err)
{
    json_t *python = json_object_get(job, "python");
    const char *package = json_string_value(
        json_object_get(json_object_get(s->doc, "python"), "package"));
    char bucket[128];
    struct stat st;

    if (!python)
        return 0;
    if (!strncmp(package, "gs://", 5))
        return json_object_set_new(python, "packages", json_pack("[s]", package));
    OWN_MEM char *path = spec_resolve_path(s->dir, package);
    OWN_JSON json_t *uris = json_array();
    if (!path || http_is_url(path) || stat(path, &st) < 0)
        return err_set(err, ERR_MISSING, "python.package: %s: %s", path ? path : package,
                       path && http_is_url(path) ? "a package is a file or a folder here, or in a "
                       "bucket (gs://...)" : strerror(errno));
    if (!staging && make_bucket(c, bucket, sizeof bucket, err) < 0)
        return err_add(err, "the project's bucket for packages");
    struct gcloud_staging what = { .staging = staging ? staging : bucket, .source = path,
                                   .name = s->name };
    if (gcloud_stage(c, &what, uris, err) < 0)
        return err_add(err, "python.package");
    return json_object_set(python, "packages", uris);
}

static int add_python(const struct job_spec *s, json_t *job)
{
    const json_t *python = json_object_get(s->doc, "python");

    json_object_set_new(job, "kind", json_string("python"));
    return json_object_set_new(job, "python",
                               json_pack("{s:O*, s:O*}", "module",
                                         json_object_get(python, "module"), "args",
                                         json_object_get(python, "args")));
}

static int add_program(const struct job_spec *s, json_t *job, struct err *err)
{
    if (!s->program)
        return add_train(s, job, err);
    json_t *image = json_object_get(s->doc, "image");
    if (image)
        json_object_set(job, "image", image);
    if (!strcmp(s->program, "python"))
        return add_python(s, job);
    json_object_set_new(job, "kind", json_string("command"));
    json_object_set(job, "command", json_object_get(s->doc, "command"));
    return 0;
}

/* "KEY=VALUE" arguments as an object under `key`. */
static int add_pairs(const struct option_list *list, const char *option, json_t *job,
                     const char *key, struct err *err)
{
    for (int i = 0; i < list->n; i++) {
        const char *equals = strchr(list->item[i], '=');
        if (!equals || equals == list->item[i])
            return err_set(err, ERR_INVALID, "--%s %.64s: write it as KEY=VALUE", option,
                           list->item[i]);
        if (!json_object_get(job, key))
            json_object_set_new(job, key, json_object());
        json_object_setn_new(json_object_get(job, key), list->item[i],
                             (size_t)(equals - list->item[i]), json_string(equals + 1));
    }
    return 0;
}

static int add_asked(const struct args *a, json_t *job, struct err *err)
{
    if (a->priority) {
        char *end;
        long n = strtol(a->priority, &end, 10);
        if (end == a->priority || *end || n < -100 || n > 100)
            return err_set(err, ERR_INVALID,
                           "--priority takes a number from -100 to 100, not \"%.32s\"",
                           a->priority);
        json_object_set_new(job, "priority", json_integer(n));
    }
    if (a->retries > 0)
        json_object_set_new(job, "retries", json_pack("{s:I}", "limit", (json_int_t)a->retries));
    if (a->time_limit > 0)
        json_object_set_new(job, "time_limit_s", json_integer(a->time_limit));
    if (a->user_namespaces)
        json_object_set_new(job, "user_namespaces", json_true());
    if (a->network)
        json_object_set_new(job, "network", json_string(a->network));
    if (add_pairs(&a->label, "label", job, "labels", err) < 0)
        return -(int)err->code;
    return add_pairs(&a->secret, "secret", job, "secrets", err);
}

/* "1Gi" in bytes; the spec's reader has seen that it is one. */
static int make_job(const struct job_spec *s, const struct args *a, json_t **out, struct err *err)
{
    int min = s->workers_min, max = s->workers_max;
    OWN_JSON json_t *job = json_object();

    if (a->workers && workers_parse(a->workers, &min, &max, err) < 0)
        return -(int)err->code;
    json_object_set_new(job, "name", json_string(s->name));
    if (add_program(s, job, err) < 0 || add_asked(a, job, err) < 0)
        return -(int)err->code;
    json_object_set_new(job, "workers", json_pack("{s:i, s:i}", "min", min, "max", max));
    json_t *resources = json_object_get(s->doc, "resources");
    if (resources) {
        json_object_set_new(job, "resources", json_copy(resources));
    }
    json_t *network = a->network ? NULL : json_object_get(s->doc, "network");
    if (network)
        json_object_set(job, "network", network);
    json_object_set_new(job, "origin", json_pack("{s:s}", "api", "native"));
    *out = TAKE(job);
    return 0;
}

static int submit(struct cli *c, const struct args *a, const char *path, struct err *err)
{
    OWN(client) s = NULL;
    OWN(job_spec) spec = NULL;
    OWN_JSON json_t *job = NULL;
    OWN_JSON json_t *answer = NULL;

    if (spec_read(path, a->set.item, a->set.n, &spec, err) < 0 ||
        make_job(spec, a, &job, err) < 0 || job_client(a->project, &s, err) < 0 ||
        add_packages(s, spec, a->staging, job, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *body = json_pack("{s:s, s:s*, s:O}", "project", s->project, "name", a->name,
                                      "spec", job);
    if (client_call(s, "POST", "/api/jobs", body, &answer, err) < 0)
        return -(int)err->code;
    const char *name = json_string_value(json_object_get(answer, "name"));
    if (a->json) {
        OWN_MEM char *text = json_dumps(answer, JSON_COMPACT);
        puts(text ? text : "{}");
    } else {
        printf("%s\n", name);
        if (c->out_is_terminal && !a->follow)
            fprintf(stderr, "muster jobs logs -f %s follows it\n", name);
    }
    fflush(stdout);
    return a->follow ? job_follow(c, s, name, err) : 0;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };

    if (argc > 0 && !strcmp(argv[0], "training"))
        return gcloud_submit(c, argc - 1, argv + 1, err);
    int n = options_parse(options, argc, argv, &a, err);
    if (n < 0)
        return n;
    if (a.staging && strncmp(a.staging, "gs://", 5))
        return err_set(err, ERR_INVALID, "--staging-bucket takes gs://BUCKET, not \"%.200s\"",
                       a.staging);
    if (n != 1)
        return cli_usage(&command_submit, err);
    return submit(c, &a, argv[0], err);
}

const struct command command_submit = {
    .name = "submit",
    .args = "SPEC",
    .summary = "hand a spec to the server, which runs it as a job",
    .example =
        "muster submit examples/fashion-lenet/train.yaml --workers 1..4 --follow\n"
        "muster submit training taxi_1 --package-path trainer --module-name trainer.task ...",
    .more = "Prints the job's name. `muster submit training NAME` takes the flags of gcloud "
            "ai-platform jobs submit training.",
    .options = options,
    .run = run,
};
