/* tests/fuzz/kfp_fuzz.c - any bytes as a filter and as a trigger of Kubeflow's API
 *
 * What is accepted has the form that lists of rows take, and a trigger that is written again is read
 * as the same.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "protocols/kfp_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const struct kfp_key keys[] = {
    { "name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "storage_state", "archived", KFP_STORAGE }, { "state", "state", KFP_STATE }, { 0 }
};
static const struct kfp_kind kind = { &rows_runs, keys };

static void check_filter(const json_t *filter)
{
    size_t i;
    json_t *p;

    assert(json_is_array(filter));
    json_array_foreach((json_t *)filter, i, p) {
        const json_t *value = json_object_get(p, "value");
        assert(json_is_string(json_object_get(p, "key")) && value);
        assert(json_is_array(value) == !strcmp(json_string_value(json_object_get(p, "op")), "IN"));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    OWN_MEM char *text = strndup((const char *)bytes, n);
    OWN_JSON json_t *filter = NULL, *doc = NULL, *trigger = NULL, *again = NULL;

    assert(text);
    if (kfp_filter(&kind, text, &filter, &err) < 0)
        assert(!filter && err.text[0]);
    else if (filter)
        check_filter(filter);
    if (http_json(text, strlen(text), &doc, &err) < 0 || kfp_trigger_read(doc, &trigger, &err) < 0)
        return 0;
    OWN_JSON json_t *holder = json_pack("{s:O}", "trigger", trigger);
    OWN_JSON json_t *written = kfp_trigger(holder);
    assert(written && kfp_trigger_read(written, &again, &err) == 0);
    assert(json_object_size(again) <= json_object_size(trigger));
    return 0;
}
