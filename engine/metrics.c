/* engine/metrics.c - how good a model's answers are */
#include "engine/metrics.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/elementary.h"

/* One answer for auc: of the class it is about, and whether the sample is of that class. */
struct score {
    double value, weight;
    bool positive;
};

struct metrics {
    char name[METRICS_MAX][32];
    double (*value[METRICS_MAX])(struct metrics *m, int i);
    int k[METRICS_MAX];         /* top_k */
    double top[METRICS_MAX];    /* weight of the samples whose class is among the first k */
    int n;
    int classes, outputs;
    bool ranked;                /* auc is wanted: scores are kept */
    /* sums over the samples, each times its weight */
    double weight, loss, hits, absolute, square;
    double first, target, target_square;        /* of target - first, for the variance */
    long samples;
    double *predicted, *actual, *both;          /* (classes) weight said, there, said and there */
    double *share;                              /* (classes) scratch */
    struct score *score;                        /* (samples, lists) */
    long n_scores, room;
    bool lost;                                  /* no memory for scores: auc is not known */
};

static int lists(const struct metrics *m)
{
    return m->classes > 2 ? m->classes : 1;
}

/* ------------------------------------------------------------------ values */

static double value_loss(struct metrics *m, int i)
{
    (void)i;
    return m->loss / m->weight;
}

static double value_accuracy(struct metrics *m, int i)
{
    (void)i;
    return m->hits / m->weight;
}

static double value_top(struct metrics *m, int i)
{
    return m->top[i] / m->weight;
}

/* Of class 1 where there are two; else the plain mean over the classes that occur, as an answer
 * or in truth. A class that is never said has precision 0, one never there recall 0. */
static double mean_over_classes(const struct metrics *m, const double *of)
{
    double sum = 0;
    int n = 0;

    for (int c = m->classes == 2; c < m->classes; c++) {
        if (m->classes > 2 && m->predicted[c] == 0 && m->actual[c] == 0)
            continue;
        sum += of[c] > 0 ? m->both[c] / of[c] : 0;
        n++;
    }
    return n ? sum / n : NAN;
}

static double value_precision(struct metrics *m, int i)
{
    (void)i;
    return mean_over_classes(m, m->predicted);
}

static double value_recall(struct metrics *m, int i)
{
    (void)i;
    return mean_over_classes(m, m->actual);
}

static double value_mae(struct metrics *m, int i)
{
    (void)i;
    return m->absolute / m->weight;
}

static double value_rmse(struct metrics *m, int i)
{
    (void)i;
    return sqrt(m->square / m->weight);
}

static double value_r2(struct metrics *m, int i)
{
    (void)i;
    double spread = m->target_square - m->target * m->target / m->weight;
    return spread > 0 ? 1 - m->square / spread : NAN;
}

/* Ascending; equal scores by weight, so that their weights are added in one order whatever the
 * library's way of sorting. */
static int by_value(const void *a, const void *b)
{
    const struct score *x = a, *y = b;

    if (x->value != y->value)
        return x->value > y->value ? 1 : -1;
    return (x->weight > y->weight) - (x->weight < y->weight);
}

/* The share of pairs (one of the class, one not) that are in the right order; ties count half. */
static double auc_of(struct score *s, long n)
{
    double below = 0, right = 0, positives = 0;

    for (long i = 0; i < n; i++)
        if (isnan(s[i].value))
            return NAN;
    qsort(s, (size_t)n, sizeof *s, by_value);
    for (long i = 0; i < n;) {
        double yes = 0, no = 0, value = s[i].value;
        for (; i < n && s[i].value == value; i++)
            *(s[i].positive ? &yes : &no) += s[i].weight;
        right += yes * (below + no / 2);
        below += no;
        positives += yes;
    }
    return positives > 0 && below > 0 ? right / (positives * below) : NAN;
}

