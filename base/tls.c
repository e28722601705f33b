/* base/tls.c - GnuTLS, loaded when TLS is asked for */
#include "base/tls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

static struct tls_calls calls;

static int load(const char *option, struct err *err)
{
    void *lib = dlopen("libgnutls.so.30", RTLD_NOW | RTLD_LOCAL);

    if (!lib)
        return err_set(err, ERR_MISSING, "GnuTLS is not on this machine, and %s needs it "
                       "(apt-get install libgnutls30)", option);
#define X(name)                                                                                    \
    if (!(calls.name = (__typeof__(calls.name))dlsym(lib, "gnutls_" #name)))                       \
        return err_set(err, ERR_MISSING, "the GnuTLS of this machine lacks gnutls_" #name          \
                       ", and %s needs it", option);
    TLS_CALLS(X)
#undef X
    gnutls_alloc_function *its = dlsym(lib, "gnutls_malloc");   /* a variable of the library's */
    if (!its)
        return err_set(err, ERR_MISSING, "the GnuTLS of this machine lacks gnutls_malloc");
    calls.malloc = *its;
    return calls.global_init() < 0 ? err_set(err, ERR_IO, "GnuTLS does not start") : 0;
}

int tls_load(const char *option, const struct tls_calls **out, struct err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;

    pthread_mutex_lock(&lock);
    int rc = loaded ? 0 : load(option, err);
    loaded |= rc == 0;
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        *out = &calls;
    return rc;
}
