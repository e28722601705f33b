#include "spec/spec.h"
#include "tests/check.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "spec/keys.h"
#include "spec/yaml.h"

#define BASE                                                                            \
    "data: {train: {csv: a.csv}, target: y}\n"                                          \
    "model: [linear: 1]\n"                                                              \
    "loss: squared_error\n"                                                             \
    "optimizer: sgd\n"

static int parse_set(const char *text, const char *const *set, int n_set, struct job_spec **out,
                     struct err *err)
{
    return spec_parse(text, strlen(text), "t.yaml", set, n_set, out, err);
}

static int parse(const char *text, struct job_spec **out, struct err *err)
{
    return parse_set(text, NULL, 0, out, err);
}

static void assert_refused(const char *text, size_t n, const char *want)
{
    struct err err = { 0 };
    struct job_spec *s = NULL;

    assert_fails(spec_parse(text, n, "t.yaml", NULL, 0, &s, &err), ERR_INVALID);
    assert_null(s);
    assert_string_equal(err.text, want);
}

/* The part of the normal form at `path` ("a/b/0"), as JSON with ' for ", is `want`. */
static void assert_part(const json_t *doc, const char *path, const char *want)
{
    char key[64];

    for (size_t n; *path; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        doc = json_is_array(doc) ? json_array_get(doc, strtoul(key, NULL, 10))
                                 : json_object_get(doc, key);
    }
    if (!doc && !want)
        return;
    assert_non_null(doc);
    OWN_MEM char *found = json_dumps(doc, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    for (char *c = found; *c; c++)
        if (*c == '"')
            *c = '\'';
    assert_string_equal(found, want);
}

static void root_path(const char *name, char *out, size_t size)
{
    const char *root = getenv("MUSTER_ROOT");

    snprintf(out, size, "%s/%s", root ? root : ".", name);
}

static struct job_spec *read_example(const char *name)
{
    char path[4096], in[100];
    struct err err = { 0 };
    struct job_spec *s = NULL;

    snprintf(in, sizeof in, "examples/%s/train.yaml", name);
    root_path(in, path, sizeof path);
    assert_ok(spec_read(path, NULL, 0, &s, &err));
    return s;
}

static void lenet_is_read_into_the_struct(void **state)
{
    (void)state;
    OWN(job_spec) s = read_example("fashion-lenet");

    assert_string_equal(s->name, "fashion-lenet");
    assert_int_equal(s->batch, 4);
    assert_int_equal(s->epochs, 2);
    assert_int_equal(s->shards, 4);
    assert_int_equal(s->n_metrics, 1);
    assert_string_equal(s->metric[0], "accuracy");
    assert_int_equal(s->test.unit, EVERY_EPOCHS);
    assert_int_equal(s->test.n, 1);
    assert_string_equal(s->checkpoint_best, "test_loss");
    assert_int_equal(s->workers_min, 1);
    assert_int_equal(s->workers_max, 1);
    assert_null(s->program);
    assert_null(s->schedule);
    assert_null(s->init);
    assert_non_null(strstr(s->dir, "examples/fashion-lenet"));
    assert_part(s->loss, "", "{'cross_entropy': {}}");
    assert_part(s->model, "7", "{'linear': {'out': 120, 'bias': true, 'name': 'fc1'}}");
}

static void fit_a_line_stops_and_saves_as_the_tutorial_does(void **state)
{
    (void)state;
    OWN(job_spec) s = read_example("fit-a-line");

    assert_int_equal(s->test.n, 10);
    assert_int_equal(s->test.unit, EVERY_STEPS);
    assert_int_equal(s->n_stops, 1);
    assert_string_equal(s->stop[0].metric, "test_loss");
    assert_int_equal(s->stop[0].above, 0);
    assert_true(s->stop[0].bound == 10);
    assert_int_equal(s->checkpoint.unit, EVERY_NEVER);
    assert_null(s->checkpoint_best);
    assert_part(s->data, "shuffle", "500");
    assert_part(s->data, "features/RM", "{'numeric': {'scale': 'range', 'log': false}}");
}

static void the_convblock_layers_are_named_as_in_its_class(void **state)
{
    (void)state;
    OWN(job_spec) s = read_example("fashion-convblock");

    assert_part(s->model, "0/conv2d/name", "'conv1.conv'");
    assert_part(s->model, "7/batchnorm/name", "'conv3.bn'");
    assert_part(s->model, "12/linear/name", "'fc2'");
}

/* Each case of spec_errors.txt: "! sentence", then the file. */
static void every_mistake_gets_its_sentence(void **state)
{
    (void)state;
    OWN_MEM char *all = NULL;
    char path[4096];
    struct err err = { 0 };
    int n = 0;

    root_path("tests/unit/spec_errors.txt", path, sizeof path);
    assert_ok(files_read(path, 1 << 24, &all, NULL, &err));
    for (char *at = strstr(all, "\n! "), *next; at; at = next, n++) {
        next = strstr(at + 1, "\n! ");
        char *want = at + 3, *text = strchr(want, '\n');
        if (next)
            *next = 0;          /* the blank line before the next case stays with this one */
        *text++ = 0;
        OWN_BUF b = BUF_INIT;
        int base = strncmp(text, "@base\n", 6) == 0;
        buf_printf(&b, "%s%s", base ? BASE : "", text + (base ? 6 : 0));
        struct job_spec *s = NULL;
        if (spec_parse(b.data, b.n, "t.yaml", NULL, 0, &s, &err) == 0)
            fail_msg("accepted, but wanted: %s\n%s", want, b.data);
        if (strcmp(err.text, want) != 0)
            fail_msg("\n got    %s\n wanted %s\n%s", err.text, want, b.data);
        assert_int_equal(err.code, ERR_INVALID);
        if (next)
            *next = '\n';
    }
    assert_true(n > 150);
}

static void bytes_that_are_no_text_are_refused_where_they_stand(void **state)
{
    (void)state;
    assert_refused("name: caf\xe9\n", 11, "t.yaml:1:10: not UTF-8; save the file in that encoding"
                   " (if it is Latin-1: iconv -f latin1 -t utf-8 FILE > NEW)");
    assert_refused("\xff\xfen\0", 4, "t.yaml:1:1: not UTF-8; save the file in that encoding. It is "
                   "UTF-16LE");
    assert_refused("a: \xed\xa0\x80", 6, "t.yaml:1:4: not UTF-8; save the file in that encoding"
                   " (if it is Latin-1: iconv -f latin1 -t utf-8 FILE > NEW)");
    assert_refused("a: \xc0\xaf", 5, "t.yaml:1:4: not UTF-8; save the file in that encoding"
                   " (if it is Latin-1: iconv -f latin1 -t utf-8 FILE > NEW)");
    assert_refused("name: a\0b\n", 10, "t.yaml:1:8: a NUL byte; this is not a text file");
    assert_refused("name: \xc3\xa9\x01\n", 10, "t.yaml:1:8: control characters are not allowed");
    assert_refused("a: \xc3\xa9\n\tb: x\n", 12, "t.yaml:2:1: a tab; YAML is indented with spaces");
}

static void what_a_terminal_would_act_on_is_not_repeated(void **state)
{
    (void)state;
    static const char escapes[] = "seed: \"a\\e[2Jb\\nc\\x9bd\\u0085\"\n";
    static const char long_text[] = "seed: ééééééééééééééééééééééééé\n";
    OWN_BUF b = BUF_INIT;

    assert_refused(escapes, sizeof escapes - 1,
                   "t.yaml:1:7: seed: expected a whole number from 0, got \"a [2Jb c  d  \"");
    assert_refused(long_text, sizeof long_text - 1, "t.yaml:1:7: seed: expected a whole number from "
                   "0, got \"éééééééééééééééééééé...\"");
    assert_refused("seéd\x7f: 1\n", 10,
                   "t.yaml:1:5: control characters are not allowed");
    for (int i = 0; i < 17; i++)
        buf_printf(&b, "%%TAG !%c! x\n", 'a' + i);
    assert_refused(b.data, b.n, "t.yaml:17:1: too many directives (lines that begin with %)");
}

static void a_byte_order_mark_and_crlf_are_fine(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    assert_ok(parse("\xEF\xBB\xBF" "data: {train: {csv: a.csv}, target: y}\r\n"
                    "model: [linear: 1]\r\nloss: l1\r\noptimizer: sgd\r\n", &s, &err));
    assert_part(s->doc, "loss", "{'l1': {}}");
    assert_refused("\xEF\xBB\xBF" "nme: x\n", 10, "t.yaml:1:1: unknown key \"nme\" (did you mean "
                   "\"name\"?)");
}

static void an_alias_bomb_is_refused_before_it_goes_off(void **state)
{
    (void)state;
    OWN_BUF b = BUF_INIT;

    buf_text(&b, "a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (char c = 'b'; c <= 'j'; c++)
        buf_printf(&b, "%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c - 1,
                   c - 1, c - 1, c - 1, c - 1, c - 1, c - 1, c - 1, c - 1, c - 1);
    assert_refused(b.data, b.n,
                   "t.yaml:6:16: too many values (aliases count once for each use)");
}

static void size_depth_keys_and_anchors_are_bounded(void **state)
{
    (void)state;
    OWN_BUF b = BUF_INIT;

    for (int i = 0; i < 100000; i++)
        buf_text(&b, "[");
    assert_refused(b.data, b.n, "t.yaml:1:33: lists and maps nested too deep");
    buf_clear(&b);
    for (int i = 0; i <= VALUE_KEYS_MAX; i++)
        buf_printf(&b, "k%d: 1\n", i);
    assert_refused(b.data, b.n, "t.yaml:5001:1: too many keys in one map");
    buf_clear(&b);
    for (int i = 0; i <= YAML_ANCHORS_MAX; i++)
        buf_printf(&b, "- &a%d x\n", i);
    assert_refused(b.data, b.n, "t.yaml:1001:3: too many anchors");
    buf_clear(&b);
    for (int i = 0; i <= VALUE_MAX; i++)
        buf_text(&b, "- a\n");
    assert_refused(b.data, b.n,
                   "t.yaml:400000:3: too many values (aliases count once for each use)");
    buf_clear(&b);
    while (b.n <= YAML_BYTES_MAX)
        buf_text(&b, "# a comment that fills the file until it is too large\n");
    struct err err = { 0 };
    struct job_spec *s = NULL;
    assert_fails(spec_parse(b.data, b.n, "t.yaml", NULL, 0, &s, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "a spec has at most 4 MB"));
}

static void an_alias_may_be_used_as_long_as_it_is_small(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    assert_ok(parse("data:\n  train: {csv: a}\n  target: y\n  features:\n"
                    "    a: &r {numeric: range}\n    b: *r\n"
                    "model: [linear: 1]\nloss: l1\noptimizer: sgd\n", &s, &err));
    assert_part(s->data, "features/b", "{'numeric': {'scale': 'range', 'log': false}}");
}

struct normal_case { const char *path, *yaml, *want; };

static void short_forms_become_long_ones(void **state)
{
    (void)state;
    static const struct normal_case layers[] = {
        { "", "relu", "{'relu': {}}" },
        { "", "{relu: }", "{'relu': {}}" },
        { "", "linear: 120", "{'linear': {'out': 120, 'bias': true, 'name': 'fc1'}}" },
        { "", "maxpool: 2",
          "{'maxpool': {'kernel': [2, 2], 'stride': [2, 2], 'padding': [0, 0]}}" },
        { "", "maxpool: [2, 3]",
          "{'maxpool': {'kernel': [2, 3], 'stride': [2, 3], 'padding': [0, 0]}}" },
        { "", "avgpool: {kernel: 3, stride: 1, padding: 1}",
          "{'avgpool': {'kernel': [3, 3], 'stride': [1, 1], 'padding': [1, 1]}}" },
        { "", "conv2d: {out: 6, kernel: [5, 3]}",
          "{'conv2d': {'out': 6, 'kernel': [5, 3], 'stride': [1, 1], 'padding': [0, 0], "
          "'dilation': [1, 1], 'groups': 1, 'bias': true, 'name': 'conv1'}}" },
        { "", "batchnorm", "{'batchnorm': {'eps': 1e-5, 'momentum': 0.1, 'per_shard': false, "
          "'name': 'bn1'}}" },
        { "", "layernorm", "{'layernorm': {'eps': 1e-5, 'name': 'ln1'}}" },
        { "", "dropout: .25", "{'dropout': {'p': 0.25}}" },
        { "", "dropout", "{'dropout': {'p': 0.5}}" },
        { "", "leaky_relu: 1e-3", "{'leaky_relu': {'slope': 0.001}}" },
        { "", "gelu", "{'gelu': {'approximate': 'none'}}" },
        { "", "gelu: tanh", "{'gelu': {'approximate': 'tanh'}}" },
        { "", "embedding: {rows: 9, dim: 2, of: company}",
          "{'embedding': {'rows': 9, 'dim': 2, 'of': 'company', 'name': 'emb1'}}" },
    };

    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        struct err err = { 0 };
        OWN(job_spec) s = NULL;
        OWN_BUF b = BUF_INIT;
        buf_printf(&b, "data: {train: {csv: a}, target: y}\nmodel:\n  - %s\nloss: l1\noptimizer: "
                   "adam\n", layers[i].yaml);
        assert_ok(parse(b.data, &s, &err));
        assert_part(s->model, "0", layers[i].want);
    }
}

static void every_other_short_form_too(void **state)
{
    (void)state;
    static const struct normal_case cases[] = {
        { "loss", "loss: {huber: 2}", "{'huber': {'delta': 2.0}}" },
        { "loss", "loss: huber", "{'huber': {'delta': 1.0}}" },
        { "optimizer", "optimizer: {sgd: 0.1}",
          "{'sgd': {'lr': 0.1, 'momentum': 0.0, 'nesterov': false, 'weight_decay': 0.0}}" },
        { "optimizer/adamw/betas", "optimizer: adamw", "[0.9, 0.999]" },
        { "optimizer/adamw/weight_decay", "optimizer: adamw", "0.01" },
        { "optimizer/ftrl", "optimizer: {ftrl: {l1: 1}}",
          "{'lr': 0.001, 'l1': 1.0, 'l2': 0.0, 'lr_power': -0.5, 'initial_accumulator': 0.1}" },
        { "schedule", "schedule: {step: 30}", "{'step': {'every': 30, 'gamma': 0.1}}" },
        { "schedule", "schedule: cosine\nepochs: 7", "{'cosine': {'epochs': 7, 'min': 0.0}}" },
        { "schedule", "schedule: {warmup: 5}", "{'warmup': {'steps': 5}}" },
        { "test", "test: 10 steps", "{'every': '10 steps'}" },
        { "test", "test: {every: 1 steps}", "{'every': '1 step'}" },
        { "checkpoint", "checkpoint: never", "{'every': 'never', 'keep': 2, 'best': 'none'}" },
        { "metrics", "metrics: auc", "['auc']" },
        { "workers", "workers: 3", "'3..3'" },
        { "workers", "workers: 1..4", "'1..4'" },
        { "shards", "batch: 7", "4" },
        { "shards", "batch: 1", "1" },
        { "shards", "batch: 640", "8" },
        { "shards", "batch: 640\nshards: 3", "3" },
        { "clip", "clip: {norm: 1}", "{'norm': 1.0}" },
        { "data/train", "data: {train: {csv: [a, b], rows: 0..404}, target: y}",
          "{'csv': ['a', 'b'], 'rows': [0, 404]}" },
        { "data/train/rows", "data: {train: {json: a, rows: 404..}, target: y}", "[404, null]" },
        { "data/train/rows", "data: {train: {json: a, rows: ..9}, target: y}", "[0, 9]" },
        { "data/split", "data: {train: {csv: a}, split: 0.25, target: y}",
          "{'test': 0.25, 'by': 'range'}" },
        { "data/scale", "data: {train: {idx: [a, b]}, scale: {mean: 0.5}}",
          "{'mean': [0.5], 'std': [1.0]}" },
        { "data/missing", "data: {train: {idx: [a, b]}}", NULL },
        { "data/labels", "data: {train: {idx: [a, b]}, labels: [no, yes, 010, 1e3, ~, null]}",
          "['no', 'yes', '010', '1e3', '~', 'null']" },
        { "data/missing", "data: {train: {csv: a}, target: y}", "['', 'NA']" },
        { "data/header", "data: {train: {csv: a}, header: [y, x], target: y}", "['y', 'x']" },
        { "data/features", "data: {train: {csv: a}, target: y, features: {a: numeric, "
          "b: vocabulary, c: {vocabulary: [no, on]}, d: {identity: 7}, e: {hash: 9}, "
          "f: {bucketize: a, boundaries: [1, 2.5]}, g: {cross: [b, c], buckets: 8}}}",
          "{'a': {'numeric': {'scale': 'standard', 'log': false}}, 'b': {'vocabulary': "
          "'auto'}, 'c': {'vocabulary': ['no', 'on']}, 'd': {'identity': 7}, 'e': {'hash': "
          "9}, 'f': {'bucketize': 'a', 'boundaries': [1.0, 2.5]}, 'g': {'cross': ['b', "
          "'c'], 'buckets': 8}}" },
        { "model", "model: wide_and_deep",
          "{'wide_and_deep': {'hidden': [64, 32], 'embedding': 8, 'cross': [], "
          "'cross_buckets': 1000, 'dropout': 0.0}}" },
        { "model/wide_and_deep/hidden", "model: {wide_and_deep: [5]}", "[5]" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const char *const base[] = { "data: {train: {csv: a.csv}, target: y}\n",
                                            "model: [linear: 1]\n", "loss: squared_error\n",
                                            "optimizer: sgd\n" };
        struct err err = { 0 };
        OWN(job_spec) s = NULL;
        OWN_BUF b = BUF_INIT;
        for (int k = 0; k < 4; k++)
            if (strncmp(base[k], cases[i].yaml, 4) != 0)
                buf_text(&b, base[k]);
        buf_printf(&b, "%s\n", cases[i].yaml);
        assert_ok(parse(b.data, &s, &err));
        assert_part(s->doc, cases[i].path, cases[i].want);
    }
}

static void layers_are_counted_by_kind_around_given_names(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    assert_ok(parse("data: {train: {csv: a}, target: y}\nmodel:\n  - linear: 1\n"
                    "  - linear: {out: 2, name: head}\n  - linear: 3\n  - layernorm\n"
                    "  - linear: {out: 4, name: fc5}\n  - linear: 5\n"
                    "loss: l1\noptimizer: sgd\n", &s, &err));
    assert_part(s->model, "0/linear/name", "'fc1'");
    assert_part(s->model, "2/linear/name", "'fc3'");
    assert_part(s->model, "3/layernorm/name", "'ln1'");
    assert_part(s->model, "5/linear/name", "'fc6'");
}

static const char graph[] =
    "data: {train: {csv: a}, target: y}\n"
    "model:\n"
    "  nodes:\n"
    "    a: {linear: 4}\n"
    "    b: relu\n"
    "    e: {embedding: {rows: 3, dim: 4, of: company}}\n"
    "    c: {concat: , from: [b, e, input]}\n"
    "    d: {linear: {out: 1, name: head}, from: c}\n"
    "loss: l1\noptimizer: sgd\n";

static void a_graph_is_named_by_its_nodes(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    assert_ok(parse(graph, &s, &err));
    assert_part(s->model, "nodes/a",
                "{'linear': {'out': 4, 'bias': true, 'name': 'a'}, 'from': ['input']}");
    assert_part(s->model, "nodes/b", "{'relu': {}, 'from': ['a']}");
    assert_part(s->model, "nodes/e/from", "[]");
    assert_part(s->model, "nodes/c", "{'concat': {}, 'from': ['b', 'e', 'input']}");
    assert_part(s->model, "nodes/d/linear/name", "'head'");
    assert_part(s->model, "output", "'d'");
}

static void a_part_of_wide_and_deep_has_its_optimizer(void **state)
{
    (void)state;
    OWN(job_spec) s = read_example("taxi-tabular");

    assert_part(s->optimizer, "wide/ftrl/lr_power", "-0.5");
    assert_part(s->optimizer, "deep/adam/eps", "1e-8");
    assert_part(s->data, "derived/tip", "'tips > 0.2 * fare'");
}

static void numbers_are_exact(void **state)
{
    (void)state;
    static const struct { const char *text; double want; } cases[] = {
        { "1e-3", 1e-3 }, { "1E+2", 100 }, { ".5", 0.5 }, { "5.", 5 }, { "+0.1", 0.1 },
        { "0.1", 0.1 }, { "1", 1 }, { "1e-320", 1e-320 }, { "0.30000000000000004", 0.1 + 0.2 },
        { "123456789012345678901234567890", 123456789012345678901234567890.0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        OWN(job_spec) s = NULL;
        OWN(job_spec) back = NULL;
        OWN_BUF b = BUF_INIT;
        buf_printf(&b, "data: {train: {csv: a}, target: y}\nmodel: [linear: 1]\nloss: l1\n"
                   "optimizer: {sgd: {lr: %s}}\nseed: 9007199254740993\n", cases[i].text);
        assert_ok(parse(b.data, &s, &err));
        assert_true(json_real_value(json_object_get(json_object_get(s->optimizer, "sgd"), "lr")) ==
                    cases[i].want);
        assert_true(s->seed == 9007199254740993u);
        OWN_MEM char *text = spec_print(s);
        assert_ok(parse(text, &back, &err));
        assert_true(json_equal(s->doc, back->doc));
    }
}

static void a_locale_with_a_decimal_comma_changes_nothing(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        skip();                 /* not installed here */
    assert_ok(parse("data: {train: {csv: a}, target: y}\nmodel: [dropout: 0.25]\nloss: l1\n"
                    "optimizer: sgd\n", &s, &err));
    OWN_MEM char *text = spec_print(s);
    setlocale(LC_ALL, "C");
    assert_part(s->model, "0/dropout/p", "0.25");
    assert_non_null(strstr(text, "{p: 0.25}"));
}

static void assert_reads_back(const struct job_spec *s)
{
    struct err err = { 0 };
    OWN(job_spec) from_yaml = NULL;
    OWN(job_spec) from_json = NULL;
    OWN_MEM char *yaml = spec_print(s);
    OWN_MEM char *json = json_dumps(s->doc, 0);

    assert_ok(parse(yaml, &from_yaml, &err));
    assert_ok(parse(json, &from_json, &err));
    OWN_MEM char *again = spec_print(from_yaml);
    OWN_MEM char *too = spec_print(from_json);
    assert_string_equal(again, yaml);
    assert_string_equal(too, yaml);
    assert_true(json_equal(s->doc, from_yaml->doc));
    assert_true(json_equal(s->doc, from_json->doc));
}

static void what_is_printed_reads_back_as_the_same(void **state)
{
    (void)state;
    static const char *const texts[] = {
        BASE,
        graph,
        "python: {module: a.b, args: [--x, '1', \"\", ' ']}\nimage: debian:12\nworkers: 1..3\n"
        "resources: {memory: 1Gi, cpu: 0.5}\nrun_on: local\n",
        "command: [sh, -c, 'echo \"a: b\" # c\\n']\n",
        "data: {train: {csv: [\"a: b\", \"#c\", \"é\", \"\\x01\\\\\\\"\", \"- a\", \"a \"], "
        "rows: 3..}, test: {csv: b, rows: 1..2, limit: 5}, target: \"true\", delimiter: \"\\t\", "
        "features: {\"a.b\": numeric, \"\\t\": {hash: 3}, \"data\": {identity: 3}, train: numeric, "
        "\"[0]\": {vocabulary: [\"1\", \"1e3\", \"null\", \"~\", \"\", \"no\", \"1 step\", "
        "\"3..4\", \"\\ufeff\"]}}, "
        "derived: {\"x y\": \"a > 1 ? 'x': y\"}, stream: true, shuffle: 10}\n"
        "model: {wide_and_deep: {cross: [[a.b, data]]}}\nloss: {huber: 0.1}\n"
        "optimizer: {wide: ftrl, deep: {rmsprop: {centered: true}}}\nclip: {value: 1e-7}\n"
        "schedule: {plateau: 3, warmup: 10}\nmetrics: [top_5, auc]\nstop: {test_auc: {above: 0.9}, "
        "patience: 3}\ncheckpoint: {every: 7 steps, best: test_auc}\ninit: w.safetensors\n"
        "order: \"/tmp/o: x\"\n",
    };
    static const char *const examples[] = { "fit-a-line", "fashion-lenet", "fashion-convblock",
                                            "taxi-tabular" };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct err err = { 0 };
        OWN(job_spec) s = NULL;
        assert_ok(parse(texts[i], &s, &err));
        assert_reads_back(s);
    }
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        OWN(job_spec) s = read_example(examples[i]);
        assert_reads_back(s);
    }
}

/* JSON may hold these as they are, YAML takes them for the end of a line. */
static void line_separators_in_a_text_are_printed_as_escapes(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) s = NULL;
    OWN(job_spec) back = NULL;

    assert_ok(parse("command: [\"\\u2028\\u2029\\x85\\n\\ufeff\\U0001F600\"]\n", &s, &err));
    OWN_MEM char *text = spec_print(s);
    assert_non_null(strstr(text, "\"\\u2028\\u2029\\u0085\\u000a\\ufeff\xF0\x9F\x98\x80\""));
    assert_ok(parse(text, &back, &err));
    assert_true(json_equal(s->doc, back->doc));
}

