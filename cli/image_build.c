/* cli/image_build.c - a Dockerfile, as far as it means something without layers and registries */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/json.h"
#include "base/tree.h"
#include "cli/image.h"

enum { DOCKERFILE_MAX = 1 << 20 };

/* ------------------------------------------------------------------ copying */

void image_done(struct image *m)
{
    if (m->stage[0])
        tree_remove(m->stage, &(struct err){ 0 });
    json_decref(m->doc);
    free(m->skip);
    *m = (struct image){ 0 };
}

int image_stage(struct image *m, struct err *err)
{
    return m->stage[0] ? 0 : tree_scratch("muster-image", m->stage, sizeof m->stage, err);
}

/* nftw takes no argument; a command has one thread. */
static struct {
    const struct image *image;
    const char *from, *to;
    struct err *err;
} copying;

static bool is_skipped(const char *name)
{
    const char *skip = copying.image->skip;
    char pattern[PATH_MAX];

    if (!strcmp(name, ".git") || !strncmp(name, ".git/", 5) || strstr(name, "__pycache__"))
        return true;
    while (skip && *skip) {
        size_t n = strcspn(skip, "\n"), m = n;
        while (m && strchr(" \t\r/", skip[m - 1]))
            m--;
        snprintf(pattern, sizeof pattern, "%.*s", (int)m, skip + (*skip == '/'));
        if (m && *skip != '#' &&
            (fnmatch(pattern, name, FNM_PATHNAME) == 0 ||
             fnmatch(pattern, name, FNM_PATHNAME | FNM_LEADING_DIR) == 0))
            return true;
        skip += n + (skip[n] == '\n');
    }
    return false;
}

static int copy_bytes(const char *from, const char *to, mode_t mode, struct err *err)
{
    OWN_FD int in = open(from, O_RDONLY | O_CLOEXEC);
    OWN_FD int out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode | 0600);
    ssize_t n = 1;

    while (out >= 0 && n > 0)
        n = copy_file_range(in, NULL, out, NULL, 1 << 30, 0);
    return out < 0 || n < 0 ? err_set(err, ERR_IO, "%s: %s", from, strerror(errno)) : 0;
}

static int copy_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    const char *name = path + strlen(copying.from);
    const char *context = copying.image->context;
    size_t n = context ? strlen(context) : 0;
    const char *inside = n && !strncmp(path, context, n) ? path + n + strspn(path + n, "/") : name;
    char to[PATH_MAX];

    (void)at;
    if (*inside && is_skipped(inside))
        return 0;
    if (snprintf(to, sizeof to, "%s%s", copying.to, name) >= PATH_MAX)
        return err_set(copying.err, ERR_INVALID, "%s: the path is too long", path);
    if (flag == FTW_D || flag == FTW_DNR)
        return mkdir(to, 0755) == 0 || errno == EEXIST
                   ? 0 : err_set(copying.err, ERR_IO, "%s: %s", path, strerror(errno));
    if (flag == FTW_SL || flag == FTW_SLN) {
        char link[PATH_MAX];
        ssize_t got = readlink(path, link, sizeof link - 1);
        link[got > 0 ? got : 0] = '\0';
        return symlink(link, to) == 0 || errno == EEXIST
                   ? 0 : err_set(copying.err, ERR_IO, "%s: %s", path, strerror(errno));
    }
    return S_ISREG(st->st_mode) ? copy_bytes(path, to, st->st_mode & 0777, copying.err) : 0;
}

/* Which directories go up: those that something was copied into, without those inside another. */
static void note_dir(struct image *m, const char *dir)
{
    json_t *dirs = json_object_get(m->doc, "dirs"), *item;
    size_t n = strlen(dir);

    for (size_t i = 0; i < json_array_size(dirs); i++) {
        item = json_array_get(dirs, i);
        const char *other = text_of(item, "path");
        if (!strncmp(dir, other, strlen(other)) &&
            (!dir[strlen(other)] || dir[strlen(other)] == '/'))
            return;
        if (!strncmp(other, dir, n) && other[n] == '/')
            json_array_remove(dirs, i--);
    }
    json_array_append_new(dirs, json_pack("{s:s}", "path", dir));
}

/* A directory of the image takes the place of what is there: over one of these no program is
 * left. */
