/* server/objects_digest.c - the checksums of content, as it comes */
#include <string.h>

#include "base/crc32c.h"
#include "server/objects_int.h"

/* ------------------------------------------------------------ the helper
 *
 * MD5 takes longer than the other two together and cannot be split. Of a long piece it is computed
 * by a second thread meanwhile, when that one has nothing to do; it is started by the first long
 * piece.
 */
enum { WORTH_IT = 32 << 10 };

static void *help(void *arg)
{
    struct digest_helper *h = arg;

    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (!h->md5 && !h->stop)
            pthread_cond_wait(&h->changed, &h->lock);
        if (h->stop)
            break;
        pthread_mutex_unlock(&h->lock);
        md5_update(h->md5, h->n, h->bytes);
        pthread_mutex_lock(&h->lock);
        h->md5 = NULL;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Whether it took the piece. Then its owner waits by helper_wait. */
static bool helper_take(struct digest_helper *h, struct md5_ctx *md5, const void *bytes, size_t n)
{
    bool takes = false;

    pthread_mutex_lock(&h->lock);
    if (!h->runs && !h->stop)
        h->runs = pthread_create(&h->thread, NULL, help, h) == 0;
    if (h->runs && !h->taken) {
        h->taken = takes = true;
        h->md5 = md5;
        h->bytes = bytes;
        h->n = n;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
    return takes;
}

static void helper_wait(struct digest_helper *h)
{
    pthread_mutex_lock(&h->lock);
    while (h->md5)
        pthread_cond_wait(&h->changed, &h->lock);
    h->taken = false;
    pthread_mutex_unlock(&h->lock);
}

void helper_init(struct digest_helper *h)
{
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
}

void helper_done(struct digest_helper *h)
{
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (h->runs)
        pthread_join(h->thread, NULL);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
}

/* ------------------------------------------------------------ checksums */

void digests_start(struct digests *d)
{
    sha256_start(&d->sha256);
    md5_init(&d->md5);
    d->crc32c = d->block = 0;
    d->n = 0;
    d->sums.n = 0;
}

void digests_done(struct digests *d)
{
    buf_done(&d->sums);
}

static void add_to_blocks(struct digests *d, const char *p, size_t n)
{
    while (n) {
        size_t room = OBJECTS_BLOCK - (size_t)(d->n % OBJECTS_BLOCK), k = n < room ? n : room;
        d->block = crc32c_add(d->block, p, k);
        if (k == room) {
            buf_append(&d->sums, &d->block, sizeof d->block);
            d->block = 0;
        }
        d->n += (int64_t)k;
        p += k;
        n -= k;
    }
}

int digests_blocks(const struct digests *d, struct buf *out, struct err *err)
{
    if (d->sums.failed)
        return err_set(err, ERR_NOMEM, "no memory for the checksums of an upload");
    buf_append(out, d->sums.data, d->sums.n);
    if (d->n % OBJECTS_BLOCK)
        buf_append(out, &d->block, sizeof d->block);
    return buf_ok(out, err);
}

void digests_add(struct digest_helper *h, struct digests *d, const void *bytes, size_t n)
{
    bool helped = n >= WORTH_IT && helper_take(h, &d->md5, bytes, n);
    const char *p = bytes;

    /* In pieces that stay in the nearest cache: further passes cost no memory traffic. */
    for (size_t left = n; left;) {
        size_t piece = left < 16384 ? left : 16384;
        sha256_add(&d->sha256, p, piece);
        d->crc32c = crc32c_add(d->crc32c, p, piece);
        add_to_blocks(d, p, piece);
        if (!helped)
            md5_update(&d->md5, piece, (const uint8_t *)p);
        p += piece;
        left -= piece;
    }
    if (helped)
        helper_wait(h);
}

void digests_finish(struct digests *d, struct object *out)
{
    struct digests copy = *d;
    uint8_t md5[MD5_DIGEST_SIZE];
    uint8_t big[4] = { (uint8_t)(d->crc32c >> 24), (uint8_t)(d->crc32c >> 16),
                       (uint8_t)(d->crc32c >> 8), (uint8_t)d->crc32c };

    sha256_finish_hex(&copy.sha256, out->sha256);
    md5_digest(&copy.md5, sizeof md5, md5);
    base64_text(md5, sizeof md5, out->md5);
    base64_text(big, sizeof big, out->crc32c);
}

int digests_compare(const struct object *o, const struct objects_put *p, struct err *err)
{
    if (p->crc32c && *p->crc32c && strcmp(p->crc32c, o->crc32c))
        return err_set(err, ERR_INVALID,
                       "Provided CRC32C \"%.40s\" doesn't match calculated CRC32C "
                       "\"%s\".",
                       p->crc32c, o->crc32c);
    if (p->md5 && *p->md5 && strcmp(p->md5, o->md5))
        return err_set(err, ERR_INVALID, "Provided MD5 hash \"%.40s\" doesn't match calculated MD5 "
                       "hash \"%s\".", p->md5, o->md5);
    return 0;
}
