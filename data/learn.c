/* data/learn.c - statistics and vocabularies of the training rows
 *
 * Mean and variance by Welford's recurrence in row order: one pass, no cancellation, and the same
 * bits whether the rows were read at once or as a stream. The variance is that of the population.
 */
#include "data/features.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct moments {
    long n;
    double mean, m2, min, max;
};

struct counts {
    long *n;            /* of each id of a vocabulary */
    int size;
};

struct learnt {
    struct moments *moments;    /* one a feature, used by the numeric ones */
    struct counts *counts;      /* one a feature and one for the labels */
    int n_features;
};

struct learnt *features_learn_new(const struct schema *s)
{
    OWN(learnt) l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->n_features = s->n_features;
    l->moments = calloc((size_t)s->n_features + 1, sizeof *l->moments);
    l->counts = calloc((size_t)s->n_features + 1, sizeof *l->counts);
    return l->moments && l->counts ? TAKE(l) : NULL;
}

void learnt_free(struct learnt *l)
{
    if (!l)
        return;
    for (int i = 0; l->counts && i <= l->n_features; i++)
        free(l->counts[i].n);
    free(l->counts);
    free(l->moments);
    free(l);
}

static void add_number(struct moments *m, double x)
{
    if (isnan(x))
        return;
    double d = x - m->mean;
    m->min = m->n == 0 || x < m->min ? x : m->min;
    m->max = m->n == 0 || x > m->max ? x : m->max;
    m->mean += d / (double)++m->n;
    m->m2 += d * (x - m->mean);
}

static int add_id(struct counts *c, double raw, struct err *err)
{
    if (raw < 0)
        return 0;
    int id = (int)raw;
    if (id >= c->size) {
        int size = 2 * id + 64;
        long *n = realloc(c->n, (size_t)size * sizeof *n);
        if (!n)
            return err_set(err, ERR_NOMEM, "no memory to count the values of a column");
        memset(n + c->size, 0, (size_t)(size - c->size) * sizeof *n);
        c->n = n;
        c->size = size;
    }
    c->n[id]++;
    return 0;
}

int features_learn(struct learnt *l, const struct schema *s, const double *raw, struct err *err)
{
    for (int i = 0; i < s->n_features; i++) {
        const struct feature *f = &s->feature[i];
        if (f->known)
            continue;
        if (f->kind == FEATURE_NUMERIC)
            add_number(&l->moments[i], raw[i]);
        else if (add_id(&l->counts[i], raw[i], err) < 0)
            return -(int)err->code;
    }
    return s->learn_labels ? add_id(&l->counts[s->n_features], raw[s->n_features], err) : 0;
}

struct entry {
    const char *text;
    long count;
    int id;
};

/* Texts that differ only after a NUL keep the order they came in. */
static int by_text(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : x->id - y->id;
}

static int by_count(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return by_text(a, b);
}

/* Numbers the texts that occurred by `order`; the others get -1 in *out_remap. Returns how many. */
static int rank(const struct vocab *v, const struct counts *c,
                int (*order)(const void *, const void *), int **out_remap, struct err *err)
{
    int n = vocab_size(v), kept = 0;
    OWN_MEM int *remap = malloc(((size_t)n + 1) * sizeof *remap);
    OWN_MEM struct entry *entry = malloc(((size_t)n + 1) * sizeof *entry);
    if (!remap || !entry)
        return err_set(err, ERR_NOMEM, "no memory for a vocabulary of %d values", n);
    for (int i = 0; i < n; i++) {
        remap[i] = -1;
        if (i < c->size && c->n[i])
            entry[kept++] = (struct entry){ vocab_text(v, i, NULL), c->n[i], i };
    }
    qsort(entry, (size_t)kept, sizeof *entry, order);
    for (int i = 0; i < kept; i++)
        remap[entry[i].id] = i;
    *out_remap = TAKE(remap);
    return kept;
}

/* All labels whole numbers from 0: they are the classes, and the largest says how many. */
static int number_labels(struct schema *s, const struct counts *c)
{
    int classes = 0;
    for (int i = 0; i < vocab_size(s->labels); i++) {
        size_t n;
        const char *text = vocab_text(s->labels, i, &n);
        double x;
        if (rows_number(text, n, &x) < 0 || !(x >= 0 && x < 1e6) || x != floor(x))
            return 0;
        s->label_remap[i] = (int)x;
        if (i < c->size && c->n[i] && x >= classes)
            classes = (int)x + 1;
    }
    for (int i = 0; i < vocab_size(s->labels); i++)
        if (s->label_remap[i] >= classes)
            s->label_remap[i] = -1;
    return classes;
}

static int settle_labels(struct schema *s, const struct counts *c, struct err *err)
{
    int classes = rank(s->labels, c, by_text, &s->label_remap, err);
    if (classes < 0)
        return classes;
    OWN_MEM int *by_name = malloc(((size_t)vocab_size(s->labels) + 1) * sizeof *by_name);
    if (!by_name)
        return err_set(err, ERR_NOMEM, "no memory for the labels");
    memcpy(by_name, s->label_remap, (size_t)vocab_size(s->labels) * sizeof *by_name);
    int numbers = number_labels(s, c);
    if (numbers)
        s->labels_are_numbers = 1;
    else
        memcpy(s->label_remap, by_name, (size_t)vocab_size(s->labels) * sizeof *by_name);
    s->classes = numbers ? numbers : classes;
    if (s->classes < 2)
        return err_set(err, ERR_INVALID,
                       "data.target: \"%s\" has one value in the training rows; there is nothing "
                       "to tell apart",
                       s->target_name);
    return 0;
}

int features_settle(struct schema *s, const struct learnt *l, struct err *err)
{
    for (int i = 0; i < s->n_features; i++) {
        struct feature *f = &s->feature[i];
        const struct moments *m = &l->moments[i];
        if (f->known)
            continue;
        if (f->kind == FEATURE_NUMERIC) {
            if (!m->n)
                return err_set(err, ERR_INVALID, "data.features.%s: no training row has a value",
                               f->name);
            f->mean = m->mean;
            f->variance = m->m2 / (double)m->n;
            f->min = m->min;
            f->max = m->max;
        } else {
            int kept = rank(f->vocab, &l->counts[i], by_count, &f->remap, err);
            if (kept <= 0)
                return kept < 0 ? kept
                                : err_set(err, ERR_INVALID,
                                          "data.features.%s: no training row has a value", f->name);
            for (int k = 0; k < vocab_size(f->vocab); k++)
                f->remap[k] = f->remap[k] < 0 ? kept : f->remap[k];
            f->ids = kept + 1;
        }
        f->known = 1;
    }
    return s->learn_labels ? settle_labels(s, &l->counts[s->n_features], err) : 0;
}
