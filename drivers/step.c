/* drivers/step.c - the files of a step of a pipeline: inputs in place, volumes mounted, outputs
 * found
 *
 * DESIGN. DIR/work is ours; what is in its parts that the job sees (tmp, out, files, empty) and in
 * volumes is anybody's, at any moment: an input that was unpacked may hold links, another step
 * may write to a volume. All of that is reached from a descriptor, part by part, never over a link,
 * and mounted by descriptor.
 */
#include "drivers/step.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "drivers/container.h"

/* NULL where there is none. */
static const char *text_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ------------------------------------------------------------------ is it one? */

/* From the root, plain: no "..", no empty part, not the root itself. */
static bool is_plain_path(const char *path)
{
    if (!path || path[0] != '/' || !path[1] || strlen(path) >= PATH_MAX / 2)
        return false;
    for (const char *at = path; *at; at += strcspn(at + 1, "/") + 1) {
        size_t n = strcspn(at + 1, "/");
        if (n == 0 || (n == 1 && at[1] == '.') || (n == 2 && at[1] == '.' && at[2] == '.'))
            return false;
    }
    return true;
}

static bool is_plain_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
    return n > 0 && n < 254 && !name[n] && name[0] != '.';
}

bool step_is_system(const char *path)
{
    static const char *const dirs[] = { "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64",
                                        "/proc", "/run", "/sbin", "/sys", "/usr" };
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        size_t n = strlen(dirs[i]);
        if (!strncmp(path, dirs[i], n) && (!path[n] || path[n] == '/'))
            return true;
    }
    return false;
}

static int check_path(const char *list, size_t i, const json_t *item, struct err *err)
{
    const char *path = text_at(item, "path");

    if (!is_plain_path(path))
        return err_set(err, ERR_INVALID, "step.%s[%zu].path: \"%.100s\" is no path from the root, "
                       "without \"..\"", list, i, path ? path : "");
    return 0;
}

static int check_mode(size_t i, const json_t *item, struct err *err)
{
    const json_t *mode = json_object_get(item, "mode");
    json_int_t n = json_integer_value(mode);

    return mode && (!json_is_integer(mode) || n < 1 || n > 0777)
               ? err_set(err, ERR_INVALID, "step.files[%zu].mode: takes the rights of a file", i) : 0;
}

static int check_source(size_t i, const json_t *item, struct err *err)
{
    const char *from = text_at(item, "from"), *sub = text_at(item, "sub");
    bool named = from && (!strncmp(from, "volume:", 7) || !strncmp(from, "empty:", 6)) &&
                 is_plain_name(strchr(from, ':') + 1);
    bool host = from && !strncmp(from, "host:", 5) && is_plain_path(from + 5);
    char rooted[PATH_MAX];

    if (!named && !host)
        return err_set(err, ERR_INVALID,
                       "step.mounts[%zu].from: \"%.100s\" is none of volume:NAME, "
                       "empty:NAME and host:/DIRECTORY",
                       i, from ? from : "");
    snprintf(rooted, sizeof rooted, "/%s", sub ? sub : "");
    if (sub && *sub && !is_plain_path(rooted))
        return err_set(err, ERR_INVALID, "step.mounts[%zu].sub: \"%.100s\" leads out of the volume",
                       i, sub);
    return 0;
}

int step_check(const json_t *step, struct err *err)
{
    const json_t *files = json_object_get(step, "files"), *mounts = json_object_get(step, "mounts");
    const json_t *outputs = json_object_get(step, "outputs"), *item;
    size_t i;

    if (json_array_size(files) > STEP_FILES_MAX || json_array_size(outputs) > STEP_FILES_MAX ||
        json_array_size(mounts) > STEP_MOUNTS_MAX)
        return err_set(err, ERR_INVALID, "step: more than %d files or %d mounts", STEP_FILES_MAX,
                       STEP_MOUNTS_MAX);
    json_array_foreach((json_t *)files, i, item)
        if (check_path("files", i, item, err) < 0 || check_mode(i, item, err) < 0)
            return -(int)err->code;
    json_array_foreach((json_t *)outputs, i, item)
        if (check_path("outputs", i, item, err) < 0)
            return -(int)err->code;
    json_array_foreach((json_t *)mounts, i, item) {
        if (check_path("mounts", i, item, err) < 0 || check_source(i, item, err) < 0)
            return -(int)err->code;
        if (step_is_system(text_at(item, "path")))
            return err_set(err, ERR_INVALID, "step.mounts[%zu].path: %.100s is the system's own; "
                           "mount the volume elsewhere", i, text_at(item, "path"));
    }
    const char *cwd = text_at(step, "cwd");
    return cwd && strcmp(cwd, "/") && !is_plain_path(cwd)
               ? err_set(err, ERR_INVALID, "step.cwd: \"%.100s\" is no path from the root", cwd)
               : 0;
}

