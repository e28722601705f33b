/* protocols/kfp.c - errors, lists, filters, uploads: what both versions of the API share */
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "pipelines/flow.h"
#include "pipelines/package.h"
#include "protocols/kfp_int.h"
#include "protocols/multipart.h"
#include "protocols/native.h"
#include "protocols/stamp.h"
#include "server/objects.h"
#include "spec/json.h"

static const struct { int status, code; } grpc_codes[] = {
    { 400, 3 }, { 401, 16 }, { 403, 7 },  { 404, 5 },  { 405, 12 },
    { 409, 6 }, { 413, 3 },  { 429, 8 }, { 503, 14 }, { 507, 8 },
};

void kfp_error(struct request *q, const struct err *err)
{
    int status = request_error_status(q, err), code = 13;

    for (size_t i = 0; i < sizeof grpc_codes / sizeof grpc_codes[0]; i++)
        if (grpc_codes[i].status == status)
            code = grpc_codes[i].code;
    respond_json(q, status,
                 json_pack("{s:s, s:i, s:s, s:[{s:s, s:s, s:s}]}", "error", err->text, "code", code,
                           "message", err->text, "details", "@type",
                           "type.googleapis.com/api.Error", "error_message", err->text,
                           "error_details", err->text));
}

json_t *kfp_time(double seconds)
{
    char text[STAMP_SIZE];

    if (seconds <= 0)
        return NULL;
    stamp_format(stamp_of(seconds), text);
    return json_string(text);
}

int kfp_parse(const char *text, size_t n, json_t **out, struct err *err)
{
    static const struct yaml_limits limits = { "a pipeline", PACKAGE_TEXT_MAX, 1000000 };
    OWN(value) docs = NULL;

    if (yaml_parse_all(text, n, "pipeline.yaml", &limits, &docs, err) < 0)
        return -(int)err->code;
    *out = value_json(docs->n == 1 ? docs->child : docs);
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a pipeline");
}

/* ------------------------------------------------------------ filters */

static const struct { int number; const char *name; } ops[] = {
    { 1, "EQUALS" }, { 2, "NOT_EQUALS" }, { 3, "GREATER_THAN" }, { 5, "GREATER_THAN_EQUALS" },
    { 6, "LESS_THAN" }, { 7, "LESS_THAN_EQUALS" }, { 8, "IN" }, { 9, "IS_SUBSTRING" },
};

static const char *op_of(const json_t *predicate)
{
    const json_t *op = json_object_get(predicate, "operation");

    if (!op)
        op = json_object_get(predicate, "op");
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (json_is_integer(op) ? json_integer_value(op) == ops[i].number
                                : json_is_string(op) && !strcmp(json_string_value(op), ops[i].name))
            return ops[i].name;
    return NULL;
}

/* The one value of a predicate, under whichever name and spelling; a list for IN. */
static const json_t *value_of(const json_t *predicate, bool list)
{
    static const char *const single[] = { "string_value", "stringValue", "int_value", "intValue",
                                          "long_value", "longValue", "timestamp_value",
                                          "timestampValue", NULL };
    static const char *const several[] = { "string_values", "stringValues", "int_values",
                                           "intValues", "long_values", "longValues", NULL };
    const char *const *names = list ? several : single;

    for (int i = 0; names[i]; i++) {
        const json_t *v = json_object_get(predicate, names[i]);
        if (v && !json_is_null(v))
            return list ? json_object_get(v, "values") : v;
    }
    return NULL;
}

/* What v2beta1 calls the states that runs have here. */
static const struct { const char *theirs, *ours; } states[] = {
    { "PENDING", "pending" }, { "RUNNING", "running" }, { "SUCCEEDED", "succeeded" },
    { "FAILED", "failed" }, { "FAILED", "error" }, { "FAILED", "terminated" },
    { "CANCELING", "terminating" }, { "ENABLED", "enabled" }, { "DISABLED", "disabled" },
};

