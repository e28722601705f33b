/* cli/gcloud_package.c - a folder becomes an sdist, in a copy, and goes to the bucket
 *
 * setup.py runs in a copy of the folder above the package: it leaves nothing in the user's own, and
 * what older builds left there does not get into the package.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "base/http.h"
#include "base/own.h"
#include "base/sha256.h"
#include "base/tree.h"
#include "cli/gcloud_int.h"

enum { COPY_MAX = 1 << 30, PACKAGE_MAX = 512 << 20 };

/* For a package that has none. */
static const char setup_py[] =
    "from setuptools import setup, find_packages\n"
    "setup(name='%s', version='0.0.0', packages=find_packages(include=['%s']))\n";

/* ------------------------------------------------------------ the copy */

/* For a folder of modules that has none: all that Python would find there, with what lies beside it
 * in its packages. */
static const char folder_setup_py[] =
    "import glob\n"
    "from setuptools import setup, find_packages\n"
    "modules = sorted(f[:-3] for f in glob.glob('*.py') if f != 'setup.py')\n"
    "setup(name='%s', version='0.0.0', packages=find_packages(), package_data={'': ['*']},\n"
    "      py_modules=[m for m in modules if m.isidentifier()])\n";

/* What no package is made of, and what builds leave behind. */
static bool left_out(const char *dir, const char *name, int depth)
{
    static const char *const names[] = { ".git",        ".hg",          ".svn", ".tox",
                                         "__pycache__", "node_modules", NULL };
    size_t n = strlen(name);
    char path[PATH_MAX];
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i]))
            return true;
    if (depth == 0 && (!strcmp(name, "build") || !strcmp(name, "dist")))
        return true;
    if (n > 9 && !strcmp(name + n - 9, ".egg-info"))
        return true;
    if (snprintf(path, sizeof path, "%s/%s/pyvenv.cfg", dir, name) >= (int)sizeof path)
        return false;
    return access(path, F_OK) == 0;
}

static int copy_file(const char *from, const char *to, mode_t mode, long long *room,
                     struct err *err)
{
    char piece[1 << 16];
    OWN_FD int in = open(from, O_RDONLY | O_CLOEXEC);
    OWN_FD int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600 | (mode & 0111));
    if (in < 0 || out < 0)
        return err_set(err, ERR_IO, "%s: cannot copy it: %s", in < 0 ? from : to, strerror(errno));
    for (ssize_t n; (n = read(in, piece, sizeof piece)) != 0;) {
        if (n < 0)
            return err_set(err, ERR_IO, "%s: cannot read it: %s", from, strerror(errno));
        if ((*room -= n) < 0)
            return err_set(err, ERR_INVALID,
                           "the folder of the package holds more than 1 GB; put the "
                           "package into a folder of its own, or pass a built one by --packages");
        if (write(out, piece, (size_t)n) != n)
            return err_set(err, ERR_IO, "%s: cannot write it: %s", to, strerror(errno));
    }
    return 0;
}

static int copy_tree(const char *from, const char *to, int depth, long long *room, struct err *err);

