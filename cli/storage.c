/* cli/storage.c - muster storage: buckets for people */
#include "cli/storage.h"

#include <stdio.h>
#include <string.h>

#include "base/http.h"
#include "cli/client.h"

#define AT(field) offsetof(struct storage_args, field)
static const struct option options[] = {
    { "recursive", 'r', NULL, "folders, with all that is in them", OPTION_FLAG, AT(recursive) },
    { "long", 'l', NULL, "ls: sizes and times, too", OPTION_FLAG, AT(lengthy) },
    { "type", 0, "TYPE", "cp: the content type (default: by the name's ending)", OPTION_TEXT,
      AT(type) },
    { "quiet", 'q', NULL, "cp: no progress line", OPTION_FLAG, AT(quiet) },
    { "json", 0, NULL, "ls, stat: the server's documents, one a line", OPTION_FLAG, AT(json) },
    { 0 }
};

/* ------------------------------------------------------------ places */

void gs_done(struct gs_place *p)
{
    free(p->mem);
}

int is_gs(const char *text)
{
    return !strncmp(text, "gs://", 5);
}

int has_glob(const char *name)
{
    return strpbrk(name, "*?[") != NULL;
}

int gs_parse(const char *text, struct gs_place *out, struct err *err)
{
    if (!is_gs(text) || !text[5] || text[5] == '/')
        return err_set(err, ERR_INVALID, "\"%.200s\" is no place in a bucket (gs://BUCKET/NAME)",
                       text);
    struct gs_place p = { .mem = strdup(text + 5) };
    if (!p.mem)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    char *slash = strchr(p.mem, '/');
    if (slash)
        *slash++ = '\0';
    p.bucket = p.mem;
    p.name = slash ? slash : p.mem + strlen(p.mem);
    *out = p;
    return 0;
}

char *object_path(const char *prefix, const char *bucket, const char *name, const char *after)
{
    OWN_BUF b = BUF_INIT;

    buf_printf(&b, "%s/b/", prefix);
    http_escape(&b, bucket);
    buf_text(&b, "/o/");
    http_escape(&b, name);
    buf_text(&b, after);
    return buf_take(&b);
}

int64_t doc_number(const json_t *doc, const char *key)
{
    const json_t *value = json_object_get(doc, key);

    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10)
                                 : json_integer_value(value);
}

const char *doc_text(const json_t *doc, const char *key)
{
    const char *text = json_string_value(json_object_get(doc, key));

    return text ? text : "";
}

static void add_query(struct buf *b, const char *name, const char *value)
{
    if (!value || !*value)
        return;
    buf_printf(b, "&%s=", name);
    http_escape(b, value);
}

int storage_each(struct storage *s, const struct storage_query *q,
                 int (*each)(void *arg, const json_t *item, struct err *err), void *arg,
                 struct err *err)
{
    OWN_MEM char *token = NULL;

    for (;;) {
        OWN_BUF path = BUF_INIT;
        OWN_JSON json_t *page = NULL;
        json_t *item;
        size_t i;
        buf_text(&path, "/storage/v1/b/");
        http_escape(&path, q->bucket);
        buf_text(&path, "/o?maxResults=1000");
        add_query(&path, "prefix", q->prefix);
        add_query(&path, "matchGlob", q->glob);
        add_query(&path, "delimiter", q->delimiter);
        add_query(&path, "pageToken", token);
        if (buf_ok(&path, err) < 0 ||
            client_call(s->client, "GET", path.data, NULL, &page, err) < 0)
            return -(int)err->code;
        static const char *const lists[] = { "prefixes", "items" };
        for (int k = 0; k < 2; k++)
            json_array_foreach(json_object_get(page, lists[k]), i, item) {
                int rc = each(arg, item, err);
                if (rc)
                    return rc;
            }
        free(token);
        token = strdup(doc_text(page, "nextPageToken"));
        if (!token)
            return err_set(err, ERR_NOMEM, "no memory for a list");
        if (!*token)
            return 0;
    }
}

/* ------------------------------------------------------------ ls, stat */

struct listing {
    struct storage *storage;
    const char *bucket;
    long n;
    int64_t bytes;
};

static void print_json(const json_t *doc)
{
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY);

    puts(text ? text : "null");
}

static int print_item(void *arg, const json_t *item, struct err *err)
{
    struct listing *l = arg;
    const struct storage_args *a = &l->storage->args;

    (void)err;
    l->n++;
    if (json_is_string(item)) {
        if (a->json) {
            OWN_JSON json_t *doc = json_pack("{s:s+++}", "prefix", "gs://", l->bucket, "/",
                                             json_string_value(item));
            print_json(doc);
        } else {
            printf("%*sgs://%s/%s\n", a->lengthy ? 34 : 0, "", l->bucket, json_string_value(item));
        }
        return 0;
    }
    l->bytes += doc_number(item, "size");
    if (a->json)
        print_json(item);
    else if (a->lengthy)
        printf("%12lld  %.19sZ  gs://%s/%s\n", (long long)doc_number(item, "size"),
               doc_text(item, "updated"), l->bucket, doc_text(item, "name"));
    else
        printf("gs://%s/%s\n", l->bucket, doc_text(item, "name"));
    return 0;
}

