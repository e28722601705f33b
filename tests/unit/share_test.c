/* tests/unit/share_test.c - several plans that train one model make the bits that one makes
 *
 * Workers are threads with a plan each; what a mesh does between processes is done here with a
 * barrier and each other's memory. The judge is one plan with fused updates.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/plan.h"
#include "tests/check.h"

enum { SEED = 11, ROWS = 119, PIXELS = 8 * 8, NUMBERS = 12, WORKERS_MAX = 9, STEPS_MAX = 30 };

/* ------------------------------------------------------------------ nets */

static uint8_t image[ROWS][PIXELS], label[ROWS];
static float number[ROWS][NUMBERS], weight[ROWS], wanted[ROWS];
static int32_t id_a[ROWS], id_b[ROWS];
static uint32_t order[ROWS];

static const struct field image_fields[] = {
    { .name = "image", .type = DTYPE_U8, .h = 8, .w = 8, .c = 1, .mean = { .4f }, .std = { .3f },
      .base = image, .stride = PIXELS },
    { .name = "target", .type = DTYPE_U8, .h = 1, .w = 1, .c = 1, .ids = 10, .base = label,
      .stride = 1 },
};
static const struct field table_fields[] = {
    { .name = "numeric", .type = DTYPE_F32, .h = 1, .w = 1, .c = NUMBERS, .base = number,
      .stride = sizeof number[0] },
    { .name = "a", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 30, .base = id_a,
      .stride = 4 },
    { .name = "b", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 7, .base = id_b,
      .stride = 4 },
    { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1, .base = wanted, .stride = 4 },
    { .name = "weight", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1, .base = weight, .stride = 4 },
};

struct net {
    const char *name, *model, *loss, *optimizer, *clip;
    const struct field *field;
    int n_fields, outputs, batch, shards, threads;
    bool plain;
};

#define CONV(out, k, pad) \
    "{\"conv2d\": {\"out\": " #out ", \"kernel\": " #k ", \"padding\": " #pad "}}, "
#define FC(out) "{\"linear\": {\"out\": " #out "}}"
#define BN "{\"batchnorm\": {}}, "
#define RELU "{\"relu\": {}}, "
#define POOL "{\"maxpool\": {\"kernel\": 2}}, "
#define FLAT "{\"flatten\": {}}, "
#define LENET "[" CONV(6, 3, 0) RELU POOL FLAT FC(120) ", " RELU FC(84) ", " RELU FC(10) "]"
#define CONVBLOCK                                                                               \
    "[" CONV(20, 3, 1) BN RELU CONV(24, 3, 1) BN RELU POOL FLAT FC(40) ", " RELU FC(10) "]"
#define PLAIN                                                                                   \
    "[" CONV(5, 3, 1) BN "{\"gelu\": {}}, {\"dropout\": {\"p\": 0.3}}, " CONV(4, 3, 0)          \
    "{\"layernorm\": {}}, " FLAT FC(18) ", {\"tanh\": {}}, " FC(10) "]"
#define WIDE                                                                                    \
    "{\"wide_and_deep\": {\"hidden\": [20, 12], \"embedding\": 5, \"cross\": [[\"a\", \"b\"]], " \
    "\"cross_buckets\": 40, \"dropout\": 0.2}}"
/* Linear layers with gradients so large that they are split between plans. */
#define LARGE "[" FLAT FC(600) ", " RELU FC(260) ", " RELU FC(10) "]"
#define LARGE_ONLY                                                                              \
    "[" CONV(17, 3, 1) RELU FLAT "{\"linear\": {\"out\": 100, \"bias\": false}}, " RELU FC(10) "]"
#define SGD "{\"sgd\": {\"lr\": 0.05, \"momentum\": 0.9}}"
#define ADAM "{\"adam\": {\"lr\": 0.01}}"
#define IMAGES image_fields, 2, 10

