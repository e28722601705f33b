/* tests/unit/tickets_test.c */
#include "server/tickets.h"

#include <string.h>

#include "tests/check.h"

static void a_ticket_is_good_for_its_address_until_its_time(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(tickets) t = tickets_new();
    char ticket[AUTH_TOKEN], token[AUTH_TOKEN] = "";

    assert_false(tickets_find(t, "ticket_none", "/a", 0, token));
    assert_ok(tickets_add(t, "/a?b=1", "muster_one", 100, ticket, &err));
    assert_true(tickets_find(t, ticket, "/a?b=1", 100, token));
    assert_string_equal(token, "muster_one");
    assert_true(tickets_find(t, ticket, "/a?b=1", 99 + TICKETS_S, token));
    assert_false(tickets_find(t, ticket, "/a?b=1", 100 + TICKETS_S, token));
    assert_false(tickets_find(t, ticket, "/a", 100, token));
    assert_false(tickets_find(t, ticket, "/a?b=12", 100, token));
    assert_false(tickets_find(t, "", "/a?b=1", 100, token));
    ticket[strlen(ticket) - 1]++;
    assert_false(tickets_find(t, ticket, "/a?b=1", 100, token));
}

static void the_oldest_ticket_goes_when_there_are_too_many(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(tickets) t = tickets_new();
    char first[AUTH_TOKEN], second[AUTH_TOKEN], more[AUTH_TOKEN], token[AUTH_TOKEN];

    assert_ok(tickets_add(t, "/first", "one", 0, first, &err));
    assert_ok(tickets_add(t, "/second", "two", 0, second, &err));
    for (int i = 0; i < TICKETS_MAX - 1; i++)
        assert_ok(tickets_add(t, "/more", "three", 0, more, &err));
    assert_false(tickets_find(t, first, "/first", 0, token));
    assert_true(tickets_find(t, second, "/second", 0, token));
    assert_true(tickets_find(t, more, "/more", 0, token));
}

static void a_ticket_is_for_a_path_of_this_server(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(tickets) t = tickets_new();
    char out[AUTH_TOKEN] = "untouched", longest[TICKET_TARGET_MAX + 2];

    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[sizeof longest - 1] = 0;
    assert_fails(tickets_add(t, longest, "one", 0, out, &err), ERR_INVALID);
    assert_fails(tickets_add(t, "http://evil.example/", "one", 0, out, &err), ERR_INVALID);
    assert_fails(tickets_add(t, "", "one", 0, out, &err), ERR_INVALID);
    assert_fails(tickets_add(t, "/a#b", "one", 0, out, &err), ERR_INVALID);
    assert_string_equal(out, "untouched");
    longest[sizeof longest - 2] = 0;
    assert_ok(tickets_add(t, longest, "one", 0, out, &err));
}

CHECK_MAIN(a_ticket_is_good_for_its_address_until_its_time,
           the_oldest_ticket_goes_when_there_are_too_many, a_ticket_is_for_a_path_of_this_server)
