/* tests/unit/training_test.c - AI Platform's TrainingInput to a job document, and back */
#include "protocols/training.h"

#include <string.h>

#include "base/own.h"
#include "tests/check.h"

static const char tiers[] =
    "{\"BASIC\": {\"workers\": 1.0}, \"STANDARD_1\": {\"workers\": 5.0}, \"CUSTOM\": {}, "
    "\"BASIC_GPU\": {\"workers\": 1.0, \"gpu\": 1.0}, "
    "\"OURS\": {\"workers\": 2.0, \"cpu\": 0.5, \"memory\": 1073741824.0}}";

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    if (!v)
        fail_msg("%s: %s", text, e.text);
    return v;
}

static int read_text(const char *text, json_t **out, struct err *err)
{
    OWN_JSON json_t *job = parse(text), *rows = parse(tiers);
    const struct training_here here = { .cpus = 2, .memory_bytes = 8LL << 30, .tiers = rows };
    return training_read(job, &here, out, err);
}

static const json_t *at(const json_t *v, const char *a, const char *b)
{
    v = json_object_get(v, a);
    return b ? json_object_get(v, b) : v;
}

/* What gcloud sends for the SimpleTaxiFare tutorial. */
static const char tutorial[] =
    "{\"jobId\": \"taxi_1\", \"labels\": {\"team\": \"red\"}, \"etag\": null, \"trainingInput\": {"
    "\"enableWebAccess\": false, \"jobDir\": \"gs://bucket/trainings\", \"packageUris\": "
    "[\"gs://bucket/trainings/packages/ab/simpletaxifare-1.0.tar.gz\"], \"pythonModule\": "
    "\"SimpleTaxiFare.trainer\", \"pythonVersion\": \"3.7\", \"region\": \"europe-west1\", "
    "\"runtimeVersion\": \"1.15\", \"fromTomorrow\": {\"a\": 1}, \"args\": [\"--n\", \"3\"]}}";

static void the_tutorial_becomes_a_python_job(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *doc = NULL;
    assert_ok(read_text(tutorial, &doc, &err));
    assert_string_equal(json_string_value(at(doc, "name", NULL)), "taxi_1");
    assert_string_equal(json_string_value(at(doc, "kind", NULL)), "python");
    assert_string_equal(json_string_value(at(doc, "python", "module")), "SimpleTaxiFare.trainer");
    assert_string_equal(json_string_value(at(doc, "python", "runtime")), "1.15");
    assert_string_equal(json_string_value(at(doc, "python", "python")), "3.7");
    assert_string_equal(json_string_value(at(doc, "job_dir", NULL)), "gs://bucket/trainings");
    assert_string_equal(json_string_value(at(doc, "labels", "team")), "red");
    assert_string_equal(json_string_value(at(doc, "env", "CLOUD_ML_JOB_ID")), "taxi_1");
    assert_non_null(
        strstr(json_string_value(at(doc, "env", "TF_CONFIG")), "\"environment\":\"cloud\""));
    OWN_JSON json_t *args = parse("[\"--n\", \"3\"]");
    assert_true(json_equal(at(doc, "python", "args"), args));
    assert_int_equal(json_integer_value(at(doc, "workers", "max")), 1);
    assert_null(at(doc, "notes", NULL));
    assert_null(at(doc, "time_limit_s", NULL));
    /* a field that nobody knows is kept */
    const json_t *request = at(doc, "origin", "request");
    assert_non_null(at(at(request, "trainingInput", NULL), "fromTomorrow", "a"));
}

#define JOB(input) "{\"jobId\": \"a\", \"trainingInput\": {" input "}}"
#define MODULE "\"pythonModule\": \"t.t\", \"packageUris\": [\"gs://bkt/t.tar.gz\"]"

static void tiers_and_machines_become_what_is_here(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *gpu = NULL, *custom = NULL, *standard = NULL;
    assert_ok(read_text(JOB(MODULE ", \"scaleTier\": \"BASIC_GPU\""), &gpu, &err));
    assert_int_equal(json_integer_value(at(gpu, "resources", "gpu")), 0);
    assert_string_equal(json_string_value(json_array_get(at(gpu, "notes", NULL), 0)),
                        "scale tier BASIC_GPU: 1 worker here (runtimes.yaml)");
    assert_string_equal(json_string_value(json_array_get(at(gpu, "notes", NULL), 1)),
                        "1 GPU was asked for; 0 here, so it runs on the CPU");

    assert_ok(read_text(
        JOB(MODULE ", \"scaleTier\": \"CUSTOM\", \"masterType\": \"n1-standard-4\", "
                   "\"workerType\": \"n1-standard-4\", \"workerCount\": \"2\", \"scheduling\": "
                   "{\"maxRunningTime\": \"90.5s\", \"priority\": 500}"),
        &custom, &err));
    assert_int_equal((int)(1000 * json_number_value(at(custom, "resources", "cpu"))), 666);
    assert_int_equal(json_integer_value(at(custom, "resources", "memory")),
                     0); /* 15 GB are not here */
    assert_int_equal(json_integer_value(at(custom, "workers", "min")), 3);
    assert_int_equal(json_integer_value(at(custom, "time_limit_s", NULL)), 91);
    assert_int_equal(json_integer_value(at(custom, "priority", NULL)), 100);
    assert_null(at(custom, "env", "TF_CONFIG"));
    assert_non_null(strstr(json_string_value(json_array_get(at(custom, "notes", NULL), 1)),
                           "n1-standard-4 has 4 cores; here each worker has 0.667"));

    assert_ok(read_text(JOB(MODULE ", \"scaleTier\": \"STANDARD_1\""), &standard, &err));
    assert_int_equal(json_integer_value(at(standard, "workers", "max")), 5);
    assert_int_equal(json_array_size(at(standard, "notes", NULL)), 3);
}

