/* drivers/index_int.h - what the settings of package indexes and their relay share */
#ifndef MUSTER_DRIVERS_INDEX_INT_H
#define MUSTER_DRIVERS_INDEX_INT_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "drivers/index.h"

enum { INDEX_MAX = 32, INDEX_KEY = 32 };

/* One index, or page of links. */
struct index_at {
    char *url;                  /* without a user; ends in '/' where it is an index */
    char *authorization;        /* "Basic ..."; NULL: none */
};

struct index_variable {
    char *name, *value;
};

/* Written by the relay, read by the keeper. */
struct index_shared {
    atomic_int state;           /* 0: none, 1: being written, 2: there */
    char trouble[512];
};

struct index {
    struct index_at at[INDEX_MAX];
    int n;
    struct index_variable *variables;   /* for the builder; "\1N" in a value is the relay's N */
    size_t n_variables;
    bool relayed;               /* one has credentials, or is on loopback */
    int port;
    pid_t relay;
    struct index_shared *shared;
    uint8_t key[INDEX_KEY];
};

/* In the relay's process: serves `listener` until it is killed. */
__attribute__((noreturn)) void index_relay(const struct index *x, int listener);

#endif
