/* server/tickets.c - one address, for a minute, without a header
 *
 * A ring: the ticket that is made next takes the place of the oldest. As all of them last equally long,
 * what is overwritten has either expired or is the nearest to it.
 */
#include "server/tickets.h"

#include <nettle/memops.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ticket {
    char text[AUTH_TOKEN], token[AUTH_TOKEN];
    char *target;
    double until;
};

struct tickets {
    pthread_mutex_t lock;
    struct ticket *ring;        /* TICKETS_MAX, made at the first ticket */
    int next;
};

struct tickets *tickets_new(void)
{
    struct tickets *t = calloc(1, sizeof *t);

    if (t)
        pthread_mutex_init(&t->lock, NULL);
    return t;
}

void tickets_free(struct tickets *t)
{
    if (!t)
        return;
    for (int i = 0; t->ring && i < TICKETS_MAX; i++)
        free(t->ring[i].target);
    free(t->ring);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int tickets_add(struct tickets *t, const char *target, const char *token, double now,
                char out[AUTH_TOKEN], struct err *err)
{
    struct ticket made = { .until = now + TICKETS_S };

    if (target[0] != '/' || strlen(target) > TICKET_TARGET_MAX || strchr(target, '#'))
        return err_set(err, ERR_INVALID, "a ticket is for a path and query of this server, such as "
                       "\"/api/jobs/default/NAME/logs?format=text\"");
    if (strlen(token) >= AUTH_TOKEN)
        return err_set(err, ERR_INVALID, "this token is too long for a ticket");
    if (auth_random("ticket_", made.text, err) < 0)
        return -(int)err->code;
    memcpy(made.token, token, strlen(token) + 1);
    if (!(made.target = strdup(target)))
        return err_set(err, ERR_NOMEM, "no memory for a ticket");
    pthread_mutex_lock(&t->lock);
    if (!t->ring && !(t->ring = calloc(TICKETS_MAX, sizeof *t->ring))) {
        pthread_mutex_unlock(&t->lock);
        free(made.target);
        return err_set(err, ERR_NOMEM, "no memory for tickets");
    }
    free(t->ring[t->next].target);
    t->ring[t->next] = made;
    t->next = (t->next + 1) % TICKETS_MAX;
    pthread_mutex_unlock(&t->lock);
    memcpy(out, made.text, AUTH_TOKEN);
    return 0;
}

/* All are looked at, each whole: the time says nothing of which was near. */
bool tickets_find(struct tickets *t, const char *ticket, const char *target, double now,
                  char out_token[AUTH_TOKEN])
{
    const struct ticket *found = NULL;
    size_t n = strlen(ticket);

    pthread_mutex_lock(&t->lock);
    for (int i = 0; t->ring && i < TICKETS_MAX; i++) {
        const struct ticket *at = &t->ring[i];
        if (at->target && strlen(at->text) == n && memeql_sec(at->text, ticket, n))
            found = at;
    }
    if (found && (found->until <= now || strcmp(found->target, target) != 0))
        found = NULL;
    if (found)
        memcpy(out_token, found->token, AUTH_TOKEN);
    pthread_mutex_unlock(&t->lock);
    return found != NULL;
}
