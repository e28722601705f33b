/* base/err.h - one way to fail
 *
 * A function that can fail returns 0 or a negative code and takes `struct err *` last. The caller
 * owns the struct, so failing never allocates. Outputs stay untouched on failure. Only the mains
 * print an error or exit; all else returns it.
 */
#ifndef MUSTER_BASE_ERR_H
#define MUSTER_BASE_ERR_H

/*      code      HTTP exit */
#define ERR_CODES(X)                                                            \
    X(INVALID,   400,  2)       /* the request is wrong; the user changes it */ \
    X(DENIED,    403,  3)                                                       \
    X(MISSING,   404,  4)                                                       \
    X(CONFLICT,  409,  5)       /* right in itself, wrong in this state */      \
    X(AGAIN,     503,  6)       /* the only code a driver may retry on */       \
    X(IO,        500,  7)                                                       \
    X(NOMEM,     500,  8)                                                       \
    X(DIVERGED,  500,  9)       /* training stopped: the loss is not a number */

enum err_code {
    ERR_OK,
#define X(name, http, exit) ERR_##name,
    ERR_CODES(X)
#undef X
};

struct err {
    enum err_code code;
    char text[512];     /* a sentence for the user, no newline; cut with "..." */
};

/* `e` is never NULL. Both return -code: a failing line reads `return err_set(err, ...)`. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int err_add(struct err *e, const char *fmt, ...)        /* puts "fmt: " before the text */
    __attribute__((format(printf, 2, 3)));

int err_http(enum err_code code);
int err_exit(enum err_code code);

#endif