static const struct net nets[] = {
    { "lenet", LENET, "cross_entropy", SGD, NULL, IMAGES, 8, 8, 1, false },
    { "lenet, a batch of four", LENET, "cross_entropy", SGD, NULL, IMAGES, 4, 4, 2, false },
    { "lenet, adam, uneven", LENET, "cross_entropy", ADAM, NULL, IMAGES, 13, 8, 2, false },
    { "lenet, clipped", LENET, "cross_entropy", SGD, "{\"norm\": 0.5}", IMAGES, 12, 8, 1, false },
    { "convblock", CONVBLOCK, "cross_entropy", SGD, NULL, IMAGES, 24, 8, 2, false },
    { "convblock, clipped", CONVBLOCK, "cross_entropy", ADAM, "{\"norm\": 0.1}", IMAGES, 16, 8, 1,
      false },
    { "plain", PLAIN, "cross_entropy", SGD, NULL, IMAGES, 16, 8, 2, true },
    { "plain, clipped", PLAIN, "cross_entropy", SGD, "{\"norm\": 0.1}", IMAGES, 10, 8, 1, true },
    { "norm by shard", "[" CONV(5, 3, 1) "{\"batchnorm\": {\"per_shard\": true}}, " RELU FLAT FC(10)
      "]", "cross_entropy", SGD, NULL, IMAGES, 16, 8, 1, false },
    { "wide and deep", WIDE, "bce_with_logits",
      "{\"wide\": {\"ftrl\": {\"lr\": 0.1, \"l1\": 0.01}}, "
      "\"deep\": {\"adagrad\": {\"lr\": 0.05}}}",
      NULL, table_fields, 5, 1, 16, 8, 2, false },
    { "large", LARGE, "cross_entropy", SGD, NULL, IMAGES, 24, 8, 2, false },
    { "large, adam, uneven", LARGE, "cross_entropy", ADAM, "{\"value\": 0.01}", IMAGES, 19, 8, 1,
      false },
    { "large, clipped", LARGE, "cross_entropy", SGD, "{\"norm\": 0.1}", IMAGES, 16, 4, 1, false },
    { "large after a convolution", LARGE_ONLY, "cross_entropy", SGD, NULL, IMAGES, 16, 8, 2, false },
    { "wide and deep, adam", WIDE, "bce_with_logits", ADAM, "{\"norm\": 0.2}", table_fields, 5, 1,
      13, 8, 1, false },
};
enum { NETS = sizeof nets / sizeof nets[0] };

static void fill_data(void)
{
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PIXELS; i++)
            image[r][i] = (uint8_t)(256 * rng_uniform(SEED, 1, (uint64_t)(r * PIXELS + i)));
        for (int i = 0; i < NUMBERS; i++)
            number[r][i] = 2 * rng_uniform(SEED, 2, (uint64_t)(r * NUMBERS + i)) - 1;
        label[r] = (uint8_t)(r % 10);
        weight[r] = rng_uniform(SEED, 3, (uint64_t)r) + .1f;
        wanted[r] = (float)(r * 5 % 3 == 0);
        id_a[r] = r * 7 % 30;
        id_b[r] = r * r % 7;
        order[r] = (uint32_t)((r * 17 + 5) % ROWS);
    }
}

struct setting {
    json_t *model, *loss, *optimizer, *clip;
    struct graph *graph;
    struct plan *plan;
    struct stretch stretch;
};

static struct setting *setting_new(const struct net *n, const char *isa, bool shared, int threads)
{
    struct setting *s = calloc(1, sizeof *s);
    struct err err = { 0 };

    s->model = json_loads(n->model, 0, NULL);
    s->loss = json_pack("{s:{}}", n->loss);
    s->optimizer = json_loads(n->optimizer, 0, NULL);
    s->clip = n->clip ? json_loads(n->clip, 0, NULL) : NULL;
    s->stretch = (struct stretch){ n->field, n->n_fields, order, ROWS, 1 };
    struct plan_config config = { .batch = n->batch, .shards = n->shards, .threads = threads,
                                  .train = true, .plain = n->plain, .shared = shared, .chain = true,
                                  .seed = SEED, .loss = s->loss, .optimizer = s->optimizer,
                                  .clip = s->clip };
    assert_non_null(s->model);
    assert_non_null(s->optimizer);
    setenv("MUSTER_ISA", isa, 1);
    assert_ok(graph_build(s->model, n->field, n->n_fields, n->outputs, &s->graph, &err));
    assert_ok(plan_new(s->graph, n->field, n->n_fields, &config, &s->plan, &err));
    unsetenv("MUSTER_ISA");
    plan_init(s->plan);
    return s;
}