static void set_overrides_anything(void **state)
{
    (void)state;
    static const struct { const char *set, *path, *want; } cases[] = {
        { "epochs=3", "epochs", "3" },
        { "batch=2", "shards", "2" },
        { "limit=100", "data/train", "{'idx': ['a', 'b'], 'limit': 100}" },
        { "data.train.limit=100", "data/train/limit", "100" },
        { "model[0].linear.out=64", "model/0/linear/out", "64" },
        { "model[0].linear=64", "model/0/linear/out", "64" },
        { "model[0]=tanh", "model/0", "{'tanh': {}}" },
        { "model[0].linear.bias=false", "model/0/linear",
          "{'out': 1, 'bias': false, 'name': 'fc1'}" },
        { "model[1].maxpool.kernel=3", "model/1/maxpool",
          "{'kernel': [3, 3], 'stride': [3, 3], 'padding': [0, 0]}" },
        { "model[1].maxpool.stride=1", "model/1/maxpool",
          "{'kernel': [2, 2], 'stride': [1, 1], 'padding': [0, 0]}" },
        { "model[2].gelu.approximate=tanh", "model/2", "{'gelu': {'approximate': 'tanh'}}" },
        { "model[-1].dropout.p=0.1", "model/3", "{'dropout': {'p': 0.1}}" },
        { "model[-1].relu=", "model/3", "{'relu': {}}" },
        { "model=[linear: 3]", "model",
          "[{'linear': {'out': 3, 'bias': true, 'name': 'fc1'}}]" },
        { "lr=0.5", "optimizer/sgd/lr", "0.5" },
        { "optimizer.sgd.momentum=0.9", "optimizer/sgd",
          "{'lr': 0.001, 'momentum': 0.9, 'nesterov': false, 'weight_decay': 0.0}" },
        { "optimizer.adam.lr=0.1", "optimizer/adam/lr", "0.1" },
        { "optimizer.adam.lr=0.1", "optimizer/sgd", NULL },
        { "optimizer=adam", "optimizer/adam/lr", "0.001" },
        { "loss.huber.delta=2", "loss", "{'huber': {'delta': 2.0}}" },
        { "data.labels=[no, b=c]", "data/labels", "['no', 'b=c']" },
        { "stop.test_loss.below=3", "stop", "{'patience': 2, 'test_loss': {'below': 3.0}}" },
        { "stop=null", "stop", NULL },
        { "stop=", "stop", NULL },
        { "stop.patience=~", "stop", "{}" },
        { "test.every=5 steps", "test", "{'every': '5 steps'}" },
        { "metrics=[auc]", "metrics", "['auc']" },
        { "name=x", "name", "'x'" },
        { "data.train.rows=0..10", "data/train/rows", "[0, 10]" },
        { "schedule.warmup.steps=4", "schedule", "{'warmup': {'steps': 4}}" },
        { "clip.norm=2", "clip", "{'norm': 2.0}" },
        { "clip.value=2", "clip", "{'value': 2.0}" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        OWN(job_spec) s = NULL;
        if (parse_set("data: {train: {idx: [a, b]}, test: {idx: [c, d]}}\nmodel:\n  - linear: 1\n"
                      "  - maxpool: 2\n  - gelu\n  - dropout: 0.3\nloss: nll\noptimizer: sgd\n"
                      "stop: {patience: 2}\nclip: {norm: 1}\n", &cases[i].set, 1, &s, &err) < 0)
            fail_msg("--set %s: %s", cases[i].set, err.text);
        assert_part(s->doc, cases[i].path, cases[i].want);
    }
}

static void a_wrong_set_names_the_argument(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "epochs", "--set epochs: write it as KEY=VALUE, such as epochs=1" },
        { "=1", "--set =1: write it as KEY=VALUE, such as epochs=1" },
        { "epcohs=1", "--set epcohs=1: unknown key \"epcohs\" (did you mean \"epochs\"?)" },
        { "epochs=one", "--set epochs=one: epochs: expected a whole number from 1, got \"one\"" },
        { "model[9].relu=",
          "--set model[9].relu=: model has no item 9 (it has 1, counted from 0)" },
        { "model[-2]=relu",
          "--set model[-2]=relu: model has no item -2 (it has 1, counted from 0)" },
        { "model[x]=relu", "--set model[x]=relu: a whole number and \"]\" are to follow \"[\"" },
        { "model[0=relu", "--set model[0=relu: a whole number and \"]\" are to follow \"[\"" },
        { "batch[0]=1", "--set batch[0]=1: batch is not a list" },
        { "[0]=1", "--set [0]=1: the spec is not a list" },
        { "batch.size=1", "--set batch.size=1: batch is one value and has no \"size\"" },
        { "data.labels.x=1", "--set data.labels.x=1: data.labels is a list and has no \"x\"" },
        { "model.linear.out=1", "--set model.linear.out=1: model is a list and has no \"linear\"" },
        { ".a=1", "--set .a=1: a key is to follow each \".\"" },
        { "data.=1", "--set data.=1: a key is to follow each \".\"" },
        { "data..x=1", "--set data..x=1: a key is to follow each \".\"" },
        { "model[0].linear.ot=3",
          "--set model[0].linear.ot=3: unknown key \"ot\" in linear (did you mean \"out\"?)" },
        { "epochs=[1", "--set epochs=[1: not YAML: while parsing a flow sequence, did not find "
                       "expected ',' or ']'" },
        { "data.features.a\xff.hash=1",
          "--set data.features.a .hash=1: the key is not a text in UTF-8" },
        { "data.a\x1b[2J=1", "--set data.a [2J=1: the key is not a text in UTF-8" },
        { "loss=", "t.yaml:1:1: loss: a spec needs this key: what training makes small" },
        { "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1",
          "--set a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1: the key is nested too deep" },
        { "stop.test_loss.below=1",
          "--set stop.test_loss.below=1: stop.test_loss: there are no tests to stop after (give "
          "data.test or data.split)" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        struct job_spec *s = NULL;
        assert_fails(parse_set("data: {train: {csv: a}, target: y, labels: [a]}\n"
                               "model: [linear: 1]\nloss: l1\noptimizer: sgd\nbatch: 4\n",
                               cases[i], 1, &s, &err),
                     ERR_INVALID);
        assert_string_equal(err.text, cases[i][1]);
    }
}

