/* spec/normal_int.h - between reading values (normal.c) and complaining about them
 * (normal_words.c)
 */
#ifndef MUSTER_SPEC_NORMAL_INT_H
#define MUSTER_SPEC_NORMAL_INT_H

#include <locale.h>

#include "spec/keys.h"
#include "spec/normal.h"

struct reader {
    const char *file;
    const char *format;         /* of data.train: "idx", "csv", ...; NULL: unknown */
    locale_t c;                 /* a user's locale may write 0,5 */
};

/* All return -ERR_INVALID; `v` is the value that is wrong, `k` its row, `map` where it stands. */

/* "expected ..., got ...": with words of one's own, or those of the row and a hint. */
int normal_wrong(const struct reader *r, const struct value *v, const char *expected,
                 struct err *err);
int normal_wrong_key(const struct reader *r, const struct key *k, const struct value *v,
                     struct err *err);
/* None of the heads of a map. */
int normal_wrong_head(const struct reader *r, const char *map, const struct value *v,
                      struct err *err);
int normal_two_heads(const struct reader *r, const struct value *v, const struct key *other,
                     struct err *err);
/* `near` (NULL: none) is what was probably meant. */
int normal_unknown_word(const struct reader *r, const struct value *v, const char *what,
                        const char *near, struct err *err);
int normal_unknown_key(const struct reader *r, const struct value *v, const char *map,
                       const char *near, struct err *err);
int normal_wants_graph(const struct reader *r, const struct value *v, const char *word,
                       struct err *err);
int normal_missing(const struct reader *r, const char *map, const struct key *k,
                   const struct value *v, struct err *err);
int normal_misplaced(const struct reader *r, const struct key *k, const struct value *v,
                     struct err *err);

/* 0, or the complaint: a name of the user's own, of a feature, a column or a node. */
int normal_check_name(const struct reader *r, const struct value *v, struct err *err);

#endif
