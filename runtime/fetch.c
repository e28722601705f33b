/* runtime/fetch.c - a job's files for a worker whose host does not have them */
#include "runtime/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/http.h"
#include "base/own.h"
#include "base/sha256.h"
#include "runtime/wire.h"

enum { PATH_SIZE = 4096 + 256, ANSWER_MS = 20000 };

/* ------------------------------------------------------------------ which files */

/* The k-th text in the lists of a part of the data: {"csv": ["a.csv", "b.csv"], "limit": 10}. */
static const char *name_in(const json_t *part, int *k)
{
    const char *key;
    json_t *list, *item;
    size_t i;

    json_object_foreach((json_t *)part, key, list)
        if (strcmp(key, "idx") == 0 || strcmp(key, "csv") == 0 || strcmp(key, "json") == 0 ||
            strcmp(key, "tfrecord") == 0)
            json_array_foreach(list, i, item)
                if ((*k)-- == 0)
                    return json_string_value(item);
    return NULL;
}

/* The path of file number `k` as the spec has it; NULL: there are no more. */
static const char *file_name(const struct job_spec *spec, int k)
{
    const char *more[] = { spec->init, spec->order };
    const char *name = name_in(json_object_get(spec->data, "train"), &k);

    if (!name)
        name = name_in(json_object_get(spec->data, "test"), &k);
    for (int i = 0; i < 2 && !name; i++)
        if (more[i] && k-- == 0)
            name = more[i];
    return name;
}

/* ------------------------------------------------------------------ the coordinator's side */

int fetch_piece(const struct job_spec *spec, int k, int64_t at, struct buf *out, int64_t *out_size,
                struct err *err)
{
    const char *name = k >= 0 && k < FETCH_FILES ? file_name(spec, k) : NULL;
    struct stat st;

    if (!name || at < 0)
        return err_set(err, ERR_MISSING, "the spec names no file %d", k);
    OWN_MEM char *path = files_resolve(spec->dir, name);
    OWN_FD int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    char *to = buf_reserve(out, FETCH_PIECE);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !to)
        return err_set(err, ERR_MISSING, "the job's own copy cannot be read");
    ssize_t n = pread(fd, to, FETCH_PIECE, at);
    if (n < 0)
        return err_set(err, ERR_IO, "the job's own copy: %s", strerror(errno));
    out->n += (size_t)n;
    *out_size = st.st_size;
    return 0;
}

/* ------------------------------------------------------------------ the worker's side */

/* Where a file of the spec goes below the worker's own directory; false: it cannot. */
static bool place_below(const char *name, char *out, size_t size)
{
    static const char *const data[] = { "${MUSTER_DATA}/", "$MUSTER_DATA/" };
    const char *rest = name, *folder = "spec";

    for (int i = 0; i < 2; i++)
        if (strncmp(name, data[i], strlen(data[i])) == 0) {
            rest = name + strlen(data[i]);
            folder = "data";
        }
    if (rest[0] == '/' || rest[0] == '~' || strstr(rest, "..") || strlen(rest) > 1024)
        return false;
    snprintf(out, size, "%s/%s", folder, rest);
    return true;
}

/* What is behind a URL is read by each worker from there. */
static bool is_here(const char *path)
{
    return http_is_url(path) || access(path, R_OK) == 0;
}

/* A piece of file k, appended to `body`. */
static int ask_piece(int fd, int k, int64_t at, struct buf *body, int64_t *out_size,
                     struct err *err)
{
    char ask[96];
    struct wire_header h = { .kind = WIRE_ASK };

    h.length = (uint64_t)snprintf(ask, sizeof ask, "{\"file\":%d,\"at\":%lld}", k, (long long)at);
    if (wire_send(fd, &h, ask, ANSWER_MS, err) < 0 ||
        wire_receive(fd, &h, body, ANSWER_MS, err) < 0)
        return -(int)err->code;
    if (h.kind == WIRE_REFUSED)
        return err_set(err, (enum err_code)h.number, "%s", body->data);
    if (h.kind != WIRE_STATE || body->n > FETCH_PIECE)
        return err_set(err, ERR_IO, "the coordinator did not send the file");
    *out_size = (int64_t)h.number;
    return 0;
}