/* With more than two classes each against the rest, plain mean. */
static double value_auc(struct metrics *m, int i)
{
    int n_lists = lists(m);
    long n = m->n_scores / n_lists;
    double sum = 0;
    OWN_MEM struct score *list = malloc((size_t)(n + 1) * sizeof *list);

    (void)i;
    if (m->lost || !list)
        return NAN;
    for (int c = 0; c < n_lists; c++) {
        for (long k = 0; k < n; k++)
            list[k] = m->score[k * n_lists + c];
        sum += auc_of(list, n);
    }
    return sum / n_lists;
}

/* ------------------------------------------------------------------ the table */

enum needs { NEEDS_NOTHING, NEEDS_CLASSES, NEEDS_NUMBERS };

static const struct kind {
    const char *name;
    double (*value)(struct metrics *m, int i);
    enum needs needs;
    bool larger;                /* is better */
} kinds[] = {
    { "loss", value_loss, NEEDS_NOTHING, false },
    { "accuracy", value_accuracy, NEEDS_CLASSES, true },
    { "precision", value_precision, NEEDS_CLASSES, true },
    { "recall", value_recall, NEEDS_CLASSES, true },
    { "auc", value_auc, NEEDS_CLASSES, true },
    { "top_", value_top, NEEDS_CLASSES, true },         /* top_1, top_5, ... */
    { "mae", value_mae, NEEDS_NUMBERS, false },
    { "rmse", value_rmse, NEEDS_NUMBERS, false },
    { "r2", value_r2, NEEDS_NUMBERS, true },
};

static const struct kind *kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0 ||
            (kinds[i].value == value_top && strncmp(name, "top_", 4) == 0))
            return &kinds[i];
    return NULL;
}

int metrics_larger_is_better(const char *name)
{
    const struct kind *k = kind_of(name);
    return k && k->larger;
}

/* ------------------------------------------------------------------ life */

static int add_metric(struct metrics *m, const char *name, struct err *err)
{
    const struct kind *k = kind_of(name);

    for (int i = 0; i < m->n; i++)
        if (strcmp(m->name[i], name) == 0)
            return 0;
    if (!k)
        return err_set(err, ERR_INVALID, "metrics: there is no metric \"%s\" (loss, accuracy, "
                       "top_5, precision, recall, auc, mae, rmse, r2)", name);
    if (k->needs == NEEDS_CLASSES && m->classes < 2)
        return err_set(err, ERR_INVALID, "metrics: \"%s\" is for classes, but the target is a "
                       "number", name);
    if (k->needs == NEEDS_NUMBERS && (m->classes > 0 || m->outputs > 1))
        return err_set(err, ERR_INVALID, "metrics: \"%s\" is for a target that is one number", name);
    if (m->n == METRICS_MAX)
        return err_set(err, ERR_INVALID, "metrics: more than %d", METRICS_MAX);
    if (k->value == value_top) {
        m->k[m->n] = (int)strtol(name + 4, NULL, 10);
        if (m->k[m->n] < 1)
            return err_set(err, ERR_INVALID, "metrics: \"%s\" needs a number, as in top_5", name);
    }
    m->ranked |= k->value == value_auc;
    snprintf(m->name[m->n], sizeof m->name[0], "%s", name);
    m->value[m->n++] = k->value;
    return 0;
}

int metrics_new(const char *const *names, int n, int classes, int outputs, struct metrics **out,
                struct err *err)
{
    OWN(metrics) m = calloc(1, sizeof *m);
    size_t of_classes = (size_t)(classes > 0 ? classes : 1);

    if (!m)
        return err_set(err, ERR_NOMEM, "no memory for metrics");
    m->classes = classes;
    m->outputs = outputs;
    m->predicted = calloc(4 * of_classes, sizeof *m->predicted);
    if (!m->predicted)
        return err_set(err, ERR_NOMEM, "no memory for metrics of %d classes", classes);
    m->actual = m->predicted + of_classes;
    m->both = m->actual + of_classes;
    m->share = m->both + of_classes;
    if (add_metric(m, "loss", err) < 0)
        return -(int)err->code;
    for (int i = 0; i < n; i++)
        if (add_metric(m, names[i], err) < 0)
            return -(int)err->code;
    *out = TAKE(m);
    return 0;
}

