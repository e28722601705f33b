/* tests/numeric/fixtures_test.c - forward, gradients and steps against recorded PyTorch runs, and the
 * same bits whatever the instruction set and the number of threads */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/metrics.h"
#include "engine/schedule.h"
#include "tests/check.h"
#include "tests/numeric/case.h"

enum { VALUES_MAX = 1 << 16 };

static int failures;

/* Gradients are measured by the largest of the case: some are zero but for rounding, such as that of
 * a bias before a batch norm. */
static double gradient_scale(const struct fixture *f)
{
    double scale = 0.01;

    for (int i = 0; i < f->n_blobs; i++)
        for (long k = 0; strncmp(f->blob[i].name, "grad.", 5) == 0 && k < f->blob[i].count; k++)
            scale = fmax(scale, fabs((double)((const float *)f->blob[i].data)[k]));
    return scale;
}

static void check_close(const struct fixture *f, const char *what, const float *got,
                        const struct blob *want)
{
    double scale = strncmp(what, "grad.", 5) == 0 ? gradient_scale(f) : 0.01;
    double d = distance(got, want->data, want->count, scale);

    if (!(d <= f->tol)) {
        failures++;
        print_error("%s: %s is off by %.2e, more than %.1e (first value %.9g, recorded %.9g)\n",
                    f->name, what, d, f->tol, (double)got[0],
                    (double)((const float *)want->data)[0]);
    }
}

/* ------------------------------------------------------------------ outputs */

struct outputs {
    const struct fixture *f;
    struct plan *p;
    float *out;                 /* of the first batch */
};

/* The plan leaves a last log_softmax under nll to the loss; the recorded output has it. */
static void log_softmax(float *x, int n)
{
    double most = x[0], sum = 0;

    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - most);
    for (int i = 0; i < n; i++)
        x[i] = (float)(x[i] - most - log(sum));
}

static int keep_first(void *arg, const struct step_result *r)
{
    struct outputs *o = arg;
    const struct graph *g = o->f->graph;
    int c = o->p->output->c;

    if (r->step > 0)
        return 0;
    for (int i = 0; i < r->n; i++) {
        memcpy(o->out + (long)i * c, plan_output(o->p, i), (size_t)c * sizeof(float));
        if (g->node[g->output].op == OP_LOG_SOFTMAX &&
            json_object_get(json_object_get(o->f->doc, "loss"), "nll"))
            log_softmax(o->out + (long)i * c, c);
    }
    return 0;
}

/* ------------------------------------------------------------------ one case */

static void check_gradients(const struct fixture *f, bool plain)
{
    static float got[VALUES_MAX];
    struct plan *p = case_plan(f, (struct way){ .threads = 2, .plain = plain, .keep_grads = true });
    struct stretch s = case_stretch(f);
    char name[128];

    plan_train(p, &s, 0, 1, 0, NULL, NULL, NULL);
    for (int i = 0; i < p->n_params; i++) {
        snprintf(name, sizeof name, "grad.%s", p->param[i]->name);
        const struct blob *want = case_find(f, name);
        if (!p->param[i]->trained)
            continue;
        if (!want)
            fail_msg("%s: %s is not recorded", f->name, name);
        plan_get(p, p->param[i], -1, got);
        check_close(f, name, got, want);
    }
    plan_free(p);
}

static void check_steps(const struct fixture *f, bool plain)
{
    static float got[VALUES_MAX];
    static struct step_result results[64];
    float loss[64];
    struct plan *p = case_plan(f, (struct way){ .threads = 2, .plain = plain });
    struct stretch s = case_stretch(f);
    struct outputs o = { f, p, got };
    char name[128];

    plan_train(p, &s, 0, f->steps, 0, results, keep_first, &o);
    check_close(f, "out", got, case_find(f, "out"));
    for (int i = 0; i < f->steps; i++)
        loss[i] = (float)results[i].loss;
    check_close(f, "loss", loss, case_find(f, "loss"));
    for (int i = 0; i < p->n_params; i++) {
        snprintf(name, sizeof name, "final.%s", p->param[i]->name);
        const struct blob *want = case_find(f, name);
        if (!want)
            fail_msg("%s: %s is not recorded", f->name, name);
        plan_get(p, p->param[i], 0, got);
        check_close(f, name, got, want);
    }
    plan_eval(p, &s, 0, 1, NULL, keep_first, &o);
    check_close(f, "eval", got, case_find(f, "eval"));
    plan_free(p);
}