static void setting_free(struct setting *s)
{
    plan_free(s->plan);
    graph_free(s->graph);
    json_decref(s->model);
    json_decref(s->loss);
    json_decref(s->optimizer);
    json_decref(s->clip);
    free(s);
}

/* ------------------------------------------------------------------ workers */

struct job;

struct worker {
    struct job *job;
    int id, from, to;
    struct setting *s;
    float *root[SHARE_ROOTS];
    int first[SHARE_ROOTS], width[SHARE_ROOTS], n_roots;
    float *rows;
    long stride;
    float *sum;                         /* of the own segment */
    struct grad_segment segment[WORKERS_MAX];
    float *board;
    float *seen[WORKERS_MAX];           /* others' boards as this one sees them, where job->torn */
    _Atomic long posts;
    float *shown[SHARE_ROOTS];          /* what was said to be final */
    long shown_from, shown_calls, shown_wrong;
    long turn;                          /* this step since the shares were set */
    bool given;                         /* a part of this step */
    unsigned sure_of;                   /* who has this step's reduce, as far as was asked */
    long unsure;                        /* readers whose word was not waited for */
    pthread_t thread;
    long first_step, steps, done;
    struct step_result result[STEPS_MAX];
    bool abandoned;
};

struct job {
    struct worker worker[WORKERS_MAX];
    int n, calls, fail_at;              /* the call of a hook that abandons; -1: none */
    bool losing;                        /* some parts do not come */
    bool torn;                          /* and their makers had only begun with them */
    int near;                           /* who reads whose board as memory, see is_near */
    long floats;
    pthread_barrier_t barrier;
};

/* Everybody counts the same calls, so everybody fails at the same one. */
static bool fails(struct worker *w)
{
    pthread_barrier_wait(&w->job->barrier);
    bool fail = w->job->calls == w->job->fail_at;
    pthread_barrier_wait(&w->job->barrier);
    if (w->id == 0)
        w->job->calls++;
    return fail;
}

static int gather(void *arg, float *rows, long stride, long count)
{
    struct worker *w = arg;

    w->rows = rows;
    w->stride = stride;
    assert_true(count <= SHARE_GATHER);
    if (fails(w))
        return 1;
    pthread_barrier_wait(&w->job->barrier);
    for (int i = 0; i < w->job->n; i++) {
        const struct worker *from = &w->job->worker[i];
        for (int k = from->from; k < from->to && from != w; k++)
            memcpy(rows + k * stride, from->rows + k * from->stride, (size_t)count * sizeof *rows);
    }
    pthread_barrier_wait(&w->job->barrier);
    return 0;
}

/* Elements [at, at + n) of the sum of the shards [first, first + width); false: they have no samples.
 * A range at a time: a sanitizer makes every call dear. */
static bool tree(const struct job *job, unsigned filled, int first, int width, long at, long n,
                 float *out)
{
    if (!(filled >> first & ((1u << width) - 1)))
        return false;
    for (int i = 0; i < job->n; i++) {
        const struct worker *w = &job->worker[i];
        for (int r = 0; r < w->n_roots; r++)
            if (w->first[r] == first && w->width[r] == width) {
                memcpy(out, w->root[r] + at, (size_t)n * sizeof *out);
                return true;
            }
    }
    if (!tree(job, filled, first, width / 2, at, n, out))
        return tree(job, filled, first + width / 2, width / 2, at, n, out);
    float *right = malloc((size_t)n * sizeof *right + 1);
    if (tree(job, filled, first + width / 2, width / 2, at, n, right))
        for (long i = 0; i < n; i++)
            out[i] += right[i];
    free(right);
    return true;
}

