/* tests/numeric/gradients_test.c - gradients against central differences, for every op and loss
 *
 * A model is trained one step at rate 0 with gradients kept; then each weight (of a large tensor,
 * some) is moved both ways and the loss taken again. Every op under test has weights before it, so
 * its input gradient is judged too. Plain and fused stages.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/check.h"
#include "tests/numeric/case.h"

enum { ROWS = 8 };

struct rows {
    float image[ROWS][6 * 6 * 2], numeric[ROWS][5], target[ROWS][8], weight[ROWS];
    int32_t ids[ROWS], class[ROWS];
    uint32_t order[ROWS];
};

static struct rows rows;

static float draw(uint64_t stream, uint64_t i)
{
    return 2 * rng_uniform(11, stream, i) - 1;
}

static void fill_rows(void)
{
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 72; i++)
            rows.image[r][i] = draw(1, (uint64_t)(r * 72 + i));
        for (int i = 0; i < 5; i++)
            rows.numeric[r][i] = draw(2, (uint64_t)(r * 5 + i));
        for (int i = 0; i < 8; i++)
            rows.target[r][i] = draw(33, (uint64_t)(r * 8 + i));
        rows.weight[r] = 1.5f + draw(4, (uint64_t)r);
        rows.ids[r] = r * 3 % 4;
        rows.class[r] = r % 3;
        rows.order[r] = (uint32_t)r;
    }
}

struct trial {
    const char *name, *model, *loss;
    char input;                 /* 'i'mage, 'n'umeric, 'e': numeric and ids */
    int target;                 /* values of the target; 0: one of three classes; -1: of two */
    bool weighted;
};

#define MSE "{\"squared_error\": {}}"
#define CONV "{\"conv2d\": {\"out\": 3, \"kernel\": 1}}, "
#define FC(n) "{\"linear\": {\"out\": " #n "}}"