static void sets_apply_in_order_and_to_names_with_dots(void **state)
{
    (void)state;
    static const char *const sets[] = { "data.features.a.b.numeric.log=true", "epochs=2",
                                        "epochs=5" };
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    assert_ok(parse_set("data: {train: {csv: a}, target: y, features: {a.b: numeric}}\n"
                        "model: [linear: 1]\nloss: l1\noptimizer: sgd\n", sets, 3, &s, &err));
    assert_int_equal(s->epochs, 5);
    assert_part(s->data, "features/a.b/numeric/log", "true");
}

static void an_error_of_the_engine_gets_a_place(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "model[1].linear: 3 into 4", "t.yaml:6:5: model[1].linear: 3 into 4" },
        { "model[1].linear.out: wide", "t.yaml:6:5: model[1].linear.out: wide" },
        { "model[0].relu: odd", "t.yaml:5:5: model[0].relu: odd" },
        { "model[7]: none", "t.yaml:4:1: model[7]: none" },
        { "model: none", "t.yaml:4:1: model: none" },
        { "data.train: no file", "t.yaml:2:3: data.train: no file" },
        { "data.features.a.b.numeric: x", "t.yaml:3:14: data.features.a.b.numeric: x" },
        { "data.split: x", "t.yaml:1:1: data.split: x" },
        { "epochs: x", "--set epochs=4: epochs: x" },
        { "seed: x", "t.yaml:1:1: seed: x" },
        { "models do not fit", "models do not fit" },
        { "data is gone", "data is gone" },
        { "zebra: x", "zebra: x" },
        { "", "" },
    };
    static const char *const sets[] = { "epochs=4", "data.target=y" };
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    assert_ok(parse_set("data:\n  train: {csv: a}\n  features: {a.b: numeric}\n"
                        "model:\n  - relu\n  - linear: 1\nloss: l1\noptimizer: sgd\n", sets, 2, &s,
                        &err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err_set(&err, ERR_CONFLICT, "%s", cases[i][0]);
        assert_int_equal(spec_locate(s, &err), -ERR_CONFLICT);
        assert_string_equal(err.text, cases[i][1]);
    }
}

