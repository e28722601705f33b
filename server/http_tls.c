/* server/http_tls.c - TLS on a connection, by GnuTLS (base/tls.h) */
#include <stdint.h>

#include "base/tls.h"
#include "server/http_int.h"

static const struct tls_calls *tls_lib;

int tls_open(const char *cert, const char *key, void **out, struct err *err)
{
    gnutls_certificate_credentials_t cred = NULL;

    if (tls_load("--tls-cert", &tls_lib, err) < 0)
        return -(int)err->code;
    if (tls_lib->certificate_allocate_credentials(&cred) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a certificate");
    int rc = tls_lib->certificate_set_x509_key_file(cred, cert, key, GNUTLS_X509_FMT_PEM);
    if (rc < 0) {
        tls_lib->certificate_free_credentials(cred);
        return err_set(err, ERR_INVALID,
                       "%s and %s are no certificate and its key: %s (both in PEM)", cert, key,
                       tls_lib->strerror(rc));
    }
    *out = cred;
    return 0;
}

void tls_close(void *tls)
{
    if (tls)
        tls_lib->certificate_free_credentials(tls);
}

void *tls_session(void *tls, int fd)
{
    gnutls_session_t s;

    if (tls_lib->init(&s, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0)
        return NULL;
    if (tls_lib->set_default_priority(s) < 0
        || tls_lib->credentials_set(s, GNUTLS_CRD_CERTIFICATE, tls) < 0) {
        tls_lib->deinit(s);
        return NULL;
    }
    tls_lib->transport_set_int2(s, fd, fd);
    return s;
}

int tls_handshake(void *session)
{
    int rc;

    do
        rc = tls_lib->handshake(session);
    while (rc == GNUTLS_E_INTERRUPTED || rc == GNUTLS_E_WARNING_ALERT_RECEIVED);
    return rc == 0 ? 1 : rc == GNUTLS_E_AGAIN || !tls_lib->error_is_fatal(rc) ? 0 : -1;
}

static long result(long n)
{
    return n >= 0 ? n : n == GNUTLS_E_AGAIN || !tls_lib->error_is_fatal((int)n) ? -2 : -1;
}

long tls_recv(void *session, void *out, size_t n)
{
    return result(tls_lib->record_recv(session, out, n));
}

long tls_send(void *session, const void *bytes, size_t n)
{
    long sent = result(tls_lib->record_send(session, bytes, n));
    return sent == 0 ? -2 : sent;
}

void tls_end(void *session)
{
    tls_lib->bye(session, GNUTLS_SHUT_WR);
    tls_lib->deinit(session);
}