static bool has_samples(const struct worker *w, unsigned filled, int r)
{
    return filled >> w->first[r] & ((1u << w->width[r]) - 1);
}

static void ready(void *arg, unsigned filled, long from)
{
    struct worker *w = arg;

    w->shown_wrong += from < 0 || from >= w->shown_from;
    for (int r = 0; r < w->n_roots; r++)
        if (has_samples(w, filled, r))
            memcpy(w->shown[r] + from, w->root[r] + from,
                   (size_t)(w->shown_from - from) * sizeof(float));
    w->shown_from = from;
    w->shown_calls++;
}

static int reduce(void *arg, unsigned filled, const struct grad_segment **out, int *out_n)
{
    struct worker *w = arg;
    struct job *job = w->job;

    for (int r = 0; r < w->n_roots; r++)
        if (has_samples(w, filled, r))
            w->shown_wrong += memcmp(w->shown[r] + w->shown_from, w->root[r] + w->shown_from,
                                     (size_t)(job->floats - w->shown_from) * sizeof(float)) != 0;
    w->shown_from = job->floats;
    if (fails(w))
        return 1;
    pthread_barrier_wait(&job->barrier);
    for (int i = 0; i < job->n; i++) {
        long units = job->floats / 16;
        long from = units * i / job->n * 16, to = units * (i + 1) / job->n * 16;
        w->segment[i] = (struct grad_segment){ from, to, job->worker[i].sum, NULL };
        if (i == w->id && from < to)
            assert_true(tree(job, filled, 0, w->s->plan->shards, from, to - from, w->sum));
    }
    pthread_barrier_wait(&job->barrier);
    *out = w->segment;
    *out_n = job->n;
    return 0;
}

static void see_board(struct worker *w, int place)
{
    const struct worker *of = &w->job->worker[place];
    memcpy(w->seen[place], of->board, (size_t)of->s->plan->board_floats * sizeof(float));
}

/* The part of the one in `place` as it would be seen had that one died on the way: each of its
 * members has done some panels. */
static void see_torn(struct worker *w, int place, const struct param *q)
{
    const struct split *s = q->split;
    const struct worker *of = &w->job->worker[place];
    const struct split_part part = split_now(w->s->plan, q, place);
    const long panels = (s->shape.cols + s->shape.panel - 1) / s->shape.panel, side = w->turn % 2;
    const long units = (part.to - part.from + s->shape.unit - 1) / s->shape.unit;
    const int threads = of->s->plan->threads, states = w->s->plan->optim[q->group].states;

    memcpy(w->seen[place] + s->marks, of->board + s->marks, TEAM_MAX * 64);
    for (int i = 0; i < threads; i++) {
        const long done = (w->id + 3 * place + 5 * w->turn + 7 * i) % (panels + 1);
        const long a = side ? (panels - done) * s->shape.panel : 0;
        const long b = side || done == panels ? s->shape.cols : done * s->shape.panel;
        uint64_t *mark = (uint64_t *)(void *)(w->seen[place] + s->marks + 16 * i);
        *mark = *mark >> 32 << 32 | (uint64_t)done;
        for (long r = units * i / threads * s->shape.unit;
             r < units * (i + 1) / threads * s->shape.unit && r < part.to - part.from; r++)
            for (int k = 0; k <= states && a < b; k++) {
                const long at = s->at + k * s->room + r * s->ld + side * s->shape.panel + a;
                memcpy(w->seen[place] + at, of->board + at, (size_t)(b - a) * sizeof(float));
            }
    }
}

/* Everybody, nobody, some, or some whom they do not read so themselves: what boards are, jobs take
 * turns. */
enum { NEARS = 4 };
static bool is_near(const struct job *job, int reader, int place)
{
    return reader == place || job->near == 0 || (job->near == 2 && (reader + place) % 2) ||
           (job->near == 3 && reader > place);
}

