/* drivers/keeper_network.h - the network of the one job that a keeper looks after
 *
 * It is made ahead of the job where the keeper stands by, and as soon as the job is known else
 * (drivers/network.h). All of it belongs to the process: a keeper has one job in its life.
 */
#ifndef MUSTER_DRIVERS_KEEPER_NETWORK_H
#define MUSTER_DRIVERS_KEEPER_NETWORK_H

#include "drivers/task.h"

/* Makes the network for a job that has not come. `server` is the server's URL. What fails is told
 * when the job comes. */
void keeper_network_ahead(const char *server);

/* Sets o->network and o->net by the job's document and `order`, and waits until its network is up.
 * "no_outside" in the order: why this machine cannot have it; the job then has the machine's
 * network, and its log says so. */
int keeper_network_take(struct task_order *o, const json_t *order, struct err *err);

/* For poll: what keeper_network_look wants to hear of; -1: nothing. */
int keeper_network_fd(void);
void keeper_network_look(void);

void keeper_network_end(void);

#endif
