/* engine/plan.c - a model made ready to run: memory and parameters
 *
 * lower.c turns the graph into stages, run.c runs them.
 */
#include "engine/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "engine/plan_int.h"

int tensor_pad(int channels)
{
    if (channels == 1)
        return 1;
    return channels <= 8 ? 8 : (channels + 15) / 16 * 16;
}

/* ------------------------------------------------------------------ the block */

static int reserve_block(struct plan *p, struct err *err)
{
    size_t size = PLAN_RESERVE;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED)
        return err_set(err, ERR_NOMEM, "cannot reserve address space for the model (a limit on "
                       "virtual memory, such as ulimit -v, is too low)");
    madvise(at, size, MADV_HUGEPAGE);
    madvise(at, size, MADV_DONTDUMP);
    p->own->block = at;
    return 0;
}

/* Neighbours are a line apart, so that no two share one and long rows do not alias. */
void *plan_take(struct plan *p, size_t bytes)
{
    struct plan_int *own = p->own;
    size_t size = (bytes + 63) / 64 * 64 + 64;

    if (size > PLAN_RESERVE - own->used) {
        own->full = true;
        return own->block;      /* plan_new fails before anybody uses it */
    }
    void *at = own->block + own->used;
    own->used += size;
    return at;
}

size_t plan_bytes(const struct plan *p)
{
    return p->own->used;
}

struct tensor *plan_tensor(struct plan *p, int h, int w, int c)
{
    struct tensor *t = plan_alloc(p, struct tensor);
    int cp = tensor_pad(c);

    *t = (struct tensor){ .h = h, .w = w, .c = c, .cp = cp, .size = (long)h * w * cp };
    t->data = plan_take(p, (size_t)t->size * p->batch * sizeof(float));
    if (p->train && !p->own->no_grad)
        t->grad = plan_take(p, (size_t)t->size * p->batch * sizeof(float));
    return t;
}

/* By node and suffix alone, so that a fused stage and a plain one give a model the same start. */
static const char *const suffixes[] = { "weight", "bias", "running_mean", "running_var" };

static int suffix_index(const char *suffix)
{
    for (int i = 0; i < (int)(sizeof suffixes / sizeof suffixes[0]); i++)
        if (strcmp(suffixes[i], suffix) == 0)
            return i;
    return (int)(sizeof suffixes / sizeof suffixes[0]);
}

/* PyTorch's: kaiming_uniform(a = sqrt 5), that is +-1/sqrt(fan_in), for conv2d and linear and their
 * biases; N(0, 1) for embeddings; 1 and 0 for norms. The wide part starts from zero. */
static void choose_init(const struct plan *p, const struct node *node, const char *suffix,
                        struct param *q)
{
    bool bias = strcmp(suffix, "bias") == 0;
    const struct node *in = node->n_in ? &p->graph->node[node->in[0]] : node;

    q->trained = strncmp(suffix, "running_", 8) != 0;
    q->init = INIT_ZERO;
    if (strcmp(suffix, "running_var") == 0)
        q->init = INIT_ONE;
    else if (!q->trained || node->group == 1)
        return;
    else if (node->op == OP_CONV2D || node->op == OP_LINEAR) {
        long fan_in = node->op == OP_LINEAR ? (long)in->h * in->w * in->c :
                      (long)in->c / node->groups * node->kernel[0] * node->kernel[1];
        q->init = INIT_UNIFORM;
        q->bound = (float)(1 / sqrt((double)fan_in));
    } else if (node->op == OP_EMBEDDING) {
        q->init = INIT_NORMAL;
        q->bound = 1;
    } else if (!bias) {
        q->init = INIT_ONE;
    }
}

struct param *plan_param(struct plan *p, const struct node *node, const char *suffix, int nd,
                         const long *dim, long size, bool replicated)
{
    struct param *q = plan_alloc(p, struct param);
    const struct optim *o = &p->optim[node->group];

    snprintf(q->name, sizeof q->name, "%s.%s", node->name, suffix);
    q->nd = nd;
    q->count = 1;
    for (int i = 0; i < nd; i++) {
        q->dim[i] = dim[i];
        q->count *= dim[i];
    }
    q->group = node->group;
    q->order = (int)(node - p->graph->node) * PARAM_SUFFIXES + suffix_index(suffix);
    choose_init(p, node, suffix, q);
    q->size = q->grad_size = (size + 15) / 16 * 16;
    int copies = replicated ? p->threads : 1;
    /* Apart, since a core's prefetcher runs ahead into the lines that another writes. */
    q->replica = replicated ? q->size + 1056 : 0;
    size_t bytes = (size_t)(replicated ? q->replica * copies : q->size) * sizeof(float);
    q->w = plan_take(p, bytes);
    for (int i = 0; p->train && i < o->states; i++)
        q->state[i] = plan_take(p, bytes);
    if (p->keep_grads)
        q->g = plan_take(p, (size_t)q->size * sizeof(float));

    p->param = realloc(p->param, (size_t)(p->n_params + 1) * sizeof *p->param);
    p->param[p->n_params++] = q;
    return q;
}