/* Whoever reads its board has the reduce before a plan writes there what replaces the old values. */
static void check_sure(struct worker *w)
{
    for (int k = 0; k < w->job->n; k++)
        w->unsure += k != w->id && is_near(w->job, k, w->id) && !(w->sure_of >> k & 1);
}

static bool is_part(const struct plan *p, long at)
{
    for (int i = 0; i < p->n_params; i++)
        if (p->param[i]->split && p->param[i]->split->grad == at)
            return true;
    return false;
}

static int post(void *arg, long from, long n)
{
    struct worker *w = arg;

    assert_true(from >= 0 && n >= 0 && from + n <= w->s->plan->board_floats);
    if (from == 0 && n == 0) {  /* the reduce is done */
        w->turn++;
        w->given = false;
        w->sure_of = 0;
        for (int k = 0; w->job->torn && k < w->job->n; k++)
            see_board(w, k);
    } else if (is_part(w->s->plan, from)) {
        if (!w->job->losing)
            check_sure(w);
        w->given = true;
    } else if (fails(w)) {
        return 1;
    }
    atomic_fetch_add(&w->posts, 1);
    return 0;
}

static int wait_for(void *arg, int place)
{
    struct worker *w = arg, *other = &w->job->worker[place];
    const long k = atomic_load(&w->posts);
    const bool lost = w->job->losing && (w->id + place + k / 2) % 3;
    const struct plan *p = w->s->plan;

    if (lost && !w->job->torn)
        return 1;
    while (atomic_load(&other->posts) < k)
        sched_yield();
    w->sure_of |= 1u << place;
    if (!w->job->torn || !w->given)
        return 0;
    for (int i = 0; i < p->n_params; i++) {
        const struct split *s = p->param[i]->split;
        if (s && lost)
            see_torn(w, place, p->param[i]);
        else if (s)
            memcpy(w->seen[place] + s->at, other->board + s->at,
                   (size_t)(s->marks + TEAM_MAX * 16 - s->at) * sizeof(float));
    }
    return lost;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct plan *p = w->s->plan;

    w->shown_from = w->job->floats;
    w->done = plan_train(p, &w->s->stretch, w->first_step * p->batch, w->steps,
                         (uint64_t)w->first_step, w->result, NULL, NULL);
    w->abandoned = plan_abandoned(p);
    return NULL;
}

static void job_run(struct job *job, long first_step, long steps, int fail_at)
{
    job->calls = 0;
    job->fail_at = fail_at;
    for (int i = 0; i < job->n; i++) {
        struct worker *w = &job->worker[i];
        w->first_step = first_step;
        w->steps = steps;
        assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    }
    for (int i = 0; i < job->n; i++)
        pthread_join(job->worker[i].thread, NULL);
}

static void set_shares(struct job *job, int active)
{
    for (int i = 0; i < job->n; i++) {
        struct worker *w = &job->worker[i];
        const int shards = w->s->plan->shards;
        w->from = i < active ? shards * i / active : shards;
        w->to = i < active ? shards * (i + 1) / active : shards;
        w->n_roots = share_roots(shards, w->from, w->to, w->first, w->width);
        struct plan_share share = { .from = w->from, .to = w->to, .gather = gather,
                                    .reduce = reduce, .board = w->board, .post = post,
                                    .wait = wait_for, .n_places = job->n, .self = i, .arg = w,
                                    .ready = i % 2 ? NULL : ready, .ready_floats = 1 };
        for (int side = 0; side < 2; side++)
            memcpy(share.root[side], w->root, sizeof share.root[side]);
        for (int k = 0; k < job->n; k++) {
            const int busy = k < active;
            share.place[k] = (struct plan_place){ busy ? shards * k / active : shards,
                                                  busy ? shards * (k + 1) / active : shards,
                                                  job->torn && k != i ? w->seen[k] :
                                                  job->worker[k].board, is_near(job, i, k),
                                                  is_near(job, k, i) };
            share.far |= !is_near(job, k, i);
        }
        w->given = false;
        w->turn = -1;
        atomic_store(&w->posts, 0);
        plan_set_share(w->s->plan, &share);
    }
}