/* ------------------------------------------------------------------ where things are */

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return !strncmp(path, dir, n) && path[n] == '/';
}

/* The mount that `path` is in, the deepest; NULL: none. */
static const json_t *mount_of(const json_t *step, const char *path)
{
    const json_t *best = NULL, *item;
    size_t i, length = 0;

    json_array_foreach(json_object_get(step, "mounts"), i, item) {
        const char *at = text_at(item, "path");
        if (is_below(path, at) && strlen(at) >= length) {
            length = strlen(at);
            best = item;
        }
    }
    return best;
}

/* What is mounted at this very path; NULL: nothing. */
static const json_t *mounted_at(const json_t *step, const char *path)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(step, "mounts"), i, item)
        if (!strcmp(text_at(item, "path"), path))
            return item;
    return NULL;
}

static void parent_of(const char *path, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%.*s", (int)(strrchr(path, '/') - path), path);
}

/* Which of work/out/N stands for the directory of this output: that of the first in it. */
static size_t out_number(const json_t *step, const char *path)
{
    char dir[PATH_MAX], other[PATH_MAX];
    const json_t *item;
    size_t i;

    parent_of(path, dir);
    json_array_foreach(json_object_get(step, "outputs"), i, item) {
        parent_of(text_at(item, "path"), other);
        if (!strcmp(dir, other))
            break;
    }
    return i;
}

/* ------------------------------------------------------------------ volumes */

/* Never over a link, never out of `dir`. */
static int open_inside(int dir, const char *path, int flags)
{
    struct open_how how = { .flags = (unsigned)(flags | O_CLOEXEC),
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
                                       RESOLVE_NO_MAGICLINKS };
    return (int)syscall(SYS_openat2, dir, *path ? path : ".", &how, sizeof how);
}

static void give_to_job(int fd, const char *name)
{
    if (geteuid() == 0)
        (void)!fchownat(fd, name, SANDBOX_USER, SANDBOX_USER,
                        *name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH);
}

/* A directory below another, made where it is missing; never over a link. */
static int open_sub(int dir, const char *sub)
{
    int at = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (const char *part = sub; *part && at >= 0;) {
        char name[NAME_MAX + 1];
        size_t n = strcspn(part, "/");
        snprintf(name, sizeof name, "%.*s", (int)n, part);
        bool made = mkdirat(at, name, 0777) == 0;
        int next = open_inside(at, name, O_RDONLY | O_DIRECTORY);
        if (made && next >= 0) {
            fchmod(next, 0777);         /* whatever the umask is */
            give_to_job(next, "");
        }
        close(at);
        at = next;
        part += n + (part[n] == '/');
    }
    return at;
}

static int source_path(const struct step_place *at, const json_t *mount, char out[PATH_MAX],
                       struct err *err)
{
    const char *from = text_at(mount, "from"), *name = strchr(from, ':') + 1;
    int n = from[0] == 'v'   ? snprintf(out, PATH_MAX, "%s/volumes/%s/%s/data", at->data_dir,
                                        at->project, name)
            : from[0] == 'e' ? snprintf(out, PATH_MAX, "%s/work/empty/%s", at->dir, name)
                             : snprintf(out, PATH_MAX, "%s", name);
    return n < PATH_MAX ? 0 : err_set(err, ERR_INVALID, "%s: the path is too long", name);
}

/* For as long as this process lives nobody removes it (server/volumes.h). */
static int hold_volume(const char *data, struct err *err)
{
    char path[PATH_MAX + 16];
    const int n = (int)(strrchr(data, '/') - data);

    snprintf(path, sizeof path, "%.*s/lock", n, data);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) < 0)
        return err_set(err, ERR_MISSING, "there is no such volume (has it been deleted?)");
    snprintf(path, sizeof path, "%.*s/deleted", n, data);
    return access(path, F_OK) == 0 ? err_set(err, ERR_MISSING, "the volume has been deleted") : 0;
}

