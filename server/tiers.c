/* server/tiers.c - what a scale tier of AI Platform is on this machine */
#include "server/tiers.h"

#include "drivers/runtimes.h"
#include "server/server.h"

int server_tiers(const struct server *s, json_t **out, struct err *err)
{
    return runtimes_tiers(s->data_dir, out, err);
}
