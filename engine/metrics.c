/* engine/metrics.c - how good a model's answers are */
#include "engine/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { LOSS, ACCURACY, TOP_K, PRECISION, RECALL, AUC, MAE, RMSE, R2 };

static const struct {
    const char *name;
    enum kind kind;
    int larger, classes;        /* larger is better; wants classes (0: wants numbers, -1: either) */
} kinds[] = {
    { "loss", LOSS, 0, -1 },          { "accuracy", ACCURACY, 1, 1 }, { "precision", PRECISION, 1, 1 },
    { "recall", RECALL, 1, 1 },       { "auc", AUC, 1, 1 },           { "mae", MAE, 0, 0 },
    { "rmse", RMSE, 0, 0 },           { "r2", R2, 1, 0 },
};

struct score {
    float score;
    int positive;
    double weight;
};

struct metrics {
    int n, classes, outputs;
    struct { char name[32]; enum kind kind; int k; } item[METRICS_MAX];
    /* sums over samples */
    double weight, loss, right, absolute, square, target, target_square;
    double hit[METRICS_MAX];            /* TOP_K, by item */
    double *true_positive, *predicted, *actual;         /* (classes) */
    struct score *score;                /* AUC alone */
    long n_scores, room;
    int wants_scores;
};

static int find_kind(const char *name, enum kind *out, int *out_k)
{
    char *end;

    for (int i = 0; i < (int)(sizeof kinds / sizeof kinds[0]); i++)
        if (strcmp(kinds[i].name, name) == 0) {
            *out = kinds[i].kind;
            return kinds[i].classes;
        }
    if (strncmp(name, "top_", 4) == 0) {
        long k = strtol(name + 4, &end, 10);
        if (k >= 1 && k < 10000 && !*end) {
            *out = TOP_K;
            *out_k = (int)k;
            return 1;
        }
    }
    return -2;
}

static int add_item(struct metrics *m, const char *name, struct err *err)
{
    enum kind kind = LOSS;
    int k = 0, classes = find_kind(name, &kind, &k);

    if (classes == -2)
        return err_set(err, ERR_INVALID, "metrics: \"%s\" is not known (loss accuracy top_5 "
                       "precision recall auc mae rmse r2)", name);
    if (classes == 1 && m->classes == 0)
        return err_set(err, ERR_INVALID, "metrics: \"%s\" is of classes, the target is a number "
                       "(use mae, rmse or r2)", name);
    if (classes == 0 && m->classes)
        return err_set(err, ERR_INVALID, "metrics: \"%s\" is of numbers, the target is a class "
                       "(use accuracy, auc, ...)", name);
    if (kind == AUC && m->classes != 2)
        return err_set(err, ERR_INVALID, "metrics: auc is of two classes, the target has %d",
                       m->classes);
    if (m->n == METRICS_MAX)
        return err_set(err, ERR_INVALID, "metrics: more than %d", METRICS_MAX);
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->item[i].name, name) == 0)
            return 0;
    snprintf(m->item[m->n].name, sizeof m->item[m->n].name, "%s", name);
    m->item[m->n].kind = kind;
    m->item[m->n].k = k;
    m->wants_scores |= kind == AUC;
    m->n++;
    return 0;
}

int metrics_new(const char *const *names, int n, int classes, int outputs, struct metrics **out,
                struct err *err)
{
    OWN(metrics) m = calloc(1, sizeof *m);

    if (!m)
        return err_set(err, ERR_NOMEM, "no memory for metrics");
    m->classes = classes;
    m->outputs = outputs;
    if (add_item(m, "loss", err) < 0)
        return -(int)err->code;
    for (int i = 0; i < n; i++)
        if (add_item(m, names[i], err) < 0)
            return -(int)err->code;
    m->true_positive = calloc((size_t)classes + 2, sizeof *m->true_positive);
    m->predicted = calloc((size_t)classes + 2, sizeof *m->predicted);
    m->actual = calloc((size_t)classes + 2, sizeof *m->actual);
    if (!m->true_positive || !m->predicted || !m->actual)
        return err_set(err, ERR_NOMEM, "no memory for metrics of %d classes", classes);
    *out = TAKE(m);
    return 0;
}

void metrics_free(struct metrics *m)
{
    if (!m)
        return;
    free(m->true_positive);
    free(m->predicted);
    free(m->actual);
    free(m->score);
    free(m);
}