static int open_source(const struct step_place *at, const json_t *mount, int *out, struct err *err)
{
    const char *from = text_at(mount, "from"), *sub = text_at(mount, "sub");
    char path[PATH_MAX];

    if (source_path(at, mount, path, err) < 0)
        return -(int)err->code;
    OWN_FD int root = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return err_set(err, ERR_MISSING, "%s: %s", from,
                       errno == ENOENT && from[0] == 'v' ? "there is no such volume"
                                                         : strerror(errno));
    *out = open_sub(root, sub ? sub : "");
    return *out < 0 ? err_set(err, ERR_IO, "%s: %.100s: %s", from, sub ? sub : "", strerror(errno))
                    : 0;
}

/* ------------------------------------------------------------------ setting up */

struct setup {
    const struct task_order *o;
    const json_t *step;
    struct step_place at;
    struct task *t;
};

/* A directory of DIR/work that the job may write. */
static int make_dir(const struct setup *s, const char *name, mode_t mode, char out[PATH_MAX],
                    struct err *err)
{
    if (snprintf(out, PATH_MAX, "%s/%s", s->o->work, name) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%s: the path is too long", name);
    if (files_mkdir(out, err) < 0)
        return -(int)err->code;
    if (chmod(out, mode) < 0)
        return err_set(err, ERR_IO, "%s: %s", out, strerror(errno));
    give_to_job(AT_FDCWD, out);
    return 0;
}

/* The directory in which `path`, below /tmp, is; made where it is missing. What was unpacked into
 * /tmp before is anybody's, links too. */
static int open_parent(const struct setup *s, const char *path, struct err *err)
{
    char tmp[PATH_MAX], inside[PATH_MAX];
    const char *from = path + strlen("/tmp/"), *last = strrchr(path, '/') + 1;

    if (snprintf(tmp, sizeof tmp, "%s/tmp", s->o->work) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%s: the path is too long", path);
    snprintf(inside, sizeof inside, "%.*s", last > from ? (int)(last - from - 1) : 0, from);
    OWN_FD int root = open(tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = root < 0 ? -1 : open_sub(root, inside);
    if (fd < 0)
        return err_set(err, errno == ELOOP ? ERR_DENIED : ERR_IO, "%s: %s", path,
                       errno == ELOOP ? "a link is in its way" : strerror(errno));
    return fd;
}

/* Where the machine's own links (/var/run) lead; the rest of the path as it is. */
static void follow_host(const char *path, char out[PATH_MAX])
{
    char prefix[PATH_MAX], real[PATH_MAX];

    snprintf(prefix, sizeof prefix, "%s", path);
    while (!realpath(prefix, real)) {
        char *slash = strrchr(prefix, '/');
        if (!slash || slash == prefix) {
            snprintf(out, PATH_MAX, "%s", path);
            return;
        }
        *slash = '\0';
    }
    if (snprintf(out, PATH_MAX, "%s%s", strcmp(real, "/") ? real : "",
                 path + strlen(prefix)) >= PATH_MAX)
        snprintf(out, PATH_MAX, "%s", path);
}

static int set_mounts(const struct setup *s, struct err *err)
{
    const json_t *item;
    size_t i;
    char dir[PATH_MAX], name[PATH_MAX];

    json_array_foreach(json_object_get(s->step, "mounts"), i, item) {
        const char *from = text_at(item, "from");
        char path[PATH_MAX];
        int fd;
        follow_host(text_at(item, "path"), path);
        if (step_is_system(path) && strncmp(path, "/run/", 5) != 0)
            return err_set(err, ERR_INVALID,
                           "%s: leads to %s, which is the system's own; mount the "
                           "volume elsewhere",
                           text_at(item, "path"), path);
        if (from[0] == 'h' && !json_is_true(json_object_get(s->o->spec, "host_files")))
            return err_set(err, ERR_DENIED, "%s: a project's step does not see directories of this "
                           "machine (use a volume, or the server's own token)", from);
        snprintf(name, sizeof name, "empty/%s", strchr(from, ':') + 1);
        if ((from[0] == 'e' && make_dir(s, name, 0777, dir, err) < 0) ||
            (from[0] == 'v' && (source_path(&s->at, item, dir, err) < 0 ||
                                hold_volume(dir, err) < 0)) ||
            open_source(&s->at, item, &fd, err) < 0)
            return err_add(err, "%s", text_at(item, "path"));
        task_expose_fd(s->t, fd, path,
                       !json_is_true(json_object_get(item, "read_only")));
    }
    return 0;
}

static int copy_all(int from, int to)
{
    char piece[1 << 16];
    ssize_t n;

    while ((n = read(from, piece, sizeof piece)) > 0)
        for (ssize_t done = 0, k; done < n; done += k)
            if ((k = write(to, piece + done, (size_t)(n - done))) <= 0)
                return -1;
    return (int)n;
}

/* A new file in `dir`: `text`, or else the content of `staged`. Whatever has its name goes. Where
 * `mode` is 0, a text may be a script that is run by its name (`sh -c FILE`). */
static int put_new(int dir, const char *name, const char *text, const char *staged, mode_t mode,
                   struct err *err)
{
    OWN_FD int from = text ? -1 : open(staged, O_RDONLY | O_CLOEXEC);
    size_t n = text ? strlen(text) : 0;

    unlinkat(dir, name, 0);
    OWN_FD int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0700);
    errno = fd < 0 || (!text && from < 0) ? errno : ENOSPC;
    if (fd < 0 || (text ? write(fd, text, n) != (ssize_t)n : from < 0 || copy_all(from, fd) < 0) ||
        fchmod(fd, mode ? mode : text ? 0755 : 0644) < 0)
        return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    give_to_job(fd, "");
    return 0;
}

/* A directory came as an archive; the job's own rights unpack it. */
static int unpack(const struct setup *s, task_step *run, void *arg, const char *archive,
                  const char *path, struct err *err)
{
    struct task t;
    int code = 0;

    if (task_init_step(&t, s->o, err) < 0)
        return -(int)err->code;
    json_array_extend(t.paths, s->t->paths);
    task_expose_at(&t, archive, "/run/input.tar", false);
    snprintf(t.cwd, sizeof t.cwd, "/tmp");
    task_arg(&t, "tar");
    task_arg(&t, "-xf");
    task_arg(&t, "/run/input.tar");
    task_arg(&t, "-C");
    task_arg(&t, "%s", path);
    int rc = run(arg, &t, &code, err);
    task_done(&t);
    if (rc == 0 && code)
        rc = err_set(err, ERR_INVALID, "%s: the input's archive cannot be unpacked", path);
    return rc;
}

/* A volume that was never used begins with what the image has there. Of two steps that find it new
 * one fills it and the other waits; one that is killed midway leaves it new. */
static int seed_volume(const struct setup *s, task_step *run, void *arg, const char *archive,
                       const json_t *mount, struct err *err)
{
    char data[PATH_MAX], fresh[PATH_MAX];

    if (text_at(mount, "from")[0] != 'v')
        return unpack(s, run, arg, archive, text_at(mount, "path"), err);
    if (source_path(&s->at, mount, data, err) < 0)
        return -(int)err->code;
    snprintf(fresh, sizeof fresh, "%.*s/fresh", (int)(strrchr(data, '/') - data), data);
    OWN_FD int fd = open(fresh, O_RDWR | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) < 0 || access(fresh, F_OK) < 0)
        return 0;
    int rc = unpack(s, run, arg, archive, text_at(mount, "path"), err);
    if (rc == 0)
        unlink(fresh);
    return rc;
}

/* A directory that is an input: below /tmp where it is, else one of ours that is seen there. */
static int put_dir(const struct setup *s, task_step *run, void *arg, size_t i, const char *staged,
                   const char *path, struct err *err)
{
    const json_t *mount = mounted_at(s->step, path);
    char name[32], dir[PATH_MAX];

    if (mount)
        return seed_volume(s, run, arg, staged, mount, err);
    if (is_below(path, "/tmp")) {
        OWN_FD int parent = open_parent(s, path, err);
        OWN_FD int made = parent < 0 ? -1 : open_sub(parent, strrchr(path, '/') + 1);
        if (made < 0)
            return parent < 0 ? -(int)err->code
                              : err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    } else {
        snprintf(name, sizeof name, "files/%zu", i);
        if (make_dir(s, name, 0755, dir, err) < 0)
            return -(int)err->code;
        task_expose_at(s->t, dir, path, true);
    }
    return unpack(s, run, arg, staged, path, err);
}

/* A secret is not among what the job leaves: it lies beside its work and goes with its end. */
static int put_secret(const struct setup *s, size_t i, const char *path, const char *text,
                      struct err *err)
{
    char dir[PATH_MAX], name[32];

