/* cli/verify.c - muster verify: do two runs have the same bits, and where do they part?
 *
 * Digests say whether. Where they differ, both runs are trained again from their own specs, and the
 * fingerprints of all parameters after each step say where: the first step and tensor. With one RUN
 * the run is trained again and compared with what it recorded.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"
#include "cli/cli.h"
#include "engine/model.h"
#include "runtime/rerun.h"

struct args {
    long threads;
};

static const struct option options[] = {
    { "threads", 0, "N", "use N threads", OPTION_INT, offsetof(struct args, threads) },
    { 0 }
};

/* The fingerprints of every step of the first run, which the second is held against. */
struct trail {
    uint64_t *print;            /* (steps, params) */
    long steps, room;
    int params;
    long parted;                /* the step, from 1; 0: not yet */
    int tensor;
    bool shorter;               /* the second run goes on where the first has ended */
};

static int record_step(void *arg, struct trainer *t, const struct train_event *e)
{
    struct trail *trail = arg;
    struct plan *p = trainer_plan(t);

    if (e->kind != EVENT_STEPS)
        return 0;
    trail->params = p->n_params;
    if (trail->steps == trail->room) {
        trail->room = trail->room ? 2 * trail->room : 1024;
        trail->print = realloc(trail->print, (size_t)trail->room * (size_t)p->n_params * 8);
        if (!trail->print)
            abort();
    }
    for (int i = 0; i < p->n_params; i++)
        trail->print[trail->steps * p->n_params + i] = model_fingerprint(p, p->param[i]);
    trail->steps++;
    return 0;
}

static int compare_step(void *arg, struct trainer *t, const struct train_event *e)
{
    struct trail *trail = arg;
    struct plan *p = trainer_plan(t);

    if (e->kind != EVENT_STEPS || trail->parted)
        return trail->parted != 0;
    long at = e->step - 1;
    if (at >= trail->steps) {
        trail->shorter = true;
        return 1;
    }
    for (int i = 0; i < p->n_params && !trail->parted; i++)
        if (model_fingerprint(p, p->param[i]) != trail->print[at * trail->params + i]) {
            trail->parted = e->step;
            trail->tensor = i;
        }
    return trail->parted != 0;
}

static int train_again(struct rerun *r, train_handler handler, void *arg, struct err *err)
{
    struct fit_result fit;

    trainer_every_step(rerun_trainer(r));
    return trainer_fit(rerun_trainer(r), handler, arg, &fit, err);
}

static int same_parameters(const struct plan *a, const struct plan *b)
{
    if (a->n_params != b->n_params)
        return 0;
    for (int i = 0; i < a->n_params; i++)
        if (strcmp(a->param[i]->name, b->param[i]->name) != 0 ||
            a->param[i]->count != b->param[i]->count)
            return 0;
    return 1;
}

/* Says where two runs part; always ends in ERR_CONFLICT, since they do. */
static int find_difference(const char *one, const char *two, long threads, struct err *err)
{
    OWN(rerun) a = NULL;
    OWN(rerun) b = NULL;
    struct trail trail = { 0 };

    if (rerun_open(one, (int)threads, &a, err) < 0 || rerun_open(two, (int)threads, &b, err) < 0)
        return -(int)err->code;
    if (!same_parameters(trainer_plan(rerun_trainer(a)), trainer_plan(rerun_trainer(b))))
        return err_set(err, ERR_CONFLICT, "%s and %s are different models", one, two);
    int rc = train_again(a, record_step, &trail, err);
    if (rc == 0)
        rc = train_again(b, compare_step, &trail, err);
    free(trail.print);
    if (rc < 0)
        return rc;
    if (trail.parted)
        return err_set(err, ERR_CONFLICT, "different: the runs part at step %ld, tensor %s",
                       trail.parted, trainer_plan(rerun_trainer(b))->param[trail.tensor]->name);
    if (trail.shorter || trainer_step(rerun_trainer(b)) < trail.steps)
        return err_set(err, ERR_CONFLICT, "different: equal for %ld steps, then one run goes on",
                       trail.shorter ? trail.steps : trainer_step(rerun_trainer(b)));
    return err_set(err, ERR_CONFLICT, "different as recorded, but both specs and data give the same "
                   "bits here: one of the runs was made by another version or its files changed");
}

/* Both have the weights that they claim to have. */
static int check_files(const char *dir, long threads, char digest[65], long *steps, struct err *err)
{
    OWN(rerun) r = NULL;

    if (rerun_open(dir, (int)threads, &r, err) < 0 || rerun_load(r, err) < 0)
        return -(int)err->code;
    snprintf(digest, 65, "%s", rerun_digest(r));
    *steps = rerun_steps(r);
    return 0;
}

static int verify_two(const char *one, const char *two, long threads, struct err *err)
{
    char a[65], b[65];
    long steps_a, steps_b;

    if (check_files(one, threads, a, &steps_a, err) < 0 ||
        check_files(two, threads, b, &steps_b, err) < 0)
        return -(int)err->code;
    if (strcmp(a, b) != 0)
        return find_difference(one, two, threads, err);
    printf("equal: %s (%ld steps)\n", a, steps_a);
    return 0;
}

static int verify_one(const char *dir, long threads, struct err *err)
{
    OWN(rerun) r = NULL;
    struct fit_result fit;
    char digest[65], recorded[65];
    long steps;

    if (check_files(dir, threads, recorded, &steps, err) < 0 ||
        rerun_open(dir, (int)threads, &r, err) < 0 ||
        trainer_fit(rerun_trainer(r), NULL, NULL, &fit, err) < 0)
        return -(int)err->code;
    model_digest(trainer_plan(rerun_trainer(r)), digest);
    if (strcmp(digest, recorded) != 0)
        return err_set(err, ERR_CONFLICT, "different: training %s again gives %.16s..., it recorded "
                       "%.16s...", dir, digest, recorded);
    printf("equal: %s (%ld steps, trained again)\n", digest, fit.steps);
    return 0;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    int n = options_parse(options, argc, argv, &a, err);

    (void)c;
    if (n < 0)
        return n;
    if (n == 1)
        return verify_one(argv[0], a.threads, err);
    if (n == 2)
        return verify_two(argv[0], argv[1], a.threads, err);
    return cli_usage(&command_verify, err);
}

const struct command command_verify = {
    .name = "verify",
    .args = "RUN [RUN]",
    .summary = "compare two runs bit for bit, or train one again and compare",
    .example = "muster verify runs/fit-a-line runs/fit-a-line-2",
    .more = "Runs that differ are trained again to name the first step and tensor that differ.",
    .options = options,
    .run = run,
};
