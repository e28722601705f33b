/* server/vault.c - values at rest, encrypted with a key that no backup holds */
#include "server/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/chacha-poly1305.h>
#include <nettle/memops.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"

enum {
    VERSION = 1,
    KEY = CHACHA_POLY1305_KEY_SIZE,
    NONCE = CHACHA_POLY1305_NONCE_SIZE,
    TAG = CHACHA_POLY1305_DIGEST_SIZE,
    EXTRA = 1 + NONCE + TAG,
};

struct vault {
    char *file;
    pthread_mutex_t lock;
    bool has_key;
    uint8_t key[KEY];
};

int vault_new(const char *data_dir, struct vault **out, struct err *err)
{
    OWN(vault) v = calloc(1, sizeof *v);

    if (!v || asprintf(&v->file, "%s/secrets.key", data_dir) < 0)
        return err_set(err, ERR_NOMEM, "no memory for the key of secrets");
    pthread_mutex_init(&v->lock, NULL);
    *out = TAKE(v);
    return 0;
}

void vault_free(struct vault *v)
{
    if (!v)
        return;
    explicit_bzero(v->key, sizeof v->key);
    free(v->file);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

/* ------------------------------------------------------------ the key */

static int read_key(struct vault *v, struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n;

    if (files_read(v->file, 4096, &text, &n, err) < 0)
        return -(int)err->code;
    n = strspn(text, "0123456789abcdef");
    bool good = n == 2 * KEY && strspn(text + n, "\r\n") == strlen(text + n);
    for (int i = 0; good && i < KEY; i++) {
        unsigned byte = 0;
        good = sscanf(text + 2 * i, "%2x", &byte) == 1;
        v->key[i] = (uint8_t)byte;
    }
    explicit_bzero(text, strlen(text));
    if (!good)
        return err_set(err, ERR_INVALID,
                       "%s: is no key of secrets (%d hexadecimal digits); put the right file back",
                       v->file, 2 * KEY);
    if (chmod(v->file, 0600) < 0)
        return err_set(err, ERR_IO, "%s: cannot be kept from others: %s", v->file,
                       strerror(errno));
    v->has_key = true;
    return 0;
}

/* The key is on the disk before the first value that needs it. */
static int make_key(struct vault *v, struct err *err)
{
    char line[2 * KEY + 2];
    uint8_t key[KEY];

    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key)
        return err_set(err, ERR_IO, "the system gives no random bytes: %s", strerror(errno));
    for (int i = 0; i < KEY; i++)
        snprintf(line + 2 * i, 3, "%02x", key[i]);
    line[2 * KEY] = '\n';
    int rc = files_write(v->file, line, sizeof line - 1, err);
    explicit_bzero(line, sizeof line);
    if (rc < 0)
        return rc;
    if (chmod(v->file, 0600) < 0)
        return err_set(err, ERR_IO, "%s: cannot be kept from others: %s", v->file,
                       strerror(errno));
    memcpy(v->key, key, KEY);
    explicit_bzero(key, sizeof key);
    v->has_key = true;
    return 0;
}

static int have_key(struct vault *v, bool make, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&v->lock);
    if (!v->has_key && access(v->file, F_OK) == 0)
        rc = read_key(v, err);
    else if (!v->has_key && make)
        rc = make_key(v, err);
    else if (!v->has_key)
        rc = err_set(err, ERR_MISSING,
                     "its key, %s, is missing (copy the file from where the secret was set, or "
                     "set the secret again)", v->file);
    pthread_mutex_unlock(&v->lock);
    return rc;
}

/* ------------------------------------------------------------ values */

static void begin(const struct vault *v, struct chacha_poly1305_ctx *ctx, const char *label,
                  const uint8_t nonce[NONCE])
{
    chacha_poly1305_set_key(ctx, v->key);
    chacha_poly1305_set_nonce(ctx, nonce);
    chacha_poly1305_update(ctx, strlen(label), (const uint8_t *)label);
}

int vault_seal(struct vault *v, const char *label, const char *text, struct buf *out,
               struct err *err)
{
    struct chacha_poly1305_ctx ctx;
    size_t n = strlen(text);

    if (have_key(v, true, err) < 0)
        return -(int)err->code;
    uint8_t *to = (uint8_t *)buf_reserve(out, n + EXTRA);
    if (!to)
        return err_set(err, ERR_NOMEM, "no memory for a secret");
    to[0] = VERSION;
    if (getrandom(to + 1, NONCE, 0) != NONCE)
        return err_set(err, ERR_IO, "the system gives no random bytes: %s", strerror(errno));
    begin(v, &ctx, label, to + 1);
    chacha_poly1305_encrypt(&ctx, n, to + 1 + NONCE, (const uint8_t *)text);
    chacha_poly1305_digest(&ctx, TAG, to + 1 + NONCE + n);
    explicit_bzero(&ctx, sizeof ctx);
    out->n += n + EXTRA;
    return 0;
}

int vault_open(struct vault *v, const char *label, const void *sealed, size_t n, char **out,
               struct err *err)
{
    struct chacha_poly1305_ctx ctx;
    const uint8_t *from = sealed;
    uint8_t tag[TAG];

    if (n < EXTRA || from[0] != VERSION)
        return err_set(err, ERR_IO, "its bytes in the database are damaged (set it again)");
    if (have_key(v, false, err) < 0)
        return -(int)err->code;
    size_t length = n - EXTRA;
    OWN_MEM char *text = malloc(length + 1);
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a secret");
    begin(v, &ctx, label, from + 1);
    chacha_poly1305_decrypt(&ctx, length, (uint8_t *)text, from + 1 + NONCE);
    chacha_poly1305_digest(&ctx, TAG, tag);
    explicit_bzero(&ctx, sizeof ctx);
    text[length] = '\0';
    if (!memeql_sec(tag, from + 1 + NONCE + length, TAG)) {
        explicit_bzero(text, length);
        return err_set(err, ERR_IO,
                       "cannot be decrypted: %s is not the key it was sealed with, or its bytes "
                       "in the database are damaged (put the right key there, or set the secret "
                       "again)", v->file);
    }
    *out = TAKE(text);
    return 0;
}
