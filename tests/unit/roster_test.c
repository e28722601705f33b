#include "runtime/roster.h"

#include <stdio.h>

#include "tests/check.h"

enum { SHARDS = 8 };

static struct roster_who who_at(int port)
{
    struct roster_who who = { .pid = 1000 + port };

    snprintf(who.address, sizeof who.address, "127.0.0.1:%d", port);
    snprintf(who.host, sizeof who.host, "here");
    return who;
}

static uint64_t join(struct roster *r, int port, uint64_t id, bool want_fresh)
{
    const struct roster_who who = who_at(port);
    bool fresh = !want_fresh;
    uint64_t got = roster_join(r, &who, id, &fresh);

    assert_int_equal(fresh, want_fresh);
    return got;
}

static struct roster *roster_of(int n, int min)
{
    struct roster *r = roster_new(SHARDS, min, 0, 1, NULL, 0, 0);

    assert_non_null(r);
    for (int i = 0; i < n; i++)
        assert_int_equal(join(r, i, 0, true), i + 1);
    return r;
}

/* The acts that are due, in order, until there is nothing. */
static void expect_acts(struct roster *r, const enum roster_act *want, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(roster_next(r), want[i]);
        if (want[i] == ROSTER_STORE)
            roster_stored(r);
    }
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
}
#define ACTS(r, ...)                                                                    \
    expect_acts(r, (const enum roster_act[]){ __VA_ARGS__ },                            \
                sizeof (enum roster_act[]){ __VA_ARGS__ } / sizeof(enum roster_act))

/* Everybody answers with the step of their place. */
static void answer(struct roster *r, const long *step)
{
    for (int i = 0; i < roster_size(r); i++)
        roster_ready(r, roster_at(r, i)->id, roster_generation(r), step[i], true);
}

static const long nothing[ROSTER_MAX];

static void run_all(struct roster *r)
{
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, nothing);
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_phase(r), ROSTER_RUNNING);
}

static void a_list_is_stored_then_told_then_gone(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(2, 1);

    assert_int_equal(roster_phase(r), ROSTER_WAITING);
    assert_int_equal(roster_next(r), ROSTER_STORE);
    assert_int_equal(roster_next(r), ROSTER_STORE);     /* nothing is told before it is stored */
    assert_int_equal(roster_generation(r), 1);
    assert_int_equal(roster_phase(r), ROSTER_GATHERING);
    roster_stored(r);
    ACTS(r, ROSTER_TELL);
    roster_ready(r, 1, 1, 0, true);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);   /* not before all have answered */
    roster_ready(r, 2, 1, 0, true);
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 0);
    assert_int_equal(roster_behind(r), 0);
    assert_int_equal(roster_next_id(r), 3);
}

static void shards_are_contiguous_and_cover_all(void **state)
{
    (void)state;
    for (int n = 1; n <= SHARDS + 1; n++) {
        OWN(roster) r = roster_of(n, 1);
        int next = 0, least = SHARDS, most = 0;

        ACTS(r, ROSTER_STORE, ROSTER_TELL);
        assert_int_equal(roster_size(r), n);
        for (int i = 0; i < n && i < SHARDS; i++) {
            const struct roster_worker *w = roster_at(r, i);
            int own = w->to - w->from;
            assert_int_equal(w->from, next);
            least = own < least ? own : least;
            most = own > most ? own : most;
            next = w->to;
        }
        assert_int_equal(next, SHARDS);
        assert_in_range(least, 1, SHARDS);
        assert_in_range(most - least, 0, 1);
        for (int i = SHARDS; i < n; i++)                /* stands by */
            assert_int_equal(roster_at(r, i)->from, roster_at(r, i)->to);
    }
}

static void one_beyond_the_most_is_not_let_in(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(ROSTER_MAX, 1);
    const struct roster_who who = who_at(99);
    bool fresh;

    assert_int_equal(roster_join(r, &who, 0, &fresh), 0);
    run_all(r);
    assert_int_equal(roster_at(r, ROSTER_MAX - 1)->id, ROSTER_MAX);
}

static void too_few_wait_and_make_no_generation(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(2, 3);

    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(roster_phase(r), ROSTER_WAITING);
    assert_int_equal(roster_generation(r), 0);
    join(r, 7, 0, true);
    run_all(r);
    assert_int_equal(roster_generation(r), 1);

    roster_lost(r, 2);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(roster_phase(r), ROSTER_WAITING);
    assert_int_equal(roster_generation(r), 1);
    assert_int_equal(roster_size(r), 2);
    assert_int_equal(join(r, 8, 77, true), 4);          /* claims what nobody was */
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_generation(r), 2);
}

