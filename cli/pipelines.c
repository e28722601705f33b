/* cli/pipelines.c - muster pipelines: uploaded, listed, shown, removed */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/files.h"
#include "base/json.h"
#include "cli/listing.h"
#include "cli/verb.h"
#include "pipelines/package.h"

#define V1 "/apis/v1beta1/"
#define V2 "/apis/v2beta1/"

struct args {
    const char *project, *text, *name, *description, *of;
    long limit;
    int json;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "of the pipelines (default: MUSTER_PROJECT, or \"default\")",
      OPTION_TEXT, AT(project) },
    { "text", 0, "TEXT", "list: only names that contain it", OPTION_TEXT, AT(text) },
    { "limit", 0, "N", "list: at most so many, newest first (default: 100)", OPTION_INT,
      AT(limit) },
    { "name", 0, "NAME", "upload: what it is called (default: the file's name)", OPTION_TEXT,
      AT(name) },
    { "description", 0, "TEXT", "upload: what is said of it", OPTION_TEXT, AT(description) },
    { "version-of", 0, "PIPELINE", "upload: a new version of one that is there", OPTION_TEXT,
      AT(of) },
    { "json", 0, NULL, "print what the server answers", OPTION_FLAG, AT(json) },
    { 0 }
};

static int list(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *all = NULL, *filter = NULL;
    OWN_MEM char *filter_text = NULL;
    OWN_BUF path = BUF_INIT;
    bool more;
    size_t i;
    json_t *p;

    (void)names;
    if (a->text && (filter = json_pack("{s:[{s:s, s:s, s:s}]}", "predicates", "operation",
                                       "IS_SUBSTRING", "key", "name", "string_value", a->text)))
        filter_text = json_dumps(filter, JSON_COMPACT);
    buf_text(&path, V2 "pipelines?sort_by=created_at+desc");
    listing_query(&path, "namespace", s->project);
    listing_query(&path, "filter", filter_text);
    if (buf_ok(&path, err) < 0 ||
        listing_all(s, path.data, "pipelines", a->limit, &all, &more, err) < 0)
        return -(int)err->code;
    if (a->json) {
        listing_json(all);
        return 0;
    }
    json_array_foreach(all, i, p) {
        const char *description = text_of(p, "description");
        listing_stamp_text(text_of(p, "created_at"));
        printf("  %s  %s%s%.*s\n", text_of(p, "pipeline_id"), text_of(p, "name"),
               *description ? "  " : "", (int)strcspn(description, "\n"), description);
    }
    if (more)
        fprintf(stderr, "there are more (--limit N)\n");
    return 0;
}

/* The form that browsers send, with one file in it. */
static int make_form(const char *file, const char *bytes, size_t n, char boundary[40],
                     struct buf *out, struct err *err)
{
    unsigned char r[16];

    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        return err_set(err, ERR_IO, "the kernel has no random bytes");
    for (int i = 0; i < 16; i++)
        snprintf(boundary + 2 * i, 3, "%02x", r[i]);
    buf_printf(out, "--%s\r\nContent-Disposition: form-data; name=\"uploadfile\"; filename=\"",
               boundary);
    for (const char *p = file; *p; p++)
        buf_printf(out, "%c", *p == '"' || (unsigned char)*p < ' ' ? '_' : *p);
    buf_text(out, "\"\r\nContent-Type: application/octet-stream\r\n\r\n");
    buf_append(out, bytes, n);
    buf_printf(out, "\r\n--%s--\r\n", boundary);
    return buf_ok(out, err);
}

