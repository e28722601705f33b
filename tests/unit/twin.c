/* tests/unit/twin.c - layers in double precision, no tricks at all */
#include "tests/unit/twin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4 };     /* weight, bias, running_mean, running_var */
static const char *const suffix[SLOTS] = { "weight", "bias", "running_mean", "running_var" };

struct layer {
    const struct node *node, *in;
    double *w[SLOTS], *g[SLOTS];        /* NULL: none */
    double *x, *dx;                     /* output and its gradient, (N, C, H, W) */
    double *mean, *inv;                 /* batchnorm */
    int *from;                          /* maxpool: index of the maximum in the input */
};

struct twin {
    const struct graph *graph;
    struct layer *layer;
    int n;                              /* samples of the last run */
};

static long size_of(const struct node *n) { return (long)n->c * n->h * n->w; }

struct twin *twin_new(const struct plan *p, const struct graph *g)
{
    struct twin *t = calloc(1, sizeof *t);

    t->graph = g;
    t->layer = calloc((size_t)g->n, sizeof *t->layer);
    for (int i = 0; i < g->n; i++) {
        struct layer *l = &t->layer[i];
        l->node = &g->node[i];
        l->in = l->node->n_in ? &g->node[l->node->in[0]] : NULL;
        for (int k = 0; k < SLOTS; k++) {
            char name[PARAM_NAME];
            snprintf(name, sizeof name, "%s.%s", l->node->name, suffix[k]);
            const struct param *q = plan_find(p, name);
            if (!q || (l->node->op != OP_CONV2D && l->node->op != OP_LINEAR &&
                       l->node->op != OP_BATCHNORM))
                continue;
            float *f = calloc((size_t)q->count, sizeof *f);
            plan_get(p, q, 0, f);
            l->w[k] = calloc((size_t)q->count, sizeof(double));
            l->g[k] = calloc((size_t)q->count, sizeof(double));
            for (long j = 0; j < q->count; j++)
                l->w[k][j] = f[j];
            free(f);
        }
        long room = size_of(l->node) * p->batch;
        l->x = calloc((size_t)room, sizeof *l->x);
        l->dx = calloc((size_t)room, sizeof *l->dx);
        l->from = calloc((size_t)room, sizeof *l->from);
        l->mean = calloc((size_t)l->node->c, sizeof *l->mean);
        l->inv = calloc((size_t)l->node->c, sizeof *l->inv);
    }
    return t;
}

void twin_free(struct twin *t)
{
    for (int i = 0; i < t->graph->n; i++) {
        struct layer *l = &t->layer[i];
        for (int k = 0; k < SLOTS; k++) {
            free(l->w[k]);
            free(l->g[k]);
        }
        free(l->x);
        free(l->dx);
        free(l->from);
        free(l->mean);
        free(l->inv);
    }
    free(t->layer);
    free(t);
}

/* ------------------------------------------------------------------ layers */

/* Visits every product of a convolution of sample n: output o, input i, weight w (flat indices). */
static void conv_each(const struct layer *l, int n, bool back, const double *x, double *y,
                      double *dx, const double *dy)
{
    const struct node *a = l->in, *b = l->node;

    for (int co = 0; co < b->c; co++)
        for (int h = 0; h < b->h; h++)
            for (int w = 0; w < b->w; w++) {
                long o = ((n * (long)b->c + co) * b->h + h) * b->w + w;
                if (back && l->g[1])
                    l->g[1][co] += dy[o];
                else if (!back)
                    y[o] = l->w[1] ? l->w[1][co] : 0;
                for (int ci = 0; ci < a->c; ci++)
                    for (int t = 0; t < b->kernel[0] * b->kernel[1]; t++) {
                        int ky = t / b->kernel[1], kx = t % b->kernel[1];
                        int r = h * b->stride[0] - b->padding[0] + ky;
                        int q = w * b->stride[1] - b->padding[1] + kx;
                        if (r < 0 || r >= a->h || q < 0 || q >= a->w)
                            continue;
                        long i = ((n * (long)a->c + ci) * a->h + r) * a->w + q;
                        long k = (co * (long)a->c + ci) * b->kernel[0] * b->kernel[1] + t;
                        if (!back) {
                            y[o] += x[i] * l->w[0][k];
                        } else {
                            l->g[0][k] += x[i] * dy[o];
                            dx[i] += l->w[0][k] * dy[o];
                        }
                    }
            }
}

