/* tests/unit/roster_model_test.c - every order of events, and every mistake is found
 *
 * MUSTER_MODEL_DEEP=N also runs the searches of `deep`, each over at most N million states.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/unit/roster_model.h"

#define ONE_OF_EACH .kill = 1, .lose = 1, .cut = 1, .join = 1, .leave = 1, .crash = 1

static void run(const char *name, const struct model_setup *setup, bool must_be_whole)
{
    struct model_outcome got;

    model_search(setup, &got);
    printf("%-56s %9ld states %9ld moves, %3d deep%s\n", name, got.states, got.moves, got.depth,
           got.whole ? "" : " (not all)");
    if (got.why[0])
        fail_msg("%s: %s, after\n%s", name, got.why, got.trace);
    assert_true(got.whole || !must_be_whole);
    assert_true(got.ends > 0);
}

static const struct row { const char *name; struct model_setup setup; } rows[] = {
    { "two workers begin, undisturbed",
      { .workers = 2, .min = 1, .steps = 2, .checkpoint = 1 } },
    { "two begin, one thing happens",
      { .workers = 2, .min = 1, .steps = 1, .checkpoint = 1, ONE_OF_EACH, .disturbances = 1 } },
    { "two begin that are needed, the coordinator dies twice",
      { .workers = 2, .min = 2, .steps = 1, .checkpoint = 1, .crash = 2, .disturbances = 2 } },
    { "two run for three steps, one thing happens",
      { .workers = 2, .min = 1, .steps = 3, .checkpoint = 1, .warm = true, ONE_OF_EACH,
        .disturbances = 1 } },
    { "two run, one is taken out, the coordinator dies",
      { .workers = 2, .min = 1, .steps = 1, .warm = true, .lose = 1, .crash = 1,
        .disturbances = 2 } },
    { "two run, one is taken out, one dies",
      { .workers = 2, .min = 1, .steps = 3, .checkpoint = 1, .warm = true, .kill = 1, .lose = 1,
        .disturbances = 2 } },
    { "two run that are needed, one thing happens",
      { .workers = 2, .min = 2, .steps = 2, .checkpoint = 1, .warm = true, ONE_OF_EACH,
        .disturbances = 1 } },
    { "two run, the coordinator dies twice",
      { .workers = 2, .min = 1, .steps = 1, .warm = true, .crash = 2, .disturbances = 2 } },
    { "two run, one dies, one leaves",
      { .workers = 2, .min = 1, .steps = 2, .checkpoint = 1, .warm = true, .kill = 1, .leave = 1,
        .disturbances = 2 } },
    { "three run, one dies, is taken out or leaves",
      { .workers = 3, .min = 2, .steps = 1, .checkpoint = 1, .warm = true, .kill = 1, .lose = 1,
        .leave = 1, .disturbances = 1 } },
};

static const struct row deep[] = {
    { "two run that are needed, one is taken out, one comes",
      { .workers = 2, .min = 2, .steps = 1, .checkpoint = 1, .warm = true, .lose = 1, .join = 1,
        .disturbances = 2 } },
    { "two begin, one thing happens, two steps",
      { .workers = 2, .min = 1, .steps = 2, .checkpoint = 1, ONE_OF_EACH, .disturbances = 1 } },
    { "two run, one is taken out, the coordinator dies, two steps",
      { .workers = 2, .min = 1, .steps = 2, .checkpoint = 1, .warm = true, .lose = 1, .crash = 1,
        .disturbances = 2 } },
    { "two run, one cuts its connection, the coordinator dies",
      { .workers = 2, .min = 1, .steps = 1, .warm = true, .cut = 1, .crash = 1,
        .disturbances = 2 } },
    { "two run, one leaves, the coordinator dies",
      { .workers = 2, .min = 1, .steps = 1, .warm = true, .leave = 1, .crash = 1,
        .disturbances = 2 } },
    { "two run, one is taken out twice",
      { .workers = 2, .min = 1, .steps = 2, .checkpoint = 1, .warm = true, .lose = 2,
        .disturbances = 2 } },
    { "two run, the coordinator dies twice, two steps",
      { .workers = 2, .min = 1, .steps = 2, .checkpoint = 1, .warm = true, .crash = 2,
        .disturbances = 2 } },
    { "three run, one thing happens",
      { .workers = 3, .min = 2, .steps = 1, .checkpoint = 1, .warm = true, ONE_OF_EACH,
        .disturbances = 1 } },
    { "two run, two things happen",
      { .workers = 2, .min = 1, .steps = 1, .warm = true, ONE_OF_EACH, .disturbances = 2 } },
    { "three run, two things happen",
      { .workers = 3, .min = 1, .steps = 1, .warm = true, ONE_OF_EACH, .disturbances = 2 } },
};

static void no_order_of_events_leads_astray(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        run(rows[i].name, &rows[i].setup, true);
}

static void nor_does_a_longer_one(void **state)
{
    (void)state;
    const char *millions = getenv("MUSTER_MODEL_DEEP");

    for (size_t i = 0; millions && i < sizeof deep / sizeof deep[0]; i++) {
        struct model_setup setup = deep[i].setup;
        setup.states_max = strtol(millions, NULL, 10) * 1000000;
        run(deep[i].name, &setup, false);
    }
}

/* The search can fail: each mistake, the few disturbances that bring it out, and what is said. */
static void every_mistake_is_found(void **state)
{
    (void)state;
    static const struct { const char *why; struct model_setup setup; } seeded[] = {
        { "the job goes on from a wrong state",
          { .mistake = MISTAKE_TRUST_FENCED, .lose = 1, .disturbances = 1 } },
        { "a generation comes again",
          { .mistake = MISTAKE_STORE_LATE, .lose = 1, .crash = 1, .disturbances = 2 } },
        { "a generation comes again",
          { .mistake = MISTAKE_SAME_GENERATION, .crash = 1, .disturbances = 1 } },
        { "a generation begins with a wrong state",
          { .mistake = MISTAKE_GO_EARLY, .lose = 1, .disturbances = 1 } },
        { "the job goes on from a wrong state",
          { .mistake = MISTAKE_FORGET_FRESH, .lose = 1, .crash = 1, .disturbances = 2 } },
        { "a wrong state is stored",
          { .mistake = MISTAKE_OLD_NEWS, .kill = 1, .lose = 1, .disturbances = 2 } },
        { "two workers have one id",
          { .mistake = MISTAKE_CLAIM_EARLY, .min = 2, .crash = 2, .disturbances = 2 } },
        { "a wrong state is stored",
          { .mistake = MISTAKE_CLAIM_EARLY, .lose = 1, .crash = 1, .disturbances = 2 } },
        { "a step that is there is done again",
          { .mistake = MISTAKE_FOLLOW_NOBODY, .join = 1, .disturbances = 1 } },
        { "the job is stuck", { .mistake = MISTAKE_NO_EOF, .kill = 1, .disturbances = 1 } },
    };
    struct model_outcome got;
    bool found[MISTAKES] = { true };

    for (size_t i = 0; i < sizeof seeded / sizeof seeded[0]; i++) {
        struct model_setup setup = seeded[i].setup;
        setup.workers = setup.steps = 2;
        setup.warm = setup.min != 2;
        setup.min = setup.min ? setup.min : 1;
        setup.checkpoint = 1;
        model_search(&setup, &got);
        printf("mistake %d: %s, found after %ld states\n", (int)setup.mistake, got.why, got.states);
        assert_string_equal(got.why, seeded[i].why);
        assert_true(got.trace[0]);
        found[setup.mistake] = true;
        setup.mistake = MISTAKE_NONE;   /* and it is the mistake that was found */
        setup.states_max = 50000;
        model_search(&setup, &got);
        assert_string_equal(got.why, "");
    }
    for (int i = 0; i < MISTAKES; i++)
        assert_true(found[i]);
}

CHECK_MAIN(no_order_of_events_leads_astray, nor_does_a_longer_one, every_mistake_is_found)
