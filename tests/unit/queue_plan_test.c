/* tests/unit/queue_plan_test.c - who runs, and with how many workers */
#include "server/queue_plan.h"

#include <string.h>

#include "base/rng.h"
#include "tests/check.h"

/* Two cores, as EDL's example: workers of 0.2, so that nine are a load of 0.9. */
static struct plan two_cores(struct plan_job *running, int n_running, struct plan_job *waiting,
                             int n_waiting, double *share)
{
    return (struct plan){ { { 2000, 4000, 1 }, 0.9 }, running, waiting, n_running, n_waiting, share,
                          100, 30, NULL };
}

static struct plan_job job(int64_t id, int min, int max, int64_t cpu)
{
    return (struct plan_job){ .id = id, .min = min, .max = max, .elastic = max > min,
                              .each = { cpu, 0, 0 }, .since = 99, .settled = true };
}

static struct plan_job runs(struct plan_job j, int n)
{
    j.n = j.now = n;
    return j;
}

static void an_elastic_job_alone_grows_to_the_load_limit(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job w[] = { job(1, 2, 20, 200) };
    struct plan p = two_cores(NULL, 0, w, 1, share);
    plan_decide(&p);
    assert_int_equal(w[0].want, 9);
}

static void the_one_with_most_gives_and_the_one_with_least_grows(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job r[] = { runs(job(1, 1, 10, 200), 7), runs(job(2, 1, 3, 200), 2) };
    struct plan_job w[] = { job(3, 2, 2, 200) };
    struct plan p = two_cores(r, 2, w, 1, share);
    plan_decide(&p);
    /* One place is free above the limit, one more must come from job 1: 6/9 against 1/2. Then the
     * load is beyond the limit by one worker, which job 1 gives as well. */
    assert_int_equal(w[0].want, 0);
    assert_int_equal(r[0].want, 5);
    assert_int_equal(r[1].want, 2);
    r[0].n = 5, r[0].now = 5;
    plan_decide(&p);
    assert_int_equal(w[0].want, 2);
    assert_int_equal(r[0].want, 5);
    /* It has ended: job 1 has 4/9, job 2 has 1/2. */
    p.n_waiting = 0;
    plan_decide(&p);
    assert_int_equal(r[0].want, 6);
    assert_int_equal(r[1].want, 3);
}

static void nobody_takes_the_place_of_one_who_leaves_for_another(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job r[] = { runs(job(1, 1, 10, 200), 9) };
    struct plan_job w[] = { job(2, 3, 3, 200), job(3, 1, 1, 200) };
    struct plan p = two_cores(r, 1, w, 2, share);
    plan_decide(&p);
    assert_int_equal(w[0].want, 0);
    assert_int_equal(w[1].want, 0);     /* the free place above the limit is job 2's */
    assert_int_equal(r[0].want, 5);
    r[0].n = 5, r[0].now = 7;           /* two of four have left */
    plan_decide(&p);
    assert_int_equal(w[0].want, 3);
    assert_int_equal(w[1].want, 0);
    assert_int_equal(r[0].want, 5);
}

static void gang_start_is_all_or_nothing(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job r[] = { runs(job(1, 1, 1, 1000), 1) };
    struct plan_job w[] = { job(2, 2, 2, 600), job(3, 5, 5, 200) };
    struct plan p = two_cores(r, 1, w, 2, share);
    plan_decide(&p);
    assert_int_equal(w[0].want, 0);
    assert_int_equal(w[1].want, 5);     /* overtakes: job 2 has not waited long */
}

static void one_that_was_overtaken_long_enough_is_next(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job r[] = { runs(job(1, 1, 1, 1000), 1) };
    struct plan_job w[] = { job(2, 2, 2, 600), job(3, 5, 5, 200), job(4, 1, 1, 0) };
    struct plan p = two_cores(r, 1, w, 3, share);
    w[0].since = 10;
    w[2].each[PLAN_GPU] = 1;
    plan_decide(&p);
    assert_int_equal(w[0].want, 0);
    assert_int_equal(w[1].want, 0);
    assert_int_equal(w[2].want, 1);     /* asks for nothing that job 2 is short of */
}

static void priority_then_the_project_that_used_least_then_age(void **state)
{
    (void)state;
    double share[2] = { 50, 0 };
    struct plan_job w[] = { job(1, 1, 1, 2000), job(2, 1, 1, 2000), job(3, 1, 1, 2000) };
    struct plan p = two_cores(NULL, 0, w, 3, share);
    w[2].project = 1;
    plan_decide(&p);
    assert_int_equal(w[2].want, 1);
    w[1].priority = 5;
    share[1] = 0;
    plan_decide(&p);
    assert_int_equal(w[1].want, 1);
    w[1].priority = 0;
    share[1] = 100;
    share[0] = 0;
    plan_decide(&p);
    assert_int_equal(w[0].want, 1);
}