/* Adds what a value of theirs is here, which may be several. */
static int add_values(const struct kfp_key *key, const json_t *value, json_t *out, struct err *err)
{
    const char *text = json_string_value(value);
    int64_t ns;
    size_t n = json_array_size(out);

    switch (key->as) {
    case KFP_TEXT:
        if (!json_is_string(value) && !json_is_number(value))
            return err_set(err, ERR_INVALID, "filter: %s takes a text or a number", key->name);
        return json_array_append(out, (json_t *)value);
    case KFP_TIME:
        if (!text || stamp_parse(text, &ns) < 0)
            return err_set(err, ERR_INVALID, "filter: %s takes a time such as "
                           "2026-01-31T12:00:00Z", key->name);
        return json_array_append_new(out, json_real((double)ns / 1e9));
    case KFP_STORAGE:
        if (text && strstr(text, "ARCHIVED"))
            return json_array_append_new(out, json_integer(1));
        if (text && strstr(text, "AVAILABLE"))
            return json_array_append_new(out, json_integer(0));
        break;
    case KFP_STATE:
        for (size_t i = 0; text && i < sizeof states / sizeof states[0]; i++)
            if (!strcasecmp(states[i].theirs, text))
                json_array_append_new(out, json_string(states[i].ours));
        if (json_array_size(out) > n)
            return 0;
        break;
    }
    return err_set(err, ERR_INVALID, "filter: \"%.64s\" is no %s", text ? text : "", key->name);
}

static const struct kfp_key *key_of(const struct kfp_kind *k, const char *name, size_t n)
{
    for (const struct kfp_key *key = k->keys; key->name; key++)
        if (strlen(key->name) == n && !strncmp(key->name, name, n))
            return key;
    return NULL;
}

static int add_predicate(const struct kfp_kind *k, const json_t *p, json_t *out, struct err *err)
{
    const char *name = text_of(p, "key"), *op = op_of(p);
    const struct kfp_key *key = key_of(k, name, strlen(name));
    OWN_JSON json_t *values = json_array();
    size_t i;
    json_t *one;

    if (!key)
        return err_set(err, ERR_INVALID, "filter: \"%.64s\" is no key of a %s", name,
                       k->rows->what);
    if (!op)
        return err_set(err, ERR_INVALID, "filter: a predicate needs an operation: EQUALS, "
                       "NOT_EQUALS, IN, IS_SUBSTRING, GREATER_THAN, LESS_THAN ...");
    const json_t *value = value_of(p, !strcmp(op, "IN"));
    if (!value)
        return err_set(err, ERR_INVALID, "filter: the predicate of \"%.64s\" has no value", name);
    if (strcmp(op, "IN")) {
        if (add_values(key, value, values, err) < 0)
            return -(int)err->code;
    } else {
        json_array_foreach((json_t *)value, i, one)
            if (add_values(key, one, values, err) < 0)
                return -(int)err->code;
    }
    if (!strcmp(op, "IN") || (!strcmp(op, "EQUALS") && json_array_size(values) > 1)) {
        json_array_append_new(out, json_pack("{s:s, s:s, s:O}", "key", key->ours, "op", "IN",
                                             "value", values));
        return 0;
    }
    json_array_foreach(values, i, one)
        json_array_append_new(out, json_pack("{s:s, s:s, s:O}", "key", key->ours, "op", op,
                                             "value", one));
    return 0;
}

