/* base/near.h - the nearest word, for "did you mean"
 *
 * Feed the candidates one by one, so that any table can be searched without being copied:
 *     struct near near = near_to("trian");
 *     for (...) near_try(&near, table[i].name);
 *     if (near.word) ... "did you mean \"%s\"?"
 * Distance counts inserted, dropped, replaced and swapped letters; case and '-' against '_' are
 * free. A word further than a third of its length (at least one letter) is no candidate; of two
 * equally near, the first tried wins.
 */
#ifndef MUSTER_BASE_NEAR_H
#define MUSTER_BASE_NEAR_H

struct near {
    const char *typed;          /* borrowed */
    const char *word;           /* the best so far, borrowed from near_try; NULL: none is near */
    int distance;
};

struct near near_to(const char *typed);
void near_try(struct near *n, const char *word);

/* Over a list that ends in NULL. */
const char *near_word(const char *typed, const char *const *words);

/* Letters to change; words over 63 letters compare by their first 63. */
int near_distance(const char *a, const char *b);

#endif
