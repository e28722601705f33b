/* server/queue_users.c - which user an attempt runs under (drivers/users.h)
 *
 * They are given in turn, so that a number comes again only when all others have been used: a file
 * or a process that was left under it is long gone by then. The turn is never behind the log of
 * events, which grows with every attempt, so a server that was killed goes on where it was. Each
 * data directory begins elsewhere: two servers of a machine seldom come upon the same number, and
 * where they do the later one passes it by.
 */
#include <string.h>
#include <unistd.h>

#include "drivers/runtimes.h"
#include "server/queue_int.h"
#include "server/server.h"

static uint64_t place_of(const char *text)
{
    uint64_t h = 1469598103934665603u;          /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h >> 8;
}

/* By a job on record, or by one that is to be put there in this round. */
static bool is_given(const struct queue *q, unsigned user)
{
    for (int i = 0; i < q->live.n; i++)
        if (q->live.at[i]->user == user)
            return true;
    for (int i = 0; i < q->pending.n; i++)
        if (json_integer_value(json_object_get(q->pending.at[i].body, "user")) == (json_int_t)user)
            return true;
    return false;
}

void users_release(struct entry *e)
{
    if (e->user_fd > 0)
        close(e->user_fd);
    e->user_fd = 0;
}

int users_next(struct queue *q, struct entry *e, unsigned *out, struct err *err)
{
    struct runtimes_sandbox sandbox;

    *out = 0;
    if (geteuid() != 0 || q->config.unconfined)
        return 0;
    if (runtimes_sandbox(q->server->data_dir, &sandbox, err) < 0)
        return -(int)err->code;
    json_decref(sandbox.expose);
    const struct users_range *r = &sandbox.users;
    const uint64_t start = place_of(q->server->data_dir);
    uint64_t tries = (uint64_t)r->last - r->first + 1;
    if (q->user_turn < (uint64_t)q->seen)
        q->user_turn = (uint64_t)q->seen;
    for (; tries; tries--) {
        uid_t user = users_nth(r, start + ++q->user_turn);
        int fd, rc = is_given(q, user) ? -ERR_AGAIN : users_reserve(user, &fd, err);
        if (rc == -ERR_AGAIN)
            continue;
        users_release(e);
        if (rc == 0)
            e->user_fd = fd;    /* else the keeper says what is wrong with the locks */
        *out = user;
        return 0;
    }
    return err_set(err, ERR_AGAIN, "the users %u..%u all run jobs; give more of them (users in "
                   "runtimes.yaml)", r->first, r->last);
}
