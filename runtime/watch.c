/* runtime/watch.c - looking at a running job, and asking something of it */
#include "runtime/watch.h"

#include <poll.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/own.h"
#include "runtime/wire.h"

enum { CALL_MS = 2000, SILENT_MS = 2000, AGAIN_MS = 50 };

static int call(const struct job_desk *desk, enum wire_kind kind, const char *text, int *out_fd,
                struct err *err)
{
    const struct wire_header h = { kind, 0, 0, strlen(text) };
    OWN_FD int fd = -1;

    if (wire_connect(desk->address, desk->token, CALL_MS, &fd, err) < 0 ||
        wire_prove(fd, desk->token, CALL_MS, err) < 0 || wire_send(fd, &h, text, CALL_MS, err) < 0)
        return -(int)err->code;
    *out_fd = fd;
    fd = -1;
    return 0;
}

/* 0: the job has ended or `tell` has enough; else the connection broke. */
static int listen_to(int fd, int (*tell)(void *arg, const json_t *status), void *arg,
                     struct err *err)
{
    OWN_BUF body = BUF_INIT;
    struct wire_header h;

    for (;;) {
        if (wire_receive(fd, &h, &body, SILENT_MS, err) < 0)
            return -(int)err->code;
        if (h.kind == WIRE_BYE)
            return 0;
        if (h.kind != WIRE_STATUS)
            continue;
        OWN_JSON json_t *status = json_loadb(body.data, body.n, 0, NULL);
        if (status && tell(arg, status))
            return 0;
    }
}

int watch_job(const struct job_desk *desk, int patience_ms,
              int (*tell)(void *arg, const json_t *status), void *arg, struct err *err)
{
    double until = clock_seconds() + patience_ms / 1e3;

    for (;;) {
        OWN_FD int fd = -1;
        if (call(desk, WIRE_HELLO, "{\"role\":\"watcher\"}", &fd, err) == 0) {
            if (listen_to(fd, tell, arg, err) == 0)
                return 0;
            until = clock_seconds() + patience_ms / 1e3;
        }
        if (err->code == ERR_DENIED || clock_seconds() > until)
            return -(int)err->code;
        poll(NULL, 0, AGAIN_MS);
    }
}

int watch_ask(const struct job_desk *desk, const json_t *question, json_t **out, struct err *err)
{
    OWN_MEM char *text = json_dumps(question, JSON_COMPACT);
    OWN_BUF body = BUF_INIT;
    OWN_FD int fd = -1;
    struct wire_header h;

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a question");
    if (call(desk, WIRE_ASK, text, &fd, err) < 0 || wire_receive(fd, &h, &body, CALL_MS, err) < 0)
        return -(int)err->code;
    if (h.kind == WIRE_REFUSED)
        return err_set(err, (enum err_code)h.number, "%s", body.data);
    *out = json_loadb(body.data, body.n, 0, NULL);
    return *out ? 0 : err_set(err, ERR_INVALID, "%s gave no answer that is one", desk->address);
}