static void linear_each(const struct layer *l, int n, bool back, const double *x, double *y,
                        double *dx, const double *dy)
{
    const long I = size_of(l->in), O = l->node->c;

    x += n * I, dx += n * I, y += n * O, dy += n * O;
    for (long o = 0; o < O; o++) {
        if (back && l->g[1])
            l->g[1][o] += dy[o];
        else if (!back)
            y[o] = l->w[1] ? l->w[1][o] : 0;
        for (long i = 0; i < I; i++)
            if (!back) {
                y[o] += x[i] * l->w[0][o * I + i];
            } else {
                l->g[0][o * I + i] += x[i] * dy[o];
                dx[i] += l->w[0][o * I + i] * dy[o];
            }
    }
}

static void norm_forward(struct layer *l, int n, bool train, const double *x, double *y)
{
    const struct node *b = l->node;
    const long P = (long)b->h * b->w, count = n * P;

    for (int c = 0; c < b->c; c++) {
        double mean = 0, m2 = 0;
        for (long i = 0; i < count; i++)
            mean += x[(i / P * b->c + c) * P + i % P] / (double)count;
        for (long i = 0; i < count; i++)
            m2 += pow(x[(i / P * b->c + c) * P + i % P] - mean, 2);
        l->g[2][c] = l->w[2][c] + b->momentum * (mean - l->w[2][c]);
        l->g[3][c] = l->w[3][c] + b->momentum * (m2 / (double)(count - 1) - l->w[3][c]);
        l->mean[c] = train ? mean : l->w[2][c];
        l->inv[c] = 1 / sqrt((train ? m2 / (double)count : l->w[3][c]) + b->eps);
        for (long i = 0; i < count; i++) {
            long k = (i / P * b->c + c) * P + i % P;
            y[k] = (x[k] - l->mean[c]) * l->inv[c] * l->w[0][c] + l->w[1][c];
        }
    }
}

static void norm_backward(struct layer *l, int n, const double *x, double *dx, const double *dy)
{
    const struct node *b = l->node;
    const long P = (long)b->h * b->w, count = n * P;

    for (int c = 0; c < b->c; c++) {
        for (long i = 0; i < count; i++) {
            long k = (i / P * b->c + c) * P + i % P;
            l->g[0][c] += dy[k] * (x[k] - l->mean[c]) * l->inv[c];
            l->g[1][c] += dy[k];
        }
        for (long i = 0; i < count; i++) {
            long k = (i / P * b->c + c) * P + i % P;
            double xhat = (x[k] - l->mean[c]) * l->inv[c];
            dx[k] = l->w[0][c] * l->inv[c] *
                    (dy[k] - (l->g[1][c] + xhat * l->g[0][c]) / (double)count);
        }
    }
}

static void pool_forward(struct layer *l, int n, const double *x, double *y)
{
    const struct node *a = l->in, *b = l->node;

    for (long o = 0; o < n * size_of(b); o++) {
        int w = (int)(o % b->w), h = (int)(o / b->w % b->h);
        long plane = o / b->w / b->h;
        l->from[o] = -1;
        for (int t = 0; t < b->kernel[0] * b->kernel[1]; t++) {
            int r = h * b->stride[0] + t / b->kernel[1], q = w * b->stride[1] + t % b->kernel[1];
            int i = (int)((plane * a->h + r) * a->w + q);
            if (l->from[o] < 0 || x[i] > x[l->from[o]])
                l->from[o] = i;
        }
        y[o] = x[l->from[o]];
    }
}

static void layer_forward(struct twin *t, struct layer *l, bool train)
{
    const double *x = t->layer[l->node->in[0]].x;

    switch (l->node->op) {
    case OP_CONV2D:
        for (int n = 0; n < t->n; n++)
            conv_each(l, n, false, x, l->x, NULL, NULL);
        break;
    case OP_LINEAR:
        for (int n = 0; n < t->n; n++)
            linear_each(l, n, false, x, l->x, l->dx, l->dx);
        break;
    case OP_BATCHNORM:
        norm_forward(l, t->n, train, x, l->x);
        break;
    case OP_MAXPOOL:
        pool_forward(l, t->n, x, l->x);
        break;
    case OP_TANH:
        for (long i = 0; i < t->n * size_of(l->node); i++)
            l->x[i] = tanh(x[i]);
        break;
    default:
        for (long i = 0; i < t->n * size_of(l->node); i++)
            l->x[i] = l->node->op == OP_RELU && x[i] < 0 ? 0 : x[i];
    }
}

