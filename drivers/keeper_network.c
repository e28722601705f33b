/* drivers/keeper_network.c - the network of the one job that a keeper looks after */
#include "drivers/keeper_network.h"

#include <stdio.h>
#include <string.h>

#include "drivers/journal.h"
#include "drivers/way.h"

static struct network net = NETWORK_INIT;
static struct way way = WAY_INIT;

void keeper_network_ahead(const char *server)
{
    struct err ignored;

    network_make(server, &net, &ignored);       /* tried again when the job is here */
}

/* That of a keeper that stood by is for this server: it was made by it. */
static int make(struct task_order *o, struct err *err)
{
    const char *server = json_string_value(json_object_get(o->env, "MUSTER_SERVER"));

    server = server ? server : "";
    if (net.net >= 0 && strcmp(net.server, server))
        network_end(&net);
    if (net.net < 0 && network_make(server, &net, err) < 0)
        return err_add(err, "its network (network: outside) could not be made");
    way_open(&way, o->data_dir, net.ways, net.n_ways);
    if (network_wait(&net, err) < 0)
        return err_add(err, "its network (network: outside) could not be made");
    o->net = &net;
    if (snprintf(o->resolver, sizeof o->resolver, "%s/resolv.conf", o->dir) >=
            (int)sizeof o->resolver || !network_resolver(o->resolver, o->resolver_at))
        o->resolver_at[0] = '\0';
    return 0;
}

int keeper_network_take(struct task_order *o, const json_t *order, struct err *err)
{
    const char *missing = json_string_value(json_object_get(order, "no_outside"));

    o->network = network_mode(o->spec);
    if (o->network == NETWORK_OUTSIDE && missing) {
        journal_say(o->journal, "%s", missing);
        o->network = NETWORK_HOST;
    }
    /* Without a sandbox only a container has a network of its own. A program without network may
     * still have packages to be fetched before it runs. */
    const bool wanted = o->network == NETWORK_OUTSIDE ||
                        (o->network == NETWORK_NONE && json_object_get(o->spec, "python"));
    if (wanted && !missing && (o->confined || json_object_get(o->spec, "image")))
        return make(o, err);
    network_end(&net);
    return 0;
}

int keeper_network_fd(void)
{
    return way.fd;
}

void keeper_network_look(void)
{
    way_look(&way);
}

void keeper_network_end(void)
{
    way_close(&way);
    network_end(&net);
}