static int copy_entry(const char *from, const char *to, const char *name, int depth,
                      long long *room, struct err *err)
{
    char a[PATH_MAX], b[PATH_MAX], link[PATH_MAX];
    struct stat st;
    if (snprintf(a, sizeof a, "%s/%s", from, name) >= (int)sizeof a ||
        snprintf(b, sizeof b, "%s/%s", to, name) >= (int)sizeof b)
        return err_set(err, ERR_INVALID, "%s/%s: the path is too long", from, name);
    if (lstat(a, &st) < 0)
        return errno == ENOENT ? 0 : err_set(err, ERR_IO, "%s: %s", a, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return left_out(from, name, depth) ? 0 : copy_tree(a, b, depth + 1, room, err);
    if (S_ISREG(st.st_mode))
        return copy_file(a, b, st.st_mode, room, err);
    if (!S_ISLNK(st.st_mode))
        return 0; /* sockets and the like */
    ssize_t n = readlink(a, link, sizeof link - 1);
    if (n < 0)
        return err_set(err, ERR_IO, "%s: %s", a, strerror(errno));
    link[n] = 0;
    return symlink(link, b) < 0 ? err_set(err, ERR_IO, "%s: %s", b, strerror(errno)) : 0;
}

static int copy_tree(const char *from, const char *to, int depth, long long *room, struct err *err)
{
    if (depth > 64)
        return err_set(err, ERR_INVALID, "%s: more than 64 folders deep", from);
    if (mkdir(to, 0700) < 0)
        return err_set(err, ERR_IO, "%s: cannot make it: %s", to, strerror(errno));
    DIR *dir = opendir(from);
    if (!dir)
        return err_set(err, ERR_MISSING, "Source directory [%s] is not a valid directory.", from);
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            rc = copy_entry(from, to, e->d_name, depth, room, err);
    closedir(dir);
    return rc;
}

struct scratch {
    char path[PATH_MAX];
};

static void scratch_done(struct scratch *s)
{
    if (*s->path)
        tree_remove(s->path, &(struct err){ 0 });
}

static int scratch_make(struct scratch *s, struct err *err)
{
    return tree_scratch("muster-package", s->path, sizeof s->path, err) < 0
               ? err_add(err, "cannot make a temporary folder") : 0;
}

/* ------------------------------------------------------------ setup.py */

static char *find_program(const char *name)
{
    const char *path = getenv("PATH");
    if (strchr(name, '/'))
        return access(name, X_OK) == 0 ? strdup(name) : NULL;
    for (const char *p = path ? path : "/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        char at[PATH_MAX];
        snprintf(at, sizeof at, "%.*s/%s", (int)n, p, name);
        if (access(at, X_OK) == 0)
            return strdup(at);
        p += n + (p[n] == ':');
    }
    return NULL;
}

static const char *const pythons[] = { "python", "python3", "/usr/bin/python3", NULL };

char *gcloud_python(void)
{
    const char *own = getenv("MUSTER_PYTHON");
    if (own && *own)
        return find_program(own);
    char *local = gcloud_property("ml_engine/local_python");
    char *found = local ? find_program(local) : NULL;
    free(local);
    for (int i = 0; !found && pythons[i]; i++)
        found = find_program(pythons[i]);
    return found;
}

/* Runs it in `cwd`; what it says goes to `said`. The exit code, -1: it could not be run. */
static int run_setup(const char *python, const char *cwd, const char *out, struct buf *said)
{
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], 1);
        dup2(pipes[1], 2);
        setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
        if (chdir(cwd) == 0)
            execl(python, python, "setup.py", "-q", "sdist", "--formats", "gztar", "--dist-dir",
                  out, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    char piece[4096];
    for (ssize_t n; pid > 0 && ((n = read(pipes[0], piece, sizeof piece)) > 0 || errno == EINTR);)
        if (n > 0)
            buf_append(said, piece, (size_t)n);
    close(pipes[0]);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int try_pythons(const char *cwd, const char *out, struct err *err)
{
    OWN_BUF said = BUF_INIT;
    OWN_MEM char *own = gcloud_python();
    int rc = own ? run_setup(own, cwd, out, &said) : -1;
    /* Another may have the setuptools that this one lacks. */
    for (int i = 0; rc != 0 && pythons[i]; i++) {
        OWN_MEM char *python = find_program(pythons[i]);
        OWN_BUF other = BUF_INIT;
        if (python && (!own || strcmp(python, own)))
            rc = run_setup(python, cwd, out, &other);
    }
    if (rc == 0)
        return 0;
    if (!own)
        return err_set(err, ERR_MISSING,
                       "No Python executable found on path; one with setuptools is needed "
                       "to build the package.");
    size_t n = said.n;
    while (n && (said.data[n - 1] == '\n' || said.data[n - 1] == ' '))
        n--;
    size_t from = n > 350 ? n - 350 : 0;
    return err_set(err, ERR_INVALID, "Packaging of user Python code failed with message: %.*s",
                   (int)(n - from), said.data ? said.data + from : "");
}

char *gcloud_package_root(const char *path)
{
    char *real = realpath(path, NULL);
    if (!real)
        return NULL;
    char *slash = strrchr(real, '/');
    slash[slash == real] = 0;
    return real;
}

/* The sdist of a copy of `root`, in a new folder `out`; `setup` is for one that has no setup.py. */
static int build_root(const char *root, const char *setup, const struct scratch *scratch,
                      char *out, size_t size, struct err *err)
{
    char copy[PATH_MAX], at[PATH_MAX + 16];
    long long room = COPY_MAX;
    if (snprintf(copy, sizeof copy, "%s/copy", scratch->path) >= (int)sizeof copy ||
        snprintf(out, size, "%s/output", scratch->path) >= (int)size)
        return err_set(err, ERR_INVALID, "%s: the path is too long", scratch->path);
    if (copy_tree(root, copy, 0, &room, err) < 0)
        return -(int)err->code;
    snprintf(at, sizeof at, "%s/setup.py", copy);
    if (access(at, F_OK) && files_write(at, setup, strlen(setup), err) < 0)
        return -(int)err->code;
    if (mkdir(out, 0700) < 0)
        return err_set(err, ERR_IO, "%s: %s", out, strerror(errno));
    return try_pythons(copy, out, err);
}

static int build(const char *path, const struct scratch *scratch, char *out, size_t size,
                 struct err *err)
{
    char init[PATH_MAX], setup[1024];
    OWN_MEM char *real = realpath(path, NULL);
    OWN_MEM char *root = real ? gcloud_package_root(path) : NULL;
    if (!root)
        return err_set(err, ERR_MISSING, "Source directory [%s] is not a valid directory.", path);
    const char *name = strrchr(real, '/') + 1;
    if (snprintf(init, sizeof init, "%s/__init__.py", real) >= (int)sizeof init ||
        access(init, F_OK))
        return err_set(err, ERR_INVALID,
                       "[%s] is not a valid Python package because it does not contain an "
                       "`__init__.py` file. Please create one and try again.",
                       path);
    snprintf(setup, sizeof setup, setup_py, name, name);
    return build_root(root, setup, scratch, out, size, err);
}

static int build_folder(const char *folder, const char *name, const struct scratch *scratch,
                        char *out, size_t size, struct err *err)
{
    char project[PATH_MAX], setup[1024], plain[100];
    size_t n = 0;
    for (; name[n] && n < sizeof plain - 1; n++)
        plain[n] = isalnum((unsigned char)name[n]) ? name[n] : '-';
    plain[n] = '\0';
    snprintf(setup, sizeof setup, folder_setup_py, plain);
    snprintf(project, sizeof project, "%s/pyproject.toml", folder);
    if (access(project, F_OK) == 0)     /* which says the rest */
        snprintf(setup, sizeof setup, "from setuptools import setup\nsetup()\n");
    return build_root(folder, setup, scratch, out, size, err);
}

/* ------------------------------------------------------------ to the bucket */

enum { FILES_MAX = 100 };
struct stock {
    char *path[FILES_MAX];
    char *bytes[FILES_MAX];
    size_t size[FILES_MAX];
    int n;
};

static void stock_done(struct stock *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->path[i]);
        free(s->bytes[i]);
    }
}

