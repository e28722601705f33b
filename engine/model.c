/* engine/model.c - a plan's parameters in files, and their digest */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

enum { BEST = -1 };            /* in place of the number of an optimizer's array */

/* One array of one parameter, as tensor_source.fill gets it. */
struct part {
    const struct plan *plan;
    const struct param *param;
    int which;
    const float *copy;          /* a plan_copy to take it from; NULL: the plan as it is */
};

static void fill_part(const void *of, float *out)
{
    const struct part *p = of;

    if (p->copy)
        plan_copied(p->plan, p->param, p->copy, out);
    else
        plan_get(p->plan, p->param, p->which, out);
}

static void describe(const struct param *q, int which, struct tensor_source *src)
{
    if (which == BEST)
        snprintf(src->name, sizeof src->name, "%s@best", q->name);
    else if (which)
        snprintf(src->name, sizeof src->name, "%s@%d", q->name, which);
    else
        snprintf(src->name, sizeof src->name, "%s", q->name);
    src->nd = q->nd;
    src->count = q->count;
    for (int i = 0; i < q->nd; i++)
        src->dim[i] = q->dim[i];
}

static int states_of(const struct plan *p, const struct param *q)
{
    return q->trained ? p->optim[q->group].states : 0;
}

/* What a file is made of: `copy` in place of the plan's own parameters, the optimizer's arrays,
 * the best parameters. */
struct content {
    const float *copy, *best;
    bool with_state;
};

static int put(const struct plan *p, struct file_writer *to, const struct content *c,
               const json_t *notes, struct err *err)
{
    size_t most = (size_t)p->n_params * (OPTIM_STATES + 2);
    OWN_MEM struct tensor_source *src = calloc(most + 1, sizeof *src);
    OWN_MEM struct part *part = calloc(most + 1, sizeof *part);
    int n = 0;

    if (!src || !part)
        return err_set(err, ERR_NOMEM, "no memory to save a model");
    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        int states = c->with_state ? states_of(p, q) : 0;
        for (int which = c->best ? BEST : 0; which <= states; which++, n++) {
            const float *copy = which == BEST ? c->best : which == 0 ? c->copy : NULL;
            part[n] = (struct part){ p, q, which, copy };
            describe(q, which, &src[n]);
            src[n].fill = fill_part;
            src[n].of = &part[n];
        }
    }
    return safetensors_put(to, src, n, notes, err);
}

int model_put(const struct plan *p, struct file_writer *to, bool with_state, const json_t *notes,
              struct err *err)
{
    return put(p, to, &(struct content){ .with_state = with_state }, notes, err);
}

static int save(const struct plan *p, const char *path, const struct content *c,
                const json_t *notes, struct err *err)
{
    OWN(file_writer) w = NULL;

    if (file_writer_open(path, &w, err) < 0)
        return -(int)err->code;
    if (put(p, w, c, notes, err) < 0)
        return err->code == ERR_NOMEM ? err_add(err, "%s", path) : -(int)err->code;
    return file_writer_commit(w, err);
}

int model_save(const struct plan *p, const char *path, bool with_state, const json_t *notes,
               struct err *err)
{
    return save(p, path, &(struct content){ .with_state = with_state }, notes, err);
}

int model_save_state(const struct plan *p, const char *path, const float *best,
                     const json_t *notes, struct err *err)
{
    return save(p, path, &(struct content){ .best = best, .with_state = true }, notes, err);
}

int model_save_copy(const struct plan *p, const float *copy, const char *path, const json_t *notes,
                    struct err *err)
{
    return save(p, path, &(struct content){ .copy = copy }, notes, err);
}

int64_t model_bytes(const struct plan *p, bool with_state)
{
    int64_t floats = 0;

    for (int i = 0; i < p->n_params; i++)
        floats += p->param[i]->count * (1 + (with_state ? 1 + states_of(p, p->param[i]) : 0));
    return floats * (int64_t)sizeof(float);
}

/* ------------------------------------------------------------------ loading */

