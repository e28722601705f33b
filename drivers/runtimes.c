/* drivers/runtimes.c - what stands here for a runtime, an image or a scale tier of the cloud */
#include "drivers/runtimes_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "drivers/journal.h"

/* Also for a table of before, which has no such part. */
#define TIERS                                                                                    \
    "# What a scale tier is here: how many workers, and for each of them cores (cpu), memory "   \
    "(2Gi)\n"                                                                                    \
    "# and GPUs (gpu), as far as they are here. A tier that has no row is refused.\n"            \
    "tiers:\n"                                                                                   \
    "  BASIC: {workers: 1}\n"                                                                    \
    "  STANDARD_1: {workers: 5}\n"                                                               \
    "  PREMIUM_1: {workers: 20}\n"                                                               \
    "  BASIC_GPU: {workers: 1, gpu: 1}\n"                                                        \
    "  CUSTOM: {}\n"

static const char defaults[] =
    "# What runs here in place of AI Platform's runtimes, images and scale tiers. Edit it: it is "
    "read for\n"
    "# each job.\n"
    "#\n"
    "# A row of runtimes and images may say\n"
    "#   python: python3.9          a name that is looked up, or a path; default: the Python asked "
    "for,\n"
    "#                              or python3 where that is not installed\n"
    "#   system: true               the packages of that Python's own installation are seen\n"
    "#   plain: true                of an image: this machine's programs as they are, no Python of "
    "its own\n"
    "#   requirements: [torch]      what is installed before the job's own requirements\n"
    "# A runtime that has no row is as one whose row says nothing. An image goes by the longest "
    "row that\n"
    "# it begins with. One that podman has on this machine is run as a container, with a row or "
    "without;\n"
    "# of that a row may say\n"
    "#   pull: true                 fetch the image from its registry when it is not here\n"
    "#   container: false           never run it as a container\n"
    "#   user: image                run it as the user that the image names (root, mostly), not as "
    "nobody\n"
    "runtimes:\n"
    "  \"1.13\": {}\n"
    "  \"1.14\": {}\n"
    "  \"1.15\": {}\n"
    "  \"2.1\": {}\n"
    "  \"2.2\": {}\n"
    "  \"2.3\": {}\n"
    "  \"2.4\": {}\n"
    "  \"2.5\": {}\n"
    "  \"2.6\": {}\n"
    "  \"2.8\": {}\n"
    "  \"2.11\": {}\n"
    "images:\n"
    "  gcr.io/cloud-ml-public/training/pytorch-: {system: true, requirements: [torch, "
    "\"numpy<2\"]}\n"
    "  gcr.io/cloud-ml-public/training/: {}\n"
    "  us-docker.pkg.dev/vertex-ai/training/pytorch-: {system: true, requirements: [torch, "
    "\"numpy<2\"]}\n"
    "  us-docker.pkg.dev/vertex-ai/training/: {}\n"
    "  python: {}\n"
    "  pytorch/pytorch: {system: true, requirements: [torch, \"numpy<2\"]}\n"
    "  tensorflow/tensorflow: {requirements: [tensorflow]}\n"
    "  alpine: {plain: true}\n"
    "  bash: {plain: true}\n"
    "  busybox: {plain: true}\n"
    "  curlimages/curl: {plain: true}\n"
    "  debian: {plain: true}\n"
    "  gcr.io/google.com/cloudsdktool/: {plain: true}\n"
    "  gcr.io/google-containers/busybox: {plain: true}\n"
    "  ubuntu: {plain: true}\n"
    TIERS
    "# Environments that are made for Python programs are removed when none has used them for so "
    "many\n"
    "# days, and the oldest ones when all take more than this. 0: never.\n"
    "environments: {days: 30, size: 50Gi}\n"
    "# Users of jobs when the server is root: each running job has one of these numbers, as user and "
    "as\n"
    "# group, to itself. Take a range that nobody else on this machine has.\n"
    "users: {first: 0x70000000, last: 0x7fffffff}\n"
    "# Folders that every job may read, beside programs and settings (/usr, /etc, /opt): programs "
    "or data\n"
    "# that are kept elsewhere, such as [/srv/conda].\n"
    "expose: []\n"
    "# Whose jobs may ask for this machine's network (network: host), its loopback included: owner "
    "(the\n"
    "# server's own token), anyone, nobody.\n"
    "network: {host: owner}\n"
    "\n" RUNTIMES_LIMITS;

