/* cli/image.c - muster image: what stands here for a container image that a pipeline names */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/tar.h"
#include "cli/image.h"
#include "cli/storage.h"

struct args {
    struct option_list dirs, env;
    const char *requirements, *python, *workdir, *file, *tag, *from;
    int json, lenient;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "dir", 0, "DIR:/PATH", "what steps find at /PATH", OPTION_LIST, AT(dirs) },
    { "requirements", 'r', "FILE", "Python packages to install", OPTION_TEXT, AT(requirements) },
    { "python", 0, "VERSION", "such as 3.9; default: python3", OPTION_TEXT, AT(python) },
    { "from", 0, "IMAGE", "an image of the table that it is based on", OPTION_TEXT, AT(from) },
    { "env", 'e', "NAME=VALUE", "set for its steps", OPTION_LIST, AT(env) },
    { "workdir", 'w', "/PATH", "where steps start; default: the first --dir", OPTION_TEXT,
      AT(workdir) },
    { "file", 'f', "FILE", "build: default DIR/Dockerfile", OPTION_TEXT, AT(file) },
    { "tag", 't', "NAME", "build: the image's name", OPTION_TEXT, AT(tag) },
    { "lenient", 0, NULL, "build: leave out what has no meaning here", OPTION_FLAG, AT(lenient) },
    { "json", 0, NULL, "print documents as JSON", OPTION_FLAG, AT(json) },
    { 0 }
};

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:@"

struct job {
    struct cli *cli;
    struct client *client;
    struct args a;
    char bucket[128];
};

static void print_json(const json_t *doc)
{
    OWN_MEM char *text = json_dumps(doc, JSON_INDENT(2) | JSON_SORT_KEYS);
    puts(text ? text : "{}");
}

/* ------------------------------------------------------------------ up */

struct packing {
    FILE *to;
    const char *path;
    struct sha256 sha;
};

static int pack(void *arg, const void *bytes, size_t n, struct err *err)
{
    struct packing *p = arg;

    if (!bytes)
        return 0;
    sha256_add(&p->sha, bytes, n);
    return fwrite(bytes, 1, n, p->to) == n
               ? 0 : err_set(err, ERR_IO, "%s: %s", p->path, strerror(errno));
}

