/* tests/unit/ops_test.c - what single ops promise beyond their numbers */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/plan.h"
#include "tests/check.h"

enum { ROWS = 12, WIDTH = 40 };

static float numeric[ROWS][WIDTH], weight[ROWS], target[ROWS];
static uint8_t bytes[ROWS][4 * 4 * 2];
static int32_t ids[ROWS];
static uint32_t order[ROWS];

static const struct field fields[] = {
    { .name = "numeric", .type = DTYPE_F32, .h = 1, .w = 1, .c = WIDTH, .base = numeric,
      .stride = sizeof numeric[0] },
    { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1, .base = target,
      .stride = sizeof target[0] },
    { .name = "weight", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1, .base = weight,
      .stride = sizeof weight[0] },
};
static const struct field id_fields[] = {
    { .name = "id", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 50, .base = ids,
      .stride = sizeof ids[0] },
    { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1, .base = target,
      .stride = sizeof target[0] },
};

static void fill(void)
{
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < WIDTH; i++)
            numeric[r][i] = 2 * rng_uniform(1, 1, (uint64_t)(r * WIDTH + i)) - 1;
        weight[r] = 1;
        target[r] = rng_uniform(1, 2, (uint64_t)r);
        ids[r] = (int32_t)(r * 7 % 5 * 9);
        order[r] = (uint32_t)r;
        for (int i = 0; i < 32; i++)
            bytes[r][i] = (uint8_t)rng_word(1, 3, (uint64_t)(r * 32 + i));
    }
}

struct run {
    struct graph *g;
    struct plan *p;
    struct stretch s;
};

struct setup {
    const char *model, *optimizer, *loss;
    int batch, shards, threads;
    bool keep_grads;
};

static struct run open_run(const struct field *f, int n, struct setup c)
{
    struct err err = { 0 };
    struct run r = { .s = { .field = f, .n_fields = n, .order = order, .n = ROWS, .last = 1 } };
    json_t *model = json_loads(c.model, 0, NULL);
    json_t *optimizer = json_loads(c.optimizer ? c.optimizer : "{\"sgd\": {\"lr\": 0.1}}", 0, NULL);
    json_t *loss = json_loads(c.loss ? c.loss : "{\"squared_error\": {}}", 0, NULL);
    struct plan_config config = { .batch = c.batch, .shards = c.shards ? c.shards : 4,
                                  .threads = c.threads ? c.threads : 1, .train = true, .seed = 9,
                                  .keep_grads = c.keep_grads, .plain = true, .loss = loss,
                                  .optimizer = optimizer };

    assert_non_null(model);
    assert_ok(graph_build(model, f, n, 0, &r.g, &err));
    assert_ok(plan_new(r.g, f, n, &config, &r.p, &err));
    plan_init(r.p);
    json_decref(model);
    json_decref(optimizer);
    json_decref(loss);
    return r;
}

static void close_run(struct run *r)
{
    plan_free(r->p);
    graph_free(r->g);
}

static double train_step(struct run *r, uint64_t step)
{
    struct step_result result;

    plan_train(r->p, &r->s, 0, 1, step, &result, NULL, NULL);
    return result.loss;
}

/* ------------------------------------------------------------------ drop-out */

static const struct field drop_fields[] = {
    { .name = "numeric", .type = DTYPE_F32, .h = 1, .w = 1, .c = WIDTH, .base = numeric,
      .stride = sizeof numeric[0] },
    { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = WIDTH, .base = numeric,
      .stride = sizeof numeric[0] },
};
static const char drop_model[] = "[{\"dropout\": {\"p\": 0.25}}]";

static int count_zeros(const struct run *r)
{
    int zeros = 0;

    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < WIDTH; c++) {
            float y = plan_output(r->p, i)[c], x = numeric[i][c];
            zeros += y == 0;
            if (y != 0 && y != x * (1 / 0.75f))
                fail_msg("kept %g is %g", (double)x, (double)y);
        }
    return zeros;
}

static void drop_out_zeroes_its_share_and_scales_the_rest(void **state)
{
    (void)state;
    fill();
    struct run r = open_run(drop_fields, 2, (struct setup){ .model = drop_model, .batch = ROWS });
    int zeros = 0;

    for (uint64_t t = 0; t < 20; t++) {
        train_step(&r, t);
        zeros += count_zeros(&r);
    }
    assert_in_range(zeros, 9600 * 0.22, 9600 * 0.28);
    plan_eval(r.p, &r.s, 0, 1, NULL, NULL, NULL);
    assert_memory_equal(plan_output(r.p, 3), numeric[3], sizeof numeric[3]);
    close_run(&r);
}