    if (!text)
        return err_set(err, ERR_MISSING, "%s: its secret did not come", path);
    if (snprintf(dir, sizeof dir, "%s/secrets", s->o->dir) >= PATH_MAX - 32)
        return err_set(err, ERR_INVALID, "%s: the path is too long", path);
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    OWN_FD int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    snprintf(name, sizeof name, "%zu", i);
    if (put_new(fd, name, text, NULL, 0, err) < 0)
        return -(int)err->code;
    snprintf(dir + strlen(dir), 32, "/%zu", i);
    task_expose_at(s->t, dir, path, false);
    return 0;
}

static int put_file(const struct setup *s, task_step *run, void *arg, size_t i, const json_t *item,
                    struct err *err)
{
    const char *path = text_at(item, "path"), *text = text_at(item, "text");
    mode_t mode = (mode_t)json_integer_value(json_object_get(item, "mode"));
    char dir[PATH_MAX], name[32], staged[PATH_MAX];

    if (text_at(item, "secret"))
        return put_secret(s, i, path, text_at(json_object_get(s->o->env, " files"), path), err);
    if (snprintf(staged, sizeof staged, "%s/../inputs/%zu", s->o->dir, i) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%s: the path is too long", path);
    if (json_is_true(json_object_get(item, "dir")))
        return put_dir(s, run, arg, i, staged, path, err);
    if (is_below(path, "/tmp")) {
        OWN_FD int parent = open_parent(s, path, err);
        return parent < 0 ? parent : put_new(parent, strrchr(path, '/') + 1, text, staged,
                                                     mode, err);
    }
    if (make_dir(s, "files", 0755, dir, err) < 0)
        return -(int)err->code;
    OWN_FD int parent = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    snprintf(name, sizeof name, "%zu", i);
    if (put_new(parent, name, text, staged, mode, err) < 0)
        return -(int)err->code;
    if (snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "/%zu", i) >= 32)
        return err_set(err, ERR_INVALID, "%s: the path is too long", path);
    task_expose_at(s->t, dir, path, false);
    return 0;
}

/* An output beside files of the machine: a file or a directory of its own, with a time that nothing
 * has which the program wrote. */
static int put_output(const struct setup *s, const char *dir, const char *path, bool is_dir,
                      struct err *err)
{
    const struct timespec never[2] = { { 0, 0 }, { 0, 0 } };
    const char *name = strrchr(path, '/') + 1;
    char file[PATH_MAX];