/* A file of ours as an object. */
static int send_file(struct job *j, const char *path, const char *name, struct err *err)
{
    struct storage s = { .cli = j->cli, .client = j->client, .args = { .quiet = 1 } };
    OWN_MEM char *target = NULL;

    if (asprintf(&target, "gs://%s/%s", j->bucket, name) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    char *paths[] = { (char *)(uintptr_t)path, target };
    return storage_copy(&s, 2, paths, err);
}

static int make_bucket(struct job *j, struct err *err)
{
    OWN_JSON json_t *body = json_pack("{s:s}", "name", j->bucket);
    OWN_MEM char *path = client_path("/storage/v1/b?project=%", j->client->project, NULL);
    struct err why = { 0 };

    if (!path || !body)
        return err_set(err, ERR_NOMEM, "no memory for a bucket");
    if (client_call(j->client, "POST", path, body, NULL, &why) < 0 && why.code != ERR_CONFLICT) {
        *err = why;
        return -(int)why.code;
    }
    return 0;
}

/* A directory of the image, packed; its entry gets the object and the digest. */
static int send_dir(struct job *j, const struct image *m, json_t *entry, struct err *err)
{
    char path[PATH_MAX], packed[PATH_MAX], name[128], hex[SHA256_HEX];
    struct packing p;

    snprintf(path, sizeof path, "%s%s", m->stage, text_of(entry, "path"));
    snprintf(packed, sizeof packed, "%s/.packed.tar", m->stage);
    OWN_FD int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    p.to = fopen(packed, "we");
    p.path = packed;
    if (dir < 0 || !p.to) {
        int why = errno;
        if (p.to)
            fclose(p.to);
        return err_set(err, ERR_IO, "%s: %s", path, strerror(why));
    }
    sha256_start(&p.sha);
    int rc = tar_write(dir, pack, &p, err);
    if (fclose(p.to) != 0 && rc == 0)
        rc = err_set(err, ERR_IO, "%s: %s", packed, strerror(errno));
    if (rc < 0)
        return rc;
    sha256_finish_hex(&p.sha, hex);
    snprintf(name, sizeof name, "trees/%s.tar", hex);
    rc = send_file(j, packed, name, err);
    unlink(packed);
    OWN_MEM char *object = NULL;
    if (rc == 0 && asprintf(&object, "gs://%s/%s", j->bucket, name) >= 0) {
        json_object_set_new(entry, "object", json_string(object));
        json_object_set_new(entry, "sha256", json_string(hex));
    }
    return rc;
}

static int send_image(struct job *j, struct image *m, const char *name, struct err *err)
{
    char path[PATH_MAX], object[512], hex[SHA256_HEX];
    json_t *entry;
    size_t i;

    if (make_bucket(j, err) < 0)
        return -(int)err->code;
    json_array_foreach(json_object_get(m->doc, "dirs"), i, entry)
        if (send_dir(j, m, entry, err) < 0)
            return -(int)err->code;
    /* Of what it is, not of when: the same image has the same digest, and steps stay cached. */
    OWN_MEM char *body = json_dumps(m->doc, JSON_COMPACT | JSON_SORT_KEYS);
    if (!body)
        return err_set(err, ERR_NOMEM, "no memory for an image");
    sha256_hex_of(body, strlen(body), hex);
    json_object_set_new(m->doc, "name", json_string(name));
    json_object_set_new(m->doc, "digest", json_string(hex));
    json_object_set_new(m->doc, "created", json_real(clock_wall()));
    OWN_MEM char *text = json_dumps(m->doc, JSON_COMPACT | JSON_SORT_KEYS);
    if (image_stage(m, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%s/.image.json", m->stage);
    snprintf(object, sizeof object, "images/%s", name);
    if (!text || files_write(path, text, strlen(text), err) < 0)
        return text ? -(int)err->code : err_set(err, ERR_NOMEM, "no memory for an image");
    int rc = send_file(j, path, object, err);
    unlink(path);
    if (rc == 0 && j->a.json)
        print_json(m->doc);
    else if (rc == 0)
        printf("image %s is there: %zu directories, digest %.12s\n", name,
               json_array_size(json_object_get(m->doc, "dirs")), hex);
    return rc;
}

/* ------------------------------------------------------------------ each verb */

/* As of registries: parts between slashes, each of letters, digits, . _ - : @, one of the first two
 * first. */
static int check_name(const char *name, struct err *err)
{
    size_t n = strlen(name);
    bool good = n > 0 && n <= 300;

    for (const char *p = name; good; p++) {
        size_t part = strcspn(p, "/");
        good = isalnum((unsigned char)*p) && strspn(p, NAME_LETTERS) >= part;
        p += part;
        if (!*p)
            break;
    }
    return good ? 0 : err_set(err, ERR_INVALID, "\"%.60s\" is no name of an image, such as "
                              "registry.example/mnist:train", name);
}

static json_t *new_doc(const struct args *a)
{
    json_t *doc = json_pack("{s:[], s:{}}", "dirs", "env");

    if (doc && a->python)
        json_object_set_new(doc, "python", json_string(a->python));
    if (doc && a->from)
        json_object_set_new(doc, "from", json_string(a->from));
    return doc;
}

static int set_env(const struct args *a, json_t *doc, struct err *err)
{
    for (int i = 0; i < a->env.n; i++) {
        const char *eq = strchr(a->env.item[i], '=');
        if (!eq || eq == a->env.item[i])
            return err_set(err, ERR_INVALID, "--env %s: takes NAME=VALUE", a->env.item[i]);
        json_object_setn_new(json_object_get(doc, "env"), a->env.item[i],
                             (size_t)(eq - a->env.item[i]), json_string(eq + 1));
    }
    return 0;
}

static int copy_dirs(const struct args *a, struct image *m, struct err *err)
{
    for (int i = 0; i < a->dirs.n; i++) {
        const char *colon = strrchr(a->dirs.item[i], ':');
        if (!colon || colon[1] != '/')
            return err_set(err, ERR_INVALID, "--dir %s: takes DIR:/PATH", a->dirs.item[i]);
        OWN_MEM char *from = strndup(a->dirs.item[i], (size_t)(colon - a->dirs.item[i]));
        if (!from || image_copy(m, from, colon + 1, err) < 0)
            return from ? -(int)err->code : err_set(err, ERR_NOMEM, "no memory for a name");
        if (i == 0 && !a->workdir)
            json_object_set_new(m->doc, "cwd", json_string(colon + 1));
    }
    return 0;
}

static int add(struct job *j, const char *name, struct err *err)
{
    __attribute__((cleanup(image_done))) struct image m = { .doc = new_doc(&j->a) };
    OWN_MEM char *text = NULL;

    if (!m.doc)
        return err_set(err, ERR_NOMEM, "no memory for an image");
    if (j->a.requirements) {
        if (files_read(j->a.requirements, 1 << 20, &text, NULL, err) < 0)
            return -(int)err->code;
        json_object_set_new(m.doc, "requirements", json_string(text));
    }
    if (j->a.workdir && j->a.workdir[0] != '/')
        return err_set(err, ERR_INVALID,
                       "--workdir %s: is a path from the root, such as /workspace", j->a.workdir);
    if (j->a.workdir)
        json_object_set_new(m.doc, "cwd", json_string(j->a.workdir));
    if (set_env(&j->a, m.doc, err) < 0 || copy_dirs(&j->a, &m, err) < 0)
        return -(int)err->code;
    return send_image(j, &m, name, err);
}

static int build(struct job *j, const char *dir, struct err *err)
{
    __attribute__((cleanup(image_done))) struct image m = { .doc = new_doc(&j->a) };
    char context[PATH_MAX], file[PATH_MAX + 16];

    if (!j->a.tag)
        return err_set(err, ERR_INVALID, "say the image's name: muster image build -t NAME %s",
                       dir);
    if (check_name(j->a.tag, err) < 0)
        return -(int)err->code;
    if (!realpath(dir, context))
        return err_set(err, ERR_MISSING, "%s: %s", dir, strerror(errno));
    m.context = context;
    snprintf(file, sizeof file, "%s/Dockerfile", context);
    if (!m.doc)
        return err_set(err, ERR_NOMEM, "no memory for an image");
    if (image_follow(&m, j->a.file ? j->a.file : file, j->a.lenient, err) < 0 ||
        set_env(&j->a, m.doc, err) < 0)
        return -(int)err->code;
    return send_image(j, &m, j->a.tag, err);
}

static int get_doc(struct job *j, const char *name, json_t **out, struct err *err)
{
    OWN_MEM char *object = NULL, *path = NULL;

    if (asprintf(&object, "images/%s", name) < 0)
        object = NULL;
    path = object ? client_path("/storage/v1/b/%/o/%?alt=media", j->bucket, object, NULL) : NULL;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    if (client_call(j->client, "GET", path, NULL, out, err) < 0)
        return err->code == ERR_MISSING
                   ? err_set(err, ERR_MISSING, "there is no image %.200s (muster image list)", name)
                   : -(int)err->code;
    return 0;
}

static int show(struct job *j, const char *name, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (get_doc(j, name, &doc, err) < 0)
        return -(int)err->code;
    print_json(doc);
    return 0;
}

static int print_one(void *arg, const json_t *item, struct err *err)
{
    struct job *j = arg;
    const char *name = text_of(item, "name") + strlen("images/");
    OWN_JSON json_t *doc = NULL;
    json_t *dir;
    size_t i;

    if (get_doc(j, name, &doc, err) < 0)
        return -(int)err->code;
    if (j->a.json) {
        OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS);
        puts(text ? text : "{}");
        return 0;
    }
    printf("%-48s %.12s ", name, text_of(doc, "digest"));
    json_array_foreach(json_object_get(doc, "dirs"), i, dir)
        printf(" %s", text_of(dir, "path"));
    putchar('\n');
    return 0;
}

static int list(struct job *j, const char *prefix, struct err *err)
{
    struct storage s = { .cli = j->cli, .client = j->client };
    OWN_MEM char *full = NULL;

    if (asprintf(&full, "images/%s", prefix ? prefix : "") < 0)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    struct storage_query q = { .bucket = j->bucket, .prefix = full };
    int rc = storage_each(&s, &q, print_one, j, err);
    return rc == -ERR_MISSING ? 0 : rc;         /* no bucket yet: there are none */
}

static int rm(struct job *j, const char *name, struct err *err)
{
    OWN_MEM char *object = NULL, *path = NULL;

    if (asprintf(&object, "images/%s", name) < 0)
        object = NULL;
    path = object ? client_path("/storage/v1/b/%/o/%", j->bucket, object, NULL) : NULL;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    if (client_call(j->client, "DELETE", path, NULL, NULL, err) < 0)
        return err->code == ERR_MISSING
                   ? err_set(err, ERR_MISSING, "there is no image %.200s (muster image list)", name)
                   : -(int)err->code;
    return 0;
}

static const struct verb {
    const char *name;
    int least;
    int (*run)(struct job *j, const char *what, struct err *err);
} verbs[] = {
    { "add", 1, add },   { "build", 1, build }, { "list", 0, list },
    { "show", 1, show }, { "rm", 1, rm },
};

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    struct job j = { .cli = cli };
    OWN(client) c = NULL;
    int n = options_parse(options, argc, argv, &j.a, err);

    if (n < 0)
        return n;
    for (size_t i = 0; n > 0 && i < sizeof verbs / sizeof verbs[0]; i++) {
        const struct verb *v = &verbs[i];
        if (strcmp(argv[0], v->name) || n - 1 < v->least || n > 2)
            continue;
        if (v->run != build && n == 2 && check_name(argv[1], err) < 0)
            return -(int)err->code;
        if (client_open(&c, err) < 0)
            return -(int)err->code;
        j.client = c;
        snprintf(j.bucket, sizeof j.bucket, "images-%.100s", c->project);
        return v->run(&j, n == 2 ? argv[1] : NULL, err);
    }
    return cli_usage(&command_image, err);
}

const struct command command_image = {
    .name = "image",
    .args = "add NAME | build DIR | list | show NAME | rm NAME",
    .summary = "say what a container image is on this machine",
    .example =
        "muster image add registry.example/mnist:train --dir src:/workspace -r requirements.txt\n"
        "muster image build -t registry.example/mnist:train .",
    .more =
        "Steps of pipelines name container images. One that is added here is directories, Python\n"
        "packages and an environment of this machine, under that name. An image that podman has\n"
        "runs as a container; common public ones (python, alpine, ...) go by the table\n"
        "DATA/runtimes.yaml.\n",
    .options = options,
    .run = run,
};