static bool is_systems(const char *dir)
{
    static const char *const dirs[] = {
        "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin",
        "/sys", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib",
        "/usr/sbin", "/usr/share",
    };
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        if (!strcmp(dir, dirs[i]))
            return true;
    return !strncmp(dir, "/dev/", 5) || !strncmp(dir, "/proc/", 6) || !strncmp(dir, "/sys/", 5);
}

static bool climbs(const char *path)
{
    size_t n = strlen(path);
    return strstr(path, "/../") || (n > 2 && !strcmp(path + n - 3, "/.."));
}

int image_copy(struct image *m, const char *from, const char *to, struct err *err)
{
    char source[PATH_MAX], target[PATH_MAX], dir[PATH_MAX];
    struct stat st;

    if (image_stage(m, err) < 0)
        return -(int)err->code;
    if (to[0] != '/' || !strcmp(to, "/") || climbs(to) || strstr(to, "//"))
        return err_set(err, ERR_INVALID, "%s: say where it goes as a path from the root, such as "
                       "/workspace", to);
    if (!realpath(from, source) || stat(source, &st) < 0)
        return err_set(err, ERR_MISSING, "%s: %s", from, strerror(errno));
    const char *name = strrchr(source, '/') + 1;
    size_t n = strlen(to);
    bool into = to[n - 1] == '/' && !S_ISDIR(st.st_mode);
    snprintf(dir, sizeof dir, "%.*s", (int)(to[n - 1] == '/' ? n - 1 : n), to);
    if (!S_ISDIR(st.st_mode) && !into)
        *strrchr(dir, '/') = '\0';
    if (!*dir)
        return err_set(err, ERR_INVALID, "%s: a file goes into a directory of its own, such as "
                       "/workspace/", to);
    if (is_systems(dir))
        return err_set(err, ERR_INVALID, "%s: %s is the system's own, and steps would find nothing "
                       "else there; take a directory of its own, such as /workspace", to, dir);
    if (snprintf(target, sizeof target, "%s%s", m->stage, dir) >= PATH_MAX - NAME_MAX - 2)
        return err_set(err, ERR_INVALID, "%s: the path is too long", to);
    if (files_mkdir(target, err) < 0)
        return -(int)err->code;
    note_dir(m, dir);
    if (!S_ISDIR(st.st_mode)) {
        const char *last = into ? name : strrchr(to, '/') + 1;
        size_t at = strlen(target);
        snprintf(target + at, sizeof target - at, "/%s", last);
        return copy_bytes(source, target, st.st_mode & 0777, err);
    }
    copying.image = m;
    copying.from = source;
    copying.to = target;
    copying.err = err;
    int rc = nftw(source, copy_one, 32, FTW_PHYS);
    return rc < 0 && !err->code ? err_set(err, ERR_IO, "%s: %s", from, strerror(errno)) : rc;
}

/* ------------------------------------------------------------------ instructions */

struct build {
    struct image *image;
    const char *path;           /* of the Dockerfile */
    int line, lenient;
    char workdir[PATH_MAX];
    json_t *args;               /* of ARG and ENV */
    bool begun;                 /* FROM was there */
};

static int wrong(const struct build *b, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int wrong(const struct build *b, struct err *err, const char *fmt, ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return err_set(err, ERR_INVALID, "%s:%d: %s", b->path, b->line, text);
}

/* What would be dropped is refused, unless the user said to go on. */
static int without_meaning(const struct build *b, const char *what, struct err *err)
{
    if (!b->lenient)
        return wrong(b, err, "%.200s: has no meaning here: steps run on this machine's own system "
                     "(take the line out, or say --lenient to leave it out)", what);
    fprintf(stderr, "%s:%d: left out: %s\n", b->path, b->line, what);
    return 0;
}

/* $NAME and ${NAME}, of ARG and ENV. */
static void expand(const struct build *b, const char *text, struct buf *out)
{
    for (; *text; text++) {
        char name[128];
        size_t n = 0;
        const char *from = text + 1;
        if (*text == '\\' && text[1] == '$') {
            buf_append(out, ++text, 1);
            continue;
        }
        bool braced = *text == '$' && *from == '{';
        from += braced;
        while (*text == '$' && n + 1 < sizeof name &&
               (isalnum((unsigned char)from[n]) || from[n] == '_'))
            n++;
        if (!n || (braced && from[n] != '}')) {
            buf_append(out, text, 1);
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)n, from);
        buf_text(out, text_of(b->args, name));
        text = from + n - 1 + braced;
    }
}

