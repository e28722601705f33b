/* tests/unit/chain.c - see chain.h */
#include "tests/unit/chain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/plan.h"
#include "tests/check.h"
#include "tests/unit/twin.h"

enum { SEED = 7, ROWS_MAX = 80, PIXELS_MAX = 4096 };

struct setting {
    struct field field[2];
    uint8_t image[ROWS_MAX * PIXELS_MAX], label[ROWS_MAX];
    uint32_t order[ROWS_MAX];
    struct stretch stretch;
    struct graph *graph;
    struct plan *plan;
    json_t *model, *loss, *optimizer;
};

static void fill_data(struct setting *s, const struct chain *c)
{
    const int size = c->h * c->w * c->c;

    assert_true(c->rows <= ROWS_MAX && size <= PIXELS_MAX);
    for (int i = 0; i < c->rows; i++) {
        for (int k = 0; k < size; k++)
            s->image[i * size + k] =
                (uint8_t)(256 * rng_uniform(SEED, 1, (uint64_t)(i * size + k)));
        s->label[i] = (uint8_t)(i % c->classes);
        s->order[i] = (uint32_t)((i * 7 + 3) % c->rows);
    }
    s->field[0] = (struct field){ .name = "image", .type = DTYPE_U8, .h = c->h, .w = c->w,
                                  .c = c->c, .mean = { .3f, .4f, .5f, .6f },
                                  .std = { .3f, .25f, .2f, .35f },
                                  .base = s->image, .stride = (size_t)size };
    s->field[1] = (struct field){ .name = "target", .type = DTYPE_U8, .h = 1, .w = 1, .c = 1,
                                  .ids = c->classes, .base = s->label, .stride = 1 };
    s->stretch = (struct stretch){ .field = s->field, .n_fields = 2, .order = s->order,
                                   .n = c->rows, .last = 1 };
}

/* Nothing starts at zero or one: scales of both signs, statistics that matter. */
static void stir_weights(struct plan *p)
{
    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        float *w = calloc((size_t)q->count, sizeof *w);
        plan_get(p, q, 0, w);
        for (long k = 0; k < q->count; k++)
            w[k] += (q->trained ? 0.6f : 0.3f) *
                    (rng_uniform(SEED, 100 + (uint64_t)i, (uint64_t)k) - (q->trained ? .5f : 0));
        plan_set(p, q, 0, w);
        free(w);
    }
    plan_derive(p);
}

enum mode { UPDATE_FUSED, UPDATE_APART, INFERENCE };

static struct setting *setting_new(const struct chain *c, int threads, enum mode mode)
{
    struct setting *s = calloc(1, sizeof *s);
    struct err err = { 0 };

    fill_data(s, c);
    s->model = json_loads(c->model, 0, NULL);
    s->loss = json_pack("{s:{}}", "cross_entropy");
    s->optimizer = c->optimizer ? json_loads(c->optimizer, 0, NULL)
                                : json_pack("{s:{s:f,s:f}}", "sgd", "lr", .05, "momentum", .5);
    struct plan_config config = { .batch = c->batch, .shards = c->shards, .threads = threads,
                                  .train = mode != INFERENCE, .keep_grads = mode == UPDATE_APART,
                                  .seed = SEED, .loss = s->loss,
                                  .optimizer = mode == INFERENCE ? NULL : s->optimizer };
    assert_non_null(s->model);
    assert_ok(graph_build(s->model, s->field, 2, c->classes, &s->graph, &err));
    assert_ok(plan_new(s->graph, s->field, 2, &config, &s->plan, &err));
    bool found = false;
    for (int i = 0; i < s->plan->n_stages; i++)
        found |= strcmp(s->plan->stage[i].ops->name, c->stage) == 0;
    if (!found)
        fail_msg("no stage \"%s\" in %s", c->stage, c->model);
    plan_init(s->plan);
    stir_weights(s->plan);
    return s;
}

static void setting_free(struct setting *s)
{
    plan_free(s->plan);
    graph_free(s->graph);
    json_decref(s->model);
    json_decref(s->loss);
    json_decref(s->optimizer);
    free(s);
}

/* ------------------------------------------------------------------ right */

static double largest(const double *v, long n)
{
    double most = 0;
    for (long i = 0; i < n; i++)
        most = fmax(most, fabs(v[i]));
    return most;
}

/* Every parameter's gradient, or new running statistic, to rounding of the largest one. */
static void compare(const struct chain *c, const struct setting *s, const struct twin *t)
{
    const struct plan *p = s->plan;
    double all = 0;

    for (int i = 0; i < p->n_params; i++)
        if (p->param[i]->trained)
            all = fmax(all, largest(twin_grad(t, p->param[i]->name), p->param[i]->count));
    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        const double *want = twin_grad(t, q->name);
        float *got = calloc((size_t)q->count, sizeof *got);
        double most = largest(want, q->count);
        plan_get(p, q, q->trained ? -1 : 0, got);
        for (long k = 0; k < q->count; k++)
            if (!(fabs((double)got[k] - want[k]) <= 5e-5 * most + 5e-6 * all))
                fail_msg("%s[%ld] is %.8g, the twin says %.8g (largest %.3g) in %s", q->name, k,
                         (double)got[k], want[k], most, c->model);
        free(got);
    }
}