static void a_lower_min_lets_those_who_wait_begin(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(2, 3);

    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    roster_set_min(r, 2);
    run_all(r);
    roster_set_min(r, 3);                               /* those who run go on */
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(roster_phase(r), ROSTER_RUNNING);
    roster_lost(r, 1);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(roster_phase(r), ROSTER_WAITING);
    roster_set_min(r, 1);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_size(r), 1);
    assert_null(roster_find(r, 1));
    assert_int_equal(roster_find(r, 2)->to, SHARDS);
}

static void a_loss_is_a_new_generation_once(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(3, 1);

    run_all(r);
    roster_lost(r, 2);
    roster_lost(r, 2);
    roster_lost(r, 77);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_generation(r), 2);
    assert_int_equal(roster_at(r, 0)->id, 1);
    assert_int_equal(roster_at(r, 1)->id, 3);
    assert_int_equal(roster_at(r, 1)->from, SHARDS / 2);
    roster_lost(r, 77);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
}

static void one_that_leaves_is_off_the_next_list(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(2, 1);

    run_all(r);
    roster_leave(r, 1);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_size(r), 1);
    assert_int_equal(roster_at(r, 0)->id, 2);
    roster_leave(r, 1);                                 /* it is gone already */
    roster_lost(r, 1);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
}

static void a_change_while_gathering_begins_anew(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(2, 1);

    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    roster_ready(r, 1, 1, 0, true);
    join(r, 5, 0, true);
    roster_ready(r, 2, 1, 0, true);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_generation(r), 2);
    for (int i = 0; i < 3; i++)
        roster_ready(r, roster_at(r, i)->id, 1, 0, true);     /* answers to what was */
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    answer(r, nothing);
    ACTS(r, ROSTER_GO);
    answer(r, (const long[]){ 9, 9, 9 });               /* too late: it runs */
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(roster_step(r), 0);
}

static void all_go_on_from_the_furthest_state(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(3, 1);

    run_all(r);
    join(r, 9, 0, true);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, (const long[]){ 6, 7, 7, 0 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 7);
    assert_int_equal(roster_source(r), 1);
    assert_int_equal(roster_behind(r), 1 << 0 | 1 << 3);
}

static void a_newcomers_word_does_not_count(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(1, 1);

    run_all(r);
    assert_int_equal(join(r, 9, 1, true), 2);           /* claims an id that is not free */
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, (const long[]){ 3, 50 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 3);
    assert_int_equal(roster_behind(r), 1 << 1);

    roster_lost(r, 1);                                  /* it has copied the state: now it does */
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, (const long[]){ 4 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 4);
}

static void after_a_restart_those_of_the_list_come_back(void **state)
{
    (void)state;
    OWN(roster) r = roster_new(SHARDS, 1, 41, 7, (const uint64_t[]){ 2, 5, 6 }, 3, 0);

    assert_non_null(r);
    assert_int_equal(roster_missing(r), 3);
    assert_int_equal(join(r, 5, 5, false), 5);
    assert_int_equal(join(r, 3, 3, true), 7);           /* was off the list when it was stored */
    assert_int_equal(join(r, 2, 2, false), 2);
    assert_int_equal(roster_missing(r), 1);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_generation(r), 42);
    assert_int_equal(roster_missing(r), 0);
    assert_int_equal(roster_at(r, 0)->id, 2);           /* sorted, whoever came first */
    assert_int_equal(roster_at(r, 1)->id, 5);
    assert_int_equal(roster_at(r, 2)->id, 7);
    answer(r, (const long[]){ 8, 9, 99 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 9);
    assert_int_equal(roster_source(r), 1);

    assert_int_equal(join(r, 6, 6, true), 8);           /* too late: the list went on without it */
}

static void those_who_are_missing_may_come_while_too_few_wait(void **state)
{
    (void)state;
    OWN(roster) r = roster_new(SHARDS, 2, 4, 3, (const uint64_t[]){ 1, 2 }, 2, 0);

    assert_non_null(r);
    join(r, 1, 1, false);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(join(r, 2, 2, false), 2);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    assert_int_equal(roster_generation(r), 5);
}

