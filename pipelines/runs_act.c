/* pipelines/runs_act.c - leaves: begun, found again, stopped, waited with */
#include "pipelines/runs_act.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "pipelines/cache.h"
#include "pipelines/images.h"
#include "server/jobs.h"
#include "server/server.h"

enum { AGAIN_S = 1 };           /* after the server could not take a job (a full disk) */

static void job_name(const struct node *n, int attempt, char *out, size_t size)
{
    if (attempt > 0)
        snprintf(out, size, "%s-%d", n->id, attempt);
    else
        snprintf(out, size, "%s", n->id);
}

static bool wait_until(struct live *l, const struct node *n, double at, enum later_what what)
{
    if (l->n_later == l->later_cap) {
        int cap = l->later_cap ? 2 * l->later_cap : 8;
        struct later *more = realloc(l->later, (size_t)cap * sizeof *more);
        if (!more)
            return false;
        l->later = more;
        l->later_cap = cap;
    }
    l->later[l->n_later++] = (struct later){ n, n->attempt, what, at };
    return true;
}

/* ------------------------------------------------------------ ends without a job */

static void say_ended(struct runs *r, const struct live *l, const struct node *n, const char *phase,
                      const char *message, const json_t *outputs, json_t *more)
{
    double now = clock_wall();
    json_t *body = json_pack("{s:s, s:i, s:s, s:s*, s:O*, s:f, s:f}", "node", n->name, "attempt",
                             n->attempt, "phase", phase, "message", message, "outputs",
                             (json_t *)outputs, "started", now, "ended", now);

    json_object_update(body, more);
    json_decref(more);
    runs_pending(r, l, "node.ended", body, NULL, NULL);
}

static int any_config(void *arg, const char *map, const char *key, bool optional)
{
    (void)arg, (void)map, (void)key, (void)optional;
    return 1;
}

/* What the server does itself: a resource, an import, a suspended step, `kubectl delete`. */
static void begin_resource(struct runs *r, const struct live *l, const struct node *n,
                           const json_t *order)
{
    OWN_JSON json_t *outputs = NULL, *configs = NULL;
    struct err err = { 0 };

    store_point("runs.resource");
    if (resource_do(r->server, l, n, order, &outputs, &configs, &err) < 0)
        say_ended(r, l, n, "Failed", err.text, NULL, NULL);
    else
        say_ended(r, l, n, "Succeeded", NULL, outputs,
                  configs && run_graph_configs(l->flow, any_config, NULL)
                      ? json_pack("{s:O}", "configs", configs) : NULL);
}

static void begin_import(struct runs *r, const struct live *l, const struct node *n,
                         const json_t *order)
{
    const json_t *i = json_object_get(order, "importer");
    const json_t *named = json_array_get(json_object_get(json_object_get(order, "outputs"),
                                                         "artifacts"), 0);
    const char *name = json_string_value(json_object_get(named, "name"));
    OWN_JSON json_t *outputs = json_pack("{s:{}, s:{s:{s:O?, s:O*, s:O*, s:s}}}", "parameters",
                                         "artifacts", name ? name : "artifact", "uri",
                                         json_object_get(i, "uri"), "type",
                                         json_object_get(i, "type"), "metadata",
                                         json_object_get(i, "metadata"), "name",
                                         name ? name : "artifact");

    say_ended(r, l, n, "Succeeded", NULL, outputs, NULL);
}

/* ------------------------------------------------------------ the cache */

/* True: its outputs were found, and it has ended. Else *out is what the job's end is to say of the
 * cache: {"why", and "key", "project", "node" when it may be found again}. */
static bool find_cached(struct runs *r, const struct live *l, const struct node *n,
                        const json_t *order, const char *image, json_t **out)
{
    const json_t *cache = json_object_get(order, "cache");
    char key[SHA256_HEX], why[512] = "";
    OWN_JSON json_t *found = NULL;
    struct err err = { 0 };

    if (!json_is_true(json_object_get(cache, "enabled")))
        snprintf(why, sizeof why, "caching is off for this step");
    else if (json_is_true(json_object_get(l->doc, "no_cache")))
        snprintf(why, sizeof why, "caching is off for this run");
    if (*why || !step_cache_key(order, image, key, why, sizeof why)) {
        *out = json_pack("{s:s}", "why", why);
        return false;
    }
    const json_t *stale = json_object_get(cache, "staleness_s");
    if (stale && json_number_value(stale) <= 0)
        err_set(&err, ERR_MISSING, "its cache may be 0 s old");
    else
        step_cache_find(r->server, l->project, key, json_number_value(stale), &found, &err);
    if (!found || step_cache_take(r->server, l->project, json_object_get(found, "outputs"), l->id,
                                  n->id, &err) < 0) {
        *out = json_pack("{s:s, s:s, s:s, s:s}", "why", err.text, "key", key, "project",
                         l->project, "node", n->name);
        return false;
    }
    say_ended(r, l, n, "Succeeded", NULL, json_object_get(found, "outputs"),
              json_pack("{s:{s:O, s:O}, s:{s:s, s:s}}", "cached", "run",
                        json_object_get(found, "run"), "node", json_object_get(found, "node"),
                        "cache", "key", key, "why",
                        "a step with the same image, command and inputs has been run"));
    return true;
}

