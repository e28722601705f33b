/* runtime/scalars.h - numbers over time, in the files that TensorBoard reads
 *
 * An events file is a TFRecord of Event messages; we write scalars only. A record is appended with
 * one write, so a killed run leaves whole records.
 */
#ifndef MUSTER_RUNTIME_SCALARS_H
#define MUSTER_RUNTIME_SCALARS_H

#include "base/err.h"
#include "base/own.h"

struct scalars;

/* A new events.out.tfevents.TIME.HOST file in `dir`. */
int scalars_open(const char *dir, struct scalars **out, struct err *err);
void scalars_free(struct scalars *s);
OWN_DEFINE(scalars)

int scalars_add(struct scalars *s, const char *tag, long step, double value, struct err *err);
int scalars_flush(struct scalars *s, struct err *err);

#endif