int kfp_filter(const struct kfp_kind *k, const char *text, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    OWN_JSON json_t *list = json_array();
    OWN_MEM char *copy = text ? strdup(text) : NULL;
    size_t i;
    json_t *p;

    if (!copy || !*copy)
        return 0;
    /* Some clients escape the filter before it is escaped as part of the query. */
    if (*copy == '%') {
        long n = percent_decode(copy, strlen(copy), true, copy);
        if (n < 0)
            return err_set(err, ERR_INVALID, "filter: a percent sign without two digits");
        copy[n] = 0;
    }
    if (http_json(copy, strlen(copy), &doc, err) < 0)
        return err_add(err, "filter");
    const json_t *predicates = json_object_get(doc, "predicates");
    if (!json_is_object(doc) || (predicates && !json_is_array(predicates)))
        return err_set(err, ERR_INVALID, "filter: takes {\"predicates\": [...]}");
    json_array_foreach((json_t *)predicates, i, p)
        if (add_predicate(k, p, list, err) < 0)
            return -(int)err->code;
    *out = TAKE(list);
    return 0;
}

/* ------------------------------------------------------------ lists */

static int sort_of(const struct kfp_kind *k, const char *text, char *out, size_t size,
                   struct err *err)
{
    if (!text || !*text)
        text = "created_at";
    size_t n = strcspn(text, " ");
    const struct kfp_key *key = key_of(k, text, n);
    if (!key)
        return err_set(err, ERR_INVALID, "sort_by: \"%.80s\" is no key of a %s", text,
                       k->rows->what);
    snprintf(out, size, "%s%.16s", key->ours, text[n] ? text + n : " asc");
    return 0;
}

static int page_size(const struct request *q, int *out, struct err *err)
{
    const char *text = request_query(q, "page_size");
    char *end;
    long n = text && *text ? strtol(text, &end, 10) : 0;

    if (text && *text && (*end || n < 0))
        return err_set(err, ERR_INVALID, "page_size: \"%.20s\" is no number of entries", text);
    *out = n > 1000 ? 1000 : (int)n;
    return 0;
}