enum { KEEP_DAYS = 30 };
static const double keep_bytes = 50.0 * (1 << 30);

static int table_path(const char *data_dir, char *out, struct err *err)
{
    if (snprintf(out, PATH_MAX, "%s/runtimes.yaml", data_dir) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%s: the path is too long", data_dir);
    return 0;
}

int runtimes_write(const char *data_dir, struct err *err)
{
    char path[PATH_MAX];
    if (table_path(data_dir, path, err) < 0)
        return -(int)err->code;
    return access(path, F_OK) == 0 ? 0 : files_output(path, defaults, sizeof defaults - 1, err);
}

int runtimes_read(const char *data_dir, char *path, struct value **out, struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n;

    if (table_path(data_dir, path, err) < 0 || runtimes_write(data_dir, err) < 0 ||
        files_read(path, YAML_BYTES_MAX, &text, &n, err) < 0)
        return -(int)err->code;
    OWN(value) table = NULL;
    if (yaml_parse(text, n, path, NULL, &table, err) < 0 ||
        runtimes_check_table(table, path, err) < 0)
        return -(int)err->code;
    *out = TAKE(table);
    return 0;
}

/* ------------------------------------------------------------------ rows */

/* Docker's own are known without their registry, too. */
static const struct value *find_image(const struct value *images, const char *image)
{
    const struct value *best = NULL;
    image += strncmp(image, "docker.io/", 10) ? 0 : 10;
    image += strncmp(image, "library/", 8) ? 0 : 8;
    for (const struct value *row = images ? images->child : NULL; row; row = row->next)
        if (row->key && !strncmp(image, row->key, strlen(row->key)) &&
            (!best || strlen(row->key) > strlen(best->key)))
            best = row;
    return best;
}

const char *runtimes_word(const struct value *row, const char *key)
{
    const struct value *v = row ? value_find(row, key) : NULL;
    return v && v->text ? v->text : "";
}

static void read_row(const struct value *row, struct runtime *out, const char **out_python)
{
    const struct value *python = row ? value_find(row, "python") : NULL;
    const struct value *list = row ? value_find(row, "requirements") : NULL;

    out->system = !strcmp(runtimes_word(row, "system"), "true");
    *out_python = python ? python->text : NULL;
    for (const struct value *v = list && list->kind == VALUE_LIST ? list->child : NULL; v;
         v = v->next)
        if (v->text)
            json_array_append_new(out->requirements, json_string(v->text));
}

int runtimes_image(const char *data_dir, const char *image, struct runtime_image *out,
                   struct err *err)
{
    char path[PATH_MAX];
    OWN(value) table = NULL;

    if (runtimes_read(data_dir, path, &table, err) < 0)
        return -(int)err->code;
    const struct value *row = find_image(value_find(table, "images"), image);
    *out = (struct runtime_image){ .has_row = row != NULL,
                                   .pull = !strcmp(runtimes_word(row, "pull"), "true"),
                                   .never = !strcmp(runtimes_word(row, "container"), "false"),
                                   .own_user = !strcmp(runtimes_word(row, "user"), "image"),
                                   .plain = !strcmp(runtimes_word(row, "plain"), "true") };
    return 0;
}

/* ------------------------------------------------------------------ scale tiers */

double runtimes_bytes(const char *text)
{
    static const struct { const char *unit; double times; } units[] = {
        { "", 1 }, { "Ki", 1024.0 }, { "Mi", 1048576.0 }, { "Gi", 1073741824.0 },
        { "Ti", 1099511627776.0 }, { "k", 1e3 }, { "M", 1e6 }, { "G", 1e9 }, { "T", 1e12 } };
    char *end;
    double n = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof units[0]; i++)
        if (!strcmp(end, units[i].unit))
            return n * units[i].times;
    return -1;
}

