/* base/tls.h - GnuTLS, loaded when TLS is asked for
 *
 * Linked, it would cost every command of the program several milliseconds at its start; without
 * --tls and --tls-cert nobody needs it. Any thread may load it, any number of times.
 */
#ifndef MUSTER_BASE_TLS_H
#define MUSTER_BASE_TLS_H

#include <gnutls/gnutls.h>

#include "base/err.h"

/* What is taken from GnuTLS; the name of each is there behind "gnutls_". */
#define TLS_CALLS(X)                                                                               \
    X(global_init) X(certificate_allocate_credentials) X(certificate_free_credentials)             \
    X(certificate_set_x509_key_file) X(init) X(deinit) X(set_default_priority) X(credentials_set)  \
    X(transport_set_int2) X(handshake) X(record_recv) X(record_send) X(bye) X(error_is_fatal)      \
    X(strerror) X(priority_init) X(priority_set) X(kx_get) X(alert_send_appropriate)               \
    X(session_set_ptr) X(session_get_ptr) X(transport_set_ptr) X(transport_set_push_function)      \
    X(transport_set_pull_function) X(transport_set_pull_timeout_function) X(transport_set_errno)   \
    X(psk_allocate_server_credentials) X(psk_allocate_client_credentials)                          \
    X(psk_set_server_credentials_function2) X(psk_set_client_credentials_function2)

struct tls_calls {
#define X(name) __typeof__(gnutls_##name) *name;
    TLS_CALLS(X)
#undef X
    gnutls_alloc_function malloc;       /* for what GnuTLS frees */
};

/* `option` is what the user asked for TLS with; it is in the sentence when there is no GnuTLS
 * (ERR_MISSING). The calls stay until the process ends. */
int tls_load(const char *option, const struct tls_calls **out, struct err *err);

#endif