static void check_all(bool plain)
{
    json_t *doc = cases_read();
    const json_t *cases = json_object_get(doc, "cases");
    const char *only = getenv("CASE");
    int n = 0;

    failures = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        struct fixture f;
        if (strcmp(json_string_value(json_object_get(c, "kind")), "train") != 0 ||
            (only && strcmp(only, name) != 0))
            continue;
        case_open(&f, c);
        check_gradients(&f, plain);
        check_steps(&f, plain);
        case_close(&f);
        n++;
    }
    json_decref(doc);
    print_message("%d cases\n", n);
    assert_int_equal(failures, 0);
}

static void plain_stages_agree_with_pytorch(void **state)
{
    (void)state;
    check_all(true);
}

static void fused_stages_agree_with_pytorch(void **state)
{
    (void)state;
    check_all(false);
}

/* ------------------------------------------------------------------ same bits */

static uint64_t run_bits(const struct fixture *f, struct way way)
{
    static float got[VALUES_MAX];
    static struct step_result results[64];
    struct plan *p = case_plan(f, way);
    struct stretch s = case_stretch(f);
    uint64_t hash = BITS_START;

    plan_train(p, &s, 0, f->steps, 0, results, NULL, NULL);
    for (int i = 0; i < f->steps; i++) {
        float loss = (float)results[i].loss;
        hash = bits_of(hash, &loss, 1);
    }
    for (int i = 0; i < p->n_params; i++) {
        plan_get(p, p->param[i], 0, got);
        hash = bits_of(hash, got, p->param[i]->count);
    }
    plan_free(p);
    return hash;
}

static void check_bits(const struct fixture *f, bool plain)
{
    static const struct way ways[] = {
        { "scalar", 1, false, false, 0 }, { "avx2", 1, false, false, 0 },
        { "avx512", 2, false, false, 0 }, { "avx2", 3, false, false, 0 },
        { "avx512", 5, false, false, 0 },
    };
    uint64_t want = 0;

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct way way = ways[i];
        way.plain = plain;
        uint64_t got = run_bits(f, way);
        if (i == 0)
            want = got;
        if (got != want) {
            failures++;
            print_error("%s: %s stages, %s with %d threads give other bits than %s with %d\n",
                        f->name, plain ? "plain" : "fused", way.isa, way.threads, ways[0].isa,
                        ways[0].threads);
        }
    }
}

static void bits_do_not_depend_on_instruction_set_or_threads(void **state)
{
    json_t *doc = cases_read();
    const json_t *cases = json_object_get(doc, "cases");
    const char *only = getenv("CASE");

    (void)state;
    failures = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        struct fixture f;
        if (strcmp(json_string_value(json_object_get(c, "kind")), "train") != 0 ||
            (only && strcmp(only, json_string_value(json_object_get(c, "name"))) != 0))
            continue;
        case_open(&f, c);
        check_bits(&f, true);
        check_bits(&f, false);
        case_close(&f);
    }
    json_decref(doc);
    assert_int_equal(failures, 0);
}

/* ------------------------------------------------------------------ schedules */

