/* cli/gcloud_config.c - gcloud's properties: CLOUDSDK_SECTION_NAME, or a file of our own */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/files.h"
#include "base/own.h"
#include "cli/gcloud_int.h"

enum { NAME = 100, FILE_MAX = 1 << 20 };

/* "project" is "core/project". */
static int full_name(const char *name, char out[NAME], struct err *err)
{
    int n = snprintf(out, NAME, "%s%s", strchr(name, '/') ? "" : "core/", name);
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("/_-", *p))
            n = NAME;
    return n < NAME && *name ? 0 : err_set(err, ERR_INVALID, "[%.60s] is no property", name);
}

static char *file_path(void)
{
    const char *xdg = getenv("XDG_CONFIG_HOME");
    char *out = NULL;
    if (xdg && *xdg)
        return asprintf(&out, "%s/muster/gcloud.json", xdg) < 0 ? NULL : out;
    return files_resolve(NULL, "~/.config/muster/gcloud.json");
}

static json_t *read_file(void)
{
    struct err err;
    OWN_MEM char *path = file_path(), *text = NULL;
    json_t *doc = path && files_read(path, FILE_MAX, &text, NULL, &err) == 0
                      ? json_loads(text, 0, NULL)
                      : NULL;
    return json_is_object(doc) ? doc : json_object();
}

static int write_file(const json_t *doc, struct err *err)
{
    OWN_MEM char *path = file_path(), *text = json_dumps(doc, JSON_INDENT(1) | JSON_SORT_KEYS);
    if (!path || !text)
        return err_set(err, ERR_NOMEM, "no memory for the properties");
    char *slash = strrchr(path, '/');
    *slash = 0;
    if (files_mkdir(path, err) < 0)
        return -(int)err->code;
    *slash = '/';
    return files_output(path, text, strlen(text), err);
}

char *gcloud_property(const char *name)
{
    char full[NAME], variable[NAME + 16];
    struct err err;
    if (full_name(name, full, &err) < 0)
        return NULL;
    snprintf(variable, sizeof variable, "CLOUDSDK_%s", full);
    for (char *p = variable; *p; p++)
        *p = *p == '/' || *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    const char *value = getenv(variable);
    if (value && *value)
        return strdup(value);
    OWN_JSON json_t *doc = read_file();
    value = json_string_value(json_object_get(doc, full));
    return value && *value ? strdup(value) : NULL;
}

static int get_value(const char *name, struct err *err)
{
    char full[NAME];
    if (full_name(name, full, err) < 0)
        return -(int)err->code;
    OWN_MEM char *value = gcloud_property(name);
    if (value)
        puts(value);
    else
        fputs("(unset)\n", stderr);
    return 0;
}

static int set_value(const char *name, const char *value, struct err *err)
{
    char full[NAME];
    OWN_JSON json_t *doc = read_file();
    if (full_name(name, full, err) < 0)
        return -(int)err->code;
    if (value)
        json_object_set_new(doc, full, json_string(value));
    else
        json_object_del(doc, full);
    if (write_file(doc, err) < 0)
        return -(int)err->code;
    fprintf(stderr, value ? "Updated property [%s].\n" : "Unset property [%s].\n", full);
    return 0;
}

static int list_values(void)
{
    OWN_JSON json_t *doc = read_file();
    const char *last = "", *name;
    json_t *value;
    size_t last_n = 0;
    json_object_foreach (doc, name, value) {
        size_t n = strcspn(name, "/");
        if (n != last_n || strncmp(last, name, n))
            printf("[%.*s]\n", (int)n, name);
        printf("%s = %s\n", name + n + 1, json_string_value(value));
        last = name;
        last_n = n;
    }
    return 0;
}

int gcloud_config(struct cli *c, int argc, char **argv, struct err *err)
{
    struct {
        struct gcloud_common common;
    } a = { 0 };
    typedef __typeof__(a) args;
    static const struct option options[] = { GCLOUD_COMMON(args), { 0 } };
    int n = options_parse(options, argc, argv, &a, err);
    c->exit_code = 2;
    if (n < 0)
        return n;
    c->exit_code = n ? 0 : 2;
    if (n == 2 && (!strcmp(argv[0], "get-value") || !strcmp(argv[0], "get")))
        return get_value(argv[1], err);
    if (n == 3 && !strcmp(argv[0], "set"))
        return set_value(argv[1], argv[2], err);
    if (n == 2 && !strcmp(argv[0], "unset"))
        return set_value(argv[1], NULL, err);
    if (n == 1 && !strcmp(argv[0], "list"))
        return list_values();
    c->exit_code = 2;
    return err_set(err, ERR_INVALID,
                   "usage: gcloud config get-value NAME | set NAME VALUE | unset NAME | "
                   "list");
}