static int upload(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_MEM char *bytes = NULL, *of = NULL;
    OWN_JSON json_t *made = NULL;
    OWN_BUF form = BUF_INIT;
    OWN_BUF path = BUF_INIT;
    const char *slash = strrchr(names[0], '/');
    const char *file = !strcmp(names[0], "-") ? "stdin" : slash ? slash + 1 : names[0];
    char boundary[40], type[100];
    size_t n;

    if (a->of && listing_pipeline(s, a->of, &of, err) < 0)
        return -(int)err->code;
    if (files_read(names[0], PACKAGE_BYTES_MAX, &bytes, &n, err) < 0 ||
        make_form(file, bytes, n, boundary, &form, err) < 0)
        return -(int)err->code;
    buf_text(&path, of ? V2 "pipelines/upload_version" : V2 "pipelines/upload");
    listing_query(&path, "name", a->name);
    listing_query(&path, "description", a->description);
    listing_query(&path, of ? "pipelineid" : "namespace", of ? of : s->project);
    snprintf(type, sizeof type, "multipart/form-data; boundary=%s", boundary);
    if (buf_ok(&path, err) < 0 ||
        client_send(s, path.data, type, form.data, form.n, &made, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(made);
    else
        printf("%s %s\n", text_of(made, "name"),
               text_of(made, of ? "pipeline_version_id" : "pipeline_id"));
    return 0;
}

static int show(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *doc = NULL, *versions = NULL;
    OWN_MEM char *id = NULL, *path = NULL, *list_path = NULL;
    size_t i;
    json_t *one;

    if (listing_pipeline(s, names[0], &id, err) < 0)
        return -(int)err->code;
    path = client_path(V1 "pipelines/%", id, NULL);
    list_path = client_path(V1 "pipeline_versions?resource_key.type=PIPELINE&resource_key.id=%"
                            "&sort_by=created_at+desc", id, NULL);
    if (!path || !list_path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (client_call(s, "GET", path, NULL, &doc, err) < 0 ||
        listing_all(s, list_path, "versions", 1000, &versions, NULL, err) < 0)
        return -(int)err->code;
    if (a->json) {
        json_object_set(doc, "versions", versions);
        listing_json(doc);
        return 0;
    }
    const char *description = text_of(doc, "description");
    const char *main_id = text_of(json_object_get(doc, "default_version"), "id");
    printf("%s  %s\n", text_of(doc, "name"), id);
    if (*description)
        printf("  %s\n", description);
    json_array_foreach(json_object_get(doc, "parameters"), i, one)
        printf("  parameter %s = %s\n", text_of(one, "name"), text_of(one, "value"));
    json_array_foreach(versions, i, one) {
        printf("  version   ");
        listing_stamp_text(text_of(one, "created_at"));
        printf("  %s  %s%s\n", text_of(one, "id"), text_of(one, "name"),
               strcmp(text_of(one, "id"), main_id) ? "" : "  (default)");
    }
    return 0;
}

static int delete_pipelines(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    for (; *names; names++) {
        OWN_MEM char *id = NULL, *path = NULL;
        if (listing_pipeline(s, *names, &id, err) < 0)
            return -(int)err->code;
        if (!(path = client_path(V2 "pipelines/%", id, NULL)))
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_call(s, "DELETE", path, NULL, NULL, err) < 0)
            return -(int)err->code;
        printf("%s: deleted, with its versions; its runs stay\n", *names);
    }
    return 0;
}

static const struct verb verbs[] = {
    { "list", "", 0, 0, list },
    { "upload", "FILE", 1, 1, upload },
    { "show", "PIPELINE", 1, 1, show },
    { "delete", "PIPELINE...", 1, VERB_MANY, delete_pipelines },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .limit = 100 };

    (void)c;
    return verb_run(&command_pipelines, verbs, argc, argv, &a, err);
}

const struct command command_pipelines = {
    .name = "pipelines",
    .args = "list|upload|show|delete [FILE|PIPELINE...]",
    .summary = "keep pipelines at the server, to be run by name",
    .example = "muster pipelines upload train_pipeline.tar.gz --name train\n"
               "muster pipelines upload train_v2.yaml --name v2 --version-of train\n"
               "muster pipelines show train\n"
               "muster runs create train -p epochs=3 --wait",
    .more = "A FILE is what kfp compiled (.tar.gz, .zip, .yaml) or a Workflow of Argo. What cannot "
            "run is\nrefused at the upload, with its line. A PIPELINE is a name or an id.",
    .options = options,
    .run = run,
};