    if (mounted_at(s->step, path))
        return err_set(err, ERR_INVALID, "%s: is where a volume is mounted; an output is something "
                       "in it", path);
    if (access(path, F_OK) == 0)
        return err_set(err, ERR_INVALID, "%s: this machine has something there; a step leaves its "
                       "outputs below /tmp, in a volume, or where nothing is", path);
    if (snprintf(file, sizeof file, "%s/%s", dir, name) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%s: the path is too long", path);
    OWN_FD int in = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (is_dir ? files_mkdir(file, err) < 0 : put_new(in, name, "", NULL, 0666, err) < 0)
        return -(int)err->code;
    give_to_job(in, name);
    if ((is_dir && fchmodat(in, name, 0777, 0) < 0) || utimensat(in, name, never, 0) < 0)
        return err_set(err, ERR_IO, "%s: %s", file, strerror(errno));
    task_expose_at(s->t, file, path, true);
    return 0;
}

/* Is there one in the root itself? A program of a container starts there, and may mean it by the
 * file's bare name. */
static bool has_root_output(const json_t *step)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(step, "outputs"), i, item)
        if (strrchr(text_at(item, "path"), '/') == text_at(item, "path"))
            return true;
    return false;
}

static int set_outputs(const struct setup *s, struct err *err)
{
    const json_t *item;
    size_t i;
    char dir[PATH_MAX], name[32], parent[PATH_MAX];

    json_array_foreach(json_object_get(s->step, "outputs"), i, item) {
        const char *path = text_at(item, "path");
        if (is_below(path, "/tmp")) {
            OWN_FD int made = open_parent(s, path, err);
            if (made < 0)
                return made;
            continue;
        }
        size_t number = out_number(s->step, path);
        parent_of(path, parent);
        bool beside = !*parent || access(parent, F_OK) == 0;
        if (mount_of(s->step, path) || (number != i && !beside))
            continue;
        snprintf(name, sizeof name, "out/%zu", number);
        if (make_dir(s, name, 0777, dir, err) < 0 ||
            (beside && put_output(s, dir, path, json_is_true(json_object_get(item, "dir")),
                                  err) < 0))
            return -(int)err->code;
        if (!beside)
            task_expose_at(s->t, dir, parent, true);
    }
    return 0;
}