void metrics_reset(struct metrics *m)
{
    size_t bytes = ((size_t)m->classes + 2) * sizeof *m->actual;

    m->weight = m->loss = m->right = m->absolute = m->square = m->target = m->target_square = 0;
    memset(m->hit, 0, sizeof m->hit);
    memset(m->true_positive, 0, bytes);
    memset(m->predicted, 0, bytes);
    memset(m->actual, 0, bytes);
    m->n_scores = 0;
}

/* ------------------------------------------------------------------ one sample */

/* A score that grows with the probability of class 1: the logit, or the difference of two. */
static void add_score(struct metrics *m, const float *output, int positive, double weight)
{
    if (m->n_scores == m->room) {
        m->room = m->room ? 2 * m->room : 1024;
        m->score = realloc(m->score, (size_t)m->room * sizeof *m->score);
        if (!m->score)
            abort();
    }
    m->score[m->n_scores++] = (struct score){
        m->outputs == 1 ? output[0] : output[1] - output[0], positive, weight };
}

static void add_class(struct metrics *m, const float *output, int class, double weight)
{
    int best = 0;

    if (m->outputs == 1) {
        best = output[0] > 0;
    } else {
        for (int i = 1; i < m->outputs; i++)
            if (output[i] > output[best])
                best = i;
    }
    m->right += best == class ? weight : 0;
    m->predicted[best] += weight;
    if (class < 0 || class >= m->classes)
        return;
    m->actual[class] += weight;
    if (best == class)
        m->true_positive[class] += weight;
    for (int i = 0; i < m->n; i++) {
        int above = 0;
        if (m->item[i].kind != TOP_K)
            continue;
        for (int j = 0; j < m->outputs; j++)
            above += output[j] > output[class] || (output[j] == output[class] && j < class);
        m->hit[i] += above < m->item[i].k ? weight : 0;
    }
    if (m->wants_scores)
        add_score(m, output, class == 1, weight);
}

void metrics_add(struct metrics *m, const float *output, double target, double loss, double weight)
{
    m->weight += weight;
    m->loss += weight * loss;
    if (m->classes) {
        add_class(m, output, (int)target, weight);
        return;
    }
    double d = output[0] - target;
    m->absolute += weight * fabs(d);
    m->square += weight * d * d;
    m->target += weight * target;
    m->target_square += weight * target * target;
}

/* ------------------------------------------------------------------ values */

static int by_score(const void *a, const void *b)
{
    float x = ((const struct score *)a)->score, y = ((const struct score *)b)->score;
    return (x > y) - (x < y);
}

/* The chance that a positive scores above a negative; a tie counts half. */
static double area_under_curve(struct metrics *m)
{
    double positives = 0, negatives = 0, area = 0;

    qsort(m->score, (size_t)m->n_scores, sizeof *m->score, by_score);
    for (long i = 0; i < m->n_scores;) {
        double p = 0, n = 0;
        long j = i;
        for (; j < m->n_scores && m->score[j].score == m->score[i].score; j++)
            *(m->score[j].positive ? &p : &n) += m->score[j].weight;
        if (j == i)
            return NAN;         /* a score that is not a number */
        area += p * (negatives + n / 2);
        positives += p;
        negatives += n;
        i = j;
    }
    return positives > 0 && negatives > 0 ? area / (positives * negatives) : NAN;
}

/* Of class 1 when there are two, else the mean over classes (0 where nothing was predicted). */
static double per_class(const struct metrics *m, const double *of)
{
    if (m->classes == 2)
        return of[1] > 0 ? m->true_positive[1] / of[1] : 0;
    double sum = 0;
    for (int i = 0; i < m->classes; i++)
        sum += of[i] > 0 ? m->true_positive[i] / of[i] : 0;
    return sum / m->classes;
}

int metrics_count(const struct metrics *m)
{
    return m->n;
}

const char *metrics_name(const struct metrics *m, int i)
{
    return m->item[i].name;
}

double metrics_value(struct metrics *m, int i)
{
    double w = m->weight;

    if (w <= 0)
        return NAN;
    switch (m->item[i].kind) {
    case LOSS:
        return m->loss / w;
    case ACCURACY:
        return m->right / w;
    case TOP_K:
        return m->hit[i] / w;
    case PRECISION:
        return per_class(m, m->predicted);
    case RECALL:
        return per_class(m, m->actual);
    case AUC:
        return area_under_curve(m);
    case MAE:
        return m->absolute / w;
    case RMSE:
        return sqrt(m->square / w);
    case R2:
        return 1 - m->square / (m->target_square - m->target * m->target / w);
    }
    return NAN;
}

int metrics_larger_is_better(const char *name)
{
    for (int i = 0; i < (int)(sizeof kinds / sizeof kinds[0]); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].larger;
    return strncmp(name, "top_", 4) == 0;
}
