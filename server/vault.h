/* server/vault.h - values at rest, encrypted with a key that no backup holds
 *
 * The key is DATA/secrets.key: 32 random bytes as hex, 0600, made with the first value that is
 * sealed. `serve --backup` leaves it out, so a copy of muster.db alone gives no secret away; who
 * wants to restore secrets keeps a copy of the key elsewhere.
 *
 * A sealed value is VERSION (1 byte, 1), NONCE (12), CIPHERTEXT, TAG (16): ChaCha20-Poly1305. The
 * label (which value it is) is authenticated with it, so that a value cannot be moved under
 * another name.
 *
 * Threads: any.
 */
#ifndef MUSTER_SERVER_VAULT_H
#define MUSTER_SERVER_VAULT_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

struct vault;

/* Touches no file. */
int vault_new(const char *data_dir, struct vault **out, struct err *err);
void vault_free(struct vault *v);
OWN_DEFINE(vault)

/* Appends the sealed value to `out`. */
int vault_seal(struct vault *v, const char *label, const char *text, struct buf *out,
               struct err *err);

/* Caller frees *out. ERR_MISSING: there is no key file, or it is another one; ERR_IO: the value is
 * damaged. The text says what to do; the caller puts the name of the value before it. */
int vault_open(struct vault *v, const char *label, const void *sealed, size_t n, char **out,
               struct err *err);

#endif
