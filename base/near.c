/* base/near.c - the nearest word, for "did you mean" */
#include "base/near.h"

#include <ctype.h>
#include <string.h>

enum { LETTERS_MAX = 63 };

static int length(const char *s)
{
    return (int)strnlen(s, LETTERS_MAX);
}

static int same(char a, char b)
{
    a = a == '-' ? '_' : (char)tolower((unsigned char)a);
    b = b == '-' ? '_' : (char)tolower((unsigned char)b);
    return a == b;
}

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Optimal string alignment; three rows are enough: swapped letters look two rows back. */
int near_distance(const char *a, const char *b)
{
    int rows[3][LETTERS_MAX + 1], n = length(a), m = length(b);
    int *before = rows[0], *above = rows[1], *row = rows[2];

    for (int j = 0; j <= m; j++)
        above[j] = j;
    for (int i = 1; i <= n; i++) {
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            row[j] = least(above[j] + 1, row[j - 1] + 1,
                           above[j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]) &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        int *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[m];
}

struct near near_to(const char *typed)
{
    int limit = length(typed) / 3;
    /* One letter more than the limit: a candidate has to be nearer than `distance`. */
    return (struct near){ typed, NULL, (limit < 1 ? 1 : limit) + 1 };
}

void near_try(struct near *n, const char *word)
{
    int d = near_distance(n->typed, word);
    if (d < n->distance) {
        n->distance = d;
        n->word = word;
    }
}

const char *near_word(const char *typed, const char *const *words)
{
    struct near n = near_to(typed);
    for (; *words; words++)
        near_try(&n, *words);
    return n.word;
}