static int read_tier(const struct value *row, const char *path, json_t *tiers, struct err *err)
{
    static const struct { const char *key; double min, max; } keys[] = {
        { "workers", 1, 1000 }, { "gpu", 0, 64 }, { "cpu", 0.001, 4096 }, { "memory", 0, 1e15 } };
    json_t *tier = json_object();

    json_object_set_new(tiers, row->key, tier);
    if (row->kind != VALUE_MAP && !value_is_null(row))
        return err_set(err, ERR_INVALID, "%s:%d: a tier is a map: {workers: 5, gpu: 1}", path,
                       row->line);
    for (const struct value *v = row->child; v; v = v->next) {
        size_t i = 0;
        while (i < 4 && strcmp(keys[i].key, v->key))
            i++;
        double n = i < 4 && v->text ? runtimes_bytes(v->text) : -1;
        if (i == 4)
            return err_set(err, ERR_INVALID,
                           "%s:%d: \"%.40s\": a tier has workers, cpu, memory and gpu", path,
                           v->line, v->key);
        if (!(n >= keys[i].min && n <= keys[i].max))
            return err_set(err, ERR_INVALID, "%s:%d: %s: takes a number from %g to %g", path,
                           v->line, v->key, keys[i].min, keys[i].max);
        json_object_set_new(tier, v->key, json_real(n));
    }
    return 0;
}

int runtimes_tiers(const char *data_dir, json_t **out, struct err *err)
{
    char path[PATH_MAX];
    OWN(value) table = NULL;
    OWN(value) own = NULL;
    OWN_JSON json_t *tiers = json_object();

    if (!tiers)
        return err_set(err, ERR_NOMEM, "no memory for scale tiers");
    if (data_dir && runtimes_read(data_dir, path, &table, err) < 0)
        return -(int)err->code;
    const struct value *rows = table ? value_find(table, "tiers") : NULL;
    if (!rows) {
        if (yaml_parse(TIERS, strlen(TIERS), "tiers", NULL, &own, err) < 0)
            return -(int)err->code;
        rows = value_find(own, "tiers");
    }
    if (rows->kind != VALUE_MAP)
        return err_set(err, ERR_INVALID, "%s:%d: tiers: takes a map of names to rows", path,
                       rows->line);
    for (const struct value *row = rows->child; row; row = row->next)
        if (read_tier(row, path, tiers, err) < 0)
            return -(int)err->code;
    *out = TAKE(tiers);
    return 0;
}

int runtimes_keep(const char *data_dir, double *out_days, double *out_bytes, struct err *err)
{
    char path[PATH_MAX];
    OWN(value) table = NULL;

    if (runtimes_read(data_dir, path, &table, err) < 0)
        return -(int)err->code;
    const struct value *row = value_find(table, "environments");
    const char *days = runtimes_word(row, "days"), *size = runtimes_word(row, "size");
    *out_days = *days ? runtimes_bytes(days) : KEEP_DAYS;
    *out_bytes = *size ? runtimes_bytes(size) : keep_bytes;
    return 0;
}

/* ------------------------------------------------------------------ interpreters */

/* A program that the user of a sandbox can run: no script (pyenv's shims ask for pyenv), and,
 * for a server that is root, with a way to it that is open to others. */
static bool is_usable(const char *path, bool given)
{
    char head[4];
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, head, 4) != 4 || memcmp(head, "\177ELF", 4) || access(path, X_OK) < 0)
        return false;
    if (given || geteuid() != 0)
        return true;            /* a path that the table names is made visible */
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strrchr(part, '/'); slash && slash != part; slash = strrchr(part, '/')) {
        struct stat st;
        *slash = '\0';
        if (stat(part, &st) < 0 || !(st.st_mode & S_IXOTH))
            return false;
    }
    return true;
}

