/* server/retention_int.h - the thread of retention, and its two works */
#ifndef MUSTER_SERVER_RETENTION_INT_H
#define MUSTER_SERVER_RETENTION_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/retention.h"

/* A job that runs in a project whose disk is limited. */
struct measured {
    int64_t job, bytes;
    int attempt;
    bool volumes;               /* it mounts some */
};

/* Such a project, as it was measured last. */
struct area {
    char project[64];
    int64_t volumes;            /* bytes */
    struct measured *jobs;
    int n;
    struct area *next;
};

struct retention {
    struct server *server;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;       /* of asked */
    pthread_cond_t wake;
    bool asked;
    _Atomic bool ending;
    int64_t seen;               /* the last event that was looked at; 0: none */
    double total;               /* bytes of ended jobs' files; may be more than there are */
    double days_at;             /* when to look for old ones again */
    struct area *areas;         /* retention_use.c */
};

/* The tables, and those of jobs. Twice is fine. */
int retention_init(struct server *s, struct err *err);
/* What a server that was killed had begun. */
void retention_finish(struct retention *r);

/* retention_use.c: measures every project whose disk is limited, and ends who writes in a full one.
 * Returns in how many seconds to come again; 0: there is no such project. */
double use_measure(struct retention *r);
void use_free(struct retention *r);

#endif
