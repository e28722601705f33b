/* cli/verify.c - muster verify: do two runs have the same bits, and where do they part?
 *
 * Digests say whether. Where they differ, both runs are trained again from their own specs, and the
 * fingerprints of all parameters after each step say where: the first step and tensor. With one RUN
 * the run is trained again and held against what it recorded: the chain after each line of metrics,
 * kept checkpoints, the final weights.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "engine/model.h"
#include "runtime/rerun.h"
#include "runtime/rundir.h"

enum {
    SPOT_STEPS = 200,           /* of a stretch, and on to the next mark */
    STARTS_MAX = 4096,
};

struct args {
    long threads, spot;
};

static const struct option options[] = {
    { "threads", 0, "N", "use N threads", OPTION_INT, offsetof(struct args, threads) },
    { "spot", 0, "N", "train only N stretches of the run again, from kept checkpoints", OPTION_INT,
      offsetof(struct args, spot) },
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

/* ------------------------------------------------------------------ two runs */

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
    return err_set(err, ERR_CONFLICT,
                   "different as recorded, but both specs and data give the same "
                   "bits here: one of the runs was made by another version or its files changed");
}

/* Both have the weights that they claim to have. */
static int check_files(const char *dir, long threads, char digest[65], long *steps, struct err *err)
{
    OWN(rerun) r = NULL;

    if (rerun_open(dir, (int)threads, &r, err) < 0 || rerun_load(r, NULL, err) < 0 ||
        (json_object_get(rerun_document(r), "last") && rerun_load(r, "last", err) < 0))
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

/* ------------------------------------------------------------------ one run, again */

/* A run that is trained again and held against its marks (runtime/rerun.h). */
struct replay {
    struct rerun *r;
    const char *dir;
    long threads;
    const struct rerun_mark *mark;
    long n, next;               /* marks; the next one to come by */
    long right;                 /* the last step whose mark was right */
    long wrong;                 /* the first one whose mark was not; 0: none */
    long marks;                 /* seen so far */
    long until;                 /* stop after this step, once there were some marks; 0: never */
    char tensor[128];           /* the first that differs from a kept checkpoint or the weights */
    long tensor_step;
};

static void name_tensor(struct replay *p, struct rerun *theirs, long step)
{
    const struct plan *a = trainer_plan(rerun_trainer(p->r));
    const struct plan *b = trainer_plan(rerun_trainer(theirs));

    for (int i = 0; i < a->n_params && !p->tensor[0]; i++)
        if (model_fingerprint(a, a->param[i]) != model_fingerprint(b, b->param[i])) {
            snprintf(p->tensor, sizeof p->tensor, "%s", a->param[i]->name);
            p->tensor_step = step;
        }
}

/* After a difference, the first checkpoint that was kept says which tensor it is in. */
static void look_at_checkpoint(struct replay *p, long step)
{
    OWN(rerun) theirs = NULL;
    struct err ignored;

    if (p->tensor[0] || rundir_find_checkpoint(p->dir, step + 1) != step)
        return;
    if (rerun_open(p->dir, (int)p->threads, &theirs, &ignored) == 0 &&
        rerun_restore(theirs, step, &ignored) == 0)
        name_tensor(p, theirs, step);
}

static int hold_against_marks(void *arg, struct trainer *t, const struct train_event *e)
{
    struct replay *p = arg;

    (void)t;
    if (e->kind != EVENT_STEPS)
        return 0;
    while (p->next < p->n && p->mark[p->next].step < e->step)
        p->next++;
    if (p->next < p->n && p->mark[p->next].step == e->step) {
        p->marks++;
        if (p->mark[p->next].chain == e->results[e->n_results - 1].chain) {
            p->right = e->step;
        } else if (!p->wrong) {
            p->wrong = e->step;
        }
    }
    if (p->wrong)
        look_at_checkpoint(p, e->step);
    return e->step == rerun_steps(p->r) || (p->until && e->step >= p->until && p->marks);
}

static int replay(struct replay *p, struct err *err)
{
    struct fit_result fit;

    p->mark = rerun_marks(p->r, &p->n);
    trainer_every_step(rerun_trainer(p->r));
    return trainer_fit(rerun_trainer(p->r), hold_against_marks, p, &fit, err);
}

/* The marks before the first wrong one, for the message. */
static long mark_before(const struct replay *p, long step)
{
    long before = 0;

    for (long i = 0; i < p->n && p->mark[i].step < step; i++)
        before = p->mark[i].step;
    return before;
}

/* Says how the run differs; always ends in ERR_CONFLICT. */
static int tell_difference(struct replay *p, const char *digest, struct err *err)
{
    OWN(rerun) theirs = NULL;
    char where[256] = "";

    if (p->wrong && p->right > p->wrong)
        return err_set(err, ERR_CONFLICT, "different: %s/metrics.jsonl has another chain for step "
                       "%ld than training again gives, and a right one for step %ld: the file was "
                       "changed after the run", p->dir, p->wrong, p->right);
    if (!p->tensor[0] && rerun_open(p->dir, (int)p->threads, &theirs, err) == 0 &&
        rerun_load(theirs, "last", err) == 0)
        name_tensor(p, theirs, trainer_step(rerun_trainer(p->r)));
    if (p->tensor[0])
        snprintf(where, sizeof where, "; at step %ld, the first that is kept, tensor %s is the "
                 "first that differs", p->tensor_step, p->tensor);
    if (p->wrong)
        return err_set(err, ERR_CONFLICT,
                       "different: training %s again parts from what it "
                       "recorded in steps %ld to %ld%s",
                       p->dir, mark_before(p, p->wrong) + 1, p->wrong, where);
    return err_set(err, ERR_CONFLICT, "different: training %s again gives %.16s..., it recorded "
                   "%.16s...%s", p->dir, digest, rerun_digest(p->r), where);
}

static int verify_one(const char *dir, long threads, struct err *err)
{
    OWN(rerun) r = NULL;
    struct replay p = { .dir = dir, .threads = threads };
    char digest[65], recorded[65], head[17];
    long steps;

    if (check_files(dir, threads, recorded, &steps, err) < 0 ||
        rerun_open(dir, (int)threads, &r, err) < 0)
        return -(int)err->code;
    p.r = r;
    if (replay(&p, err) < 0)
        return -(int)err->code;
    struct best best = { 0 };
    const bool deliver = trainer_best(rerun_trainer(r), &best) &&
                         trainer_delivers_best(rerun_trainer(r));
    model_digest_copy(trainer_plan(rerun_trainer(r)), deliver ? best.params : NULL, digest);
    long done = trainer_step(rerun_trainer(r));
    if (done != steps)
        return err_set(err, ERR_CONFLICT, "different: training %s again ends after %ld steps, it "
                       "recorded %ld", dir, done, steps);
    if (p.wrong || strcmp(digest, recorded) != 0)
        return tell_difference(&p, digest, err);
    const char *chain = json_string_value(json_object_get(rerun_document(r), "chain"));
    snprintf(head, sizeof head, "%016" PRIx64, plan_chain(trainer_plan(rerun_trainer(r))));
    if (p.n && chain && strcmp(chain, head) != 0)
        return err_set(err, ERR_CONFLICT, "different: %s/run.json has chain %s, training again "
                       "gives %s: the file was changed after the run", dir, chain, head);
    printf("equal: %s (%ld steps, trained again", digest, done);
    if (p.marks)
        printf("; the chain is right at %ld of them", p.marks);
    printf(")\n");
    return 0;
}

/* ------------------------------------------------------------------ a spot-check */

/* Where a stretch may begin: the start and each kept checkpoint that is not the end. */
static int list_starts(const struct rerun *r, const char *dir, long *out, int room)
{
    int n = 0;

    for (long at = rerun_steps(r); n < room - 1 && (at = rundir_find_checkpoint(dir, at)) > 0;)
        out[n++] = at;
    out[n++] = 0;
    return n;
}

static int check_stretch(struct replay *p, long from, long next, struct err *err)
{
    if (from ? rerun_restore(p->r, from, err) < 0 : trainer_reset(rerun_trainer(p->r), err) < 0)
        return -(int)err->code;
    p->next = p->marks = 0;
    p->until = next < from + SPOT_STEPS ? next : from + SPOT_STEPS;
    if (replay(p, err) < 0)
        return -(int)err->code;
    if (p->wrong)
        return err_set(err, ERR_CONFLICT, "different: training %s from %s %ld does not lead to the "
                       "chain that it recorded for step %ld", p->dir,
                       from ? "its checkpoint of step" : "step", from, p->wrong);
    return 0;
}

static int by_step(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;

    return x < y ? -1 : x > y;
}

/* `spots` of the stretches, whichever: who changes a run cannot know which. */
static int verify_spots(const char *dir, long threads, long spots, struct err *err)
{
    OWN(rerun) r = NULL;
    struct replay p = { .dir = dir, .threads = threads };
    long start[STARTS_MAX], chosen[STARTS_MAX], steps, checked = 0, marks = 0;
    uint32_t order[STARTS_MAX];
    char digest[65];

    if (check_files(dir, threads, digest, &steps, err) < 0 ||
        rerun_open(dir, (int)threads, &r, err) < 0)
        return -(int)err->code;
    p.r = r;
    if (!rerun_marks(r, &p.n) || !p.n)
        return err_set(err, ERR_CONFLICT, "%s: recorded no chain to be held against (verify it "
                       "whole, without --spot)", dir);
    int n = list_starts(r, dir, start, STARTS_MAX);
    rng_permute(order, (uint32_t)n, (uint64_t)(clock_seconds() * 1e9), (uint64_t)getpid());
    n = spots < n ? (int)spots : n;
    for (int i = 0; i < n; i++)
        chosen[i] = start[order[i]];
    qsort(chosen, (size_t)n, sizeof chosen[0], by_step);
    for (int i = 0; i < n; i++) {
        if (check_stretch(&p, chosen[i], i + 1 < n ? chosen[i + 1] : steps, err) < 0)
            return -(int)err->code;
        long to = trainer_step(rerun_trainer(r));
        printf("steps %ld to %ld: right (%ld mark%s%s)\n", chosen[i] + 1, to, p.marks,
               p.marks == 1 ? "" : "s", chosen[i] ? ", from a checkpoint" : "");
        checked += to - chosen[i];
        marks += p.marks;
    }
    printf("equal where it was looked: %ld of %ld steps trained again, the chain is right at %ld "
           "of them; the weights have the recorded digest %s\n", checked, steps, marks, digest);
    return 0;
}

/* ------------------------------------------------------------------ the command */

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    int n = options_parse(options, argc, argv, &a, err);

    (void)c;
    if (n < 0)
        return n;
    if (a.spot < 0 || (a.spot && n != 1))
        return err_set(err, ERR_INVALID, "--spot wants one RUN and a number from 1");
    if (n == 1 && a.spot)
        return verify_spots(argv[0], a.threads, a.spot, err);
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
    .example = "muster verify runs/fit-a-line runs/fit-a-line-2\n"
               "muster verify runs/lenet --spot 3",
    .more =
        "Runs that differ are trained again to name the first step and tensor that differ. One\n"
        "run is trained again by one process here, however many workers made it, and held\n"
        "against the chain that it recorded. A spot-check takes seconds and says what it saw.",
    .options = options,
    .run = run,
};