static void a_tier_is_what_the_table_says(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *ours = NULL, *none = NULL;
    assert_ok(read_text(JOB(MODULE ", \"scaleTier\": \"OURS\""), &ours, &err));
    assert_int_equal(json_integer_value(at(ours, "workers", "max")), 2);
    assert_int_equal((int)(1000 * json_number_value(at(ours, "resources", "cpu"))), 500);
    assert_int_equal(json_integer_value(at(ours, "resources", "memory")), 1 << 30);
    assert_fails(read_text(JOB(MODULE ", \"scaleTier\": \"PREMIUM_1\""), &none, &err), ERR_INVALID);
    assert_string_equal(err.text, "Field: trainingInput.scaleTier Error: \"PREMIUM_1\" is none of "
                                  "BASIC, STANDARD_1, CUSTOM, BASIC_GPU, OURS.");
}

static void an_image_may_carry_a_module_or_a_command(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *module = NULL, *command = NULL;
    assert_ok(
        read_text(JOB(MODULE ", \"masterConfig\": {\"imageUri\": \"gcr.io/x/pytorch-cpu.1-4\"}"),
                  &module, &err));
    assert_string_equal(json_string_value(at(module, "kind", NULL)), "python");
    assert_string_equal(json_string_value(at(module, "image", NULL)), "gcr.io/x/pytorch-cpu.1-4");
    assert_ok(
        read_text(JOB("\"masterConfig\": {\"imageUri\": \"i\", \"containerCommand\": [\"sh\"], "
                      "\"containerArgs\": [\"-c\", \"true\"]}"),
                  &command, &err));
    OWN_JSON json_t *words = parse("[\"sh\", \"-c\", \"true\"]");
    assert_string_equal(json_string_value(at(command, "kind", NULL)), "command");
    assert_true(json_equal(at(command, "command", NULL), words));
    assert_null(at(command, "entrypoint", NULL));
    /* no command: the words are for the image's own program */
    OWN_JSON json_t *own = NULL;
    assert_ok(read_text(JOB("\"masterConfig\": {\"imageUri\": \"i\"}, \"args\": [\"-n\"]"), &own,
                        &err));
    assert_true(json_is_true(at(own, "entrypoint", NULL)));
    assert_int_equal(json_array_size(at(own, "command", NULL)), 1);
}

static void a_wrong_field_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *job, *field;
    } wrong[] = {
        { "{\"trainingInput\": {}}", "job.jobId" },
        { "{\"jobId\": \"7up\", \"trainingInput\": {}}", "job.jobId" },
        { "{\"jobId\": \"a-b\", \"trainingInput\": {}}", "job.jobId" },
        { "{\"jobId\": \"a\"}", "trainingInput" },
        { "{\"jobId\": \"a\", \"trainingInput\": 3}", "trainingInput" },
        { JOB(""), "trainingInput.pythonModule" },
        { JOB("\"pythonModule\": \"os; rm\", \"packageUris\": []"), "trainingInput.pythonModule" },
        { JOB("\"pythonModule\": \"t\", \"packageUris\": []"), "trainingInput.packageUris" },
        { JOB("\"pythonModule\": \"t\", \"packageUris\": \"gs://bkt/a.whl\""),
          "trainingInput.packageUris" },
        { JOB("\"pythonModule\": \"t\", \"packageUris\": [\"http://h/a.whl\"]"),
          "trainingInput.packageUris[0]" },
        { JOB("\"pythonModule\": \"t\", \"packageUris\": [\"gs://bkt/a.whl\", \"gs://bkt/b.sh\"]"),
          "trainingInput.packageUris[1]" },
        { JOB(MODULE ", \"scaleTier\": \"HUGE\""), "trainingInput.scaleTier" },
        { JOB(MODULE ", \"scaleTier\": \"BASIC_TPU\""), "trainingInput.scaleTier" },
        { JOB(MODULE ", \"scaleTier\": \"CUSTOM\""), "trainingInput.masterType" },
        { JOB(MODULE ", \"masterType\": \"cray-1\""), "trainingInput.masterType" },
        { JOB(MODULE ", \"scaleTier\": \"BASIC\", \"masterType\": \"standard\""),
          "trainingInput.masterType" },
        { JOB(MODULE ", \"workerCount\": \"2\""), "trainingInput.workerCount" },
        { JOB(MODULE ", \"workerCount\": -1"), "trainingInput.workerCount" },
        { JOB(MODULE ", \"args\": [1]"), "trainingInput.args" },
        { JOB(MODULE ", \"jobDir\": \"/tmp/x\""), "trainingInput.jobDir" },
        { JOB(MODULE ", \"scheduling\": {\"maxRunningTime\": \"1h\"}"),
          "trainingInput.scheduling.maxRunningTime" },
        { JOB(MODULE ", \"scheduling\": {\"priority\": \"high\"}"),
          "trainingInput.scheduling.priority" },
        { JOB(MODULE ", \"runtimeVersion\": \"2.1\", \"masterConfig\": {\"imageUri\": \"i\"}"),
          "trainingInput.runtimeVersion" },
        { "{\"jobId\": \"a\", \"labels\": {\"A\": \"b\"}, \"trainingInput\": {" MODULE "}}",
          "labels" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct err err;
        json_t *doc = NULL;
        char start[100];
        assert_fails(read_text(wrong[i].job, &doc, &err), ERR_INVALID);
        snprintf(start, sizeof start, "Field: %s Error: ", wrong[i].field);
        if (strncmp(err.text, start, strlen(start)))
            fail_msg("%s: says \"%s\"", wrong[i].job, err.text);
        assert_null(doc);
    }
}

