/* drivers/container_int.h - folders of volumes for a container (drivers/container_mounts.c) */
#ifndef MUSTER_DRIVERS_CONTAINER_INT_H
#define MUSTER_DRIVERS_CONTAINER_INT_H

#include "drivers/container.h"

/* A path that is what fd is, until it is unbound; ns as of sandbox_bind. -1: it cannot be made
 * here. */
int container_bind(int fd, int ns, char *out, size_t size);

/* Ends those of all keepers that are gone. */
void container_unbind(bool (*is_gone)(long keeper));

#endif