static const struct trial trials[] = {
    { "linear", "[" FC(7) "," FC(3) "]", MSE, 'n', 3, false },
    { "conv2d", "[" CONV "{\"conv2d\": {\"out\": 4, \"kernel\": 3, \"padding\": 1}},"
      "{\"flatten\": {}}," FC(2) "]", MSE, 'i', 2, false },
    { "conv2d stride", "[" CONV "{\"conv2d\": {\"out\": 4, \"kernel\": 3, \"stride\": 2}},"
      "{\"flatten\": {}}," FC(2) "]", MSE, 'i', 2, false },
    { "conv2d groups", "[{\"conv2d\": {\"out\": 4, \"kernel\": 1}}, {\"conv2d\": {\"out\": 6, "
      "\"kernel\": 3, \"groups\": 2, \"dilation\": 2, \"padding\": 1}}, {\"flatten\": {}},"
      FC(2) "]", MSE, 'i', 2, false },
    { "maxpool", "[" CONV "{\"maxpool\": {\"kernel\": 2}}, {\"flatten\": {}}," FC(2) "]", MSE, 'i',
      2, false },
    { "conv relu pool", "[{\"conv2d\": {\"out\": 6, \"kernel\": 3}}, {\"relu\": {}}, {\"maxpool\": "
      "{\"kernel\": 2}}, {\"flatten\": {}}," FC(2) "]", MSE, 'i', 2, false },
    { "avgpool", "[" CONV "{\"avgpool\": {\"kernel\": 3, \"stride\": 2, \"padding\": 1}},"
      "{\"flatten\": {}}," FC(2) "]", MSE, 'i', 2, false },
    { "batchnorm", "[" CONV "{\"batchnorm\": {}}, {\"tanh\": {}}, {\"flatten\": {}}," FC(2) "]",
      MSE, 'i', 2, false },
    { "batchnorm per shard", "[" CONV "{\"batchnorm\": {\"per_shard\": true}}, {\"tanh\": {}},"
      "{\"flatten\": {}}," FC(2) "]", MSE, 'i', 2, false },
    { "batchnorm flat", "[" FC(6) ",{\"batchnorm\": {}}, {\"tanh\": {}}," FC(2) "]", MSE, 'n', 2,
      false },
    { "layernorm", "[" CONV "{\"layernorm\": {}}, {\"tanh\": {}}, {\"flatten\": {}}," FC(2) "]",
      MSE, 'i', 2, false },
    { "relu", "[" FC(9) ",{\"relu\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "leaky_relu", "[" FC(9) ",{\"leaky_relu\": {\"slope\": 0.2}}," FC(2) "]", MSE, 'n', 2, false },
    { "gelu", "[" FC(9) ",{\"gelu\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "gelu by tanh", "[" FC(9) ",{\"gelu\": {\"approximate\": \"tanh\"}}," FC(2) "]", MSE, 'n', 2,
      false },
    { "sigmoid", "[" FC(9) ",{\"sigmoid\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "tanh", "[" FC(9) ",{\"tanh\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "softmax", "[" FC(9) ",{\"softmax\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "log_softmax", "[" FC(9) ",{\"log_softmax\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "dropout", "[" FC(19) ",{\"dropout\": {\"p\": 0.4}}," FC(2) "]", MSE, 'n', 2, false },
    { "identity", "[" FC(9) ",{\"identity\": {}}," FC(2) "]", MSE, 'n', 2, false },
    { "flatten kept", "[" CONV "{\"flatten\": {}}, {\"layernorm\": {}}, " FC(2) "]", MSE, 'i', 2,
      false },
    { "embedding, concat, add", "{\"nodes\": {\"e\": {\"embedding\": {\"rows\": 4, \"dim\": 5, "
      "\"of\": \"ids\"}}, \"p\": {\"linear\": {\"out\": 5}, \"from\": [\"numeric\"]}, \"s\": {"
      "\"add\": {}, \"from\": [\"e\", \"p\"]}, \"c\": {\"concat\": {}, \"from\": [\"s\", \"e\", "
      "\"numeric\", \"p\"]}, \"t\": {\"tanh\": {}, \"from\": [\"c\"]}, \"y\": {\"linear\": {\"out\":"
      " 2}, \"from\": [\"t\"]}}, \"output\": \"y\"}", MSE, 'e', 2, false },
    { "wide_and_deep", "{\"wide_and_deep\": {\"hidden\": [7], \"embedding\": 3}}",
      "{\"bce_with_logits\": {}}", 'e', -1, true },
    { "l1", "[" FC(6) "," FC(3) "]", "{\"l1\": {}}", 'n', 3, false },
    { "huber", "[" FC(6) "," FC(3) "]", "{\"huber\": {\"delta\": 0.4}}", 'n', 3, true },
    { "cross_entropy", "[" FC(6) ",{\"tanh\": {}}," FC(3) "]", "{\"cross_entropy\": {}}", 'n', 0,
      true },
    { "nll", "[" FC(6) "," FC(3) ",{\"log_softmax\": {}}]", "{\"nll\": {}}", 'n', 0, false },
    { "bce_with_logits", "[" FC(6) "," FC(2) "]", "{\"bce_with_logits\": {}}", 'n', 2, true },
};

static int make_fields(const struct trial *t, struct field *f)
{
    int n = 0;

    if (t->input == 'i')
        f[n++] = (struct field){ .name = "image", .type = DTYPE_F32, .h = 6, .w = 6, .c = 2,
                                 .base = rows.image, .stride = sizeof rows.image[0] };
    else
        f[n++] = (struct field){ .name = "numeric", .type = DTYPE_F32, .h = 1, .w = 1, .c = 5,
                                 .base = rows.numeric, .stride = sizeof rows.numeric[0] };
    if (t->input == 'e')
        f[n++] = (struct field){ .name = "ids", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 4,
                                 .base = rows.ids, .stride = sizeof rows.ids[0] };
    if (t->target > 0)
        f[n++] = (struct field){ .name = "target", .type = DTYPE_F32, .h = 1, .w = 1,
                                 .c = t->target, .base = rows.target,
                                 .stride = sizeof rows.target[0] };
    else
        f[n++] = (struct field){ .name = "target", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1,
                                 .ids = t->target ? 2 : 3, .base = rows.class,
                                 .stride = sizeof rows.class[0] };
    if (t->weighted)
        f[n++] = (struct field){ .name = "weight", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1,
                                 .base = rows.weight, .stride = sizeof rows.weight[0] };
    return n;
}

static double loss_at(struct plan *p, const struct stretch *s)
{
    struct step_result r;

    plan_train(p, s, 0, 1, 3, &r, NULL, NULL);
    return r.loss;
}

static double moved_loss(struct plan *p, const struct stretch *s, struct param *q, float *w, long k,
                         float to)
{
    float old = w[k];

    w[k] = to;
    plan_set(p, q, 0, w);
    plan_derive(p);
    double loss = loss_at(p, s);
    w[k] = old;
    plan_set(p, q, 0, w);
    plan_derive(p);
    return loss;
}

/* |central difference - gradient| at the step that suits best: a long one may cross a kink (relu,
 * pooling), a short one has more rounding; a wrong gradient is wrong at all. */
static double difference(struct plan *p, const struct stretch *s, struct param *q, float *w, long k,
                         double gradient)
{
    double best = INFINITY;

    for (float h = 8e-3f; h > 2e-4f; h /= 4) {
        float up = w[k] + h, down = w[k] - h;
        double d = (moved_loss(p, s, q, w, k, up) - moved_loss(p, s, q, w, k, down)) / (up - down);
        best = fmin(best, fabs(d - gradient));
    }
    return best;
}

/* Compares some elements of every parameter; returns the worst difference over the gradient's
 * largest element. */
static double check_trial(const struct trial *t, bool plain)
{
    struct field f[8];
    struct err err = { 0 };
    struct graph *g = NULL;
    struct plan *p = NULL;
    int n = make_fields(t, f);
    json_t *model = json_loads(t->model, 0, NULL), *loss = json_loads(t->loss, 0, NULL);
    json_t *optimizer = json_pack("{s:{s:f}}", "sgd", "lr", 0.0);
    struct plan_config config = { .batch = ROWS, .shards = 4, .threads = 1, .train = true,
                                  .keep_grads = true, .plain = plain, .seed = 5, .loss = loss,
                                  .optimizer = optimizer };
    struct stretch s = { .field = f, .n_fields = n, .order = rows.order, .n = ROWS, .last = 1 };
    static float w[4096], grad[4096];
    double worst = 0, scale = 0.01;

    assert_non_null(model);
    if (graph_build(model, f, n, t->target > 0 ? 0 : t->target ? 2 : 3, &g, &err) < 0 ||
        plan_new(g, f, n, &config, &p, &err) < 0)
        fail_msg("%s: %s", t->name, err.text);
    plan_init(p);
    for (int i = 0; i < p->n_params; i++) {     /* no part starts at zero */
        struct param *q = p->param[i];
        plan_get(p, q, 0, w);
        for (long k = 0; q->trained && k < q->count; k++)
            w[k] += 0.3f * draw(20 + (uint64_t)i, (uint64_t)k);
        plan_set(p, q, 0, w);
    }
    plan_derive(p);
    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        if (!q->trained)
            continue;
        loss_at(p, &s);
        plan_get(p, q, -1, grad);
        plan_get(p, q, 0, w);
        for (long k = 0; k < q->count; k += 1 + q->count / 10) {
            scale = fmax(scale, fabs(grad[k]));
            worst = fmax(worst, difference(p, &s, q, w, k, grad[k]));
        }
    }
    plan_free(p);
    graph_free(g);
    json_decref(model);
    json_decref(loss);
    json_decref(optimizer);
    return worst / scale;
}

static void check_trials(bool plain)
{
    int failures = 0;

    fill_rows();
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        double worst = check_trial(&trials[i], plain);
        if (!(worst < 8e-3)) {
            failures++;
            print_error("%s: differences disagree with the gradient by %.1e of its largest\n",
                        trials[i].name, worst);
        }
    }
    assert_int_equal(failures, 0);
}

static void plain_gradients_agree_with_differences(void **state)
{
    (void)state;
    check_trials(true);
}

static void fused_gradients_agree_with_differences(void **state)
{
    (void)state;
    check_trials(false);
}

CHECK_MAIN(plain_gradients_agree_with_differences, fused_gradients_agree_with_differences)
