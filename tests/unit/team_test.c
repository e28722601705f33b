#include "engine/team.h"

#include <string.h>

#include "tests/check.h"

enum { ROUNDS = 2000 };

struct shared {
    struct team *team;
    long cell[TEAM_MAX][16];    /* a line apart */
    long wrong[TEAM_MAX][16];
    int runs;
};

/* In each round everybody writes its own cell, waits, reads all others', waits. */
static void take_turns(int id, void *arg)
{
    struct shared *s = arg;
    int size = team_size(s->team);

    for (long round = 0; round < ROUNDS; round++) {
        s->cell[id][0] = round;
        team_barrier(s->team, id);
        for (int i = 0; i < size; i++)
            s->wrong[id][0] += s->cell[i][0] != round;
        team_barrier(s->team, id);
    }
}

static void nobody_passes_a_barrier_early(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct shared s;

    for (int size = 1; size <= 5; size++) {
        memset(&s, 0, sizeof s);
        assert_ok(team_new(size, &s.team, &err));
        team_run(s.team, take_turns, &s);
        team_run(s.team, take_turns, &s);
        for (int i = 0; i < size; i++)
            assert_int_equal(s.wrong[i][0], 0);
        team_free(s.team);
    }
}

static void count_in(int id, void *arg)
{
    struct shared *s = arg;
    s->cell[id][0]++;
}

static void every_run_reaches_every_member_once(void **state)
{
    (void)state;
    struct err err = { 0 };
    static struct shared s;

    memset(&s, 0, sizeof s);
    assert_ok(team_new(3, &s.team, &err));
    for (int i = 0; i < 500; i++)
        team_run(s.team, count_in, &s);
    for (int i = 0; i < 3; i++)
        assert_int_equal(s.cell[i][0], 500);
    team_free(s.team);
}

static void a_team_may_be_freed_unused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct team *t = NULL;

    assert_ok(team_new(4, &t, &err));
    team_free(t);
    team_free(NULL);
}

CHECK_MAIN(nobody_passes_a_barrier_early, every_run_reaches_every_member_once,
           a_team_may_be_freed_unused)
