/* tests/unit/vault_test.c - secrets at rest: not readable without the key, not movable, not bendable */
#include "server/vault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "tests/check.h"

static const char *key_file(const char *dir)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/secrets.key", dir);
    return path;
}

static struct vault *open_in(const char *dir)
{
    struct err err = { 0 };
    struct vault *v = NULL;
    assert_ok(vault_new(dir, &v, &err));
    return v;
}

static void a_value_comes_back_after_a_restart_and_the_key_is_its_owners(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stat st;
    char dir[] = "/tmp/muster-vault-XXXXXX";
    OWN_BUF sealed = BUF_INIT;
    char *text = NULL;

    assert_non_null(mkdtemp(dir));
    struct vault *v = open_in(dir);
    assert_int_equal(access(key_file(dir), F_OK), -1);  /* made with the first secret */
    assert_ok(vault_seal(v, "secret/a/b", "swordfish", &sealed, &err));
    vault_free(v);
    assert_null(memmem(sealed.data, sealed.n, "swordfish", 9));
    assert_int_equal(stat(key_file(dir), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    v = open_in(dir);
    assert_ok(vault_open(v, "secret/a/b", sealed.data, sealed.n, &text, &err));
    assert_string_equal(text, "swordfish");
    free(text);
    vault_free(v);
}

static void every_changed_byte_and_another_name_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    char dir[] = "/tmp/muster-vault-XXXXXX";
    OWN_BUF sealed = BUF_INIT;
    char *text = NULL;

    assert_non_null(mkdtemp(dir));
    struct vault *v = open_in(dir);
    assert_ok(vault_seal(v, "secret/a/b", "swordfish", &sealed, &err));
    assert_fails(vault_open(v, "secret/a/c", sealed.data, sealed.n, &text, &err), ERR_IO);
    for (size_t i = 0; i < sealed.n; i++) {
        sealed.data[i] ^= 0x10;
        assert_fails(vault_open(v, "secret/a/b", sealed.data, sealed.n, &text, &err), ERR_IO);
        sealed.data[i] ^= 0x10;
    }
    for (size_t n = 0; n < sealed.n; n++)
        assert_fails(vault_open(v, "secret/a/b", sealed.data, n, &text, &err), ERR_IO);
    assert_null(text);
    vault_free(v);
}

static void without_the_key_the_error_says_where_it_belongs(void **state)
{
    (void)state;
    struct err err = { 0 };
    char dir[] = "/tmp/muster-vault-XXXXXX";
    OWN_BUF sealed = BUF_INIT;
    char *text = NULL;

    assert_non_null(mkdtemp(dir));
    struct vault *v = open_in(dir);
    assert_ok(vault_seal(v, "l", "x", &sealed, &err));
    vault_free(v);
    unlink(key_file(dir));
    v = open_in(dir);
    assert_fails(vault_open(v, "l", sealed.data, sealed.n, &text, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "secrets.key"));
    assert_ok(files_write(key_file(dir), "not a key\n", 10, &err));
    assert_fails(vault_open(v, "l", sealed.data, sealed.n, &text, &err), ERR_INVALID);
    vault_free(v);
}

CHECK_MAIN(a_value_comes_back_after_a_restart_and_the_key_is_its_owners,
           every_changed_byte_and_another_name_are_refused,
           without_the_key_the_error_says_where_it_belongs)