static void shape_text(int nd, const long *dim, char *out, size_t size)
{
    size_t at = 0;

    out[0] = 0;
    for (int i = 0; i < nd && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%ld", i ? "x" : "", dim[i]);
}

/* NULL: it is not there, or of another shape. */
static const struct saved_tensor *find_one(const struct param *q, int which,
                                           const struct safetensors *s, const char *what,
                                           struct err *err)
{
    struct tensor_source want;
    char ours[64], theirs[64];

    describe(q, which, &want);
    const struct saved_tensor *t = safetensors_find(s, want.name);
    if (!t) {
        err_set(err, ERR_INVALID, "%s: has no tensor \"%s\"; it is of another model (%s has "
                "%ld values there)", what, want.name, q->name, q->count);
        return NULL;
    }
    bool same = t->nd == want.nd;
    for (int i = 0; same && i < t->nd; i++)
        same = t->dim[i] == want.dim[i];
    if (!same) {
        shape_text(want.nd, want.dim, ours, sizeof ours);
        shape_text(t->nd, t->dim, theirs, sizeof theirs);
        err_set(err, ERR_INVALID, "%s: tensor \"%s\" is %s, the model's is %s; it is of another "
                "model", what, want.name, theirs, ours);
        return NULL;
    }
    return t;
}

static int load_one(struct plan *p, struct param *q, int which, const struct safetensors *s,
                    const char *what, struct err *err)
{
    const struct saved_tensor *t = find_one(q, which, s, what, err);

    if (!t)
        return -(int)err->code;
    plan_set(p, q, which, t->data);
    return 0;
}

/* Nothing is set before everything is known to fit. */
static int check_names(const struct plan *p, const struct safetensors *s, const char *what,
                       struct err *err)
{
    for (int i = 0; i < safetensors_count(s); i++) {
        const char *name = safetensors_at(s, i)->name;
        size_t stem = strcspn(name, "@");
        bool known = false;
        for (int k = 0; k < p->n_params && !known; k++)
            known = strlen(p->param[k]->name) == stem &&
                    strncmp(p->param[k]->name, name, stem) == 0;
        if (!known)
            return err_set(err, ERR_INVALID, "%s: tensor \"%.60s\" is not in the model; it is of "
                           "another model", what, name);
    }
    return 0;
}

int model_load(struct plan *p, const struct safetensors *s, const char *what, bool with_state,
               struct err *err)
{
    if (check_names(p, s, what, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        int states = with_state ? states_of(p, q) : 0;
        for (int which = 0; which <= states; which++)
            if (load_one(p, q, which, s, what, err) < 0)
                return -(int)err->code;
    }
    plan_derive(p);
    return 0;
}

int model_load_best(const struct plan *p, const struct safetensors *s, const char *what,
                    float *copy, struct err *err)
{
    for (int i = 0; i < p->n_params; i++) {
        const struct saved_tensor *t = find_one(p->param[i], BEST, s, what, err);
        if (!t)
            return -(int)err->code;
        plan_copy_set(p, p->param[i], copy, t->data);
    }
    return 0;
}

/* ------------------------------------------------------------------ digests */

void model_digest(const struct plan *p, char out_hex[65]) { model_digest_copy(p, NULL, out_hex); }

void model_digest_copy(const struct plan *p, const float *copy, char out_hex[65])
{
    struct sha256 sha;

    sha256_start(&sha);
    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        OWN_MEM float *values = malloc((size_t)q->count * sizeof *values + 1);
        if (!values)
            abort();
        fill_part(&(struct part){ p, q, 0, copy }, values);
        sha256_add(&sha, q->name, strlen(q->name) + 1);
        for (int d = 0; d < q->nd; d++) {
            uint64_t dim = (uint64_t)q->dim[d];
            sha256_add(&sha, &dim, sizeof dim);
        }
        sha256_add(&sha, values, (size_t)q->count * sizeof *values);
    }
    sha256_finish_hex(&sha, out_hex);
}

uint64_t model_fingerprint(const struct plan *p, const struct param *q)
{
    uint64_t h = 0xcbf29ce484222325u;

    (void)p;
    for (long i = 0; i < q->size; i++) {
        uint32_t bits;
        memcpy(&bits, q->w + i, sizeof bits);
        h = (h ^ bits) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* ------------------------------------------------------------------ copies in memory */

struct snapshot {
    int n;
    struct tensor_source *src;
    float **values;
};

static void fill_copy(const void *of, float *out)
{
    const struct tensor_source *src = of;
    memcpy(out, *(float *const *)src->of, (size_t)src->count * sizeof *out);
}

/* src[i].of is the copy itself while fill gets the source: one level for fill_copy to unwrap. */
struct snapshot *snapshot_new(const struct plan *p)
{
    struct snapshot *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->n = p->n_params;
    s->src = calloc((size_t)s->n + 1, sizeof *s->src);
    s->values = calloc((size_t)s->n + 1, sizeof *s->values);
    for (int i = 0; s->src && s->values && i < s->n; i++) {
        describe(p->param[i], 0, &s->src[i]);
        s->values[i] = malloc((size_t)s->src[i].count * sizeof(float) + 1);
        if (!s->values[i])
            break;
        s->src[i].of = &s->values[i];
    }
    if (!s->src || !s->values || (s->n && !s->values[s->n - 1])) {
        snapshot_free(s);
        return NULL;
    }
    return s;
}

void snapshot_free(struct snapshot *s)
{
    if (!s)
        return;
    for (int i = 0; s->values && i < s->n; i++)
        free(s->values[i]);
    free(s->values);
    free(s->src);
    free(s);
}

void snapshot_take(struct snapshot *s, const struct plan *p)
{
    for (int i = 0; i < s->n; i++)
        plan_get(p, p->param[i], 0, s->values[i]);
}

int snapshot_save(const struct snapshot *s, const char *path, const json_t *notes, struct err *err)
{
    OWN_MEM struct tensor_source *src = calloc((size_t)s->n + 1, sizeof *src);

    if (!src)
        return err_set(err, ERR_NOMEM, "no memory to save %s", path);
    for (int i = 0; i < s->n; i++) {
        src[i] = s->src[i];
        src[i].fill = fill_copy;
        src[i].of = &s->src[i];
    }
    return safetensors_write(path, src, s->n, notes, err);
}
