/* tests/unit/cache_test.c - the key of a step changes with all that its outputs depend on */
#include "pipelines/cache.h"

#include <string.h>

#include "base/own.h"
#include "tests/check.h"

static const char order[] =
    "{\"kind\": \"step\", \"step\": {\"image\": \"a\", \"command\": [\"sh\"], \"args\": [\"x\"], "
    "\"env\": [{\"name\": \"E\", \"value\": \"1\"}]}, \"inputs\": {\"parameters\": [{\"name\": \"p\", "
    "\"value\": \"1\"}], \"artifacts\": [{\"name\": \"i\", \"path\": \"/in\", \"value\": {\"uri\": "
    "\"gs://b/one\", \"sha256\": \"aa\", \"size\": 1, \"dir\": false}}]}, \"outputs\": {\"parameters\": "
    "[{\"name\": \"o\", \"path\": \"/tmp/o\"}], \"artifacts\": []}}";

/* The key of the order with a part of its text replaced; "": it has none. */
static void key_of(const char *from, const char *to, const char *image, char out[SHA256_HEX],
                   char why[256])
{
    char text[2048];
    const char *at = strstr(order, from);

    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - order), order, to, at + strlen(from));
    json_error_t error;
    OWN_JSON json_t *doc = json_loads(text, 0, &error);
    if (!doc)
        fail_msg("%s: %s", text, error.text);
    out[0] = 0;
    step_cache_key(doc, image, out, why, 256);
}

static void the_same_step_has_the_same_key_wherever_its_inputs_are(void **state)
{
    (void)state;
    char a[SHA256_HEX], b[SHA256_HEX], why[256];

    key_of("", "", "digest", a, why);
    key_of("gs://b/one", "gs://c/two", "digest", b, why);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), 64);
}

static void what_its_outputs_depend_on_changes_the_key(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        { "\"sh\"", "\"bash\"" }, { "[\"x\"]", "[\"y\"]" },
        { "\"value\": \"1\"}]}", "\"value\": \"2\"}]}" },
        { "\"aa\"", "\"ab\"" }, { "/tmp/o", "/tmp/p" }, { "\"name\": \"p\"", "\"name\": \"q\"" },
        { "\"path\": \"/in\"", "\"path\": \"/on\"" }, { "\"dir\": false", "\"dir\": true" },
        { "\"args\"", "\"script\": \"s\", \"args\"" },
    };
    char a[SHA256_HEX], b[SHA256_HEX], why[256];

    key_of("", "", "digest", a, why);
    key_of("", "", "other", b, why);
    assert_string_not_equal(a, b);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        key_of(changes[i][0], changes[i][1], "digest", b, why);
        if (!strcmp(a, b))
            fail_msg("%s -> %s does not change the key", changes[i][0], changes[i][1]);
    }
}

static void a_step_with_a_volume_that_may_change_has_none(void **state)
{
    (void)state;
    static const char *const volumes[][2] = {
        { "\"claim\": \"c\"", "false" }, { "\"claim\": \"c\"", "true" }, { "\"host\": \"/x\"", "true" },
    };
    char key[SHA256_HEX], why[256], to[256];

    for (size_t i = 0; i < sizeof volumes / sizeof volumes[0]; i++) {
        snprintf(to, sizeof to, "\"step\": {\"mounts\": [{\"volume\": \"v\", \"path\": \"/v\", "
                 "\"read_only\": %s}], \"volumes\": [{\"name\": \"v\", %s}], ", volumes[i][1],
                 volumes[i][0]);
        key_of("\"step\": {", to, "digest", key, why);
        assert_string_equal(key, "");
        assert_non_null(strstr(why, "\"v\""));
    }
    key_of("\"step\": {", "\"step\": {\"mounts\": [{\"volume\": \"v\", \"path\": \"/v\"}], "
           "\"volumes\": [{\"name\": \"v\", \"empty\": true}], ", "digest", key, why);
    assert_int_equal(strlen(key), 64);
}

CHECK_MAIN(the_same_step_has_the_same_key_wherever_its_inputs_are,
           what_its_outputs_depend_on_changes_the_key,
           a_step_with_a_volume_that_may_change_has_none)