static void layer_backward(struct twin *t, struct layer *l)
{
    struct layer *in = &t->layer[l->node->in[0]];

    switch (l->node->op) {
    case OP_CONV2D:
        for (int n = 0; n < t->n; n++)
            conv_each(l, n, true, in->x, NULL, in->dx, l->dx);
        break;
    case OP_LINEAR:
        for (int n = 0; n < t->n; n++)
            linear_each(l, n, true, in->x, l->x, in->dx, l->dx);
        break;
    case OP_BATCHNORM:
        norm_backward(l, t->n, in->x, in->dx, l->dx);
        break;
    case OP_MAXPOOL:
        for (long i = 0; i < t->n * size_of(l->node); i++)
            in->dx[l->from[i]] += l->dx[i];
        break;
    case OP_TANH:
        for (long i = 0; i < t->n * size_of(l->node); i++)
            in->dx[i] = l->dx[i] * (1 - l->x[i] * l->x[i]);
        break;
    default:
        for (long i = 0; i < t->n * size_of(l->node); i++)
            in->dx[i] = l->node->op == OP_RELU && in->x[i] <= 0 ? 0 : l->dx[i];
    }
}

/* ------------------------------------------------------------------ a run */

static void read_images(struct layer *l, const struct field *f, const uint32_t *order, int n)
{
    const long P = (long)f->h * f->w;

    for (int i = 0; i < n; i++) {
        const uint8_t *row = (const uint8_t *)f->base + order[i] * f->stride;
        for (int c = 0; c < f->c; c++)
            for (long k = 0; k < P; k++)
                l->x[(i * (long)f->c + c) * P + k] =
                    (row[k * f->c + c] / 255.0 - (double)f->mean[c]) / (double)f->std[c];
    }
}

static double cross_entropy(struct layer *l, const struct field *f, const uint32_t *order, int n)
{
    const int c = l->node->c;
    double loss = 0;

    for (int i = 0; i < n; i++) {
        const double *z = l->x + (long)i * c;
        int label = *((const uint8_t *)f->base + order[i] * f->stride);
        double top = z[0], sum = 0;
        for (int k = 0; k < c; k++)
            top = fmax(top, z[k]);
        for (int k = 0; k < c; k++)
            sum += exp(z[k] - top);
        for (int k = 0; k < c; k++)
            l->dx[(long)i * c + k] = (exp(z[k] - top) / sum - (k == label)) / n;
        loss += (log(sum) + top - z[label]) / n;
    }
    return loss;
}

double twin_run(struct twin *t, const struct field *image, const struct field *label,
                const uint32_t *order, int n, bool train)
{
    t->n = n;
    for (int i = 0; i < t->graph->n; i++) {
        struct layer *l = &t->layer[i];
        memset(l->dx, 0, (size_t)(n * size_of(l->node)) * sizeof *l->dx);
        if (l->node->op == OP_INPUT)
            read_images(l, image, order, n);
        else
            layer_forward(t, l, train);
    }
    double loss = cross_entropy(&t->layer[t->graph->output], label, order, n);
    for (int i = t->graph->n - 1; train && i > 0; i--)
        if (t->layer[i].node->op != OP_INPUT)
            layer_backward(t, &t->layer[i]);
    return loss;
}

const double *twin_grad(const struct twin *t, const char *name)
{
    for (int i = 0; i < t->graph->n; i++)
        for (int k = 0; k < SLOTS; k++) {
            char own[PARAM_NAME];
            snprintf(own, sizeof own, "%s.%s", t->layer[i].node->name, suffix[k]);
            if (t->layer[i].g[k] && strcmp(own, name) == 0)
                return t->layer[i].g[k];
        }
    return NULL;
}

const double *twin_output(const struct twin *t, int i)
{
    const struct layer *l = &t->layer[t->graph->output];
    return l->x + (long)i * l->node->c;
}