static void identity_leaves_out_what_does_not_decide_the_bits(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) a = NULL;
    OWN(job_spec) b = NULL;
    OWN(job_spec) c = NULL;

    assert_ok(parse(BASE, &a, &err));
    assert_ok(parse(BASE "name: z\nworkers: 1..4\nthreads: 3\nrun_on: local\n"
                    "resources: {cpu: 2}\n", &b, &err));
    assert_ok(parse(BASE "seed: 2\n", &c, &err));
    OWN_JSON json_t *ia = spec_identity(a);
    OWN_JSON json_t *ib = spec_identity(b);
    OWN_JSON json_t *ic = spec_identity(c);
    assert_true(json_equal(ia, ib));
    assert_false(json_equal(ia, ic));
    assert_null(json_object_get(ia, "threads"));
    assert_non_null(json_object_get(a->doc, "threads"));
}

static void a_program_of_the_users_own_is_told_apart(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(job_spec) python = NULL;
    OWN(job_spec) command = NULL;

    assert_ok(parse("name: p\npython: {package: ., module: SimpleTaxiFare.trainer, args: [a]}\n"
                    "workers: 2\n", &python, &err));
    assert_string_equal(python->program, "python");
    assert_int_equal(json_object_size(python->data), 0);
    assert_null(python->model);
    assert_null(json_object_get(python->doc, "batch"));
    assert_int_equal(python->workers_max, 2);
    assert_ok(parse("command: [./train, --fast]\nimage: debian:12\n", &command, &err));
    assert_string_equal(command->program, "command");
}

