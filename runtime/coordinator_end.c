/* runtime/coordinator_end.c - the end of a job: every worker hears of it
 *
 * DESIGN. What the job made is on disk when this begins (docs/design/elastic.md, "The end"). A
 * worker ends well when it has heard so, and from nobody else can it know: a connection that
 * closes may as well be that of a coordinator that was killed before it had written, whose
 * successor needs the worker. So each one is told, says that it heard (BYE, both ways), and closes.
 * One whose connection broke first calls again, and is told then; the listener stays open for it.
 * A dead one does not call: nobody is waited for longer than ABSENT_SECONDS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "runtime/coordinator_int.h"

enum { ROUND_MS = 20 };
/* A worker that lost its connection calls again at once, and with each packet lost takes twice as
 * long: 1, 2, 4 seconds. */
static const double ABSENT_SECONDS = 10;
static const double OTHERS_SECONDS = 1;         /* for those who watch or ask */

/* ------------------------------------------------------------------ who is away */

static struct absent *find_absent(struct coordinator *c, const struct roster_who *who)
{
    for (int i = 0; i < ROSTER_MAX; i++)
        if (c->absent[i].who.pid == who->pid && strcmp(c->absent[i].who.host, who->host) == 0)
            return &c->absent[i];
    return NULL;
}

void end_absent(struct coordinator *c, const struct roster_who *who)
{
    struct absent *a = find_absent(c, who);

    for (int i = 0; !a && i < ROSTER_MAX; i++)
        if (!c->absent[i].who.pid || clock_seconds() - c->absent[i].since > ABSENT_SECONDS)
            a = &c->absent[i];
    if (a)
        *a = (struct absent){ *who, clock_seconds() };
}

void end_present(struct coordinator *c, const struct roster_who *who)
{
    struct absent *a = find_absent(c, who);

    if (a)
        *a = (struct absent){ 0 };
}

/* False for one of this machine that is dead, or whom the process that started it will end. */
static bool may_call(const struct absent *a, const char *own_host)
{
    char path[64], state;
    OWN_MEM char *text = NULL;
    struct err ignored;
    int parent;

    if (strcmp(a->who.host, own_host) != 0)
        return true;
    snprintf(path, sizeof path, "/proc/%ld/stat", a->who.pid);
    if (files_read(path, 4096, &text, NULL, &ignored) < 0)
        return false;
    const char *rest = strrchr(text, ')');      /* a name may have brackets in it */
    return rest && sscanf(rest, ") %c %d", &state, &parent) == 2 && state != 'Z' &&
           parent != (int)getppid();
}

static bool is_awaited(const struct coordinator *c, const char *own_host)
{
    double now = clock_seconds();

    for (int i = 0; i < CALLERS_MAX; i++) {
        const struct caller *k = &c->caller[i];
        double patience = k->kind == CALLER_WORKER ? ABSENT_SECONDS : OTHERS_SECONDS;
        if (k->fd >= 0 && wire_in_proved(k->in) && now - c->over_since < patience)
            return true;
    }
    for (int i = 0; i < ROSTER_MAX; i++) {
        const struct absent *a = &c->absent[i];
        if (a->who.pid && now - a->since < ABSENT_SECONDS && may_call(a, own_host))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------ telling */

/* A worker answers and is dropped then; the others are when they close, or soon. */
static void say_bye(const struct coordinator *c, struct caller *k)
{
    const char *why = c->ended ? "ended" : "stopped";

    caller_put(k, WIRE_BYE, 0, 0, why, strlen(why));
    if (k->kind != CALLER_WORKER)
        k->closing = true;
}

void end_message(struct coordinator *c, struct caller *k, const struct wire_header *h,
                 const json_t *doc)
{
    struct err why;

    if (h->kind == WIRE_HELLO && k->kind == CALLER_NEW) {
        if (strcmp(desk_text(doc, "role"), "worker") == 0) {
            k->kind = CALLER_WORKER;
            k->who.pid = (long)json_integer_value(json_object_get(doc, "pid"));
            snprintf(k->who.host, sizeof k->who.host, "%s", desk_text(doc, "host"));
            end_present(c, &k->who);
        }
        say_bye(c, k);
    } else if (h->kind == WIRE_ASK) {
        err_set(&why, ERR_MISSING, "the job has %s", c->ended ? "ended" : "stopped");
        caller_refuse(c, k, &why);
    } else if (h->kind == WIRE_BYE) {
        caller_drop(k);
    }
}

void end_tell(struct coordinator *c, const volatile sig_atomic_t *hurry)
{
    char path[4096 + 32], own_host[80] = "";
    OWN_MEM char *text = NULL;
    struct err ignored;

    if (files_read("/proc/sys/kernel/random/boot_id", 128, &text, NULL, &ignored) == 0)
        snprintf(own_host, sizeof own_host, "%.36s", text);
    c->over = true;
    c->over_since = clock_seconds();
    if (c->config->over)
        atomic_store(c->config->over, true);
    snprintf(path, sizeof path, "%s/job.json", rundir_path(c->config->dir));
    unlink(path);               /* nobody is to come here any more */
    desk_tell(c);
    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *k = &c->caller[i];
        if (k->fd >= 0 && !k->closing && k->kind != CALLER_NEW)
            say_bye(c, k);      /* one who has not said who it is yet hears it when it does */
    }
    do {
        callers_poll(c, ROUND_MS);
    } while (is_awaited(c, own_host) && !(c->ended && *hurry));
}