int kfp_list(struct request *q, const struct kfp_listing *l, struct err *err)
{
    OWN_JSON json_t *filter = NULL, *rows = NULL, *list = json_array();
    OWN_MEM char *next = NULL;
    struct rows_query query = { .parent = l->parent && *l->parent ? l->parent : NULL,
                                .token = request_query(q, "page_token"), .archived = -1 };
    char sort[80];
    int64_t total;
    size_t i;
    json_t *row;

    if (native_project(q, l->namespace_, &query.project, err) < 0 ||
        page_size(q, &query.limit, err) < 0 ||
        sort_of(l->kind, request_query(q, "sort_by"), sort, sizeof sort, err) < 0 ||
        kfp_filter(l->kind, request_query(q, "filter"), &filter, err) < 0)
        return -(int)err->code;
    query.sort = sort;
    query.filter = filter;
    if (rows_list(request_server(q), l->kind->rows, &query, &rows, &next, &total, err) < 0)
        return -(int)err->code;
    json_array_foreach(rows, i, row) {
        json_t *one = l->each(q, row);
        if (!one || json_array_append_new(list, one) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a list");
    }
    json_t *answer = json_object();
    if (json_array_size(list) > 0)
        json_object_set(answer, l->key, list);
    json_object_set_new(answer, "total_size", json_integer(total));
    if (*next)
        json_object_set_new(answer, "next_page_token", json_string(next));
    return respond_json(q, 200, answer);
}

/* ------------------------------------------------------------ uploads */

void kfp_upload_done(struct kfp_upload *u)
{
    buf_done(&u->bytes);
}

struct form {
    struct kfp_upload *upload;
    bool is_file, seen;
};

/* Content-Disposition: form-data; name="uploadfile"; filename="pipeline.tar.gz" */
static int on_part(void *arg, const char *head, struct err *err)
{
    struct form *f = arg;
    char text[1024];

    multipart_header(head, "Content-Disposition", text, sizeof text);
    f->is_file = strstr(text, "name=\"uploadfile\"") || strstr(text, "name=uploadfile");
    if (!f->is_file)
        return 0;
    if (f->seen)
        return err_set(err, ERR_INVALID, "the form has two files named uploadfile");
    f->seen = true;
    const char *name = strstr(text, "filename=\"");
    if (name)
        snprintf(f->upload->file, sizeof f->upload->file, "%.*s", (int)strcspn(name + 10, "\""),
                 name + 10);
    return 0;
}

static int on_data(void *arg, const char *bytes, size_t n, struct err *err)
{
    struct form *f = arg;

    if (!f->is_file)
        return 0;
    if (f->upload->bytes.n + n > PACKAGE_BYTES_MAX)
        return err_set(err, ERR_INVALID, "a package has at most %d MB", PACKAGE_BYTES_MAX >> 20);
    buf_append(&f->upload->bytes, bytes, n);
    return 0;
}

static int on_end(void *arg, struct err *err)
{
    struct form *f = arg;

    return buf_ok(&f->upload->bytes, err);
}

int kfp_upload_read(struct request *q, struct kfp_upload *out, struct err *err)
{
    static const struct multipart_sink sink = { on_part, on_data, on_end };
    const char *type = request_header(q, "Content-Type");
    struct form form = { .upload = out };
    struct multipart m;
    size_t n;
    const char *body = request_body(q, &n);

    if (!type || strncasecmp(type, "multipart/form-data", 19))
        return err_set(err, ERR_INVALID, "an upload is multipart/form-data with the package in "
                       "\"uploadfile\"");
    if (multipart_init(&m, type, err) < 0)
        return -(int)err->code;
    int rc = multipart_feed(&m, body, n, &sink, &form, err);
    if (rc == 0 && (!multipart_ended(&m) || !form.seen))
        rc = err_set(err, ERR_INVALID, "the form is not whole, or has no \"uploadfile\"");
    multipart_done(&m);
    return rc;
}

int kfp_upload_url(struct request *q, const char *project, const char *url,
                   struct kfp_upload *out, struct err *err)
{
    const char *slash = !strncmp(url, "gs://", 5) ? strchr(url + 5, '/') : NULL;
    char bucket[OBJECTS_BUCKET_MAX + 1];
    OWN_FD int fd = -1;
    int64_t size;

    if (!slash || slash - url - 5 > OBJECTS_BUCKET_MAX)
        return err_set(err, ERR_INVALID, "package_url: \"%.200s\" is not read from here: put it in "
                       "a bucket of this server (gs://BUCKET/FILE), or upload the file", url);
    snprintf(bucket, sizeof bucket, "%.*s", (int)(slash - url - 5), url + 5);
    if (objects_open(request_server(q), project, bucket, slash + 1, &fd, &size, err) < 0)
        return -(int)err->code;
    if (size > PACKAGE_BYTES_MAX)
        return err_set(err, ERR_INVALID, "a package has at most %d MB", PACKAGE_BYTES_MAX >> 20);
    const char *file = strrchr(slash, '/') + 1;
    snprintf(out->file, sizeof out->file, "%s", file);
    char *to = buf_reserve(&out->bytes, (size_t)size + 1);
    if (!to)
        return err_set(err, ERR_NOMEM, "no memory for a package");
    for (ssize_t got; out->bytes.n < (size_t)size; out->bytes.n += (size_t)got)
        if ((got = read(fd, to + out->bytes.n, (size_t)size - out->bytes.n)) <= 0)
            return err_set(err, ERR_IO, "%.200s cannot be read", url);
    to[size] = 0;
    return 0;
}

/* ------------------------------------------------------------ parameters and triggers */

int kfp_project(const struct request *q, const char *named, const char *experiment,
                char out[KFP_PROJECT], struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *project;

    if ((!named || !*named) && experiment && *experiment) {
        if (rows_get(request_server(q), &rows_experiments, request_project(q), experiment, &doc,
                     err) < 0)
            return -(int)err->code;
        named = text_of(doc, "project");
    }
    if (native_project(q, named, &project, err) < 0)
        return -(int)err->code;
    snprintf(out, KFP_PROJECT, "%s", project);
    return 0;
}

/* NULL: it is no input. */
static const char *type_of(const json_t *inputs, const char *name)
{
    size_t i;
    json_t *input;

    json_array_foreach((json_t *)inputs, i, input)
        if (!strcmp(text_of(input, "name"), name))
            return text_of(input, "type");
    return NULL;
}

int kfp_parameters(const json_t *given, const char *dialect, const json_t *inputs, json_t **out,
                   struct err *err)
{
    const bool texts = !strcmp(dialect, "argo");
    OWN_JSON json_t *doc = json_object();
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)given, name, value) {
        const char *type = type_of(inputs, name);
        json_t *as = NULL;
        if (!type)
            return err_set(err, ERR_INVALID, "the pipeline has no parameter \"%.200s\"", name);
        if (texts && !json_is_string(value)) {
            OWN_MEM char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
            as = json_string(text);
        } else if (!texts && json_is_string(value) && strcmp(type, "STRING")) {
            as = json_loads(json_string_value(value), JSON_DECODE_ANY, NULL);
        }
        json_object_set_new(doc, name, as ? as : json_incref(value));
    }
    *out = TAKE(doc);
    return 0;
}