/* `active` of n workers have shards; ISAs take turns where `mixed`. */
static struct job *job_new(const struct net *net, int n, int active, bool mixed)
{
    static const char *const isas[] = { "avx512", "avx2", "scalar" };
    static int made;
    struct job *job = calloc(1, sizeof *job);

    job->n = n;
    job->near = made++ % NEARS;
    pthread_barrier_init(&job->barrier, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        struct worker *w = &job->worker[i];
        w->job = job;
        w->id = i;
        w->s = setting_new(net, isas[mixed ? i % 3 : 0], true, net->threads);
        job->floats = w->s->plan->grad_floats;
        assert_true(job->floats % 16 == 0);
        for (int r = 0; r < SHARE_ROOTS; r++) {
            w->root[r] = malloc((size_t)job->floats * sizeof(float));
            memset(w->root[r], 0xff, (size_t)job->floats * sizeof(float));
            w->shown[r] = malloc((size_t)job->floats * sizeof(float));
        }
        w->sum = calloc((size_t)job->floats, sizeof(float));
        size_t board = (size_t)w->s->plan->board_floats * sizeof(float);
        w->board = calloc(1, board + 1);
        for (int k = 0; k < n; k++)
            w->seen[k] = calloc(1, board + 1);
    }
    set_shares(job, active);
    return job;
}

static void job_free(struct job *job)
{
    for (int i = 0; i < job->n; i++) {
        for (int r = 0; r < SHARE_ROOTS; r++) {
            free(job->worker[i].root[r]);
            free(job->worker[i].shown[r]);
        }
        free(job->worker[i].sum);
        free(job->worker[i].board);
        for (int k = 0; k < job->n; k++)
            free(job->worker[i].seen[k]);
        setting_free(job->worker[i].s);
    }
    pthread_barrier_destroy(&job->barrier);
    free(job);
}

/* ------------------------------------------------------------------ comparisons */

static void compare(const struct net *net, struct plan *got, const struct plan *want, int id)
{
    plan_collect(got);
    for (int i = 0; i < want->n_params; i++) {
        const struct param *a = want->param[i], *b = got->param[i];
        float *x = calloc((size_t)a->count, sizeof *x), *y = calloc((size_t)a->count, sizeof *y);
        assert_string_equal(a->name, b->name);
        for (int k = 0; k <= (a->trained ? want->optim[a->group].states : 0); k++) {
            plan_get(want, a, k, x);
            plan_get(got, b, k, y);
            if (memcmp(x, y, (size_t)a->count * sizeof *x) == 0)
                continue;
            for (long j = 0; j < a->count; j++)
                if (memcmp(&x[j], &y[j], sizeof *x) != 0)
                    fail_msg("%s: %s[%ld] (%d) of worker %d is %.9g, alone it is %.9g", net->name,
                             a->name, j, k, id, (double)y[j], (double)x[j]);
        }
        free(x);
        free(y);
    }
}

/* A test is not shared out: every worker makes the whole of it. */
static void compare_test(const struct setting *got, const struct setting *want)
{
    struct step_result x[2], y[2];

    assert_int_equal(plan_eval(got->plan, &got->stretch, 0, 2, x, NULL, NULL), 2);
    assert_int_equal(plan_eval(want->plan, &want->stretch, 0, 2, y, NULL, NULL), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(x[i].n, y[i].n);
        assert_memory_equal(&x[i].loss, &y[i].loss, sizeof(double));
    }
}

static void compare_job(const struct net *net, const struct job *job, const struct setting *alone,
                        const struct step_result *want, long steps)
{
    for (int i = 0; i < job->n; i++) {
        const struct worker *w = &job->worker[i];
        assert_int_equal(w->done, steps);
        assert_false(w->abandoned);
        assert_int_equal(w->shown_wrong, 0);
        assert_int_equal(w->unsure, 0);
        compare(net, w->s->plan, alone->plan, i);
        compare_test(w->s, alone);
        for (long k = 0; k < steps; k++) {
            assert_int_equal(w->result[k].n, want[k].n);
            assert_int_equal(w->result[k].step, want[k].step);
            assert_memory_equal(&w->result[k].loss, &want[k].loss, sizeof(double));
            if (w->result[k].chain != want[k].chain || !want[k].chain)
                fail_msg("%s: chain of step %ld is %016lx, alone it is %016lx", net->name, k,
                         w->result[k].chain, want[k].chain);
        }
    }
}

