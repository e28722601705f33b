/* engine/stage_embedding.c - a row of a table by id
 *
 * The gradient is dense in meaning, as nn.Embedding has it: a row that the batch does not name has
 * gradient zero. Where the optimizer leaves such a row as it is (plain SGD, Adagrad), only rows
 * that are named are visited; so it is with FTRL, as TensorFlow applies it to tables.
 *
 * Rows are `stride` floats apart, channels padded as in a tensor. The unit of work is a block: 16
 * floats (several rows when they are short) or one longer row. A block has one owner among the
 * members; the samples that name its rows are chained in sample order, summed by shard, then by
 * the tree.
 */
#include "engine/stage.h"

struct table {
    struct param *w;
    int stride;                 /* floats from a row to the next */
    int block;                  /* floats */
    int rows;                   /* in a block */
    long blocks;
    int32_t *head;              /* (blocks) first sample of the chain + 1, 0: none */
    int32_t *next;              /* (batch) the next sample + 1 */
    bool sparse;                /* rows that the batch does not name may be left alone */
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_EMBEDDING);
}

static long weight_at(const struct param *q, long i)
{
    return i / q->dim[1] * q->geom[0] + i % q->dim[1];
}

/* A zero gradient changes neither weight nor state. */
static bool leaves_zero(const struct optim *o)
{
    return (o->kind == OPTIM_SGD && o->momentum == 0 && o->weight_decay == 0) ||
           (o->kind == OPTIM_ADAGRAD && o->weight_decay == 0 && o->eps > 0) ||
           o->kind == OPTIM_FTRL;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct node *node = s->node;
    struct table *own = plan_alloc(p, struct table);

    (void)err;
    own->stride = tensor_pad(node->dim);
    own->block = own->stride < 16 ? 16 : own->stride;
    own->rows = own->block / own->stride;
    own->w = plan_param(p, node, "weight", 2, (long[]){ node->rows, node->dim },
                        (long)node->rows * own->stride, false);
    own->w->at = weight_at;
    own->w->geom[0] = own->stride;
    own->w->init = node->spread > 0 ? INIT_NORMAL : INIT_ZERO;
    own->w->bound = node->spread;
    own->blocks = own->w->size / own->block;
    own->sparse = leaves_zero(&p->optim[node->group]) && !p->keep_grads;
    own->w->sparse = own->sparse;
    if (p->train) {
        own->head = plan_take(p, (size_t)own->blocks * sizeof *own->head);
        own->next = plan_take(p, (size_t)p->batch * sizeof *own->next);
    }
    s->own = own;
    s->out = plan_tensor(p, 1, 1, node->dim);
    stage_sync_update(s, p);
    return 0;
}

INLINE long id_of(const struct stage *s, const struct member *m, int n)
{
    const struct node *node = s->node;
    long id = *(const int32_t *)member_row(m, node->field, n);

    for (int k = 1; k < node->n_cross; k++)
        id = id * m->plan->field[node->cross[k]].ids +
             *(const int32_t *)member_row(m, node->cross[k], n);
    return node->n_cross > 1 ? id % node->rows : id;
}

static void forward(struct stage *s, struct member *m)
{
    const struct table *l = s->own;
    const struct tensor *out = s->out;

    for (int n = m->n0; n < m->n1; n++)
        memcpy(out->data + out->size * n, l->w->w + id_of(s, m, n) * l->stride,
               (size_t)l->stride * sizeof(float));
}

/* ------------------------------------------------------------------ update */

/* Chains the samples of the blocks that are this member's, in sample order. */
static void chain(const struct stage *s, const struct member *m)
{
    const struct table *l = s->own;

    for (int n = m->n - 1; n >= 0; n--) {
        long block = id_of(s, m, n) / l->rows;
        if (block % m->count != m->id)
            continue;
        l->next[n] = l->head[block];
        l->head[block] = n + 1;
    }
}

/* The gradient by shard of 16 floats of a block from `c` on. In a shared plan, -0.0 says that a
 * shard does not name the row: a sum with it is the other one, bit for bit. Returns the lanes that
 * are named. */
static mask16 block_gradient(const struct stage *s, const struct member *m, long block, int c,
                             v16 *of)
{
    const struct table *l = s->own;
    const struct tensor *out = s->out;
    ALIGNED float sum[SHARDS_MAX][16] = { 0 };
    mask16 named[SHARDS_MAX] = { 0 }, all = 0;
    int shard = 0;

    for (int n = l->head[block]; n; n = l->next[n - 1]) {
        while (n - 1 >= member_first(m, shard + 1))
            shard++;
        const float *dy = out->grad + out->size * (n - 1) + c;
        int width = l->stride < 16 ? l->stride : 16;
        int at = (int)(id_of(s, m, n - 1) % l->rows) * l->stride;
        for (int i = 0; i < width; i++)
            sum[shard][at + i] += dy[i];
        named[shard] |= (mask16)(((1u << width) - 1) << at);
    }
    for (int k = 0; k < m->plan->shards; k++) {
        of[k] = v_load(sum[k]);
        if (l->sparse && m->plan->shared)
            of[k] = v_pick(named[k], of[k], v_set1(-0.0f));
        all |= named[k];
    }
    return all;
}

static void update_block(const struct stage *s, const struct member *m, const struct apply *a,
                         long block)
{
    const struct table *l = s->own;
    const unsigned filled = member_filled(m);

    for (int c = 0; c < l->block; c += 16) {
        v16 of[SHARDS_MAX] = { v_zero() }, old = v_load(a->w + block * l->block + c);
        float *w = a->w + block * l->block + c;
        mask16 named = block_gradient(s, m, block, c, of);
        apply_tree(a, block * l->block + c, of, m->plan->shards, filled);
        if (l->sparse && !a->keep)
            v_store(w, v_pick(named, v_load(w), old));
    }
    l->head[block] = 0;
}

static void update(struct stage *s, struct member *m)
{
    const struct table *l = s->own;
    const struct apply a = apply_begin(m, l->w);

    chain(s, m);
    if (!l->sparse || m->plan->shared) {
        for (long block = m->id; block < l->blocks; block += m->count)
            update_block(s, m, &a, block);
        return;
    }
    for (int n = 0; n < m->n; n++) {
        long block = id_of(s, m, n) / l->rows;
        if (block % m->count == m->id && l->head[block])
            update_block(s, m, &a, block);
    }
}

const struct stage_ops ISA_FN(embedding_stage) = {
    .name = "embedding", .match = match, .build = build, .run = { forward, NULL, update },
};