/* Words of a line, quotes taken off; a JSON list as it is. New reference. */
static json_t *words_of(const struct build *b, const char *text)
{
    json_error_t none;
    json_t *list = text[0] == '[' ? json_loads(text, 0, &none) : NULL;

    if (list)
        return list;
    list = json_array();
    OWN_BUF all = BUF_INIT;
    expand(b, text, &all);
    for (const char *p = all.data ? all.data : ""; *p;) {
        OWN_BUF word = BUF_INIT;
        char quote = 0;
        p += strspn(p, " \t");
        for (; *p && (quote || !strchr(" \t", *p)); p++)
            if (*p == quote)
                quote = 0;
            else if (!quote && (*p == '"' || *p == '\''))
                quote = *p;
            else
                buf_append(&word, p, 1);
        if (word.n)
            json_array_append_new(list, json_string(word.data));
    }
    return list;
}

static const char *word(const json_t *words, size_t i)
{
    const char *text = json_string_value(json_array_get(words, i));
    return text ? text : "";
}

static int do_from(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    (void)rest;
    if (b->begun)
        return wrong(b, err, "a second FROM: images of several stages are not built here");
    b->begun = true;
    if (strcmp(word(words, 0), "scratch"))
        json_object_set_new(b->image->doc, "from", json_string(word(words, 0)));
    return 0;
}

static int do_workdir(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    const char *dir = word(words, 0);
    char path[PATH_MAX];

    (void)rest;
    int n = dir[0] == '/' ? snprintf(path, sizeof path, "%s", dir)
                          : snprintf(path, sizeof path, "%s/%s", b->workdir, dir);
    if (!*dir || n >= PATH_MAX)
        return wrong(b, err, "WORKDIR takes a directory");
    snprintf(b->workdir, sizeof b->workdir, "%s", path);
    json_object_set_new(b->image->doc, "cwd", json_string(path));
    return 0;
}

static int do_env(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    json_t *env = json_object_get(b->image->doc, "env");
    size_t n = json_array_size(words);

    if (n == 0)
        return wrong(b, err, "ENV takes NAME=VALUE");
    bool pairs = strchr(word(words, 0), '=') != NULL;
    for (size_t i = 0; i < (pairs ? n : 1); i++) {
        const char *text = word(words, i), *eq = strchr(text, '=');
        const char *value = pairs ? eq ? eq + 1 : "" : rest + strcspn(rest, " \t");
        OWN_MEM char *name = strndup(text, pairs && eq ? (size_t)(eq - text) : strlen(text));
        if (!name || (pairs && !eq))
            return wrong(b, err, "ENV takes NAME=VALUE");
        value += pairs ? 0 : strspn(value, " \t");
        json_object_set_new(env, name, json_string(value));
        json_object_set_new(b->args, name, json_string(value));
    }
    return 0;
}

static int do_arg(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    const char *text = word(words, 0), *eq = strchr(text, '=');

    (void)rest;
    (void)err;
    if (eq) {
        OWN_MEM char *name = strndup(text, (size_t)(eq - text));
        if (name && !json_object_get(b->args, name))
            json_object_set_new(b->args, name, json_string(eq + 1));
    }
    return 0;
}

static int copy_source(struct build *b, const char *source, const char *to, struct err *err)
{
    char pattern[PATH_MAX];
    glob_t found = { 0 };
    int rc = 0;

    if (strstr(source, "://") || source[0] == '-')
        return wrong(b, err, "%s: only files of the build's own folder are copied", source);
    if (!strcmp(source, "..") || !strncmp(source, "../", 3) || strstr(source, "/../"))
        return wrong(b, err, "%s: is outside the build's folder", source);
    snprintf(pattern, sizeof pattern, "%s/%s", b->image->context, source);
    if (glob(pattern, GLOB_ERR, NULL, &found) != 0 || !found.gl_pathc) {
        globfree(&found);
        return wrong(b, err, "%s: there is no such file in %s", source, b->image->context);
    }
    for (size_t i = 0; i < found.gl_pathc && rc == 0; i++)
        rc = image_copy(b->image, found.gl_pathv[i], to, err);
    globfree(&found);
    return rc < 0 ? err_add(err, "%s:%d", b->path, b->line) : 0;
}

