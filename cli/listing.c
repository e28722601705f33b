/* cli/listing.c - pages, tables and names of pipelines, experiments and runs */
#include "cli/listing.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/http.h"
#include "base/json.h"

#define BASE "/apis/v2beta1/"

void listing_json(const json_t *doc)
{
    OWN_MEM char *text = json_dumps(doc, JSON_INDENT(2) | JSON_ENCODE_ANY);

    puts(text ? text : "null");
}

void listing_stamp(double t)
{
    time_t whole = (time_t)t;
    struct tm tm;
    char stamp[40] = "";

    if (t > 0)
        strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&whole, &tm));
    printf("%-19s", stamp);
}

void listing_stamp_text(const char *stamp)
{
    struct tm tm = { 0 };

    listing_stamp(strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm) ? (double)timegm(&tm) : 0);
}

void listing_span(double seconds)
{
    if (seconds < 0)
        printf("%8s", "");
    else if (seconds < 100)
        printf("%6.2f s", seconds);
    else if (seconds < 6000)
        printf("%4.0f min", seconds / 60);
    else
        printf("%6.1f h", seconds / 3600);
}

void listing_query(struct buf *path, const char *name, const char *value)
{
    if (!value || !*value)
        return;
    buf_printf(path, "%s%s=", path->data && strchr(path->data, '?') ? "&" : "?", name);
    http_escape(path, value);
}

int listing_parameters(const struct option_list *list, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = json_object();

    for (int i = 0; i < list->n; i++) {
        const char *equals = strchr(list->item[i], '=');
        if (!equals || equals == list->item[i])
            return err_set(err, ERR_INVALID, "--param takes NAME=VALUE, not \"%.64s\"",
                           list->item[i]);
        OWN_MEM char *name = strndup(list->item[i], (size_t)(equals - list->item[i]));
        if (json_object_set_new(doc, name, json_string(equals + 1)) < 0)
            return err_set(err, ERR_INVALID, "--param %.64s is not UTF-8", name);
    }
    *out = TAKE(doc);
    return 0;
}

int listing_all(struct client *s, const char *path, const char *key, long limit, json_t **out,
                bool *out_more, struct err *err)
{
    OWN_JSON json_t *all = json_array();
    OWN_MEM char *token = strdup("");

    do {
        OWN_JSON json_t *doc = NULL;
        OWN_BUF page = BUF_INIT;
        long left = limit - (long)json_array_size(all);
        buf_printf(&page, "%s&page_size=%ld", path, left < 200 ? left : 200);
        listing_query(&page, "page_token", token);
        if (buf_ok(&page, err) < 0 || client_call(s, "GET", page.data, NULL, &doc, err) < 0)
            return -(int)err->code;
        json_array_extend(all, json_object_get(doc, key));
        free(token);
        token = strdup(text_of(doc, "next_page_token"));
    } while (token && *token && (long)json_array_size(all) < limit);
    if (out_more)
        *out_more = token && *token;
    *out = TAKE(all);
    return 0;
}

bool listing_is_id(const char *text)
{
    if (strlen(text) != 36)
        return false;
    for (int i = 0; i < 36; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-'
                                                    : !strchr("0123456789abcdef", text[i]))
            return false;
    return true;
}

int listing_find(struct client *s, const char *list, const char *key, const char *text,
                 json_t **out, struct err *err)
{
    OWN_JSON json_t *filter = json_pack("{s:[{s:s, s:s, s:s}]}", "predicates", "operation",
                                        "EQUALS", "key", key, "string_value", text);
    OWN_MEM char *filter_text = filter ? json_dumps(filter, JSON_COMPACT) : NULL;
    OWN_JSON json_t *doc = NULL;
    OWN_BUF path = BUF_INIT;

    if (!filter_text)
        return err_set(err, ERR_INVALID, "\"%.64s\" is not UTF-8", text);
    buf_printf(&path, BASE "%s?page_size=1&sort_by=created_at+desc", list);
    listing_query(&path, "namespace", s->project);
    listing_query(&path, "filter", filter_text);
    if (buf_ok(&path, err) < 0 || client_call(s, "GET", path.data, NULL, &doc, err) < 0)
        return -(int)err->code;
    json_t *one = json_array_get(json_object_get(doc, list), 0);
    if (!one)
        return err_set(err, ERR_MISSING, "there is no \"%.200s\" among the %s of project %s", text,
                       list, s->project);
    *out = json_incref(one);
    return 0;
}

static int find_id(struct client *s, const char *list, const char *id, const char *named,
                   char **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    char *copy;

    if (!listing_is_id(named) && listing_find(s, list, "display_name", named, &doc, err) < 0)
        return -(int)err->code;
    copy = strdup(doc ? text_of(doc, id) : named);
    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    *out = copy;
    return 0;
}

int listing_pipeline(struct client *s, const char *named, char **out, struct err *err)
{
    return find_id(s, "pipelines", "pipeline_id", named, out, err);
}

int listing_experiment(struct client *s, const char *named, char **out, struct err *err)
{
    return find_id(s, "experiments", "experiment_id", named, out, err);
}
