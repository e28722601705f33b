/* tests/unit/package_test.c - what a package says that it needs, and what may be asked of the index */
#include "drivers/archive.h"

#include <stdlib.h>
#include <string.h>

#include "drivers/environment.h"
#include "tests/check.h"

static void requires_txt_is_read_without_extras(void **state)
{
    (void)state;
    OWN_BUF out = BUF_INIT;

    archive_read_requires("gcsfs\n  pandas>=1.0  \n# a comment\n\n[test]\npytest\n"
                          "[:python_version < \"3.8\"]\ndataclasses\n[gpu:sys_platform == \"linux\"]\n"
                          "cupy\n", &out);
    assert_string_equal(out.data, "gcsfs\npandas>=1.0\ndataclasses; python_version < \"3.8\"\n");
}

static void metadata_is_read_up_to_its_body_without_extras(void **state)
{
    (void)state;
    OWN_BUF out = BUF_INIT;

    archive_read_metadata("Metadata-Version: 2.1\nName: p\nRequires-Dist: six (>=1.0)\n"
                          "requires-dist: numpy ; python_version >= \"3\"\r\n"
                          "Requires-Dist: pytest ; extra == 'test'\n\nRequires-Dist: of the text\n", &out);
    assert_string_equal(out.data, "six (>=1.0)\nnumpy ; python_version >= \"3\"\n");
}

static void a_name_of_the_index_is_taken(void **state)
{
    (void)state;
    struct err err = { 0 };
    static const char *const good[] = { "torch", "numpy<2", "six (>=1.0)", "a[b,c]==1.*; os_name == 'nt'" };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_ok(environment_check_requirement(good[i], &err));
}

static void an_address_or_an_option_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    static const char *const bad[] = { "p @ http://10.0.0.1/p.whl", "https://x/p.whl", "-e .",
                                       "--index-url=http://x", "./p", "/etc", "git+ssh://h/p",
                                       "p@file:///etc", "" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(environment_check_requirement(bad[i], &err), ERR_INVALID);
}

static void what_is_no_archive_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct archive_facts facts = { 0 };
    static const char text[] = "this is a text and no archive of any kind, whatever its name may say";

    assert_fails(archive_check_bytes(text, sizeof text, "p.tar.gz", &facts, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "p.tar.gz: is"));
}

CHECK_MAIN(requires_txt_is_read_without_extras, metadata_is_read_up_to_its_body_without_extras,
           a_name_of_the_index_is_taken, an_address_or_an_option_is_refused,
           what_is_no_archive_is_refused)