/* ------------------------------------------------------------------ values in and out */

static long stored_index(const struct param *q, long i)
{
    return q->at ? q->at(q, i) : i;
}

static float *param_array(const struct param *q, int which)
{
    return which < 0 ? q->g : which == 0 ? q->w : q->state[which - 1];
}

struct param *plan_find(const struct plan *p, const char *name)
{
    for (int i = 0; i < p->n_params; i++)
        if (strcmp(p->param[i]->name, name) == 0)
            return p->param[i];
    return NULL;
}

void plan_get(const struct plan *p, const struct param *q, int which, float *out)
{
    (void)p;
    const float *from = param_array(q, which);
    for (long i = 0; i < q->count; i++)
        out[i] = from[stored_index(q, i)];
}

/* Where a parameter is in a copy of all of them. */
static long copy_at(const struct plan *p, const struct param *q)
{
    long at = 0;

    for (int i = 0; p->param[i] != q; i++)
        at += p->param[i]->size;
    return at;
}

void plan_copied(const struct plan *p, const struct param *q, const float *copy, float *out)
{
    const float *from = copy + copy_at(p, q);

    for (long i = 0; i < q->count; i++)
        out[i] = from[stored_index(q, i)];
}

void plan_copy_set(const struct plan *p, const struct param *q, float *copy, const float *in)
{
    float *to = copy + copy_at(p, q);

    for (long i = 0; i < q->count; i++)
        to[stored_index(q, i)] = in[i];
}

void plan_set(struct plan *p, struct param *q, int which, const float *in)
{
    float *to = param_array(q, which);
    int copies = q->replica && which >= 0 ? p->threads : 1;

    for (int r = 0; r < copies; r++)
        for (long i = 0; i < q->count; i++)
            to[r * q->replica + stored_index(q, i)] = in[i];
}

/* A value depends on the seed, the parameter's place and the element's logical index alone. The
 * normal distribution is the sum of twelve uniform numbers less six: libm's log and cos, which the
 * usual ways need, differ between machines. */
static float initial_value(const struct plan *p, const struct param *q, long i)
{
    const uint64_t stream = RNG_INIT + (uint64_t)q->order;
    float sum = -6;

    switch (q->init) {
    case INIT_ZERO:
        return 0;
    case INIT_ONE:
        return 1;
    case INIT_UNIFORM:
        return (rng_uniform(p->seed, stream, (uint64_t)i) * 2 - 1) * q->bound;
    case INIT_NORMAL:
        for (int k = 0; k < 12; k++)
            sum += rng_uniform(p->seed, stream, (uint64_t)i * 12 + (uint64_t)k);
        return sum * q->bound;
    }
    return 0;
}

void plan_init(struct plan *p)
{
    for (int n = 0; n < p->n_params; n++) {
        struct param *q = p->param[n];
        const struct optim *o = &p->optim[q->group];
        int copies = q->replica ? p->threads : 1;
        const size_t bytes = (size_t)q->size * sizeof(float);

        /* What pads them too: who read boards that others were writing to may have anything there. */
        for (int r = 0; r < copies; r++)
            for (int s = 0; s <= (p->train ? o->states : 0); s++)
                memset((s ? q->state[s - 1] : q->w) + r * q->replica, 0, bytes);
        for (long i = 0; i < q->count; i++) {
            float value = initial_value(p, q, i);
            long at = stored_index(q, i);
            for (int r = 0; r < copies; r++) {
                q->w[r * q->replica + at] = value;
                for (int s = 0; p->train && s < o->states; s++)
                    q->state[s][r * q->replica + at] = q->trained ? o->state_init[s] : 0;
            }
        }
    }
    plan_derive(p);
}

void plan_derive(struct plan *p)
{
    split_forget(p);
    for (int id = 0; id < p->threads; id++) {
        struct member m = { .id = id, .count = p->threads, .plan = p };
        for (int i = 0; i < p->n_stages; i++)
            if (p->stage[i].ops->derive)
                p->stage[i].ops->derive(&p->stage[i], &m);
    }
}

const float *plan_output(const struct plan *p, int i)
{
    return p->output->data + p->output->size * i;
}

/* ------------------------------------------------------------------ life */

/* A step shorter than this many multiplications is over before a second thread has heard of it. */
enum { WORTH_A_THREAD = 200000 };