static bool find_program(const char *name, char *out)
{
    if (name[0] == '/') {
        OWN_MEM char *real = realpath(name, NULL);
        if (!real || !is_usable(real, true))
            return false;
        snprintf(out, PATH_MAX, "%s", real);
        return true;
    }
    const char *path = getenv("PATH");
    for (const char *p = path && *path ? path : "/usr/local/bin:/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%.*s/%s", (int)n, p, name);
        OWN_MEM char *real = realpath(file, NULL);
        if (real && is_usable(real, false)) {
            snprintf(out, PATH_MAX, "%s", real);
            return true;
        }
        p += n + (p[n] == ':');
    }
    return false;
}

/* "python3.11" of /usr/bin/python3.11: its version is in its name wherever it is installed. */
static void version_of(const char *python, char *out, size_t size)
{
    const char *name = strrchr(python, '/');
    size_t at = strcspn(name, "0123456789");
    snprintf(out, size, "%s", name[at] ? name + at : "3");
}

static int find_python(const char *asked, const char *row, struct runtime *out, struct err *err)
{
    char name[64];
    snprintf(name, sizeof name, "python%.50s", asked ? asked : "3");
    const char *const tries[] = { row ? row : name, row ? NULL : "python3", NULL };
    for (int i = 0; tries[i]; i++)
        if (find_program(tries[i], out->python)) {
            version_of(out->python, out->version, sizeof out->version);
            return 0;
        }
    return err_set(err, ERR_MISSING,
                   "there is no %s here that a job can run (install python3, or name one "
                   "in runtimes.yaml)",
                   row ? row : "python3");
}

/* "python:3.9-slim" asks for 3.9. */
static bool tag_version(const char *image, char *out, size_t size)
{
    const char *name = strstr(image, "python:"), *tag = name ? name + strlen("python:") : "";
    size_t n = strspn(tag, "0123456789.");

    snprintf(out, size, "%.*s", (int)n, tag);
    char *second = strchr(out, '.') ? strchr(strchr(out, '.') + 1, '.') : NULL;
    if (second)
        *second = '\0';         /* 3.9.18 is a 3.9 */
    return n > 0 && n < size && strchr(out, '.') && strchr(out, '.')[1];
}

bool runtimes_program(const char *name, char *out)
{
    const char *path = getenv("PATH");
    for (const char *p = path && *path ? path : "/usr/local/bin:/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%.*s/%s", (int)n, p, name);
        OWN_MEM char *real = realpath(file, NULL);
        if (real && access(real, X_OK) == 0) {
            snprintf(out, PATH_MAX, "%s", real);
            return true;
        }
        p += n + (p[n] == ':');
    }
    return false;
}

int runtimes_find(const char *data_dir, const json_t *python, const char *image,
                  struct journal *journal, struct runtime *out, struct err *err)
{
    const char *runtime = json_string_value(json_object_get(python, "runtime"));
    const char *asked = json_string_value(json_object_get(python, "python"));
    const char *row_python = NULL;
    char tag[16];
    char path[PATH_MAX];
    OWN(value) table = NULL;
    struct runtime r = { .requirements = json_array() };

    if (runtimes_read(data_dir, path, &table, err) < 0)
        goto failed;
    const struct value *images = value_find(table, "images"),
                       *runtimes = value_find(table, "runtimes");
    const struct value *row = image ? find_image(images, image)
                            : runtime && runtimes ? value_find(runtimes, runtime) : NULL;
    if (!asked && image && tag_version(image, tag, sizeof tag))
        asked = tag;
    read_row(row, &r, &row_python);
    if (find_python(asked, row_python, &r, err) < 0)
        goto failed;
    if (image)
        journal_say(journal, "in place of the image: Python %s of this machine, in a sandbox",
                    r.version);
    else if (runtime || (asked && strcmp(asked, r.version)))
        journal_say(journal, "asked for%s%s%s%s%s; Python %s of this machine is used%s",
                    runtime ? " runtime " : "", runtime ? runtime : "", runtime && asked ? "," : "",
                    asked ? " Python " : "", asked ? asked : "", r.version,
                    row || !runtime ? "" : " (runtimes.yaml has no row for that runtime)");
    *out = r;
    return 0;

failed:
    json_decref(r.requirements);
    return -(int)err->code;
}
