/* pipelines/images.c - images that users have described (muster image) */
#include "pipelines/images.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/own.h"
#include "server/objects.h"

enum { IMAGE_MAX = 4 << 20 };

int images_find(struct server *s, const char *project, const char *name, json_t **out,
                struct err *err)
{
    char bucket[OBJECTS_BUCKET_MAX + 1], object[OBJECTS_NAME_MAX + 1];
    OWN_FD int fd = -1;
    int64_t size;
    json_error_t wrong;

    snprintf(bucket, sizeof bucket, "images-%.50s", project);
    snprintf(object, sizeof object, "images/%.1000s", name);
    if (objects_open(s, project, bucket, object, &fd, &size, err) < 0)
        return err->code == ERR_MISSING || err->code == ERR_DENIED
                   ? err_set(err, ERR_MISSING, "nobody has described the image %.200s", name)
                   : -(int)err->code;
    *out = size < IMAGE_MAX ? json_loadfd(fd, 0, &wrong) : NULL;
    return *out ? 0
                : err_set(err, ERR_INVALID, "image %.200s: its document is damaged; add it again",
                          name);
}

/* `parent` gets an empty one where there is none. */
static json_t *member(json_t *parent, const char *key, json_t *(*make)(void))
{
    json_t *v = json_object_get(parent, key);

    if (!v) {
        v = make();
        json_object_set_new(parent, key, v);
    }
    return v;
}

/* Before the files of the step itself: those may go into its directories. */
static void add_dirs(const json_t *image, json_t *step)
{
    json_t *files = member(step, "files", json_array), *dir;
    size_t i;

    json_array_foreach(json_object_get(image, "dirs"), i, dir)
        json_array_insert_new(files, i,
                              json_pack("{s:s, s:s, s:b}", "path", text_of(dir, "path"), "object",
                                        text_of(dir, "object"), "dir", 1));
}

static void add_program(const json_t *image, json_t *job)
{
    json_t *command = member(job, "command", json_array);

    if (json_array_size(command))
        return;
    json_array_extend(command, json_object_get(image, "command"));
    json_array_extend(command, json_object_get(image, "arguments"));
}

int images_apply(const json_t *image, json_t *job, struct err *err)
{
    json_t *step = member(job, "step", json_object), *env = member(job, "env", json_object);
    const char *from = text_of(image, "from"), *cwd = text_of(image, "cwd"), *name;
    json_t *value, *python = json_object();
    char note[400];

    if (!step || !env || !python)
        return err_set(err, ERR_NOMEM, "no memory for an image");
    add_dirs(image, step);
    add_program(image, job);
    json_object_foreach(json_object_get(image, "env"), name, value)
        if (!json_object_get(env, name))
            json_object_set(env, name, value);
    if (*cwd && !json_object_get(step, "cwd"))
        json_object_set_new(step, "cwd", json_string(cwd));
    if (*text_of(image, "requirements"))
        json_object_set(python, "requirements", json_object_get(image, "requirements"));
    if (*text_of(image, "python"))
        json_object_set(python, "python", json_object_get(image, "python"));
    json_object_set_new(job, "python", python);
    if (*from)
        json_object_set_new(job, "image", json_string(from));
    else
        json_object_del(job, "image");
    snprintf(note, sizeof note, "image %.200s: as muster image has it, digest %.12s",
             text_of(image, "name"), text_of(image, "digest"));
    json_array_append_new(member(job, "notes", json_array), json_string(note));
    return 0;
}
