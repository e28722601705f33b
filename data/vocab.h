/* data/vocab.h - texts numbered 0, 1, 2 … in the order they came
 *
 * A hash table from text to id that keeps every text it has seen; used for vocabularies and labels.
 * Looking up allocates nothing. Not thread safe while texts are added.
 */
#ifndef MUSTER_DATA_VOCAB_H
#define MUSTER_DATA_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "base/own.h"

/* A vocabulary of more values than this is a mistake in the spec: hash the column instead. */
enum { VOCAB_MAX = 1 << 20 };

struct vocab;

struct vocab *vocab_new(void);
void vocab_free(struct vocab *v);
OWN_DEFINE(vocab)

/* The id of the text, which is added if it is new; -1: no memory, or VOCAB_MAX is reached. */
int vocab_add(struct vocab *v, const char *text, size_t n);
int vocab_find(const struct vocab *v, const char *text, size_t n);      /* -1: not there */

int vocab_size(const struct vocab *v);
const char *vocab_text(const struct vocab *v, int id, size_t *out_n); /* NUL-terminated; borrowed */

/* FNV-1a, 64 bits, of the bytes: fixed for all time, since hashed features depend on it. */
uint64_t vocab_hash(const char *text, size_t n);

#endif