static int list_buckets(struct storage *s, struct err *err)
{
    OWN_MEM char *token = NULL;

    do {
        OWN_BUF path = BUF_INIT;
        OWN_JSON json_t *page = NULL;
        json_t *item;
        size_t i;
        buf_text(&path, "/storage/v1/b?maxResults=1000");
        add_query(&path, "pageToken", token);
        if (client_call(s->client, "GET", path.data, NULL, &page, err) < 0)
            return -(int)err->code;
        json_array_foreach(json_object_get(page, "items"), i, item) {
            if (s->args.json)
                print_json(item);
            else
                printf("gs://%s/\n", doc_text(item, "name"));
        }
        free(token);
        token = strdup(doc_text(page, "nextPageToken"));
    } while (token && *token);
    return 0;
}

static int list_one(struct storage *s, const char *text, struct err *err)
{
    OWN_GS p = { 0 };
    OWN_BUF folder = BUF_INIT;
    size_t n;

    if (gs_parse(text, &p, err) < 0)
        return -(int)err->code;
    struct listing l = { s, p.bucket, 0, 0 };
    struct storage_query q = { .bucket = p.bucket, .delimiter = s->args.recursive ? NULL : "/" };
    int rc;
    if (has_glob(p.name)) {
        q.glob = p.name;
        q.delimiter = NULL;
        rc = storage_each(s, &q, print_item, &l, err);
    } else {
        /* A name stands for itself, or for the folder of that name. */
        n = strlen(p.name);
        buf_printf(&folder, "%s%s", p.name, n && p.name[n - 1] != '/' ? "/" : "");
        if (n && p.name[n - 1] != '/') {
            OWN_MEM char *path = object_path("/storage/v1", p.bucket, p.name, "");
            OWN_JSON json_t *doc = NULL;
            rc = path ? client_call(s->client, "GET", path, NULL, &doc, err)
                      : err_set(err, ERR_NOMEM, "no memory for a path");
            if (rc == 0)
                print_item(&l, doc, err);
            else if (err->code != ERR_MISSING)
                return rc;
        }
        q.prefix = folder.data;
        rc = storage_each(s, &q, print_item, &l, err);
    }
    if (rc == 0 && l.n == 0 && *p.name)
        return err_set(err, ERR_MISSING, "%.300s: there is nothing of this name", text);
    if (rc == 0 && s->args.lengthy && !s->args.json)
        printf("%12lld  in %ld objects and folders\n", (long long)l.bytes, l.n);
    return rc;
}

static int cmd_ls(struct storage *s, int n, char **paths, struct err *err)
{
    if (n == 0)
        return list_buckets(s, err);
    for (int i = 0; i < n; i++)
        if (list_one(s, paths[i], err) < 0)
            return -(int)err->code;
    return 0;
}

static void print_doc(const json_t *doc)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)doc, key, value) {
        OWN_MEM char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        printf("%-24s %s\n", key, json_is_string(value) ? json_string_value(value) : text);
    }
}

static int cmd_stat(struct storage *s, int n, char **paths, struct err *err)
{
    for (int i = 0; i < n; i++) {
        OWN_GS p = { 0 };
        OWN_JSON json_t *doc = NULL;
        if (gs_parse(paths[i], &p, err) < 0)
            return -(int)err->code;
        OWN_MEM char *path = *p.name ? object_path("/storage/v1", p.bucket, p.name, "")
                                     : client_path("/storage/v1/b/%", p.bucket, NULL);
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        if (client_call(s->client, "GET", path, NULL, &doc, err) < 0)
            return -(int)err->code;
        if (s->args.json)
            print_json(doc);
        else
            print_doc(doc);
    }
    return 0;
}

/* ------------------------------------------------------------ cat, rm, mb, rb */