static int do_copy(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    size_t n = json_array_size(words), first = 0;
    char to[PATH_MAX];

    (void)rest;
    for (; first < n && !strncmp(word(words, first), "--", 2); first++)
        if (!strncmp(word(words, first), "--from", 6))
            return wrong(b, err, "COPY --from: images of several stages are not built here");
    if (n - first < 2)
        return wrong(b, err, "COPY takes what to copy and where to");
    const char *last = word(words, n - 1);
    bool here = !strcmp(last, ".") || !strcmp(last, "./");
    int m = last[0] == '/' ? snprintf(to, sizeof to, "%s", last)
            : snprintf(to, sizeof to, "%s/%s", b->workdir, here ? "" : last);
    if (m >= PATH_MAX || !strcmp(to, "/"))
        return wrong(b, err, "COPY to the root: say WORKDIR /workspace first, or copy into a "
                     "directory");
    for (size_t i = first; i + 1 < n; i++)
        if (copy_source(b, word(words, i), to, err) < 0)
            return -(int)err->code;
    return 0;
}

/* Options of pip that take a word after them. */
static bool takes_word(const char *option)
{
    static const char *const with[] = { "-i", "--index-url", "--extra-index-url", "-f",
                                        "--find-links", "--trusted-host", "-c", "--constraint",
                                        "--timeout", "--retries", "--progress-bar", "-t" };
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++)
        if (!strcmp(option, with[i]))
            return true;
    return false;
}

static void add_requirement(struct build *b, const char *text)
{
    OWN_BUF all = BUF_INIT;

    buf_printf(&all, "%s%s\n", text_of(b->image->doc, "requirements"), text);
    json_object_set_new(b->image->doc, "requirements", json_string(all.data));
}

/* -r FILE: as it was copied into the image, or as it is in the build's folder. */
static int add_file(struct build *b, const char *name, struct err *err)
{
    char path[PATH_MAX];
    OWN_MEM char *text = NULL;

    int n = snprintf(path, sizeof path, "%s%s%s%s", b->image->stage,
                     name[0] == '/' ? "" : b->workdir, name[0] == '/' ? "" : "/", name);
    if (n >= PATH_MAX || !b->image->stage[0] || access(path, R_OK) < 0)
        n = snprintf(path, sizeof path, "%s/%s", b->image->context, name);
    if (n >= PATH_MAX || files_read(path, DOCKERFILE_MAX, &text, NULL, err) < 0)
        return wrong(b, err, "pip install -r %s: there is no such file", name);
    add_requirement(b, text);
    return 0;
}

static int do_pip(struct build *b, const json_t *words, size_t i, struct err *err)
{
    for (; i < json_array_size(words); i++) {
        const char *w = word(words, i);
        if (!strcmp(w, "-r") || !strcmp(w, "--requirement")) {
            if (add_file(b, word(words, ++i), err) < 0)
                return -(int)err->code;
        } else if (takes_word(w)) {
            i++;
        } else if (w[0] == '.' || w[0] == '/' || strstr(w, "://")) {
            return wrong(b, err,
                         "pip install %.100s: only names of the package index are installed "
                         "here",
                         w);
        } else if (w[0] != '-') {
            add_requirement(b, w);
        }
    }
    return 0;
}

