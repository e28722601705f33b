/* server/queue_start.c - an attempt is started: its environment, its packages, the driver
 *
 * DESIGN: most starts take a millisecond and are made by the scheduler itself. One that has packages to
 * copy out of a bucket may take long, and is made by a thread of its own, one after the other: the
 * scheduler hands it over, leaves the attempt alone and is woken when it is done.
 */
#include <signal.h>
#include <string.h>

#include "base/files.h"
#include "drivers/runtimes.h"
#include "server/auth.h"
#include "server/packages.h"
#include "server/queue_int.h"
#include "server/quota.h"
#include "server/retention.h"
#include "server/server.h"

static int add_secrets(struct queue *q, const char *project, const json_t *spec, json_t *env,
                       struct err *err)
{
    const char *name;
    json_t *secret, *names = json_array();

    json_object_set_new(env, " secrets", names);        /* what the keeper masks in the log */
    json_object_foreach(json_object_get(spec, "secrets"), name, secret) {
        OWN_MEM char *value = NULL;
        if (auth_value_get(q->server->auth, AUTH_SECRET, project, json_string_value(secret), &value,
                           err) < 0)
            return err_add(err, "secrets.%.64s", name);
        json_object_set_new(env, name, json_string(value));
        json_array_append_new(names, json_string(name));
    }
    return 0;
}

/* Files of a step that hold a secret, beside the environment: the keeper has them from memory. */
static int add_secret_files(struct queue *q, const char *project, const json_t *spec, json_t *env,
                            struct err *err)
{
    json_t *file, *texts = NULL;
    size_t i;

    json_array_foreach(json_object_get(json_object_get(spec, "step"), "files"), i, file) {
        const char *name = json_string_value(json_object_get(file, "secret"));
        OWN_MEM char *value = NULL;
        if (!name)
            continue;
        if (auth_value_get(q->server->auth, AUTH_SECRET, project, name, &value, err) < 0)
            return err_add(err, "step.files[%zu]", i);
        if (!texts)
            json_object_set_new(env, " files", texts = json_object());
        json_object_set_new(texts, json_string_value(json_object_get(file, "path")),
                            json_string(value));
    }
    return 0;
}

/* Config values of the project, by their names; what the spec says itself goes before them. */
static int add_config(struct queue *q, const char *project, const json_t *spec, json_t *env,
                      struct err *err)
{
    OWN_JSON json_t *rows = NULL;
    json_t *row;
    size_t i;

    if (auth_value_list(q->server->auth, AUTH_CONFIG, project, &rows, err) < 0)
        return -(int)err->code;
    json_array_foreach(rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (!strpbrk(name, "-.") && !strchr("0123456789", name[0])
            && !json_object_get(json_object_get(spec, "env"), name))
            json_object_set(env, name, json_object_get(row, "value"));
    }
    return 0;
}

/* What else clients need to be told to look here and nowhere else. */
static const char *const client_env[][2] = {
    { "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false" },   /* or it warns at each access */
    { "NO_GCE_CHECK", "true" },                         /* no probes of a metadata server */
};

/* What points the job's clients here; nothing of it is the server's own. */
static int make_env(struct queue *q, const struct job_row *r, const json_t *spec, json_t **out,
                    struct err *err)
{
    const char *address = q->server->address;
    char attempt[16], bucket[256], token[AUTH_TOKEN] = "";

    snprintf(attempt, sizeof attempt, "%d", r->attempt);
    OWN_JSON json_t *env = json_object();
    if (!env)
        return err_set(err, ERR_NOMEM, "no memory for an environment");
    if (q->server->auth && add_config(q, r->project, spec, env, err) < 0)
        return -(int)err->code;
    json_object_set_new(env, "MUSTER_JOB", json_string(r->name));
    json_object_set_new(env, "MUSTER_PROJECT", json_string(r->project));
    json_object_set_new(env, "MUSTER_ATTEMPT", json_string(attempt));
    json_object_set_new(env, "GOOGLE_CLOUD_PROJECT", json_string(r->project));
    if (q->server->auth) {
        for (size_t i = 0; i < sizeof client_env / sizeof client_env[0]; i++)
            json_object_set_new(env, client_env[i][0], json_string(client_env[i][1]));
        auth_job_token(q->server->auth, r->id, token);
        if (add_secrets(q, r->project, spec, env, err) < 0 ||
            add_secret_files(q, r->project, spec, env, err) < 0)
            return -(int)err->code;
        snprintf(bucket, sizeof bucket, "%s/k/%s", address, token);
        json_object_set_new(env, "MUSTER_SERVER", json_string(address));
        json_object_set_new(env, "MUSTER_TOKEN", json_string(token));
        json_object_set_new(env, "STORAGE_EMULATOR_HOST", json_string(bucket));
    }
    *out = TAKE(env);
    return 0;
}

