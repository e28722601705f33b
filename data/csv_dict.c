/* data/csv_dict.c - distinct texts, numbered in order of insertion
 *
 * Open addressing, at most half full; a text is compared in full after hash and length agree. The
 * bytes lie in pages that never move, so that one thread may read texts while another adds more.
 */
#include "data/csv_int.h"

enum { PAGE_BYTES = 16 << 10, SLOTS_FIRST = 64 };

struct dict_slot {
    uint64_t hash;
    uint32_t code, used;
};

struct dict_page {
    struct dict_page *next;
    size_t n, room;
    char bytes[];
};

static uint64_t load(const char *p, size_t n)
{
    uint64_t v = 0;

    memcpy(&v, p, n);
    return v;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Every byte counts: the texts come from outside. */
static uint64_t hash_text(const char *p, size_t n)
{
    const uint64_t k0 = 0x9e3779b97f4a7c15, k1 = 0xd6e8feb86659fd93;
    uint64_t h = k0 ^ n * k1;

    for (; n > 8; p += 8, n -= 8)
        h = mix(h ^ load(p, 8), k1);
    /* Two overlapping halves in place of a variable-length copy. */
    uint64_t last = n == 8 ? load(p, 8)
                    : n >= 4 ? load(p, 4) | load(p + n - 4, 4) << 32
                    : n ? (uint64_t)(unsigned char)p[0] | (uint64_t)(unsigned char)p[n / 2] << 8
                              | (uint64_t)(unsigned char)p[n - 1] << 16
                        : 0;
    return mix(h ^ last, k0);
}

static int grow_slots(struct csv_dict *d)
{
    uint32_t room = d->slot ? 2 * (d->mask + 1) : SLOTS_FIRST;
    struct dict_slot *slot = calloc(room, sizeof *slot);

    if (!slot)
        return -ERR_NOMEM;
    for (uint32_t i = 0; d->slot && i <= d->mask; i++)
        if (d->slot[i].used) {
            uint32_t k = (uint32_t)d->slot[i].hash & (room - 1);
            while (slot[k].used)
                k = (k + 1) & (room - 1);
            slot[k] = d->slot[i];
        }
    free(d->slot);
    d->slot = slot;
    d->mask = room - 1;
    return 0;
}

static const char *keep_text(struct csv_dict *d, const char *p, size_t n)
{
    if (!d->page || d->page->room - d->page->n < n) {
        size_t room = n > PAGE_BYTES ? n : PAGE_BYTES;
        struct dict_page *page = malloc(sizeof *page + room);
        if (!page)
            return NULL;
        *page = (struct dict_page){ .next = d->page, .room = room };
        d->page = page;
    }
    char *kept = d->page->bytes + d->page->n;
    memcpy(kept, p, n);
    d->page->n += n;
    return kept;
}

static int insert(struct csv_dict *d, const char *p, size_t n, uint64_t hash, uint32_t *out)
{
    if (utf8_check(p, n) < n)
        return 1;
    if (d->n == CSV_DICT_MAX)
        return -ERR_INVALID;
    if (d->n == d->room) {
        uint32_t room = d->room ? 2 * d->room : SLOTS_FIRST / 2;
        struct csv_text *text = realloc(d->text, room * sizeof *text);
        if (!text)
            return -ERR_NOMEM;
        d->text = text;
        d->room = room;
    }
    if (2 * (d->n + 1) > d->mask + 1 && grow_slots(d) < 0)
        return -ERR_NOMEM;
    const char *kept = keep_text(d, p, n);
    if (!kept)
        return -ERR_NOMEM;
    uint32_t k = (uint32_t)hash & d->mask;
    while (d->slot[k].used)
        k = (k + 1) & d->mask;
    d->slot[k] = (struct dict_slot){ hash, d->n, 1 };
    d->text[d->n] = (struct csv_text){ kept, n };
    *out = d->n++;
    return 0;
}

int csv_dict_code(struct csv_dict *d, const char *p, size_t n, uint32_t *out)
{
    if (!d->slot && grow_slots(d) < 0)
        return -ERR_NOMEM;
    uint64_t hash = hash_text(p, n);
    for (uint32_t k = (uint32_t)hash & d->mask; d->slot[k].used; k = (k + 1) & d->mask) {
        const struct dict_slot *s = &d->slot[k];
        if (s->hash == hash && d->text[s->code].n == n && memcmp(d->text[s->code].p, p, n) == 0) {
            *out = s->code;
            return 0;
        }
    }
    return insert(d, p, n, hash, out);
}

void csv_dict_done(struct csv_dict *d)
{
    while (d->page) {
        struct dict_page *page = d->page;
        d->page = page->next;
        free(page);
    }
    free(d->text);
    free(d->slot);
    *d = (struct csv_dict){ 0 };
}