/* Each command between && is one of pip, or has no meaning here. */
static int do_run(struct build *b, const char *rest, const json_t *ignored, struct err *err)
{
    (void)ignored;
    for (const char *p = rest; *p;) {
        const char *end = strstr(p, "&&");
        size_t n = end ? (size_t)(end - p) : strlen(p);
        OWN_MEM char *one = strndup(p, n);
        OWN_JSON json_t *words = one ? words_of(b, one) : NULL;
        size_t at = !strncmp(word(words, 0), "python", 6) && !strcmp(word(words, 1), "-m") ? 2 : 0;
        bool pip = !strcmp(word(words, at), "pip") || !strcmp(word(words, at), "pip3");
        bool upgrade =
            pip && json_array_size(words) == at + 4 && !strcmp(word(words, at + 3), "pip");
        p += n + (end ? 2 : 0);
        if (upgrade || !json_array_size(words))
            continue;
        int rc = pip && !strcmp(word(words, at + 1), "install")
                     ? do_pip(b, words, at + 2, err)
                     : without_meaning(b, one + strspn(one, " \t"), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static json_t *command_of(const char *rest, const json_t *words)
{
    return rest[0] == '[' ? json_deep_copy(words)
                          : json_pack("[s, s, s]", "/bin/sh", "-c", rest);
}

static int do_cmd(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    (void)err;
    json_object_set_new(b->image->doc, "arguments", command_of(rest, words));
    return 0;
}

static int do_entrypoint(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    (void)err;
    json_object_set_new(b->image->doc, "command", command_of(rest, words));
    return 0;
}

static int do_nothing(struct build *b, const char *rest, const json_t *words, struct err *err)
{
    (void)b;
    (void)rest;
    (void)words;
    (void)err;
    return 0;
}

static const struct instruction {
    const char *name;
    int (*run)(struct build *b, const char *rest, const json_t *words, struct err *err);
} instructions[] = {
    { "FROM", do_from },         { "WORKDIR", do_workdir }, { "ENV", do_env },
    { "ARG", do_arg },           { "COPY", do_copy },       { "ADD", do_copy },
    { "RUN", do_run },           { "CMD", do_cmd },         { "ENTRYPOINT", do_entrypoint },
    /* Of a registry or a daemon; a step is the same without them. */
    { "EXPOSE", do_nothing },    { "LABEL", do_nothing },   { "MAINTAINER", do_nothing },
    { "USER", do_nothing },      { "STOPSIGNAL", do_nothing }, { "HEALTHCHECK", do_nothing },
    { "VOLUME", do_nothing },
};

static int do_line(struct build *b, char *line, struct err *err)
{
    char *rest = line + strcspn(line, " \t");

    if (*rest)
        *rest++ = '\0';
    rest += strspn(rest, " \t");
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++) {
        if (strcasecmp(instructions[i].name, line))
            continue;
        if (!b->begun && strcasecmp(line, "FROM") && strcasecmp(line, "ARG"))
            return wrong(b, err, "%s before FROM", line);
        OWN_JSON json_t *words = words_of(b, rest);
        return instructions[i].run(b, rest, words, err);
    }
    return wrong(b, err, "%.40s: is no instruction that is followed here", line);
}

/* Lines that end in a backslash go on; comments between them are left out. */
static int do_lines(struct build *b, char *text, struct err *err)
{
    OWN_BUF line = BUF_INIT;
    int number = 0;

    for (char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        char *next = p + n + (p[n] == '\n');
        p[n] = '\0';
        number++;
        while (n && strchr(" \t\r", p[n - 1]))
            p[--n] = '\0';
        p += strspn(p, " \t");
        if (*p && *p != '#') {
            if (!line.n)
                b->line = number;
            bool goes_on = p[strlen(p) - 1] == '\\';
            if (goes_on)
                p[strlen(p) - 1] = ' ';
            buf_text(&line, p);
            if (!goes_on) {
                if (do_line(b, line.data, err) < 0)
                    return -(int)err->code;
                buf_clear(&line);
            }
        }
        p = next;
    }
    return line.n ? do_line(b, line.data, err) : 0;
}

int image_follow(struct image *m, const char *path, int lenient, struct err *err)
{
    OWN_MEM char *text = NULL, *ignore = NULL;
    OWN_JSON json_t *args = json_object();
    struct build b = { .image = m, .path = path, .lenient = lenient, .args = args };

    if (files_read(path, DOCKERFILE_MAX, &text, NULL, err) < 0)
        return -(int)err->code;
    if (asprintf(&ignore, "%s/.dockerignore", m->context) >= 0 && access(ignore, R_OK) == 0 &&
        files_read(ignore, DOCKERFILE_MAX, &m->skip, NULL, err) < 0)
        return -(int)err->code;
    if (do_lines(&b, text, err) < 0)
        return -(int)err->code;
    return b.begun ? 0 : err_set(err, ERR_INVALID, "%s: there is no FROM in it", path);
}