int kfp_parameters_of(const json_t *given, const char *file, const char *text, size_t n,
                      json_t **out, struct err *err)
{
    OWN_JSON json_t *flow = NULL;

    if (json_object_size(given) == 0) {
        *out = json_object();
        return 0;
    }
    if (flow_compile(file, text, n, &flow, err) < 0)
        return -(int)err->code;
    return kfp_parameters(given, text_of(flow, "dialect"), json_object_get(flow, "inputs"), out,
                          err);
}

long kfp_whole(const json_t *doc, const char *key)
{
    const json_t *v = json_object_get(doc, key);

    return json_is_string(v) ? strtol(json_string_value(v), NULL, 10) : (long)json_number_value(v);
}

static int read_time(const json_t *doc, const char *key, json_t *out, const char *as,
                     struct err *err)
{
    const char *text = text_of(doc, key);
    int64_t ns;

    if (!*text)
        return 0;
    if (stamp_parse(text, &ns) < 0)
        return err_set(err, ERR_INVALID, "%s: \"%.40s\" is no time such as 2026-01-31T12:00:00Z",
                       key, text);
    return json_object_set_new(out, as, json_integer(ns / 1000000000));
}

int kfp_trigger_read(const json_t *trigger, json_t **out, struct err *err)
{
    const json_t *cron = json_object_get(trigger, "cron_schedule");
    const json_t *period = json_object_get(trigger, "periodic_schedule");
    const json_t *from = json_is_object(cron) ? cron : period;
    OWN_JSON json_t *doc = json_object();

    if (!json_is_object(from) || (json_is_object(cron) && json_is_object(period)))
        return err_set(err, ERR_INVALID, "trigger: takes a cron_schedule or a periodic_schedule");
    if (from == cron)
        json_object_set_new(doc, "cron", json_string(text_of(cron, "cron")));
    else
        json_object_set_new(doc, "interval_s", json_integer(kfp_whole(period, "interval_second")));
    if (read_time(from, "start_time", doc, "start", err) < 0 ||
        read_time(from, "end_time", doc, "end", err) < 0)
        return -(int)err->code;
    *out = TAKE(doc);
    return 0;
}

json_t *kfp_trigger(const json_t *doc)
{
    const json_t *t = json_object_get(doc, "trigger");
    const bool is_cron = json_object_get(t, "cron") != NULL;
    json_t *inner = json_pack("{s:o*, s:o*}", "start_time", kfp_time(number_of(t, "start")),
                              "end_time", kfp_time(number_of(t, "end")));
    char seconds[24];

    snprintf(seconds, sizeof seconds, "%ld", whole_of(t, "interval_s"));
    json_object_set_new(inner, is_cron ? "cron" : "interval_second",
                        json_string(is_cron ? text_of(t, "cron") : seconds));
    return json_pack("{s:o}", is_cron ? "cron_schedule" : "periodic_schedule", inner);
}