static void a_job_without_a_name_is_called_after_its_file(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "fashion.yaml", "fashion" },       { "a/b/lenet.v2.yaml", "lenet" },
        { "examples/line/train.yaml", "line" }, { "train.yaml", "train" },
        { "/train.yaml", "train" },          { "-", "job" },
        { "a b.yaml", "a-b" },               { "../train.yaml", "job" },
        { ".hidden", "job" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        OWN(job_spec) s = NULL;
        assert_ok(spec_parse(BASE, strlen(BASE), cases[i][0], NULL, 0, &s, &err));
        assert_string_equal(s->name, cases[i][1]);
    }
}

static void a_missing_file_is_missing(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct job_spec *s = NULL;

    assert_fails(spec_read("/nowhere/train.yaml", NULL, 0, &s, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "/nowhere/train.yaml"));
}

static void paths_start_from_the_spec(void **state)
{
    (void)state;
    OWN_MEM char *a = spec_resolve_path("/x/y", "z.csv");
    OWN_MEM char *b = spec_resolve_path("/x/y", "/z.csv");

    assert_string_equal(a, "/x/y/z.csv");
    assert_string_equal(b, "/z.csv");
}

/* A row that cannot be reached, or whose default is not one of its own values, is a slip. */
static void every_row_of_the_table_leads_somewhere(void **state)
{
    (void)state;
    int n;
    const struct key *keys = key_table(&n);

    for (int i = 0; i < n; i++) {
        const struct key *k = &keys[i];
        int reached = !*k->map || strcmp(k->map, "layer") == 0 || strcmp(k->map, "node") == 0 ||
                      strcmp(k->map, "rule") == 0;
        for (int j = 0; j < n; j++)
            reached |= keys[j].of && strcmp(keys[j].of, k->map) == 0;
        if (!reached)
            fail_msg("no key leads to the map \"%s\"", k->map);
        if (!k->why || strchr(k->why, '\n'))
            fail_msg("%s.%s has no line for the reference", k->map, k->name);
        if ((k->flags & KEY_REQUIRED) && k->value)
            fail_msg("%s.%s is required and has a default", k->map, k->name);
        if (key_find(k->map, k->name) != k)
            fail_msg("%s.%s is there twice", k->map, k->name);
    }
}

