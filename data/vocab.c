/* data/vocab.c - open addressing over ids; the texts lie one after the other in one block */
#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>

struct vocab {
    char *text;                 /* every text and its NUL */
    size_t text_n, text_cap;
    size_t *start;              /* (n + 1) offsets in text */
    int n, cap;
    int32_t *slot;              /* id + 1, 0: free */
    uint32_t slots;             /* a power of two */
};

struct vocab *vocab_new(void)
{
    return calloc(1, sizeof(struct vocab));
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    free(v->text);
    free(v->start);
    free(v->slot);
    free(v);
}

uint64_t vocab_hash(const char *text, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h;
}

const char *vocab_text(const struct vocab *v, int id, size_t *out_n)
{
    if (out_n)
        *out_n = v->start[id + 1] - v->start[id] - 1;
    return v->text + v->start[id];
}

/* The slot of the text, or the free one where it belongs. */
static uint32_t slot_of(const struct vocab *v, const char *text, size_t n)
{
    uint64_t h = vocab_hash(text, n);
    uint32_t i = (uint32_t)(h ^ h >> 32) & (v->slots - 1);
    for (; v->slot[i]; i = (i + 1) & (v->slots - 1)) {
        size_t len;
        const char *t = vocab_text(v, v->slot[i] - 1, &len);
        if (len == n && !memcmp(t, text, n))
            break;
    }
    return i;
}

int vocab_find(const struct vocab *v, const char *text, size_t n)
{
    return v->slots ? v->slot[slot_of(v, text, n)] - 1 : -1;
}

static int grow_slots(struct vocab *v)
{
    uint32_t slots = v->slots ? 2 * v->slots : 64;
    int32_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return -1;
    free(v->slot);
    v->slot = slot;
    v->slots = slots;
    for (int id = 0; id < v->n; id++) {
        size_t n;
        const char *t = vocab_text(v, id, &n);
        v->slot[slot_of(v, t, n)] = id + 1;
    }
    return 0;
}

static int grow_texts(struct vocab *v, size_t n)
{
    if (v->text_n + n + 1 > v->text_cap) {
        size_t cap = 2 * v->text_cap + n + 256;
        char *text = realloc(v->text, cap);
        if (!text)
            return -1;
        v->text = text;
        v->text_cap = cap;
    }
    if (v->n + 1 >= v->cap) {
        int cap = 2 * v->cap + 16;
        size_t *start = realloc(v->start, (size_t)cap * sizeof *start);
        if (!start)
            return -1;
        v->start = start;
        v->cap = cap;
        v->start[0] = 0;
    }
    return 0;
}

int vocab_add(struct vocab *v, const char *text, size_t n)
{
    if ((uint32_t)v->n * 2 >= v->slots && grow_slots(v) < 0)
        return -1;
    uint32_t i = slot_of(v, text, n);
    if (v->slot[i])
        return v->slot[i] - 1;
    if (v->n == VOCAB_MAX || grow_texts(v, n) < 0)
        return -1;
    if (n)
        memcpy(v->text + v->text_n, text, n);
    v->text[v->text_n + n] = 0;
    v->text_n += n + 1;
    v->start[v->n + 1] = v->text_n;
    v->slot[i] = ++v->n;
    return v->n - 1;
}

int vocab_size(const struct vocab *v)
{
    return v->n;
}
