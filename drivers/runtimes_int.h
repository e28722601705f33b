/* drivers/runtimes_int.h - the table of runtimes: what is read of it, and what may be in it */
#ifndef MUSTER_DRIVERS_RUNTIMES_INT_H
#define MUSTER_DRIVERS_RUNTIMES_INT_H

#include "drivers/runtimes.h"
#include "spec/yaml.h"

/* ERR_INVALID with the line of a key that is none, or of a value that cannot be one. */
int runtimes_check_table(const struct value *table, const char *path, struct err *err);

/* The table of the data directory, written first where there is none; `path` (PATH_MAX bytes) is
 * where it is. */
int runtimes_read(const char *data_dir, char *path, struct value **out, struct err *err);

/* "2Gi" in bytes; -1: it is no size. */
double runtimes_bytes(const char *text);

#endif
