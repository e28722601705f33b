/* server/packages.c - what a job needs of a bucket, onto the disk: packages, inputs of a step */
#include "server/packages.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/own.h"
#include "server/objects.h"

/* The file's name goes on the command line of an installer and into the path: no more than names of
 * packages need. */
static bool is_file_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+!";
    size_t n = strlen(name);
    return n > 0 && n <= 200 && strspn(name, allowed) == n && name[0] != '.' && name[0] != '-';
}

/* *out_sum: the CRC-32C of all of it. */
static int copy(int from, const char *path, uint32_t *out_sum, struct err *err)
{
    enum { PIECE = 1 << 18 };
    OWN_MEM char *bytes = malloc(PIECE);
    OWN(file_writer) w = NULL;
    if (!bytes)
        return err_set(err, ERR_NOMEM, "no memory to copy a package");
    if (file_writer_open(path, &w, err) < 0)
        return -(int)err->code;
    for (;;) {
        ssize_t n = read(from, bytes, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot read it: %s", strerror(errno));
        if (n == 0)
            break;
        *out_sum = crc32c_add(*out_sum, bytes, (size_t)n);
        if (file_writer_write(w, bytes, (size_t)n, err) < 0)
            return -(int)err->code;
    }
    if (file_writer_commit(w, err) < 0)
        return -(int)err->code;
    return chmod(path, 0644) < 0
               ? err_set(err, ERR_IO, "cannot make it readable: %s", strerror(errno))
               : 0;
}

static int open_uri(struct server *s, const char *project, const char *uri, int *out_fd,
                    struct err *err)
{
    char bucket[OBJECTS_BUCKET_MAX + 1];
    int64_t size = 0;
    if (!uri || strncmp(uri, "gs://", 5))
        return err_set(err, ERR_INVALID, "it is no object in a bucket (gs://BUCKET/OBJECT)");
    const char *object = strchr(uri + 5, '/');
    if (!object || object == uri + 5 || (size_t)(object - uri - 5) >= sizeof bucket)
        return err_set(err, ERR_INVALID, "there is no bucket and object in it");
    snprintf(bucket, sizeof bucket, "%.*s", (int)(object - uri - 5), uri + 5);
    return objects_open(s, project, bucket, object + 1, out_fd, &size, err);
}

static int stage(struct server *s, const char *project, const char *uri, const char *dir, size_t i,
                 json_t *out, struct err *err)
{
    char path[PATH_MAX];
    OWN_FD int fd = -1;
    const char *name = uri && strrchr(uri, '/') ? strrchr(uri, '/') + 1 : "";
    if (!is_file_name(name))
        return err_set(err, ERR_INVALID, "\"%.60s\" is no name of a package's file", name);
    if (open_uri(s, project, uri, &fd, err) < 0)
        return -(int)err->code;
    int n = snprintf(path, sizeof path, "%s/packages/%zu", dir, i);
    if (n < 0 || n + strlen(name) + 2 > sizeof path)
        return err_set(err, ERR_INVALID, "the path would be too long");
    if (files_mkdir(path, err) < 0)
        return -(int)err->code;
    snprintf(path + n, sizeof path - (size_t)n, "/%s", name);
    uint32_t sum = 0;
    if (copy(fd, path, &sum, err) < 0)
        return -(int)err->code;
    json_array_append_new(out, json_string(path));
    return 0;
}

int packages_stage(struct server *s, const char *project, const json_t *spec, const char *dir,
                   json_t **out, struct err *err)
{
    const json_t *uris = json_object_get(json_object_get(spec, "python"), "packages");
    size_t i;
    json_t *uri;
    if (json_array_size(uris) == 0) {
        *out = NULL;
        return 0;
    }
    if (json_array_size(uris) > PACKAGES_MAX)
        return err_set(err, ERR_INVALID, "more than %d packages", PACKAGES_MAX);
    OWN_JSON json_t *paths = json_array();
    json_array_foreach ((json_t *)uris, i, uri) {
        const char *text = json_string_value(uri);
        if (stage(s, project, text, dir, i, paths, err) < 0)
            return err_add(err, "package %.200s", text ? text : "(not a text)");
    }
    *out = TAKE(paths);
    return 0;
}

/* What an attempt before this one has staged, and what it was: PATH.sum. False: it is not there, or
 * has changed since. */
static bool is_staged(const char *path)
{
    enum { PIECE = 1 << 18 };
    char name[PATH_MAX], said[16] = "", found[16];
    OWN_MEM char *bytes = malloc(PIECE);
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    uint32_t sum = 0;
    ssize_t n = 0;

    snprintf(name, sizeof name, "%.4000s.sum", path);
    OWN_FD int kept = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (!bytes || fd < 0 || kept < 0 || read(kept, said, sizeof said - 1) != 9)
        return false;
    while ((n = read(fd, bytes, PIECE)) > 0)
        sum = crc32c_add(sum, bytes, (size_t)n);
    snprintf(found, sizeof found, "%08x\n", sum);
    return n == 0 && !strcmp(said, found);
}

static int stage_input(int from, const char *path, struct err *err)
{
    char name[PATH_MAX], text[16];
    uint32_t sum = 0;

    snprintf(name, sizeof name, "%.4000s.sum", path);
    if (copy(from, path, &sum, err) < 0)
        return -(int)err->code;
    snprintf(text, sizeof text, "%08x\n", sum);
    return files_write(name, text, strlen(text), err);
}

int packages_stage_inputs(struct server *s, const char *project, const json_t *spec,
                          const char *dir, struct err *err)
{
    const json_t *files = json_object_get(json_object_get(spec, "step"), "files");
    char path[PATH_MAX];
    size_t i;
    json_t *file;
    json_array_foreach ((json_t *)files, i, file) {
        const char *uri = json_string_value(json_object_get(file, "object"));
        OWN_FD int fd = -1;
        if (!uri)
            continue;
        if (snprintf(path, sizeof path, "%s/inputs", dir) >= (int)sizeof path - 24)
            return err_set(err, ERR_INVALID, "the path would be too long");
        if (files_mkdir(path, err) < 0)
            return -(int)err->code;
        snprintf(path + strlen(path), 24, "/%zu", i);
        if (is_staged(path))
            continue;
        if (open_uri(s, project, uri, &fd, err) < 0 || stage_input(fd, path, err) < 0)
            return err_add(err, "input %.200s", uri);
    }
    return 0;
}
