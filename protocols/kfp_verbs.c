/* protocols/kfp_verbs.c - what both versions of the API do alike: "id" of the path, and {} for an
 * answer */
#include "base/json.h"
#include "pipelines/catalog.h"
#include "pipelines/runs.h"
#include "pipelines/schedule.h"
#include "protocols/kfp_int.h"

int kfp_done(struct request *q, int rc)
{
    return rc < 0 ? rc : respond_json(q, 200, json_object());
}

int kfp_get(struct request *q,
            int (*get)(struct server *s, const char *project, const char *id, json_t **out,
                       struct err *err),
            json_t *(*each)(struct request *q, const json_t *row), struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (get(request_server(q), request_project(q), request_arg(q, "id"), &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, each(q, doc));
}

/* The three arguments that every one of them begins with. */
#define NAMED request_server(q), request_project(q), request_arg(q, "id")

int kfp_pipeline_delete(struct request *q, struct err *err)
{
    return kfp_done(q, pipelines_delete(NAMED, err));
}

int kfp_experiment_archive(struct request *q, struct err *err)
{
    return kfp_done(q, experiments_archive(NAMED, true, err));
}

int kfp_experiment_unarchive(struct request *q, struct err *err)
{
    return kfp_done(q, experiments_archive(NAMED, false, err));
}

int kfp_experiment_delete(struct request *q, struct err *err)
{
    return kfp_done(q, experiments_delete(NAMED, err));
}

int kfp_run_terminate(struct request *q, struct err *err)
{
    return kfp_done(q, runs_terminate(NAMED, "user", err));
}

int kfp_run_retry(struct request *q, struct err *err)
{
    return kfp_done(q, runs_retry(NAMED, err));
}

int kfp_run_archive(struct request *q, struct err *err)
{
    return kfp_done(q, runs_archive(NAMED, true, err));
}

int kfp_run_unarchive(struct request *q, struct err *err)
{
    return kfp_done(q, runs_archive(NAMED, false, err));
}

int kfp_run_delete(struct request *q, struct err *err)
{
    return kfp_done(q, runs_delete(NAMED, err));
}

int kfp_recurring_enable(struct request *q, struct err *err)
{
    return kfp_done(q, recurring_enable(NAMED, true, err));
}

int kfp_recurring_disable(struct request *q, struct err *err)
{
    return kfp_done(q, recurring_enable(NAMED, false, err));
}

int kfp_recurring_delete(struct request *q, struct err *err)
{
    return kfp_done(q, recurring_delete(NAMED, err));
}