static void compare_outputs(const struct chain *c, const struct setting *s, const struct twin *t,
                            int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c->classes; k++) {
            double got = (double)plan_output(s->plan, i)[k], want = twin_output(t, i)[k];
            if (!(fabs(got - want) <= 1e-4 * (1 + fabs(want))))
                fail_msg("output %d of sample %d is %.8g, the twin says %.8g in %s", k, i, got,
                         want, c->model);
        }
}

static void compare_loss(const struct chain *c, double got, double want)
{
    if (!(fabs(got - want) <= 2e-5 * (1 + want)))
        fail_msg("loss is %.8g, the twin says %.8g in %s", got, want, c->model);
}

void chain_is_right(const struct chain *c)
{
    for (int part = 0; part < 2; part++) {      /* the first batch, then the short last one */
        struct setting *s = setting_new(c, 2, UPDATE_APART), *only = setting_new(c, 3, INFERENCE);
        struct step_result r;
        int pos = part ? c->rows / c->batch * c->batch : 0, n = part ? c->rows - pos : c->batch;
        struct twin *t = twin_new(s->plan, s->graph);

        double loss = twin_run(t, &s->field[0], &s->field[1], s->order + pos, n, false);
        assert_int_equal(plan_eval(s->plan, &s->stretch, pos, 1, &r, NULL, NULL), 1);
        assert_int_equal(r.n, n);
        compare_loss(c, r.loss, loss);
        compare_outputs(c, s, t, n);
        assert_int_equal(plan_eval(only->plan, &only->stretch, pos, 1, NULL, NULL, NULL), 1);
        for (int i = 0; i < n; i++)     /* to the bit what the training plan says */
            assert_memory_equal(plan_output(only->plan, i), plan_output(s->plan, i),
                                (size_t)c->classes * sizeof(float));

        loss = twin_run(t, &s->field[0], &s->field[1], s->order + pos, n, true);
        assert_int_equal(plan_train(s->plan, &s->stretch, pos, 1, 0, &r, NULL, NULL), 1);
        compare_loss(c, r.loss, loss);
        compare(c, s, t);
        twin_free(t);
        setting_free(only);
        setting_free(s);
    }
}

/* ------------------------------------------------------------------ the same */

static uint64_t hash_floats(uint64_t h, const float *v, long n)
{
    const uint8_t *b = (const uint8_t *)v;

    for (long i = 0; i < n * (long)sizeof *v; i++)
        h = (h ^ b[i]) * 1099511628211u;
    return h;
}

/* Weights, statistics and optimizer state after one epoch. */
static uint64_t epoch_hash(const struct chain *c, const char *isa, int threads, enum mode mode)
{
    setenv("MUSTER_ISA", isa, 1);
    struct setting *s = setting_new(c, threads, mode);
    struct plan *p = s->plan;
    uint64_t h = 1469598103934665603u;

    plan_train(p, &s->stretch, 0, c->rows, 0, NULL, NULL, NULL);
    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        float *v = calloc((size_t)q->count, sizeof *v);
        for (int k = 0; k <= (q->trained ? p->optim[q->group].states : 0); k++) {
            plan_get(p, q, k, v);
            h = hash_floats(h, v, q->count);
        }
        free(v);
    }
    setting_free(s);
    unsetenv("MUSTER_ISA");
    return h;
}

void chain_is_same(const struct chain *c)
{
    static const char *const isas[] = { "scalar", "avx2", "avx512" };
    static const int threads[] = { 1, 2, 3, 4, 8 };
    const uint64_t want = epoch_hash(c, "scalar", 1, UPDATE_FUSED);

    for (int i = 0; i < 3; i++) {
        uint64_t got = epoch_hash(c, isas[i], 2, UPDATE_APART);
        if (got != want)
            fail_msg("%s, update apart: %016lx, not %016lx in %s", isas[i], got, want, c->model);
        for (int k = 0; k < (i ? 5 : 2); k++) {
            got = epoch_hash(c, isas[i], threads[k], UPDATE_FUSED);
            if (got != want)
                fail_msg("%s, %d threads: %016lx, not %016lx in %s", isas[i], threads[k], got, want,
                         c->model);
        }
    }
}

void chain_is_same_alone(const struct chain *c)
{
    static const char *const isas[] = { "scalar", "avx2", "avx512" };
    struct setting *batch = setting_new(c, 2, INFERENCE);
    struct chain one = *c;

    one.batch = one.shards = 1;
    for (int i = 0; i < 3; i++) {
        setenv("MUSTER_ISA", isas[i], 1);
        struct setting *alone = setting_new(&one, 1, INFERENCE);
        for (int pos = 0; pos < c->rows; pos++) {
            int in_batch = pos % c->batch;
            if (in_batch == 0)
                plan_eval(batch->plan, &batch->stretch, pos, 1, NULL, NULL, NULL);
            plan_eval(alone->plan, &alone->stretch, pos, 1, NULL, NULL, NULL);
            if (memcmp(plan_output(alone->plan, 0), plan_output(batch->plan, in_batch),
                       (size_t)c->classes * sizeof(float)) != 0)
                fail_msg("%s: sample %d differs when it is alone in %s", isas[i], pos, c->model);
        }
        setting_free(alone);
        unsetenv("MUSTER_ISA");
    }
    setting_free(batch);
}