static void drop_out_depends_on_the_step_and_not_on_threads(void **state)
{
    (void)state;
    fill();
    struct run one = open_run(drop_fields, 2, (struct setup){ .model = drop_model, .batch = ROWS });
    struct run two = open_run(drop_fields, 2, (struct setup){ .model = drop_model, .batch = ROWS,
                                                              .threads = 3 });
    double first = train_step(&one, 7);

    assert_true(first == train_step(&two, 7));
    assert_true(first != train_step(&two, 8));
    assert_true(first == train_step(&one, 7));
    close_run(&one);
    close_run(&two);
}

/* ------------------------------------------------------------------ tables */

static void weights_of(struct run *r, float *out)
{
    for (int i = 0; i < r->p->n_params; i++) {
        plan_get(r->p, r->p->param[i], 0, out);
        out += r->p->param[i]->count;
    }
}

/* Kept gradients are applied to the whole table, so both ways must agree. */
static void rows_that_are_not_named_may_be_left_alone(void **state)
{
    static const char *const optimizers[] = { "{\"sgd\": {\"lr\": 0.1}}",
                                              "{\"adagrad\": {\"lr\": 0.1}}" };
    static const char *const models[] = {
        "[{\"embedding\": {\"rows\": 50, \"dim\": 1}}]",
        "[{\"embedding\": {\"rows\": 50, \"dim\": 5}}, {\"linear\": {\"out\": 1}}]",
        "[{\"embedding\": {\"rows\": 50, \"dim\": 33}}, {\"linear\": {\"out\": 1}}]",
    };

    (void)state;
    fill();
    for (int m = 0; m < 3; m++)
        for (int o = 0; o < 2; o++) {
            static float named[4096], all[4096];
            struct setup c = { .model = models[m], .optimizer = optimizers[o], .batch = ROWS,
                               .threads = 2 };
            struct run sparse = open_run(id_fields, 2, c);
            c.keep_grads = true;
            struct run dense = open_run(id_fields, 2, c);
            for (uint64_t t = 0; t < 5; t++) {
                train_step(&sparse, t);
                train_step(&dense, t);
            }
            weights_of(&sparse, named);
            weights_of(&dense, all);
            assert_memory_equal(named, all, sizeof all);
            close_run(&sparse);
            close_run(&dense);
        }
}

static void momentum_moves_rows_that_were_named_before(void **state)
{
    (void)state;
    fill();
    struct run r = open_run(id_fields, 2, (struct setup){
        .model = "[{\"embedding\": {\"rows\": 50, \"dim\": 1}}]", .batch = 1,
        .optimizer = "{\"sgd\": {\"lr\": 0.1, \"momentum\": 0.9}}", .shards = 1 });
    static float w[3][50];

    plan_get(r.p, r.p->param[0], 0, w[0]);
    plan_train(r.p, &r.s, 0, 1, 0, NULL, NULL, NULL);   /* names row 0 */
    plan_get(r.p, r.p->param[0], 0, w[1]);
    plan_train(r.p, &r.s, 1, 1, 1, NULL, NULL, NULL);   /* names row 18 */
    plan_get(r.p, r.p->param[0], 0, w[2]);
    assert_true(w[1][0] != w[0][0] && w[2][0] != w[1][0]);
    assert_true(w[1][18] == w[0][18] && w[2][18] != w[1][18]);
    assert_true(w[2][30] == w[0][30]);
    close_run(&r);
}

/* ------------------------------------------------------------------ weights and losses */

static void a_sample_of_weight_zero_teaches_nothing(void **state)
{
    (void)state;
    static float with[WIDTH + 1], without[WIDTH + 1];
    struct setup c = { .model = "[{\"linear\": {\"out\": 1}}]", .batch = 3, .shards = 1 };

    fill();
    weight[2] = 0;
    struct run r = open_run(fields, 3, c);
    double loss = train_step(&r, 0);
    weights_of(&r, with);
    close_run(&r);
    c.batch = 2;
    r = open_run(fields, 3, c);
    assert_true(fabs(loss - train_step(&r, 0)) < 1e-7);
    weights_of(&r, without);
    for (int i = 0; i <= WIDTH; i++)
        if (fabs(with[i] - without[i]) > 1e-7)
            fail_msg("weight %d is %.9g, not %.9g", i, (double)with[i], (double)without[i]);
    close_run(&r);
}

static void a_loss_that_is_not_a_number_is_seen(void **state)
{
    static const char *const losses[] = {
        "{\"squared_error\": {}}", "{\"l1\": {}}", "{\"huber\": {\"delta\": 1}}",
        "{\"bce_with_logits\": {}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        fill();
        numeric[4][2] = NAN;
        struct run r = open_run(fields, 3, (struct setup){ .model = "[{\"linear\": {\"out\": 1}}]",
                                                           .loss = losses[i], .batch = ROWS });
        if (!isnan(train_step(&r, 0)))
            fail_msg("%s hides it", losses[i]);
        assert_true(isnan(r.p->sample_loss[4]));
        assert_false(isnan(r.p->sample_loss[5]));
        close_run(&r);
    }
}