/* What it does not ask for, and no more disk than its project has left. */
static void set_limits(struct queue *q, const struct job_row *r, const json_t *spec,
                       struct order *o)
{
    const json_t *asked = json_object_get(json_object_get(spec, "resources"), "disk");
    const int64_t left = quota_left(q->server->quota, r->project);
    struct quota_limits job;

    quota_of(q->server->quota, r->project, &job, NULL, NULL);
    o->limits.memory = (long long)job.memory;
    o->limits.processes = (long long)job.processes;
    o->limits.disk = asked ? json_integer_value(asked) : (long long)job.disk;
    if (left == INT64_MAX)
        return;
    /* Files of attempts before this one are in what is left, and the job's own as well. */
    if (r->attempt == 1 && (!o->limits.disk || left < o->limits.disk))
        o->limits.disk = left > 0 ? left : 1;
    retention_wake(q->server->retention);       /* from now on its project is looked at often */
}

static int start(struct queue *q, const struct job_row *r, const json_t *spec, int workers,
                 struct err *err)
{
    char home[4096], dir[4096];
    OWN_JSON json_t *env = NULL;
    OWN_JSON json_t *packages = NULL;

    if (job_path(q->server, r->id, 0, home, sizeof home, err) < 0 ||
        job_path(q->server, r->id, r->attempt, dir, sizeof dir, err) < 0 ||
        files_mkdir(home, err) < 0 || make_env(q, r, spec, &env, err) < 0)
        return -(int)err->code;
    if (q->server->objects &&
        (packages_stage(q->server, r->project, spec, home, &packages, err) < 0 ||
         packages_stage_inputs(q->server, r->project, spec, home, err) < 0))
        return -(int)err->code;
    struct order o = { .dir = dir, .data_dir = q->server->data_dir, .spec = spec, .env = env,
                       .packages = packages, .workers = workers,
                       .unconfined = q->config.unconfined, .user = r->user };
    struct runtimes_sandbox sandbox;
    if (runtimes_sandbox(q->server->data_dir, &sandbox, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *expose = sandbox.expose;
    o.expose = expose;
    o.log_limit = q->server->log_limit;
    set_limits(q, r, spec, &o);
    store_point("queue.start");
    int rc = q->config.driver->start(&o, err);
    store_point("queue.started");
    return rc;
}

void start_now(struct queue *q, struct starting *s)
{
    s->rc = start(q, &s->row, s->spec, s->workers, &s->why);
}

void starting_free(struct starting *s)
{
    if (!s)
        return;
    json_decref(s->spec);
    job_row_done(&s->row);
    free(s);
}

/* ------------------------------------------------------------ aside */

bool start_is_slow(const struct starting *s)
{
    const json_t *packages = json_object_get(json_object_get(s->spec, "python"), "packages");
    const json_t *files = json_object_get(json_object_get(s->spec, "step"), "files"), *file;
    size_t i;
    json_array_foreach((json_t *)files, i, file)
        if (json_object_get(file, "object"))
            return true;
    return json_array_size(packages) > 0;
}

static void *run(void *arg)
{
    struct queue *q = arg;
    struct starter *a = &q->starter;

    pthread_mutex_lock(&q->lock);
    while (!q->ending) {
        struct starting *s = a->todo;
        if (!s) {
            pthread_cond_wait(&a->more, &q->lock);
            continue;
        }
        a->todo = s->next;
        pthread_mutex_unlock(&q->lock);
        start_now(q, s);
        pthread_mutex_lock(&q->lock);
        s->next = a->done;
        a->done = s;
        queue_wake(q);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

int start_aside(struct queue *q, struct starting *s, struct err *err)
{
    struct starter *a = &q->starter;
    struct starting **last = &a->todo;
    sigset_t all, old;

    if (!a->has_thread) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int rc = pthread_create(&a->thread, NULL, run, q);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (rc) {
            starting_free(s);
            return err_set(err, ERR_AGAIN, "no thread to start a job: %s", strerror(rc));
        }
        a->has_thread = true;
    }
    pthread_mutex_lock(&q->lock);
    while (*last)
        last = &(*last)->next;
    *last = s;
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&q->lock);
    return 0;
}

struct starting *start_done(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct starting *s = q->starter.done;
    if (s)
        q->starter.done = s->next;
    pthread_mutex_unlock(&q->lock);
    return s;
}

void starter_end(struct queue *q)
{
    struct starter *a = &q->starter;

    pthread_mutex_lock(&q->lock);
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&q->lock);
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    for (struct starting **list = &a->todo; list; list = list == &a->todo ? &a->done : NULL)
        while (*list) {
            struct starting *s = *list;
            *list = s->next;
            starting_free(s);
        }
}