/* ------------------------------------------------------------ jobs */

static struct leaf *leaf_new(struct runs *r, struct live *l, const struct node *n)
{
    struct leaf *f = calloc(1, sizeof *f);

    if (!f)
        return NULL;
    pthread_mutex_lock(&r->lock);
    l->refs++;
    pthread_mutex_unlock(&r->lock);
    f->run_of = r;
    f->run = l;
    f->node = n;
    f->attempt = n->attempt;
    f->name = n->name;
    job_name(n, n->attempt, f->job, sizeof f->job);
    return f;
}

/* The job is there already: a server before this one submitted it, or somebody has its name. Takes
 * `f`, but not when it fails or is known. */
static int adopt(struct runs *r, struct leaf **f, struct err *err)
{
    OWN_JSON json_t *job = NULL, *events = NULL;
    struct leaf *mine = *f;
    const struct live *l = mine->run;
    size_t i;
    json_t *e;

    if (jobs_get(r->server, l->project, mine->job, &job, err) < 0 ||
        jobs_events(r->server, l->project, mine->job, 0, &events, err) < 0)
        return -(int)err->code;
    const char *run = json_string_value(json_object_get(json_object_get(job, "labels"), "run"));
    if (!run || strcmp(run, l->id))
        return err_set(err, ERR_CONFLICT, "there is a job \"%.150s\" that is not of this run (delete "
                       "it)", mine->job);
    mine->uid = json_integer_value(json_object_get(job, "uid"));
    if (runs_tracks(r, mine->uid))
        return 0;
    json_array_foreach(events, i, e)
        if (leaf_hear(mine, json_string_value(json_object_get(e, "type")),
                      json_number_value(json_object_get(e, "t")), e)) {
            leaf_ended(r, TAKE(*f));
            return 0;
        }
    if (!runs_track(r, mine))
        return err_set(err, ERR_NOMEM, "no memory for a step");
    *f = NULL;
    return 0;
}

static int submit(struct runs *r, struct live *l, const struct node *n, const json_t *spec,
                  json_t *cache, struct err *err)
{
    OWN(leaf) f = leaf_new(r, l, n);
    OWN_JSON json_t *job = NULL;

    if (!f) {
        json_decref(cache);
        return err_set(err, ERR_AGAIN, "no memory for a step");
    }
    f->cache = cache;
    int rc = jobs_submit(r->server, l->project, f->job, spec, &job, err);
    if (rc == -ERR_CONFLICT)
        return adopt(r, &f, err);
    if (rc < 0)
        return rc;
    f->uid = json_integer_value(json_object_get(job, "uid"));
    if (!runs_track(r, f))
        return err_set(err, ERR_AGAIN, "no memory for a step");
    f = NULL;
    return 0;
}

static int begin_step(struct runs *r, struct live *l, const struct node *n, json_t *order,
                      struct err *err)
{
    OWN_JSON json_t *spec = NULL, *image = NULL, *outputs = NULL, *cache = NULL;
    const char *name = json_string_value(json_object_get(json_object_get(order, "step"), "image"));
    struct err none = { 0 };
    int rc = 0;

    if (resource_command(r->server, l, order, &outputs, &rc, err)) {
        if (rc < 0)
            return rc;
        say_ended(r, l, n, "Succeeded", NULL, outputs, NULL);
        return 0;
    }
    if (name && images_find(r->server, l->project, name, &image, &none) < 0 &&
        none.code != ERR_MISSING)
        return err_set(err, none.code, "%s", none.text);
    const char *digest = json_string_value(json_object_get(image, "digest"));
    if (find_cached(r, l, n, order, digest ? digest : name ? name : "", &cache))
        return 0;
    if (step_fill(l, n, order, err) < 0 || step_job(r->server, l, n, order, &spec, err) < 0 ||
        (image && images_apply(image, spec, err) < 0))
        return -(int)err->code;
    if (json_array_size(json_object_get(spec, "command")) == 0)
        return err_set(err, ERR_INVALID, "the step has no command, and image \"%.100s\" names none "
                       "(add a command)", name ? name : "");
    return submit(r, l, n, spec, TAKE(cache), err);
}

