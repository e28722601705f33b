/* server/tickets.h - one address, for a minute, without a header
 *
 * A browser that downloads a file or fills a frame sends no header of the page's own, and a token in
 * an address would stay in the history. The page asks for a ticket instead and puts it at the end of
 * the address, "?ticket=..." or "&ticket=...". A ticket is good for GET of exactly the path and query
 * that it was asked for, for TICKETS_S seconds, and only as long as the token it was asked with.
 * Tickets are kept in memory alone: a restart ends them all.
 *
 * Threads: any.
 */
#ifndef MUSTER_SERVER_TICKETS_H
#define MUSTER_SERVER_TICKETS_H

#include <stdbool.h>

#include "server/auth.h"

enum { TICKETS_S = 60, TICKETS_MAX = 1024, TICKET_TARGET_MAX = 4096 };

struct tickets;
struct tickets *tickets_new(void);      /* NULL: no memory */
void tickets_free(struct tickets *t);
OWN_DEFINE(tickets)

/* `target`: path and query as they will be sent, without the ticket. The oldest ticket goes when there
 * are more than TICKETS_MAX. */
int tickets_add(struct tickets *t, const char *target, const char *token, double now,
                char out[AUTH_TOKEN], struct err *err);
/* The token that the ticket was asked with. False: there is no such ticket for `target` at `now`
 * (seconds of a clock that is never set back). */
bool tickets_find(struct tickets *t, const char *ticket, const char *target, double now,
                  char out_token[AUTH_TOKEN]);

#endif