static void a_checkpoint_that_nobody_has_is_loaded(void **state)
{
    (void)state;
    OWN(roster) r = roster_new(SHARDS, 1, 3, 4, NULL, 0, 20);

    assert_non_null(r);
    join(r, 1, 0, true);
    join(r, 2, 0, true);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, nothing);
    ACTS(r, ROSTER_LOAD);
    roster_ready(r, 4, 4, 20, true);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    roster_ready(r, 5, 4, 20, true);
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 20);
    assert_int_equal(roster_behind(r), 0);
    assert_int_equal(roster_generation(r), 4);
}

static void a_checkpoint_that_somebody_has_is_not_loaded(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(2, 1);

    run_all(r);
    roster_checkpoint(r, 30);
    roster_checkpoint(r, 10);                           /* an older one changes nothing */
    roster_lost(r, 1);
    join(r, 9, 0, true);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, (const long[]){ 31, 0 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 31);

    roster_lost(r, 2);                                  /* the newcomer died before it had copied */
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, nothing);
    ACTS(r, ROSTER_LOAD);
    answer(r, (const long[]){ 30 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 30);
}

/* The test of a step is told by one to the others: some may have heard it when all give up. */
static void who_has_heard_a_test_is_ahead(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(3, 1);

    run_all(r);
    roster_lost(r, 3);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    roster_ready(r, 1, roster_generation(r), 60, false);
    roster_ready(r, 2, roster_generation(r), 60, true);
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 60);
    assert_true(roster_settled(r));
    assert_int_equal(roster_source(r), 1);
    assert_int_equal(roster_behind(r), 1);

    join(r, 4, 0, true);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    roster_ready(r, 1, roster_generation(r), 61, false);
    roster_ready(r, 2, roster_generation(r), 60, true);
    roster_ready(r, 4, roster_generation(r), 0, true);
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 61);
    assert_false(roster_settled(r));
    assert_int_equal(roster_source(r), 0);
    assert_int_equal(roster_behind(r), 6);
}

static void a_loss_while_loading_begins_anew(void **state)
{
    (void)state;
    OWN(roster) r = roster_new(SHARDS, 1, 0, 1, NULL, 0, 5);

    assert_non_null(r);
    join(r, 1, 0, true);
    join(r, 2, 0, true);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, nothing);
    ACTS(r, ROSTER_LOAD);
    roster_ready(r, 1, 1, 5, true);
    roster_lost(r, 1);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, (const long[]){ 5 });                     /* it has taken what was sent */
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 5);
}

/* A coordinator that slept finds every connection closed, and the same workers at the door. */
static void all_who_were_lost_come_back_with_what_they_have(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(3, 1);

    run_all(r);
    for (uint64_t id = 1; id <= 3; id++)
        roster_lost(r, id);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(roster_phase(r), ROSTER_WAITING);
    assert_int_equal(join(r, 1, 2, false), 2);
    assert_int_equal(join(r, 0, 1, false), 1);
    ACTS(r, ROSTER_STORE, ROSTER_TELL);
    answer(r, (const long[]){ 7, 7 });
    ACTS(r, ROSTER_GO);
    assert_int_equal(roster_step(r), 7);
    assert_int_equal(join(r, 2, 3, true), 4);           /* another list was made without it */
}

/* One that was sent away has nothing to come back to. */
static void one_that_was_sent_away_comes_as_a_newcomer(void **state)
{
    (void)state;
    OWN(roster) r = roster_of(1, 1);

    run_all(r);
    roster_leave(r, 1);
    roster_lost(r, 1);
    assert_int_equal(roster_next(r), ROSTER_NOTHING);
    assert_int_equal(join(r, 0, 1, true), 2);
}

CHECK_MAIN(a_list_is_stored_then_told_then_gone, shards_are_contiguous_and_cover_all,
           one_beyond_the_most_is_not_let_in, too_few_wait_and_make_no_generation,
           a_lower_min_lets_those_who_wait_begin, a_loss_is_a_new_generation_once,
           one_that_leaves_is_off_the_next_list, a_change_while_gathering_begins_anew,
           all_go_on_from_the_furthest_state, a_newcomers_word_does_not_count,
           after_a_restart_those_of_the_list_come_back,
           those_who_are_missing_may_come_while_too_few_wait,
           a_checkpoint_that_nobody_has_is_loaded, a_checkpoint_that_somebody_has_is_not_loaded,
           who_has_heard_a_test_is_ahead, a_loss_while_loading_begins_anew,
           all_who_were_lost_come_back_with_what_they_have,
           one_that_was_sent_away_comes_as_a_newcomer)