static void a_class_outside_the_model_is_not_a_number(void **state)
{
    static int32_t class[ROWS] = { 0, 2, 5, 1, -1, 1, 0, 0, 0, 0, 0, 0 };
    const struct field f[] = { fields[0], { .name = "target", .type = DTYPE_I32, .h = 1, .w = 1,
                                            .c = 1, .ids = 0, .base = class, .stride = 4 } };

    (void)state;
    fill();
    for (int k = 0; k < 2; k++) {
        struct run r = open_run(f, 2, (struct setup){
            .model = k ? "[{\"linear\": {\"out\": 3}}, {\"log_softmax\": {}}]"
                       : "[{\"linear\": {\"out\": 3}}]",
            .loss = k ? "{\"nll\": {}}" : "{\"cross_entropy\": {}}", .batch = ROWS });
        assert_true(isnan(train_step(&r, 0)));
        assert_true(isnan(r.p->sample_loss[2]) && isnan(r.p->sample_loss[4]));
        assert_false(isnan(r.p->sample_loss[0]) || isnan(r.p->sample_loss[1]));
        close_run(&r);
    }
}

/* ------------------------------------------------------------------ the rest */

static void bytes_are_scaled_by_channel(void **state)
{
    const struct field f[] = {
        { .name = "image", .type = DTYPE_U8, .h = 4, .w = 4, .c = 2, .mean = { 0.5f, 0.1f },
          .std = { 0.5f, 0.3f }, .base = bytes, .stride = sizeof bytes[0] },
        { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = 32, .base = numeric,
          .stride = sizeof numeric[0] },
    };

    (void)state;
    fill();
    struct run r = open_run(f, 2, (struct setup){ .model = "[{\"flatten\": {}}]", .batch = ROWS });
    train_step(&r, 0);
    for (int c = 0; c < 2; c++)
        for (int i = 0; i < 16; i++) {          /* flatten gives channels first */
            float want = ((float)bytes[5][i * 2 + c] / 255.0f - f[0].mean[c]) / f[0].std[c];
            assert_true(plan_output(r.p, 5)[c * 16 + i] == want);
        }
    close_run(&r);
}

static void a_short_last_batch_is_trained_too(void **state)
{
    (void)state;
    static const char model[] = "[{\"linear\": {\"out\": 7}}, {\"batchnorm\": {}}, {\"tanh\": {}}, "
                                "{\"layernorm\": {}}, {\"linear\": {\"out\": 1}}]";
    static float one[1024], three[1024];
    struct step_result results[2];

    fill();
    for (int k = 0; k < 2; k++) {               /* 12 rows: 7 and 5 samples in 4 shards */
        struct run r = open_run(fields, 3, (struct setup){ .model = model, .batch = 7,
                                                           .threads = k ? 3 : 1 });
        assert_int_equal(plan_train(r.p, &r.s, 0, 9, 0, results, NULL, NULL), 2);
        assert_int_equal(results[1].n, 5);
        weights_of(&r, k ? three : one);
        close_run(&r);
    }
    assert_memory_equal(one, three, sizeof one);
}

static void statistics_per_shard_are_those_of_its_samples(void **state)
{
    (void)state;
    const struct field f[] = { fields[0], { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1,
                                            .c = WIDTH, .base = numeric,
                                            .stride = sizeof numeric[0] } };
    fill();
    struct run whole = open_run(f, 2, (struct setup){ .model = "[{\"batchnorm\": {}}]", .batch = 6,
                                                      .shards = 1 });
    struct run shards = open_run(f, 2, (struct setup){
        .model = "[{\"batchnorm\": {\"per_shard\": true}}]", .batch = 12, .shards = 2 });

    train_step(&whole, 0);
    train_step(&shards, 0);
    for (int i = 0; i < 6; i++)
        assert_memory_equal(plan_output(shards.p, i), plan_output(whole.p, i), sizeof numeric[0]);
    close_run(&whole);
    close_run(&shards);
}

static void a_pool_lets_not_a_number_through(void **state)
{
    static float image[ROWS][16];
    const struct field f[] = {
        { .name = "image", .type = DTYPE_F32, .h = 4, .w = 4, .c = 1, .base = image,
          .stride = sizeof image[0] },
        { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = 4, .base = numeric,
          .stride = sizeof numeric[0] },
    };

    (void)state;
    fill();
    image[0][5] = NAN;
    struct run r = open_run(f, 2, (struct setup){
        .model = "[{\"maxpool\": {\"kernel\": 2}}, {\"flatten\": {}}]", .batch = ROWS });
    train_step(&r, 0);
    assert_true(isnan(plan_output(r.p, 0)[0]));
    assert_true(plan_output(r.p, 0)[1] == 0);
    close_run(&r);
}