void metrics_free(struct metrics *m)
{
    if (!m)
        return;
    free(m->predicted);
    free(m->score);
    free(m);
}

void metrics_reset(struct metrics *m)
{
    m->weight = m->loss = m->hits = m->absolute = m->square = 0;
    m->first = m->target = m->target_square = 0;
    m->samples = m->n_scores = 0;
    m->lost = false;
    for (int i = 0; i < 3 * m->classes; i++)
        m->predicted[i] = 0;
    for (int i = 0; i < m->n; i++)
        m->top[i] = 0;
}

/* ------------------------------------------------------------------ one sample */

static void keep_score(struct metrics *m, double value, bool positive, double weight)
{
    if (m->n_scores == m->room) {
        long room = m->room ? 2 * m->room : 1024;
        struct score *grown = realloc(m->score, (size_t)room * sizeof *grown);
        m->lost |= !grown;
        if (!grown)
            return;
        m->score = grown;
        m->room = room;
    }
    m->score[m->n_scores++] = (struct score){ value, weight, positive };
}

static void keep_scores(struct metrics *m, const float *x, int class, double weight)
{
    if (m->outputs == 1) {
        keep_score(m, x[0], class == 1, weight);
        return;
    }
    if (m->classes == 2) {
        keep_score(m, (double)x[1] - x[0], class == 1, weight);
        return;
    }
    double most = x[0], sum = 0;
    for (int c = 1; c < m->classes; c++)
        most = x[c] > most ? x[c] : most;
    for (int c = 0; c < m->classes; c++)
        sum += m->share[c] = elementary_exp(x[c] - most);
    for (int c = 0; c < m->classes; c++)
        keep_score(m, m->share[c] / sum, c == class, weight);
}

static void add_class(struct metrics *m, const float *x, int class, double weight)
{
    int said = 0, before = 0;

    if (class < 0 || class >= m->classes)
        return;
    if (m->outputs == 1)
        said = x[0] > 0;
    for (int c = 1; c < m->outputs; c++)
        said = x[c] > x[said] ? c : said;       /* a tie goes to the lower class */
    for (int c = 0; c < m->outputs && m->outputs > 1; c++)
        before += x[c] > x[class] || (x[c] == x[class] && c < class);
    if (m->outputs == 1)
        before = said != class;
    if (isnan(x[class < m->outputs ? class : 0])) {     /* not a number is no answer */
        said = -1;
        before = m->classes;
    }
    m->hits += said == class ? weight : 0;
    for (int i = 0; i < m->n; i++)
        m->top[i] += m->value[i] == value_top && before < m->k[i] ? weight : 0;
    if (said >= 0)
        m->predicted[said] += weight;
    m->actual[class] += weight;
    m->both[class] += said == class ? weight : 0;
    if (m->ranked)
        keep_scores(m, x, class, weight);
}

static void add_number(struct metrics *m, double x, double target, double weight)
{
    double d = x - target;

    if (m->samples == 0)
        m->first = target;
    m->absolute += weight * fabs(d);
    m->square += weight * d * d;
    m->target += weight * (target - m->first);
    m->target_square += weight * (target - m->first) * (target - m->first);
}

void metrics_add(struct metrics *m, const float *output, double target, double loss, double weight)
{
    if (m->classes > 0)
        add_class(m, output, (int)target, weight);
    else
        add_number(m, output[0], target, weight);
    m->loss += weight * loss;
    m->weight += weight;
    m->samples++;
}

int metrics_count(const struct metrics *m)
{
    return m->n;
}

const char *metrics_name(const struct metrics *m, int i)
{
    return m->name[i];
}

double metrics_value(struct metrics *m, int i)
{
    return m->weight > 0 ? m->value[i](m, i) : NAN;
}
