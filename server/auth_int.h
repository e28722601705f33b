/* server/auth_int.h - what the files of auth share */
#ifndef MUSTER_SERVER_AUTH_INT_H
#define MUSTER_SERVER_AUTH_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/auth.h"
#include "server/store.h"
#include "server/vault.h"

struct holder;

struct auth {
    struct store *store;
    struct vault *vault;
    char root[AUTH_TOKEN];
    char *file;
    pthread_rwlock_t lock;
    struct holder *holders;     /* tokens, then sessions */
    size_t n, cap;
    atomic_uint epoch;
};

/* ERR_MISSING. Inside a read or write of the store. */
int auth_need_project(sqlite3 *db, const char *project, struct err *err);

/* Encrypts secrets that an older version left as plain text. The server starts without it, on a
 * full disk too: what is plain is read as it is. */
void auth_values_seal(struct auth *a);

#endif