/* ------------------------------------------------------------------ same bits */

/* Weights after three epochs of two batches, the second short. */
static void run_everything(const struct field *f, int n, struct setup c, const char *isa,
                           float *weights)
{
    setenv("MUSTER_ISA", isa, 1);
    struct run r = open_run(f, n, c);
    unsetenv("MUSTER_ISA");
    for (uint64_t epoch = 0; epoch < 3; epoch++)
        plan_train(r.p, &r.s, 0, 2, 2 * epoch, NULL, NULL, NULL);
    weights_of(&r, weights);
    close_run(&r);
}

static void check_everything(const struct field *f, int n, struct setup c)
{
    static const struct { const char *isa; int threads; } ways[] = {
        { "scalar", 1 }, { "avx2", 1 }, { "avx512", 1 }, { "avx512", 2 }, { "avx2", 3 },
        { "scalar", 9 },
    };
    static float first[8192], other[8192];

    memset(first, 0, sizeof first);
    memset(other, 0, sizeof other);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        c.threads = ways[i].threads;
        run_everything(f, n, c, ways[i].isa, i ? other : first);
        if (i && memcmp(first, other, sizeof first) != 0)
            fail_msg("%s with %d threads gives other bits", ways[i].isa, ways[i].threads);
    }
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        assert_true(isfinite(first[i]));
}

static void an_image_network_of_everything_has_one_result(void **state)
{
    const struct field f[] = {
        { .name = "image", .type = DTYPE_U8, .h = 4, .w = 4, .c = 2, .mean = { 0.5f, 0.1f },
          .std = { 0.5f, 0.3f }, .base = bytes, .stride = sizeof bytes[0] },
        fields[1], fields[2],
    };

    (void)state;
    fill();
    weight[3] = 2.5f;
    check_everything(f, 3, (struct setup){
        .model = "[{\"conv2d\": {\"out\": 20, \"kernel\": 3, \"padding\": 1}}, {\"batchnorm\": "
                 "{\"per_shard\": true}}, {\"gelu\": {}}, {\"dropout\": {\"p\": 0.3}}, {\"conv2d\": "
                 "{\"out\": 10, \"kernel\": 3, \"groups\": 5, \"stride\": 2, \"padding\": 1}}, "
                 "{\"batchnorm\": {}}, {\"leaky_relu\": {}}, {\"avgpool\": {\"kernel\": 2, "
                 "\"stride\": 1, \"padding\": 1}}, {\"flatten\": {}}, {\"sigmoid\": {}}, {\"linear\": "
                 "{\"out\": 17}}, {\"layernorm\": {}}, {\"tanh\": {}}, {\"dropout\": {\"p\": 0.5}}, "
                 "{\"softmax\": {}}, {\"linear\": {\"out\": 1}}]",
        .optimizer = "{\"adam\": {\"lr\": 0.01}}", .loss = "{\"huber\": {\"delta\": 0.5}}",
        .batch = 7 });
}

static void a_wide_and_deep_network_has_one_result(void **state)
{
    const struct field f[] = {
        fields[0], id_fields[0],
        { .name = "other", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 12, .base = order,
          .stride = sizeof order[0] },
        fields[1],
    };

    (void)state;
    fill();
    check_everything(f, 4, (struct setup){
        .model = "{\"wide_and_deep\": {\"hidden\": [20, 9], \"embedding\": 5, \"dropout\": 0.2, "
                 "\"cross\": [[\"id\", \"other\"]], \"cross_buckets\": 37}}",
        .optimizer = "{\"wide\": {\"ftrl\": {\"lr\": 0.1, \"l1\": 0.001}}, \"deep\": {\"rmsprop\": "
                     "{\"lr\": 0.01}}}",
        .loss = "{\"bce_with_logits\": {}}", .batch = 7 });
}

CHECK_MAIN(an_image_network_of_everything_has_one_result, a_wide_and_deep_network_has_one_result,
           drop_out_zeroes_its_share_and_scales_the_rest,
           drop_out_depends_on_the_step_and_not_on_threads,
           rows_that_are_not_named_may_be_left_alone, momentum_moves_rows_that_were_named_before,
           a_sample_of_weight_zero_teaches_nothing, a_loss_that_is_not_a_number_is_seen,
           a_class_outside_the_model_is_not_a_number, bytes_are_scaled_by_channel,
           a_short_last_batch_is_trained_too, statistics_per_shard_are_those_of_its_samples,
           a_pool_lets_not_a_number_through)
