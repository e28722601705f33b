/* tests/unit/volumes_test.c - volumes come whole and go when nobody has them; outputs are found */
#include "server/volumes.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/tree.h"
#include "drivers/step.h"
#include "server/jobs_int.h"
#include "server/server.h"
#include "tests/check.h"

static char folder[64];
static struct server server;

static void begin(void)
{
    snprintf(folder, sizeof folder, "/tmp/volumes_test.XXXXXX");
    assert_non_null(mkdtemp(folder));
    server = (struct server){ .data_dir = folder };
}

static void end(void)
{
    struct err err;
    assert_ok(tree_remove(folder, &err));
}

static size_t count(void)
{
    struct err err;
    OWN_JSON json_t *list = NULL;
    assert_ok(volumes_list(&server, "p", &list, &err));
    return json_array_size(list);
}

static void a_volume_is_there_until_it_is_deleted(void **state)
{
    (void)state;
    struct err err;
    char path[4096];
    OWN_JSON json_t *doc = json_pack("{s:s}", "size", "3Gi");
    OWN_JSON json_t *got = NULL;

    begin();
    assert_int_equal(count(), 0);
    assert_ok(volumes_create(&server, "p", "my-pvc", doc, &err));
    assert_fails(volumes_create(&server, "p", "my-pvc", doc, &err), ERR_CONFLICT);
    assert_ok(volumes_create(&server, "q", "my-pvc", NULL, &err));
    assert_ok(volumes_get(&server, "p", "my-pvc", &got, &err));
    assert_string_equal(json_string_value(json_object_get(got, "size")), "3Gi");
    assert_string_equal(json_string_value(json_object_get(got, "name")), "my-pvc");
    assert_ok(volumes_path(&server, "p", "my-pvc", path, sizeof path, &err));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(count(), 1);
    assert_ok(volumes_delete(&server, "p", "my-pvc", &err));
    assert_fails(volumes_delete(&server, "p", "my-pvc", &err), ERR_MISSING);
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(volumes_create(&server, "p", "my-pvc", NULL, &err));
    end();
}

static void a_mounted_one_goes_when_its_last_step_has_ended(void **state)
{
    (void)state;
    struct err err;
    char path[4096];

    begin();
    assert_ok(volumes_create(&server, "p", "v", NULL, &err));
    snprintf(path, sizeof path, "%s/volumes/p/v/lock", folder);
    int lock = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_SH), 0);
    assert_ok(volumes_delete(&server, "p", "v", &err));
    assert_int_equal(access(path, F_OK), 0);
    assert_fails(volumes_path(&server, "p", "v", path, sizeof path, &err), ERR_MISSING);
    assert_fails(volumes_create(&server, "p", "v", NULL, &err), ERR_CONFLICT);
    assert_int_equal(count(), 0);
    close(lock);
    assert_int_equal(count(), 0);
    snprintf(path, sizeof path, "%s/volumes/p/v", folder);
    assert_int_equal(access(path, F_OK), -1);
    end();
}

static void names_stay_inside(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "..", ".x", "a/b", "../p", "a b", "a\nb" };
    struct err err;

    begin();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(volumes_create(&server, "p", bad[i], NULL, &err), ERR_INVALID);
    end();
}

/* ------------------------------------------------------------ outputs of a step */

static void write_file(const char *name, const char *text)
{
    char path[4096];
    struct err err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    *strrchr(path, '/') = '\0';
    assert_ok(files_mkdir(path, &err));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(files_write(path, text, strlen(text), &err));
}

static void expect(const struct step_place *at, const char *path, int rc, const char *text)
{
    struct err err = { 0 };
    char got[64] = "";
    bool is_dir = false;
    int fd = -1;

    assert_int_equal(step_output_open(at, path, &fd, &is_dir, &err), rc);
    if (rc == 0 && text)
        assert_true(read(fd, got, sizeof got - 1) >= 0);
    if (rc == 0)
        assert_int_equal(is_dir, !text);
    if (rc == 0 && text)
        assert_string_equal(got, text);
    if (fd >= 0)
        close(fd);
}

static void outputs_are_found_and_links_are_not_followed(void **state)
{
    (void)state;
    struct err err;
    char dir[128], link[256];
    OWN_JSON json_t *step = json_pack(
        "{s:[{s:s},{s:s},{s:s}], s:[{s:s,s:s,s:s}]}", "outputs", "path", "/tmp/out/a", "path",
        "/data/x/b", "path", "/data/x/c", "mounts", "path", "/workspace", "from", "volume:v", "sub",
        "deep");

    begin();
    snprintf(dir, sizeof dir, "%s/jobs/1/1", folder);
    struct step_place at = { dir, folder, "p", step };
    assert_ok(step_check(step, &err));
    assert_ok(volumes_create(&server, "p", "v", NULL, &err));
    write_file("secret", "the server's");
    write_file("jobs/1/1/work/tmp/out/a", "A");
    write_file("jobs/1/1/work/out/1/b", "B");
    write_file("jobs/1/1/work/out/1/c/in", "C");
    write_file("volumes/p/v/data/deep/d", "D");
    snprintf(link, sizeof link, "%s/work/tmp/out/l", dir);
    assert_int_equal(symlink("../../../../../../secret", link), 0);
    snprintf(link, sizeof link, "%s/work/tmp/out/p", dir);
    assert_int_equal(mkfifo(link, 0600), 0);
    snprintf(link, sizeof link, "%s/volumes/p/v/data/deep/e", folder);
    assert_int_equal(symlink(folder, link), 0);

    expect(&at, "/tmp/out/a", 0, "A");
    expect(&at, "/data/x/b", 0, "B");
    expect(&at, "/data/x/c", 0, NULL);
    expect(&at, "/workspace/d", 0, "D");
    expect(&at, "/tmp/out/none", -ERR_MISSING, NULL);
    expect(&at, "/tmp/out/l", -ERR_DENIED, NULL);
    expect(&at, "/tmp/out/p", -ERR_DENIED, NULL);
    expect(&at, "/workspace/e/secret", -ERR_DENIED, NULL);
    expect(&at, "/tmp/../../secret", -ERR_INVALID, NULL);
    end();
}

static void what_leads_out_is_no_step(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"files\": [{\"path\": \"/tmp/../etc/x\", \"text\": \"\"}]}",
        "{\"files\": [{\"path\": \"tmp/x\", \"text\": \"\"}]}",
        "{\"outputs\": [{\"path\": \"/\"}]}",
        "{\"outputs\": [{}]}",
        "{\"mounts\": [{\"path\": \"/usr/lib\", \"from\": \"volume:v\"}]}",
        "{\"mounts\": [{\"path\": \"/w\", \"from\": \"volume:../p\"}]}",
        "{\"mounts\": [{\"path\": \"/w\", \"from\": \"/etc\"}]}",
        "{\"mounts\": [{\"path\": \"/w\", \"from\": \"volume:v\", \"sub\": \"../x\"}]}",
        "{\"cwd\": \"a\"}",
    };
    struct err err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        OWN_JSON json_t *step = json_loads(bad[i], 0, NULL);
        assert_non_null(step);
        assert_fails(step_check(step, &err), ERR_INVALID);
    }
}

CHECK_MAIN(a_volume_is_there_until_it_is_deleted, a_mounted_one_goes_when_its_last_step_has_ended,
           names_stay_inside, outputs_are_found_and_links_are_not_followed,
           what_leads_out_is_no_step)