static void check_schedule(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *rates = json_object_get(c, "rate"), *metric = json_object_get(c, "metric");
    double lr = json_number_value(json_object_get(c, "lr"));
    int epochs = (int)json_integer_value(json_object_get(c, "epochs"));
    int per_epoch = (int)json_integer_value(json_object_get(c, "steps_per_epoch"));
    json_t *spec = json_is_object(json_object_get(c, "schedule")) ?
                   json_copy(json_object_get(c, "schedule")) : json_object();
    struct err err = { 0 };
    struct schedule s;

    if (json_object_get(c, "warmup"))
        json_object_set(spec, "warmup", json_object_get(c, "warmup"));
    assert_ok(schedule_parse(spec, epochs, lr, &s, &err));
    for (int e = 0, t = 0; e < epochs; e++) {
        double factor = schedule_epoch(&s, e);
        for (int i = 0; i < per_epoch; i++, t++) {
            double warm = t < s.warmup ? (double)(t + 1) / (double)s.warmup : 1;
            double got = lr * factor * warm, want = json_number_value(json_array_get(rates, (size_t)t));
            if (fabs(got - want) > 1e-6 * lr) {
                failures++;
                print_error("%s: step %d has rate %.9g, not %.9g\n", name, t, got, want);
            }
        }
        if (metric)
            schedule_test(&s, json_number_value(json_array_get(metric, (size_t)e)));
    }
    json_decref(spec);
}

static void check_kind(const char *kind, void (*check)(const json_t *c))
{
    json_t *doc = cases_read();
    const json_t *cases = json_object_get(doc, "cases");

    failures = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        if (strcmp(json_string_value(json_object_get(c, "kind")), kind) == 0)
            check(c);
    }
    json_decref(doc);
    assert_int_equal(failures, 0);
}

static void rates_are_those_of_pytorch_schedulers(void **state)
{
    (void)state;
    check_kind("schedule", check_schedule);
}

/* ------------------------------------------------------------------ metrics */

/* The loss of a sample, in double, for the "loss" metric alone. */
static double sample_loss(const json_t *c, const float *x, int n, double target)
{
    double most = x[0], sum = 0;

    if (json_object_get(json_object_get(c, "loss"), "squared_error"))
        return (x[0] - target) * (x[0] - target);
    if (n == 1)
        return log1p(exp(-fabs(x[0]))) + (x[0] > 0 ? x[0] : 0) - target * x[0];
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return log(sum) + most - x[(int)target];
}

static void check_metric(const json_t *c)
{
    struct fixture f;
    struct err err = { 0 };
    struct metrics *m = NULL;
    const char *names[METRICS_MAX], *key;
    json_t *value, *want = json_object_get(c, "want");
    int n = 0, classes = 0;

    case_read(&f, c);
    const struct blob *out = case_find(&f, "out"), *target = case_find(&f, "target");
    long rows = target->count, width = out->count / rows;
    json_object_foreach(want, key, value)
        names[n++] = key;
    for (long i = 0; target->ints && i < rows; i++)
        classes = ((const int32_t *)target->data)[i] + 1 > classes ?
                  ((const int32_t *)target->data)[i] + 1 : classes;
    assert_ok(metrics_new(names, n, classes, (int)width, &m, &err));
    for (long i = 0; i < rows; i++) {
        const float *x = (const float *)out->data + i * width;
        double t = target->ints ? ((const int32_t *)target->data)[i]
                                : (double)((const float *)target->data)[i];
        metrics_add(m, x, t, sample_loss(c, x, (int)width, t), 1);
    }
    for (int i = 0; i < metrics_count(m); i++) {
        const json_t *w = json_object_get(want, metrics_name(m, i));
        if (w && !(fabs(metrics_value(m, i) - json_number_value(w)) <= 1e-6)) {
            failures++;
            print_error("%s: %s is %.9g, not %.9g\n", f.name, metrics_name(m, i),
                        metrics_value(m, i), json_number_value(w));
        }
    }
    metrics_free(m);
    case_close(&f);
}

static void metrics_are_those_of_scikit_learn(void **state)
{
    (void)state;
    check_kind("metric", check_metric);
}

CHECK_MAIN(plain_stages_agree_with_pytorch, fused_stages_agree_with_pytorch,
           bits_do_not_depend_on_instruction_set_or_threads, rates_are_those_of_pytorch_schedulers,
           metrics_are_those_of_scikit_learn)
