/* spec/scan.h - what a scalar's text says, when its key wants a number, a range, a metric
 *
 * Nothing here guesses: each function is asked for one form and answers 1 when the text has it.
 */
#ifndef MUSTER_SPEC_SCAN_H
#define MUSTER_SPEC_SCAN_H

#include <locale.h>
#include <stddef.h>

#include "spec/yaml.h"

int scan_bool(const struct value *v, int *out);         /* plain true or false */

/* [+-]digits, and no leading zero: 010 is ten to some readers of YAML and eight to others. */
int scan_whole(const char *text, long long *out);

/* A decimal number as JSON and YAML 1.2 have them, and .5 and 5. beside; finite. `c` is the C
 * locale: a user's may write 0,5. */
int scan_number(const char *text, locale_t c, double *out);

/* An amount as Kubernetes writes it, and not below 0: "2", "500m", "1.5Gi", "1e3". */
int scan_quantity(const char *text, double *out);

/* "a..b", "a.." and "..b"; what is left out is -1. */
int scan_range(const char *text, long long *out_a, long long *out_b);

/* "10 steps", "1 epoch", "2 epochs"; *out_unit is "step" or "epoch". */
int scan_every(const char *text, long long *out_n, const char **out_unit);
/* The same, or a number of seconds. */
int scan_when(const char *text, long long *out_n, const char **out_unit);

int scan_metric(const char *text);                      /* accuracy, top_5 */

/* "test_" and a metric. `near` is what was probably meant when it is not, or "". */
int scan_monitor(const char *text, char *near, size_t size);

#endif