static int fetch_file(int fd, int k, const char *path, struct err *err)
{
    OWN(file_writer) w = NULL;
    OWN_BUF body = BUF_INIT;
    int64_t size = 0, at = 0;
    struct stat st;
    OWN_MEM char *dir = strdup(path);

    if (!dir)
        return err_set(err, ERR_NOMEM, "no memory to fetch %s", path);
    *strrchr(dir, '/') = 0;
    if (ask_piece(fd, k, 0, &body, &size, err) < 0)
        return -(int)err->code;
    if (stat(path, &st) == 0 && st.st_size == size)
        return 0;
    if (files_mkdir(dir, err) < 0 || file_writer_open(path, &w, err) < 0)
        return -(int)err->code;
    while (body.n) {
        if (file_writer_write(w, body.data, body.n, err) < 0)
            return -(int)err->code;
        at += (int64_t)body.n;
        if (at < size && ask_piece(fd, k, at, &body, &size, err) < 0)
            return -(int)err->code;
        if (at >= size)
            break;
    }
    if (at != size)
        return err_set(err, ERR_IO, "%s: %lld of %lld bytes came", path, (long long)at,
                       (long long)size);
    return file_writer_commit(w, err);
}

static int fetch_all(struct job_spec *spec, int fd, const char *root, struct err *err)
{
    char below[1200], path[PATH_SIZE + 1200];
    const char *name;

    for (int k = 0; (name = file_name(spec, k)); k++) {
        if (http_is_url(name))
            continue;
        if (!place_below(name, below, sizeof below))
            return err_set(
                err, ERR_MISSING,
                "%s: is not on this host, and only paths in $MUSTER_DATA "
                "or beside the spec come from the job (put the file there, or change the "
                "path)",
                name);
        snprintf(path, sizeof path, "%s/%s", root, below);
        if (fetch_file(fd, k, path, err) < 0)
            return err_add(err, "%s", name);
    }
    return 0;
}

/* One directory for each set of names, so that jobs do not mix. */
static int own_root(const struct job_spec *spec, char *out, size_t size, struct err *err)
{
    OWN_MEM char *text = json_dumps(spec->data, JSON_COMPACT | JSON_SORT_KEYS);
    OWN_MEM char *cache = files_resolve(NULL, "$MUSTER_DATA/../fetched");
    char hex[SHA256_HEX];

    if (!text || !cache)
        return err_set(err, ERR_NOMEM, "no memory to fetch the job's files");
    sha256_hex_of(text, strlen(text), hex);
    snprintf(out, size, "%.4000s/%.16s", cache, hex);
    return 0;
}

int fetch_missing(struct job_spec *spec, const char *join, const char *token, struct err *err)
{
    char root[PATH_SIZE], data[PATH_SIZE + 8];
    const char *name;
    bool all = true;
    OWN_FD int fd = -1;

    for (int k = 0; (name = file_name(spec, k)); k++) {
        OWN_MEM char *path = files_resolve(spec->dir, name);
        all &= path && is_here(path);
    }
    if (all)
        return 0;
    if (own_root(spec, root, sizeof root, err) < 0 ||
        wire_connect(join, ANSWER_MS, &fd, err) < 0 || wire_prove(fd, token, ANSWER_MS, err) < 0 ||
        fetch_all(spec, fd, root, err) < 0)
        return -(int)err->code;
    snprintf(data, sizeof data, "%s/data", root);
    setenv("MUSTER_DATA", data, 1);
    snprintf(spec->dir, sizeof spec->dir, "%.4000s/spec", root);
    return 0;
}