/* ------------------------------------------------------------------ programs before and beside it */

static int run_before(const struct setup *s, task_step *run, void *arg, struct err *err)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(s->step, "init"), i, item) {
        const char *name = text_at(item, "name");
        struct task t;
        int code = 0;
        if (task_init_step(&t, s->o, err) < 0)
            return -(int)err->code;
        json_array_extend(t.paths, s->t->paths);
        json_object_update(t.env, s->t->env);
        json_object_update(t.env, json_object_get(item, "env"));
        json_array_extend(t.argv, json_object_get(item, "command"));
        snprintf(t.cwd, sizeof t.cwd, "%s", s->t->cwd);
        int rc = run(arg, &t, &code, err);
        task_done(&t);
        if (rc < 0)
            return err_add(err, "init container %.60s", name ? name : "");
        if (code)
            return err_set(err, ERR_INVALID, "init container %.60s ended with exit code %d",
                           name ? name : "", code);
    }
    return 0;
}

static void quote(struct buf *out, const char *text)
{
    buf_text(out, " '");
    for (; *text; text++)
        if (*text == '\'')
            buf_text(out, "'\\''");
        else
            buf_append(out, text, 1);
    buf_text(out, "'");
}

/* A shell starts them and becomes the program: they are of one sandbox, which ends with it. */
static int start_beside(struct task *t, const json_t *sidecars, struct err *err)
{
    OWN_BUF script = BUF_INIT;
    const json_t *item;
    const char *key;
    json_t *word, *program = t->argv;
    size_t i, k;

    if (!json_array_size(sidecars))
        return 0;
    json_array_foreach((json_t *)sidecars, i, item) {
        buf_text(&script, "env");
        json_object_foreach(json_object_get(item, "env"), key, word) {
            OWN_BUF pair = BUF_INIT;
            buf_printf(&pair, "%s=%s", key, json_string_value(word));
            quote(&script, pair.data);
        }
        json_array_foreach(json_object_get(item, "command"), k, word)
            quote(&script, json_string_value(word));
        buf_text(&script, " </dev/null & ");
    }
    buf_text(&script, "exec \"$@\"");
    t->argv = json_pack("[s, s, s, s]", "/bin/sh", "-c", script.failed ? "" : script.data, "sh");
    if (t->argv)
        json_array_extend(t->argv, program);
    json_decref(program);
    return t->argv && !script.failed ? 0 : err_set(err, ERR_NOMEM, "no memory for sidecars");
}

/* ------------------------------------------------------------------ the whole */

/* A Python of its own: the document asks for one, or its image has one. */
static bool needs_python(const struct task_order *o)
{
    const struct container *c = o->container;

    if (c && (c->run || c->plain))
        return false;
    return json_object_size(json_object_get(o->spec, "python")) ||
           json_object_get(o->spec, "image");
}

/* The server's own program, last on the path: a step may train with it. A container has its own
 * libraries and gets none. */
static void add_own_program(const struct task_order *o, struct task *t)
{
    const char *path = text_at(t->env, "PATH");
    char program[PATH_MAX], longer[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);

    program[n > 0 ? n : 0] = '\0';
    if ((o->container && o->container->run) || access(program, X_OK) < 0 || !path ||
        snprintf(longer, sizeof longer, "%s:/run/muster", path) >= (int)sizeof longer)
        return;
    task_expose_at(t, program, "/run/muster/muster", false);
    task_set(t, "PATH", longer);
}