/* A leaf that cannot be begun has ended; one that cannot be just now waits. */
static void begin(struct runs *r, struct live *l, const struct node *n, double now)
{
    OWN_JSON json_t *order = NULL, *spec = NULL;
    struct err err = { 0 };

    runs_hear(r);
    pthread_mutex_lock(&l->lock);
    int rc = run_graph_order(l->graph, n, &order, &err);
    if (rc == 0)
        json_object_set(order, "volumes", json_object_get(l->volumes, "volumes"));
    pthread_mutex_unlock(&l->lock);
    if (rc == 0 && n->kind == NODE_RESOURCE && resource_job(l, n, order, &spec, &rc, &err))
        rc = rc < 0 ? rc : submit(r, l, n, spec, NULL, &err);
    else if (rc == 0 && n->kind == NODE_RESOURCE)
        begin_resource(r, l, n, order);
    else if (rc == 0 && n->kind == NODE_IMPORTER)
        begin_import(r, l, n, order);
    else if (rc == 0)
        rc = begin_step(r, l, n, order, &err);
    if (rc == 0)
        return;
    if ((err.code == ERR_IO || err.code == ERR_AGAIN) && wait_until(l, n, now + AGAIN_S, LATER_BEGIN))
        return;
    say_ended(r, l, n, "Error", err.text, NULL, NULL);
}

/* Deadlines of dags that began. */
static void wait_for_deadlines(struct live *l, double now)
{
    const struct node *n;
    double at;

    pthread_mutex_lock(&l->lock);
    while ((n = run_graph_timed(l->graph, &at)))
        wait_until(l, n, fmin(at, now + run_graph_wait(n)), LATER_DEADLINE);
    pthread_mutex_unlock(&l->lock);
}

void runs_act_begin(struct runs *r, struct live *l, double now, int max, bool *out_more)
{
    wait_for_deadlines(l, now);
    for (int i = 0; i < max; i++) {
        double at = 0;
        pthread_mutex_lock(&l->lock);
        const struct node *n = run_graph_next(l->graph, &at);
        if (n && n->kind == NODE_SUSPEND)
            run_graph_running(l->graph, n, NULL, now);
        pthread_mutex_unlock(&l->lock);
        if (!n)
            return;
        at = fmin(at, now + run_graph_wait(n));
        if (n->kind != NODE_SUSPEND && at <= now)
            begin(r, l, n, now);
        else if (!wait_until(l, n, at, n->kind == NODE_SUSPEND ? LATER_RESUME : LATER_BEGIN))
            say_ended(r, l, n, "Error", "no memory to wait with it", NULL, NULL);
    }
    *out_more = true;
}

/* ------------------------------------------------------------ waiting, stopping */

static bool stop_waiting(struct live *l, const struct node *n)
{
    for (int i = 0; i < l->n_later; i++)
        if (l->later[i].node == n && l->later[i].what <= LATER_RESUME) {
            l->later[i] = l->later[--l->n_later];
            return true;
        }
    return false;
}

/* A job that was begun in an earlier life of the server is heard of from now on. */
static void find_again(struct runs *r, struct live *l, const struct node *n)
{
    OWN(leaf) f = leaf_new(r, l, n);
    struct err err = { 0 };

    runs_hear(r);
    if (f && adopt(r, &f, &err) < 0)
        say_ended(r, l, n, "Failed", "terminated", NULL, NULL);
}

static void stop_one(struct runs *r, struct live *l, const struct node *n)
{
    struct err err = { 0 };
    char job[160];

    job_name(n, n->attempt, job, sizeof job);
    if (stop_waiting(l, n)) {
        say_ended(r, l, n, "Failed", "terminated", NULL, NULL);
        return;
    }
    if (hands_leave(r->hands, n))
        return;
    store_point("runs.stop");
    int rc = jobs_cancel(r->server, l->project, job, "run", &err);
    if (rc == -ERR_MISSING)     /* it was never begun */
        say_ended(r, l, n, "Failed", "terminated", NULL, NULL);
    else if (rc == 0 || rc == -ERR_CONFLICT ||
             !wait_until(l, n, clock_wall() + AGAIN_S, LATER_STOP))
        find_again(r, l, n);
}

void runs_act_stop(struct runs *r, struct live *l)
{
    for (;;) {
        pthread_mutex_lock(&l->lock);
        const struct node *n = run_graph_unwanted(l->graph);
        pthread_mutex_unlock(&l->lock);
        if (!n)
            return;
        stop_one(r, l, n);
    }
}

void runs_act_later(struct runs *r, struct live *l, double now, double *next)
{
    for (int i = 0; i < l->n_later;) {
        struct later w = l->later[i];
        bool over = w.node->attempt != w.attempt || node_phase_ended(w.node->phase);
        if (!over && w.at > now) {
            if (isfinite(w.at) && (*next == 0 || w.at < *next))
                *next = w.at;
            i++;
            continue;
        }
        l->later[i] = l->later[--l->n_later];
        if (over)
            continue;
        if (w.what == LATER_BEGIN)
            begin(r, l, w.node, now);
        else if (w.what == LATER_STOP)
            stop_one(r, l, w.node);
        else
            runs_pending(r, l, w.what == LATER_RESUME ? "node.resumed" : "node.deadline",
                         json_pack("{s:s}", "node", w.node->name), NULL, NULL);
    }
}