static int stock_add(struct stock *s, const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int i = 0; i < s->n; i++) {
        const char *other = strrchr(s->path[i], '/');
        if (!strcmp(other ? other + 1 : s->path[i], name))
            return err_set(err, ERR_INVALID,
                           "Cannot upload multiple packages with the same filename: [%s]", name);
    }
    if (s->n == FILES_MAX)
        return err_set(err, ERR_INVALID, "more than %d packages", FILES_MAX);
    if (files_read(path, PACKAGE_MAX, &s->bytes[s->n], &s->size[s->n], err) < 0)
        return -(int)err->code;
    s->path[s->n++] = strdup(path);
    return 0;
}

static int add_built(struct stock *s, const char *out, struct err *err)
{
    DIR *dir = opendir(out);
    int rc = 0;
    for (struct dirent *e; dir && rc == 0 && (e = readdir(dir));) {
        char path[PATH_MAX * 2];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", out, e->d_name);
        rc = stock_add(s, path, err);
    }
    if (dir)
        closedir(dir);
    return rc;
}

static int put(struct client *g, const char *bucket, const char *object, const void *bytes,
               size_t n, struct err *err)
{
    OWN_BUF url = BUF_INIT, token = BUF_INIT;
    struct http_response r = { 0 };
    buf_printf(&url, "%s/upload/storage/v1/b/", g->server);
    http_escape(&url, bucket);
    buf_text(&url, "/o?uploadType=media&name=");
    http_escape(&url, object);
    buf_printf(&token, "Authorization: Bearer %s", g->token);
    if (buf_ok(&url, err) < 0 || buf_ok(&token, err) < 0)
        return -(int)err->code;
    const char *const headers[] = { token.data, "Content-Type: application/octet-stream", NULL };
    if (http_call("POST", url.data, headers, bytes, n, 1 << 20, &r, err) < 0)
        return -(int)err->code;
    long status = r.status;
    OWN_JSON json_t *doc = r.body.n ? json_loadb(r.body.data, r.body.n, 0, NULL) : NULL;
    http_response_done(&r);
    const char *said = json_string_value(json_object_get(json_object_get(doc, "error"), "message"));
    if (status / 100 == 2)
        return 0;
    return status == 404 ? err_set(err, ERR_MISSING, "The specified bucket does not exist.")
           : said        ? err_set(err, ERR_INVALID, "%s", said)
                         : http_say_status(object, status, err);
}