/* Steps that end with the short last batch. */
static long steps_of(const struct net *net)
{
    return (ROWS + net->batch - 1) / net->batch;
}

/* ------------------------------------------------------------------ tests */

static void any_split_of_the_shards_makes_the_same_bits(void **state)
{
    (void)state;
    fill_data();
    for (int i = 0; i < NETS; i++) {
        const struct net *net = &nets[i];
        struct setting *alone = setting_new(net, "avx512", false, 1);
        struct step_result want[STEPS_MAX];
        static const int splits[] = { 1, 2, 3, 5, 8 };

        assert_true(steps_of(net) <= STEPS_MAX);
        plan_train(alone->plan, &alone->stretch, 0, steps_of(net), 0, want, NULL, NULL);
        for (int k = 0; k < 5 && splits[k] <= net->shards; k++) {
            struct job *job = job_new(net, splits[k], splits[k], false);
            job_run(job, 0, steps_of(net), -1);
            compare_job(net, job, alone, want, steps_of(net));
            assert_true(job->worker[0].shown_calls >= steps_of(net));
            job_free(job);
        }
        setting_free(alone);
    }
}

static void instruction_sets_may_differ_and_workers_may_stand_by(void **state)
{
    (void)state;
    fill_data();
    for (int i = 0; i < NETS; i++) {
        const struct net *net = &nets[i];
        struct setting *alone = setting_new(net, "scalar", false, 2);
        struct step_result want[STEPS_MAX];
        struct job *job = job_new(net, 4, 3, true);

        plan_train(alone->plan, &alone->stretch, 0, steps_of(net), 0, want, NULL, NULL);
        job_run(job, 0, steps_of(net), -1);
        compare_job(net, job, alone, want, steps_of(net));
        job_free(job);
        setting_free(alone);
    }
}

static void large_layers_are_split_and_a_lost_part_is_made_again(void **state)
{
    (void)state;
    int split = 0;

    fill_data();
    for (int i = 0; i < NETS; i++) {
        const struct net *net = &nets[i];
        struct setting *alone = setting_new(net, "avx512", false, 1);
        struct step_result want[STEPS_MAX];

        plan_train(alone->plan, &alone->stretch, 0, steps_of(net), 0, want, NULL, NULL);
        for (int k = 0; k < 2 * (NEARS + 1); k++) {
            const int n = k % 2 ? 5 : 2;
            struct job *job = job_new(net, n, n < 4 ? n : 4, true);
            job->losing = true;
            job->near = k / 2 % NEARS;
            job->torn = k / 2 == NEARS;
            set_shares(job, n < 4 ? n : 4);
            const bool has_parts = job->worker[0].s->plan->board_floats > 0;
            split += has_parts;
            job_run(job, 0, steps_of(net), -1);
            compare_job(net, job, alone, want, steps_of(net));
            job_free(job);
            if (!has_parts)
                break;
        }
        setting_free(alone);
    }
    /* Where the norm is clipped all gradients are kept. */
    assert_int_equal(split, 2 * (NEARS + 1) * 3);
}