CHECK_MAIN(lenet_is_read_into_the_struct, fit_a_line_stops_and_saves_as_the_tutorial_does,
           the_convblock_layers_are_named_as_in_its_class, every_mistake_gets_its_sentence,
           bytes_that_are_no_text_are_refused_where_they_stand,
           what_a_terminal_would_act_on_is_not_repeated, a_byte_order_mark_and_crlf_are_fine,
           an_alias_bomb_is_refused_before_it_goes_off, size_depth_keys_and_anchors_are_bounded,
           an_alias_may_be_used_as_long_as_it_is_small, short_forms_become_long_ones,
           every_other_short_form_too, layers_are_counted_by_kind_around_given_names,
           a_graph_is_named_by_its_nodes, a_part_of_wide_and_deep_has_its_optimizer,
           numbers_are_exact, a_locale_with_a_decimal_comma_changes_nothing, what_is_printed_reads_back_as_the_same,
           line_separators_in_a_text_are_printed_as_escapes, set_overrides_anything,
           a_wrong_set_names_the_argument, sets_apply_in_order_and_to_names_with_dots,
           an_error_of_the_engine_gets_a_place, identity_leaves_out_what_does_not_decide_the_bits,
           a_program_of_the_users_own_is_told_apart, a_job_without_a_name_is_called_after_its_file,
           a_missing_file_is_missing, paths_start_from_the_spec,
           every_row_of_the_table_leads_somewhere)