static void projects_take_turns_within_one_plan(void **state)
{
    (void)state;
    double share[2] = { 0, 0 };
    struct plan_job w[] = { job(1, 1, 1, 1000), job(2, 1, 1, 1000), job(3, 1, 1, 1000) };
    struct plan p = two_cores(NULL, 0, w, 3, share);
    w[2].project = 1;
    plan_decide(&p);
    assert_int_equal(w[0].want, 1);
    assert_int_equal(w[1].want, 0);
    assert_int_equal(w[2].want, 1);
}

static void memory_and_gpus_count_when_asked_for(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job w[] = { job(1, 1, 1, 100), job(2, 1, 1, 100), job(3, 1, 1, 100) };
    struct plan p = two_cores(NULL, 0, w, 3, share);
    w[0].each[PLAN_MEMORY] = 3000;
    w[1].each[PLAN_MEMORY] = 2000;
    w[2].each[PLAN_GPU] = 1;
    plan_decide(&p);
    assert_int_equal(w[0].want, 1);
    assert_int_equal(w[1].want, 0);
    assert_int_equal(w[2].want, 1);
}

static void a_resize_is_followed_down_to_its_max_and_up_to_its_min(void **state)
{
    (void)state;
    double share[1] = { 0 };
    struct plan_job r[] = { runs(job(1, 1, 3, 200), 6), runs(job(2, 4, 5, 200), 1) };
    struct plan p = two_cores(r, 2, NULL, 0, share);
    plan_decide(&p);
    assert_int_equal(r[0].want, 3);
    assert_int_equal(r[1].want, 4);
    r[0].max = 1;               /* nothing between min and max any more */
    plan_decide(&p);
    assert_int_equal(r[0].want, 1);
}

static void what_can_never_fit_is_said_in_a_sentence(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct plan_machine m = { { 2000, 4000000000, 0 }, 0.9 };
    struct plan_job j = job(1, 3, 3, 1000);
    assert_fails(plan_possible(&m, &j, &err), ERR_INVALID);
    assert_string_equal(err.text, "it asks for 3 cores (3 workers with 1 cores each), and the machine "
                        "has 2 cores");
    j = job(1, 1, 1, 100);
    j.each[PLAN_MEMORY] = 8000000000;
    assert_fails(plan_possible(&m, &j, &err), ERR_INVALID);
    assert_string_equal(err.text, "it asks for 8 GB of memory, and the machine has 4 GB of memory");
    j.each[PLAN_MEMORY] = 0;
    j.each[PLAN_GPU] = 1;
    assert_fails(plan_possible(&m, &j, &err), ERR_INVALID);
    assert_string_equal(err.text, "it asks for 1 GPU, and the machine has 0 GPUs");
    j.each[PLAN_GPU] = 0;
    assert_ok(plan_possible(&m, &j, &err));
}

/* Jobs come and go at random, workers come and leave late: never more than the machine has, never
 * more than one worker below the limit while a job wants one and nobody waits, each gets its turn. */
enum { MANY = 400 };

static uint32_t below(uint64_t *at, uint32_t n)
{
    return rng_word(7, 0, (*at)++) % n;
}

static void at_random_it_keeps_its_word(void **state)
{
    (void)state;
    uint64_t rng = 0;
    static struct plan_job r[MANY], w[MANY];
    static double done_at[MANY + 1];
    double share[3] = { 0 };
    int n_r = 0, n_w = 0, next = 1, started = 0;
    struct plan p = two_cores(r, 0, w, 0, share);

    for (int t = 0; t < 20000 && (next <= MANY || n_w || n_r); t++) {
        p.now = t;
        if (next <= MANY && below(&rng, 4) == 0) {
            int min = 1 + (int)below(&rng, 3);
            int max = min + (int)below(&rng, 8);
            w[n_w] = job(next, min, max, 200 * (1 + (int64_t)below(&rng, 3)));
            w[n_w].since = t;
            w[n_w].project = (int)below(&rng, 3);
            done_at[next] = 0;
            n_w++, next++;
        }
        for (int i = 0; i < n_r; i++) {
            if (r[i].now != r[i].n && below(&rng, 2))
                r[i].now += r[i].now < r[i].n ? 1 : -1;
            if (done_at[r[i].id] < t)
                r[i--] = r[--n_r];
        }
        p.n_running = n_r, p.n_waiting = n_w;
        plan_decide(&p);
        int64_t used = 0, smallest = INT64_MAX;
        for (int i = 0; i < n_r; i++) {
            r[i].n = r[i].want;
            assert_true(r[i].n >= r[i].min && r[i].n <= r[i].max);
            used += r[i].each[PLAN_CPU] * (r[i].n > r[i].now ? r[i].n : r[i].now);
        }
        for (int i = 0; i < n_w; i++)
            if (w[i].want) {
                assert_true(w[i].want >= w[i].min && w[i].want <= w[i].max);
                r[n_r] = runs(w[i], w[i].want);
                used += r[n_r].each[PLAN_CPU] * r[n_r].n;
                done_at[w[i].id] = t + 5 + (double)below(&rng, 60);
                n_r++, started++;
                w[i--] = w[--n_w];
            }
        assert_true(used <= 2000);
        for (int i = 0; i < n_r; i++)
            if (r[i].n < r[i].max && r[i].each[PLAN_CPU] < smallest)
                smallest = r[i].each[PLAN_CPU];
        if (n_w == 0 && smallest < INT64_MAX)
            assert_true(used + smallest > 1800);
    }
    assert_int_equal(started, MANY);
}