static void what_is_not_built_is_told_by_its_name(void **state)
{
    (void)state;
    OWN_JSON json_t *tune = parse(JOB("\"hyperparameters\": {\"maxTrials\": 3}"));
    OWN_JSON json_t *predict = parse("{\"jobId\": \"a\", \"predictionInput\": {}}");
    OWN_JSON json_t *plain = parse(JOB(MODULE));
    assert_non_null(strstr(training_unbuilt(tune), "Hyperparameter tuning"));
    assert_non_null(strstr(training_unbuilt(predict), "Batch prediction"));
    assert_null(training_unbuilt(plain));
}

static void a_record_is_shown_as_a_job(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *doc = NULL;
    assert_ok(read_text(tutorial, &doc, &err));
    OWN_JSON json_t *record =
        json_pack("{s:s, s:s, s:s, s:O, s:{s:s}, s:f, s:f, s:f, s:i}", "name", "taxi_1", "state",
                  "failed", "reason", "it ended with exit code 1", "spec", doc, "labels", "team",
                  "blue", "created", 1500000000.5, "started", 1500000001.0, "ended", 0.0, "uid", 7);
    OWN_JSON json_t *job = training_show(record);
    assert_string_equal(json_string_value(at(job, "state", NULL)), "FAILED");
    assert_string_equal(json_string_value(at(job, "errorMessage", NULL)),
                        "it ended with exit code 1");
    assert_string_equal(json_string_value(at(job, "createTime", NULL)),
                        "2017-07-14T02:40:00.500000Z");
    assert_non_null(at(job, "endTime", NULL)); /* an ended job always has one */
    assert_string_equal(json_string_value(at(job, "labels", "team")), "blue");
    assert_non_null(at(job, "trainingInput", "fromTomorrow"));
    const char *etag = json_string_value(at(job, "etag", NULL));
    assert_int_equal(strlen(etag), 12);
    assert_int_equal(etag[11], '=');

    json_object_set_new((json_t *)at(record, "labels", NULL), "team", json_string("red"));
    OWN_JSON json_t *other = training_show(record);
    assert_string_not_equal(json_string_value(at(other, "etag", NULL)), etag);
}

static void a_native_job_is_shown_too(void **state)
{
    (void)state;
    OWN_JSON json_t *record =
        parse("{\"name\": \"x\", \"state\": \"queued\", \"created\": 1, \"spec\": "
              "{\"kind\": \"command\", \"command\": [\"true\"]}}");
    OWN_JSON json_t *job = training_show(record);
    assert_string_equal(json_string_value(at(job, "state", NULL)), "QUEUED");
    assert_null(at(job, "endTime", NULL));
    assert_null(at(job, "startTime", NULL));
    assert_int_equal(json_array_size(at(job, "trainingInput", "args")), 1);
    assert_string_equal(training_state_name("CANCELLING"), "cancelling");
    assert_null(training_state_name("running"));
}

CHECK_MAIN(the_tutorial_becomes_a_python_job, tiers_and_machines_become_what_is_here,
           a_tier_is_what_the_table_says,
           an_image_may_carry_a_module_or_a_command, a_wrong_field_is_named,
           what_is_not_built_is_told_by_its_name, a_record_is_shown_as_a_job,
           a_native_job_is_shown_too)