static int upload(struct client *g, const char *staging, struct stock *s, json_t *uris,
                  struct err *err)
{
    char digest[SHA256_HEX], bucket[256], object[1200], uri[1500];
    struct sha256 sha;
    if (s->n == 0)
        return 0;
    if (!staging)
        return err_set(err, ERR_INVALID,
                       "If local packages are provided, the `--staging-bucket` or "
                       "`--job-dir` flag must be given.");
    sha256_start(&sha);
    for (int i = 0; i < s->n; i++)
        sha256_add(&sha, s->bytes[i], s->size[i]);
    sha256_finish_hex(&sha, digest);
    size_t n = strcspn(staging + 5, "/"), m = strlen(staging);
    snprintf(bucket, sizeof bucket, "%.*s", (int)n, staging + 5);
    while (m > 0 && staging[m - 1] == '/')
        m--;
    const char *prefix = staging + 6 + n;       /* when there is one */
    int length = m > 6 + n ? (int)(m - 6 - n) : 0;
    for (int i = 0; i < s->n; i++) {
        const char *slash = strrchr(s->path[i], '/'), *name = slash ? slash + 1 : s->path[i];
        snprintf(object, sizeof object, "%.*s%s%s/%s", length, length ? prefix : "",
                 length ? "/" : "", digest, name);
        if (put(g, bucket, object, s->bytes[i], s->size[i], err) < 0)
            return err_add(err, "uploading %s to gs://%s", name, bucket);
        snprintf(uri, sizeof uri, "gs://%s/%s", bucket, object);
        json_array_append_new(uris, json_string(uri));
    }
    return 0;
}

int gcloud_stage(struct client *g, const struct gcloud_staging *s, json_t *uris, struct err *err)
{
    __attribute__((cleanup(scratch_done))) struct scratch scratch = { "" };
    __attribute__((cleanup(stock_done))) struct stock stock = { .n = 0 };
    char out[PATH_MAX];
    for (const char *p = s->packages ? s->packages : ""; *p;) {
        size_t n = strcspn(p, ",");
        OWN_MEM char *one = strndup(p, n);
        if (!strncmp(one, "gs://", 5))
            json_array_append_new(uris, json_string(one));
        else if (n && stock_add(&stock, one, err) < 0)
            return -(int)err->code;
        p += n + (p[n] == ',');
    }
    struct stat st = { 0 };
    bool folder = s->source && stat(s->source, &st) == 0 && S_ISDIR(st.st_mode);
    if (s->source && !folder && stock_add(&stock, s->source, err) < 0)
        return -(int)err->code;
    if ((s->path || folder) &&
        (scratch_make(&scratch, err) < 0 ||
         (s->path ? build(s->path, &scratch, out, sizeof out, err)
                  : build_folder(s->source, s->name, &scratch, out, sizeof out, err)) < 0 ||
         add_built(&stock, out, err) < 0))
        return -(int)err->code;
    return upload(g, s->staging, &stock, uris, err);
}