/* Jobs of project 0, whose jobs may have one core together, and of project 1, which has no quota. */
static void a_project_stays_within_its_quota_and_others_go_on(void **state)
{
    (void)state;
    double share[2] = { 0 };
    struct plan_quota quotas[2] = { { .has = { 1000 } } };
    struct plan_job r[] = { runs(job(1, 1, 1, 600), 1) };
    struct plan_job w[] = { job(2, 1, 1, 600), job(3, 1, 1, 400), job(4, 1, 1, 600) };
    w[2].project = 1;
    struct plan p = two_cores(r, 1, w, 3, share);
    p.quotas = quotas;
    plan_decide(&p);
    assert_int_equal(w[0].want, 0);
    assert_int_equal(w[0].shorts, PLAN_SHORT_CPU);
    assert_int_equal(w[1].want, 1);     /* fits into what is left of the quota */
    assert_int_equal(w[2].want, 1);     /* another project's */
    assert_int_equal(w[2].shorts, PLAN_SHORT_OF_NOTHING);
    w[0].since = 0;                     /* however long it waits, nothing is kept for it */
    plan_decide(&p);
    assert_int_equal(w[2].want, 1);
    p.n_running = 0;
    plan_decide(&p);
    assert_int_equal(w[0].want, 1);
}

static void jobs_processes_and_memory_that_nobody_asked_for_count_once_a_job(void **state)
{
    (void)state;
    static const struct { struct plan_quota quota; enum plan_short shorts; } cases[] = {
        { { .jobs = 1 }, PLAN_SHORT_JOBS }, { { .processes = 150 }, PLAN_SHORT_PROCESSES },
        { { .has = { 0, 2000, 0 } }, PLAN_SHORT_MEMORY } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double share[1] = { 0 };
        struct plan_quota quota = cases[i].quota;
        struct plan_job r[] = { runs(job(1, 2, 2, 10), 2) }, w[] = { job(2, 1, 1, 10) };
        r[0].processes = w[0].processes = 100;
        r[0].memory = w[0].memory = 1500;
        struct plan p = two_cores(r, 1, w, 1, share);
        p.quotas = &quota;
        plan_decide(&p);
        assert_int_equal(w[0].want, 0);
        assert_int_equal(w[0].shorts, cases[i].shorts);
        p.n_running = 0;
        plan_decide(&p);
        assert_int_equal(w[0].want, 1);
    }
}

static void an_elastic_job_grows_to_its_projects_quota_and_gives_for_the_next_of_the_project(
    void **state)
{
    (void)state;
    double share[2] = { 0 };
    struct plan_quota quotas[2] = { { .has = { 1000 } } };
    struct plan_job r[] = { runs(job(1, 1, 9, 200), 1), runs(job(2, 1, 9, 10), 9) };
    struct plan_job w[] = { job(3, 2, 2, 200) };
    r[1].project = 1;
    struct plan p = two_cores(r, 2, w, 0, share);
    p.quotas = quotas;
    plan_decide(&p);
    assert_int_equal(r[0].want, 5);
    r[0].n = r[0].now = 5;
    p.n_waiting = 1;
    plan_decide(&p);
    assert_int_equal(w[0].want, 0);     /* until they have left */
    assert_int_equal(r[0].want, 3);
    assert_int_equal(r[1].want, 9);     /* another project's give nothing for it */
    r[0].n = r[0].now = 3;
    plan_decide(&p);
    assert_int_equal(w[0].want, 2);
}

CHECK_MAIN(an_elastic_job_alone_grows_to_the_load_limit,
           the_one_with_most_gives_and_the_one_with_least_grows,
           nobody_takes_the_place_of_one_who_leaves_for_another, gang_start_is_all_or_nothing,
           one_that_was_overtaken_long_enough_is_next,
           priority_then_the_project_that_used_least_then_age, projects_take_turns_within_one_plan,
           memory_and_gpus_count_when_asked_for,
           a_resize_is_followed_down_to_its_max_and_up_to_its_min,
           what_can_never_fit_is_said_in_a_sentence, at_random_it_keeps_its_word,
           a_project_stays_within_its_quota_and_others_go_on,
           jobs_processes_and_memory_that_nobody_asked_for_count_once_a_job,
           an_elastic_job_grows_to_its_projects_quota_and_gives_for_the_next_of_the_project)