/* Whatever call of a hook it is that fails. */
static void an_abandoned_step_changes_nothing(void **state)
{
    (void)state;
    fill_data();
    for (int i = 0; i < NETS; i++) {
        const struct net *net = &nets[i];
        struct setting *alone = setting_new(net, "avx512", false, 1);
        struct job *job = job_new(net, 3, 3, false);
        struct step_result want[STEPS_MAX];
        const long steps = steps_of(net);

        plan_train(alone->plan, &alone->stretch, 0, 2, 0, want, NULL, NULL);
        job_run(job, 0, 2, -1);
        compare_job(net, job, alone, want, 2);
        const int calls = job->calls / 2;
        for (int fail_at = 0; fail_at < calls; fail_at++) {
            job_run(job, 2, 1, fail_at);
            for (int k = 0; k < job->n; k++) {
                assert_int_equal(job->worker[k].done, 0);
                assert_true(job->worker[k].abandoned);
                compare(net, job->worker[k].s->plan, alone->plan, k);
            }
            set_shares(job, 1 + fail_at % 3);   /* as after a change of the roster */
        }
        plan_train(alone->plan, &alone->stretch, 2 * net->batch, steps - 2, 2, want, NULL, NULL);
        job_run(job, 2, steps - 2, -1);
        compare_job(net, job, alone, want, steps - 2);
        job_free(job);
        setting_free(alone);
    }
}

static void a_newcomer_goes_on_from_a_copy_of_the_state(void **state)
{
    (void)state;
    fill_data();
    for (int i = 0; i < NETS; i++) {
        const struct net *net = &nets[i];
        struct setting *alone = setting_new(net, "avx512", false, 1);
        struct job *job = job_new(net, 2, 2, false), *next = job_new(net, 3, 3, true);
        struct step_result want[STEPS_MAX];
        const struct plan *from = job->worker[1].s->plan;
        size_t bytes = plan_state_bytes(from);
        void *copy = malloc(bytes);

        plan_train(alone->plan, &alone->stretch, 0, 2, 0, want, NULL, NULL);
        job_run(job, 0, 2, -1);
        plan_state_get(from, copy);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(plan_state_bytes(next->worker[k].s->plan), bytes);
            plan_state_set(next->worker[k].s->plan, copy);
            plan_set_chain(next->worker[k].s->plan, plan_chain(from));
        }
        plan_train(alone->plan, &alone->stretch, 2 * net->batch, 3, 2, want, NULL, NULL);
        job_run(next, 2, 3, -1);
        compare_job(net, next, alone, want, 3);
        free(copy);
        job_free(next);
        job_free(job);
        setting_free(alone);
    }
}

/* A worker that was left out may have copied anything from boards, and starts over. */
static void a_plan_that_starts_over_has_nothing_left(void **state)
{
    (void)state;
    fill_data();
    for (int i = 0; i < NETS; i++) {
        struct setting *old = setting_new(&nets[i], "avx512", true, nets[i].threads);
        struct setting *new = setting_new(&nets[i], "avx512", true, nets[i].threads);
        const size_t bytes = plan_state_bytes(new->plan);
        void *x = malloc(bytes), *y = malloc(bytes);

        memset(x, 0x7f, bytes);
        plan_state_set(old->plan, x);
        plan_init(old->plan);
        plan_state_get(old->plan, x);
        plan_state_get(new->plan, y);
        assert_memory_equal(x, y, bytes);
        free(x);
        free(y);
        setting_free(old);
        setting_free(new);
    }
}

static void roots_are_the_largest_complete_subtrees(void **state)
{
    (void)state;
    for (int from = 0; from <= 8; from++)
        for (int to = from; to <= 8; to++) {
            int first[SHARE_ROOTS], width[SHARE_ROOTS], at = from;
            int n = share_roots(8, from, to, first, width);
            assert_true(n <= SHARE_ROOTS);
            for (int r = 0; r < n; at += width[r++]) {
                assert_int_equal(first[r], at);
                assert_int_equal(first[r] % width[r], 0);
                int twice = 2 * width[r], above = first[r] / twice * twice;
                assert_true(twice > 8 || above < from || above + twice > to);
            }
            assert_int_equal(at, to);
        }
}

CHECK_MAIN(roots_are_the_largest_complete_subtrees, any_split_of_the_shards_makes_the_same_bits,
           instruction_sets_may_differ_and_workers_may_stand_by,
           large_layers_are_split_and_a_lost_part_is_made_again, an_abandoned_step_changes_nothing,
           a_newcomer_goes_on_from_a_copy_of_the_state, a_plan_that_starts_over_has_nothing_left)
