/* What a torture draws from its seed, and what it reads from the record of a job. */
#include "runtime/torture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "tests/check.h"

enum { N = 700, STEPS = 5000 };

static void the_seed_alone_decides_what_is_drawn(void **state)
{
    static struct torture_event a[N], b[N], c[N];

    (void)state;
    torture_draw(7, STEPS, 1, 4, a, N);
    torture_draw(7, STEPS, 1, 4, b, N);
    torture_draw(8, STEPS, 1, 4, c, N);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

static void events_are_in_the_order_of_their_steps_and_of_every_kind(void **state)
{
    static struct torture_event e[N];
    int of[TORTURE_KINDS] = { 0 };

    (void)state;
    torture_draw(1, STEPS, 1, 4, e, N);
    for (int i = 0; i < N; i++) {
        assert_in_range(e[i].due, 1, STEPS);
        assert_true(i == 0 || e[i - 1].due <= e[i].due);
        assert_true(e[i].kind != TORTURE_STOP || e[i].pause_ms > 500);
        assert_true(e[i].kind != TORTURE_SLOW || e[i].pause_ms < 500);
        of[e[i].kind]++;
    }
    for (int k = 0; k < TORTURE_KINDS; k++)
        assert_in_range(of[k], N / TORTURE_KINDS / 2, 2 * N / TORTURE_KINDS);
}

static void the_number_of_workers_stays_within_its_bounds(void **state)
{
    static struct torture_event e[N];
    int size = 5;

    (void)state;
    torture_draw(1, STEPS, 2, 5, e, N);
    for (int i = 0; i < N; i++) {
        if (e[i].kind != TORTURE_JOIN && e[i].kind != TORTURE_LEAVE)
            continue;
        assert_int_equal(e[i].size, size + (e[i].kind == TORTURE_JOIN ? 1 : -1));
        size = e[i].size;
        assert_in_range(size, 2, 5);
    }
    torture_draw(1, STEPS, 3, 3, e, N);
    for (int i = 0; i < N; i++)
        assert_true(e[i].kind != TORTURE_JOIN && e[i].kind != TORTURE_LEAVE);
}

static void more_events_than_steps_are_drawn_too(void **state)
{
    struct torture_event e[20];

    (void)state;
    torture_draw(1, 0, 1, 2, e, 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(e[i].due, 1);
}

static void a_review_finds_what_was_noticed_and_the_next_step(void **state)
{
    static const char record[] =
        "{\"t\":10.0,\"event\":\"go\",\"generation\":1}\n"
        "{\"t\":10.1,\"event\":\"step\",\"generation\":1,\"step\":1}\n"
        "{\"t\":20.5,\"event\":\"lost\",\"id\":4}\n"
        "{\"t\":21.0,\"event\":\"lost\",\"id\":3}\n"
        "{\"t\":21.1,\"event\":\"go\",\"generation\":2}\n"
        "{\"t\":21.25,\"event\":\"step\",\"generation\":2,\"step\":9}\n"
        "{\"t\":90.0,\"event\":\"lost\",\"id\":5}\n"
        "{\"t\":91.0,\"event\":\"leave\",\"id\":6}\n"
        "cut off";
    struct torture_event e[] = {
        { .kind = TORTURE_KILL, .fired = true, .at = 20, .id = 3, .seen = -1, .step_after = -1 },
        { .kind = TORTURE_SLOW, .fired = true, .at = 20, .id = 3, .seen = -1, .step_after = -1 },
        { .kind = TORTURE_STOP, .fired = true, .at = 20, .id = 5, .seen = -1, .step_after = -1 },
        { .kind = TORTURE_LEAVE, .fired = true, .at = 20, .took = 0.1, .seen = -1,
          .step_after = -1 },
        { .kind = TORTURE_KILL, .at = 0, .id = 3, .seen = -1, .step_after = -1 },
    };
    char dir[] = "/tmp/torture-test-XXXXXX", path[64];
    struct err err = { 0 };
    long generations;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/roster.jsonl", dir);
    assert_ok(files_write(path, record, strlen(record), &err));
    assert_ok(torture_review(dir, e, 5, &generations, &err));
    assert_int_equal(generations, 2);
    assert_int_equal((int)(e[0].seen * 100 + 0.5), 100);
    assert_int_equal((int)(e[0].step_after * 100 + 0.5), 125);
    for (int i = 1; i < 5; i++)         /* nothing to notice, another's loss, too late, not fired */
        assert_true(e[i].seen < 0 && e[i].step_after < 0);
    remove(path);
    assert_fails(torture_review(dir, e, 5, &generations, &err), ERR_MISSING);
    remove(dir);
}

CHECK_MAIN(the_seed_alone_decides_what_is_drawn,
           events_are_in_the_order_of_their_steps_and_of_every_kind,
           the_number_of_workers_stays_within_its_bounds, more_events_than_steps_are_drawn_too,
           a_review_finds_what_was_noticed_and_the_next_step)
