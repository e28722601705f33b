/* cli/worker.c - muster worker: joins a job, from this host or another */
#include <stdlib.h>

#include "base/http.h"
#include "base/own.h"
#include "cli/cli.h"
#include "runtime/fetch.h"
#include "runtime/tunnel.h"
#include "runtime/wire.h"
#include "runtime/worker.h"

struct args {
    const char *join, *listen;
    long threads;
    int tcp;
    struct option_list set;
};

static const struct option options[] = {
    { "join", 0, "HOST:PORT", "the job's coordinator, as muster train --workers says it: with tls: "
      "before it, where the job uses TLS", OPTION_TEXT, offsetof(struct args, join) },
    { "listen", 0, "HOST:PORT", "where other workers reach this one (default: the address by which "
      "it reaches the coordinator)", OPTION_TEXT, offsetof(struct args, listen) },
    { "threads", 0, "N", "use N threads (default: 1); the result is the same", OPTION_INT,
      offsetof(struct args, threads) },
    { "set", 0, "KEY=VALUE", "change the spec, when one is given", OPTION_LIST,
      offsetof(struct args, set) },
    { "tcp", 0, NULL, "no shared memory, also with workers of this host", OPTION_FLAG,
      offsetof(struct args, tcp) },
    { 0 }
};

/* Before there are threads that stay on a core, which the one of TLS would share. */
static int prepare_tls(const struct args *a, struct err *err)
{
    if (!wire_is_tls(a->join))
        return a->listen && wire_is_tls(a->listen)
                   ? err_set(err, ERR_INVALID, "--listen %s: the job at %s does not use TLS (start "
                             "it with --tls, and join tls:%s)", a->listen, a->join, a->join)
                   : 0;
    return tunnel_load(err) < 0 ? -(int)err->code : tunnel_start(err);
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .threads = 1 };
    OWN(job_spec) spec = NULL;
    const char *own = getenv("MUSTER_JOB_TOKEN");       /* from the job that started it */
    const char *token = own && *own ? own : getenv("MUSTER_TOKEN");

    (void)c;
    if (own)
        http_on_note(NULL);     /* the job has said it */
    int n = options_parse(options, argc, argv, &a, err);
    if (n < 0)
        return n;
    if (n > 1 || !a.join)
        return cli_usage(&command_worker, err);
    if (!token || !*token)
        return err_set(err, ERR_DENIED,
                       "the job's token is not in the environment (set MUSTER_TOKEN "
                       "to what is in the file \"token\" of the run's directory)");
    if (wire_token_check(token, err) < 0)
        return err_add(err, "MUSTER_TOKEN");
    if (prepare_tls(&a, err) < 0)
        return -(int)err->code;
    if (n == 1 ? spec_read(argv[0], a.set.item, a.set.n, &spec, err) < 0
               : worker_fetch_spec(a.join, token, &spec, err) < 0)
        return -(int)err->code;
    struct parts parts = { 0 };
    bool sent_away = false;
    const struct worker_config config = { .join = a.join, .listen = a.listen, .token = token,
                                          .spec = spec, .parts = &parts,
                                          .threads = (int)a.threads, .no_shared_memory = a.tcp,
                                          .sent_away = &sent_away };
    int rc = fetch_missing(spec, a.join, token, &parts, err);
    if (rc == 0)
        rc = worker_run(&config, err);
    if (rc == 0 && sent_away && !own)
        fprintf(stderr, "muster: left the job: it has as many workers as it is to have (muster "
                "resize gives it more)\n");
    parts_done(&parts);
    return rc;
}

const struct command command_worker = {
    .name = "worker",
    .args = "[SPEC]",
    .summary = "join a job of many workers",
    .example = "muster worker --join 127.0.0.1:7000\n"
               "muster worker --join tls:10.0.0.5:7000",
    .more =
        "The job's token is in the environment, MUSTER_TOKEN, never on the command line; the file\n"
        "\"token\" of the run's directory has it. The spec comes from the job, unless one is "
        "given,\n"
        "which must be the same; so do the files that it names where this host lacks them.",
    .options = options,
    .run = run,
};
