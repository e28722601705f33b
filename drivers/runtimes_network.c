/* drivers/runtimes_network.c - whose jobs may have this machine's network */
#include <string.h>

#include "drivers/runtimes_int.h"

int runtimes_host_network(const char *data_dir, bool is_owner, struct err *err)
{
    char path[PATH_MAX];
    OWN(value) table = NULL;

    if (runtimes_read(data_dir, path, &table, err) < 0)
        return -(int)err->code;
    const char *who = runtimes_word(value_find(table, "network"), "host");
    if (!strcmp(who, "anyone") || (is_owner && strcmp(who, "nobody")))
        return 0;
    return err_set(err, ERR_DENIED,
                   "network: host is for %s here (%s; leave it out: a job reaches the world outside "
                   "and the server without it)",
                   !strcmp(who, "nobody") ? "no job" : "jobs that the server's own token submits",
                   !strcmp(who, "nobody") ? "runtimes.yaml says network: {host: nobody}"
                                          : "network: {host: anyone} in runtimes.yaml changes that");
}
