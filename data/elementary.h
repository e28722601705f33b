/* data/elementary.h - log and exp that give the same bits on every machine
 *
 * The C library picks variants of these by CPU, and a last bit that differs in a feature ends as a
 * different model. These use additions, multiplications and one division in a fixed order; their
 * error is below 2 units in the last place. Results at the edges are those of C (log(0) = -inf).
 */
#ifndef MUSTER_DATA_ELEMENTARY_H
#define MUSTER_DATA_ELEMENTARY_H

double elementary_log(double x);
double elementary_log1p(double x);
double elementary_exp(double x);

#endif