static int cmd_cat(struct storage *s, int n, char **paths, struct err *err)
{
    for (int i = 0; i < n; i++) {
        OWN_GS p = { 0 };
        if (gs_parse(paths[i], &p, err) < 0 ||
            storage_fetch(s, p.bucket, p.name, NULL, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int collect(void *arg, const json_t *item, struct err *err)
{
    return json_array_append(arg, (json_t *)item) < 0 ? err_set(err, ERR_NOMEM, "no memory") : 0;
}

static int remove_one(struct storage *s, const char *bucket, const char *name, struct err *err)
{
    OWN_MEM char *path = object_path("/storage/v1", bucket, name, "");

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (client_call(s->client, "DELETE", path, NULL, NULL, err) < 0)
        return -(int)err->code;
    if (!s->args.quiet && s->cli->err_is_terminal)
        fprintf(stderr, "removed gs://%s/%s\n", bucket, name);
    return 0;
}

static int remove_all(struct storage *s, const struct gs_place *p, struct err *err)
{
    OWN_JSON json_t *items = json_array();
    OWN_BUF folder = BUF_INIT;
    size_t n = strlen(p->name), i;
    json_t *item;

    buf_printf(&folder, "%s%s", p->name, n && p->name[n - 1] != '/' ? "/" : "");
    struct storage_query q = { .bucket = p->bucket,
                               .prefix = has_glob(p->name) ? NULL : folder.data,
                               .glob = has_glob(p->name) ? p->name : NULL };
    if (storage_each(s, &q, collect, items, err) < 0)
        return -(int)err->code;
    json_array_foreach(items, i, item)
        if (remove_one(s, p->bucket, doc_text(item, "name"), err) < 0)
            return -(int)err->code;
    if (json_array_size(items) == 0)
        return err_set(err, ERR_MISSING, "gs://%.222s/%.300s: there is nothing of this name",
                       p->bucket, p->name);
    return 0;
}

static int cmd_rm(struct storage *s, int n, char **paths, struct err *err)
{
    for (int i = 0; i < n; i++) {
        OWN_GS p = { 0 };
        if (gs_parse(paths[i], &p, err) < 0)
            return -(int)err->code;
        if (!*p.name && !s->args.recursive)
            return err_set(err, ERR_INVALID,
                           "%.300s is a whole bucket (-r empties it, `muster storage "
                           "rb` removes it)",
                           paths[i]);
        int rc;
        if (has_glob(p.name) || (s->args.recursive && !*p.name)) {
            rc = remove_all(s, &p, err);
        } else {
            rc = remove_one(s, p.bucket, p.name, err);
            if (rc < 0 && err->code == ERR_MISSING && s->args.recursive)
                rc = remove_all(s, &p, err);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int cmd_mb(struct storage *s, int n, char **paths, struct err *err)
{
    for (int i = 0; i < n; i++) {
        OWN_GS p = { 0 };
        if (gs_parse(paths[i], &p, err) < 0)
            return -(int)err->code;
        OWN_MEM char *path = client_path("/storage/v1/b?project=%", s->client->project, NULL);
        OWN_JSON json_t *body = json_pack("{s:s}", "name", p.bucket);
        if (!path || !body)
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_call(s->client, "POST", path, body, NULL, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int cmd_rb(struct storage *s, int n, char **paths, struct err *err)
{
    for (int i = 0; i < n; i++) {
        OWN_GS p = { 0 };
        struct err none = { 0 };
        if (gs_parse(paths[i], &p, err) < 0)
            return -(int)err->code;
        if (*p.name)
            return err_set(err, ERR_INVALID, "%.300s is no bucket (rm removes objects)", paths[i]);
        if (s->args.recursive && remove_all(s, &p, &none) < 0 && none.code != ERR_MISSING) {
            *err = none;
            return -(int)err->code;
        }
        OWN_MEM char *path = client_path("/storage/v1/b/%", p.bucket, NULL);
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        if (client_call(s->client, "DELETE", path, NULL, NULL, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* ------------------------------------------------------------ the command */

static const struct verb {
    const char *name;
    int least;                  /* arguments */
    int (*run)(struct storage *s, int n, char **paths, struct err *err);
} verbs[] = {
    { "ls", 0, cmd_ls },     { "cp", 2, storage_copy }, { "cat", 1, cmd_cat }, { "rm", 1, cmd_rm },
    { "mb", 1, cmd_mb },     { "rb", 1, cmd_rb },       { "stat", 1, cmd_stat },
};

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    struct storage s = { .cli = cli };
    OWN(client) c = NULL;
    int n = options_parse(options, argc, argv, &s.args, err);

    if (n < 0)
        return n;
    for (size_t i = 0; n > 0 && i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(argv[0], verbs[i].name) || n - 1 < verbs[i].least)
            continue;
        if (client_open(&c, err) < 0)
            return -(int)err->code;
        /* For reading by ranges (base/http.h), which takes gs:// and these. */
        setenv("STORAGE_EMULATOR_HOST", c->server, 1);
        setenv("MUSTER_TOKEN", c->token, 1);
        s.client = c;
        return verbs[i].run(&s, n - 1, argv + 1, err);
    }
    return cli_usage(&command_storage, err);
}

const struct command command_storage = {
    .name = "storage",
    .args = "ls [PLACE...] | cp SOURCE... TARGET | cat PLACE... | rm PLACE... | mb gs://BUCKET | "
            "rb gs://BUCKET | stat PLACE...",
    .summary = "look into buckets, copy files there and back",
    .example = "muster storage mb gs://taxi\n"
               "muster storage cp -r data gs://taxi/\n"
               "muster storage ls -l gs://taxi/data/\n"
               "muster storage cat gs://taxi/data/train.csv | head",
    .more =
        "A PLACE is gs://BUCKET/NAME; names may hold * ? [...] and ** (quote them for the shell). "
        "A\n"
        "file is in its bucket, or on this disk, whole or not at all; checksums are compared both\n"
        "ways. Large files go in pieces, and are gone on with when the connection breaks. Of many, "
        "one\n"
        "that cannot be copied does not keep the others: they are named at the end, and the exit\n"
        "code is not 0.",
    .options = options,
    .run = run,
};