int step_prepare(const struct task_order *o, task_step *run, void *arg, struct task *t,
                 struct err *err)
{
    const json_t *step = json_object_get(o->spec, "step"), *item;
    const char *cwd = text_at(step, "cwd");
    struct setup s = { .o = o, .step = step, .t = t,
                       .at = { .dir = o->dir, .data_dir = o->data_dir, .step = step,
                               .project = text_at(o->env, "MUSTER_PROJECT") } };
    char dir[PATH_MAX];
    size_t i;

    if (!o->confined)
        return err_set(err, ERR_DENIED,
                       "a step of a pipeline needs the sandbox for its files; start "
                       "the server without --no-sandbox");
    if (!s.at.project)
        s.at.project = "default";
    if (step_check(step, err) < 0 || make_dir(&s, "tmp", 01777, dir, err) < 0)
        return -(int)err->code;
    json_array_clear(t->paths);         /* not its work directory: /tmp is all it has */
    task_expose_at(t, dir, "/tmp", true);
    task_set(t, "HOME", "/tmp");
    snprintf(t->cwd, sizeof t->cwd, "%s", cwd ? cwd : has_root_output(step) ? "/" : "/tmp");
    if (set_mounts(&s, err) < 0 || set_outputs(&s, err) < 0)
        return -(int)err->code;
    json_array_foreach(json_object_get(step, "files"), i, item)
        if (put_file(&s, run, arg, i, item, err) < 0)
            return -(int)err->code;
    if ((needs_python(o) && task_environment(o, run, arg, t, err) < 0) ||
        run_before(&s, run, arg, err) < 0)
        return -(int)err->code;
    add_own_program(o, t);
    return start_beside(t, json_object_get(step, "sidecars"), err);
}

/* ------------------------------------------------------------------ afterwards */

void step_forget(const char *dir)
{
    char path[PATH_MAX];

    for (int i = 0; i < STEP_FILES_MAX; i++) {
        snprintf(path, sizeof path, "%.*s/secrets/%d", PATH_MAX - 32, dir, i);
        unlink(path);
    }
    snprintf(path, sizeof path, "%.*s/secrets", PATH_MAX - 32, dir);
    rmdir(path);
}

static int open_root(const struct step_place *at, const char *path, const char **out_rest,
                     struct err *err)
{
    const json_t *mount = mount_of(at->step, path);
    char dir[PATH_MAX];
    int fd = -1;

    if (mount) {
        *out_rest = path + strlen(text_at(mount, "path")) + 1;
        return open_source(at, mount, &fd, err) < 0 ? -(int)err->code : fd;
    }
    if (is_below(path, "/tmp")) {
        snprintf(dir, sizeof dir, "%s/work/tmp", at->dir);
        *out_rest = path + strlen("/tmp/");
    } else {
        snprintf(dir, sizeof dir, "%s/work/out/%zu", at->dir, out_number(at->step, path));
        *out_rest = strrchr(path, '/') + 1;
    }
    fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_MISSING, "%s: %s", path, strerror(errno)) : fd;
}

int step_output_open(const struct step_place *at, const char *path, int *out_fd, bool *out_is_dir,
                     struct err *err)
{
    const char *rest;
    struct stat st;

    if (!is_plain_path(path))
        return err_set(err, ERR_INVALID, "\"%.100s\" is no path from the root", path);
    OWN_FD int root = open_root(at, path, &rest, err);
    if (root < 0)
        return root;
    OWN_FD int fd = open_inside(root, rest, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return err_set(err, ERR_MISSING, "%s: the step left nothing there", path);
    if (fd < 0 || fstat(fd, &st) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return err_set(err, ERR_DENIED, "%s: is a link, a pipe or a device; an output is a file or "
                       "a directory", path);
    if (st.st_mtime == 0 && (st.st_size == 0 || S_ISDIR(st.st_mode)))
        return err_set(err, ERR_MISSING, "%s: the step left nothing there", path);
    *out_is_dir = S_ISDIR(st.st_mode);
    *out_fd = fd;
    fd = -1;
    return 0;
}