static double step_work(const struct graph *g, int batch)
{
    double work = 0;

    for (int i = 0; i < g->n; i++) {
        const struct node *n = &g->node[i];
        const struct node *in = n->n_in ? &g->node[n->in[0]] : n;
        double out = (double)n->h * n->w * n->c;
        if (n->op == OP_CONV2D)
            work += out * n->kernel[0] * n->kernel[1] * in->c / n->groups;
        else if (n->op == OP_LINEAR)
            work += out * in->h * in->w * in->c;
        else
            work += out;
    }
    return work * batch * 3;
}

static int choose_threads(const struct graph *g, const struct plan_config *c)
{
    if (c->threads > 0)
        return c->threads < TEAM_MAX ? c->threads : TEAM_MAX;
    int most = (int)(step_work(g, c->batch) / WORTH_A_THREAD);
    int cores = team_cores();
    return most < 1 ? 1 : most < cores ? most : cores;
}

static void find_fields(struct plan *p)
{
    p->target_field = p->weight_field = -1;
    for (int i = 0; i < p->n_fields; i++) {
        if (strcmp(p->field[i].name, "target") == 0)
            p->target_field = i;
        if (strcmp(p->field[i].name, "weight") == 0)
            p->weight_field = i;
    }
}

static int read_config(struct plan *p, const struct plan_config *c, struct err *err)
{
    p->batch = c->batch;
    p->shards = c->shards > 0 ? c->shards : 1;
    p->train = c->train;
    p->keep_grads = c->keep_grads;
    p->shared = c->shared;
    p->own->plain = c->plain;
    p->own->keep_chain = c->train && (c->shared || c->chain);
    p->seed = c->seed;
    p->lr_factor = 1;
    p->loss_spec = c->loss;
    if (p->shards > SHARDS_MAX || (p->shards & (p->shards - 1)))
        return err_set(err, ERR_INVALID, "shards: %d is not a power of two up to %d", p->shards,
                       SHARDS_MAX);
    if (c->optimizer) {
        const json_t *wide = json_object_get(c->optimizer, "wide");
        const json_t *deep = json_object_get(c->optimizer, "deep");
        if (optim_parse(deep ? deep : c->optimizer, &p->optim[0], err) < 0 ||
            optim_parse(wide ? wide : c->optimizer, &p->optim[1], err) < 0)
            return -(int)err->code;
    }
    if (c->clip) {
        p->own->clip_norm = json_number_value(json_object_get(c->clip, "norm"));
        float value = (float)json_number_value(json_object_get(c->clip, "value"));
        p->optim[0].clip_value = p->optim[1].clip_value = value;
        p->keep_grads |= p->own->clip_norm > 0;
    }
    return 0;
}

static int by_order(const void *a, const void *b)
{
    return (*(struct param *const *)a)->order - (*(struct param *const *)b)->order;
}

int plan_new(const struct graph *graph, const struct field *fields, int n_fields,
             const struct plan_config *config, struct plan **out, struct err *err)
{
    struct plan *p = calloc(1, sizeof *p);
    struct plan_int *own = calloc(1, sizeof *own);

    if (!p || !own) {
        free(p);
        free(own);
        return err_set(err, ERR_NOMEM, "no memory for a plan");
    }
    p->own = own;
    p->graph = graph;
    p->field = fields;
    p->n_fields = n_fields;
    p->isa = isa_best();
    own->kernels = kernels_of(p->isa);
    p->threads = choose_threads(graph, config);
    find_fields(p);
    if (read_config(p, config, err) < 0 || reserve_block(p, err) < 0 ||
        team_new(p->threads, &p->team, err) < 0)
        goto fail;
    p->sample_loss = plan_take(p, (size_t)p->batch * sizeof(float));
    if (plan_lower(p, err) < 0)
        goto fail;
    if (p->n_params)
        qsort(p->param, (size_t)p->n_params, sizeof *p->param, by_order);
    own->square = plan_take(p, (size_t)p->n_params * sizeof *own->square);
    share_init(p);
    if (own->full) {
        err_set(err, ERR_NOMEM, "the model needs more than %zu GB (a smaller batch, or fewer "
                "channels)", PLAN_RESERVE >> 30);
        goto fail;
    }
    plan_list(p);
    *out = p;
    return 0;

fail:
    plan_free(p);
    return -(int)err->code;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    team_free(p->team);
    if (p->own->block)
        munmap(p->own->block, PLAN_RESERVE);
    free(p->own->forward);
    free(p->own->train);
    free(p->own->early);
    free(p->own);
    free(p->stage);
    free(p->value);
    free(p->param);
    free(p);
}
