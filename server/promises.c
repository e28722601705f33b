/* server/promises.c - what cannot be kept here of what jobs are promised: said once, and of each job */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "drivers/promises.h"
#include "drivers/runtimes.h"
#include "server/server.h"

int server_try_promises(struct server *s, struct err *err)
{
    char all[400] = "";
    const json_t *item;
    size_t i;

    if (runtimes_check(s->data_dir, err) < 0 ||
        promises_broken(s->data_dir, s->no_sandbox, &s->broken, err) < 0)
        return -(int)err->code;
    json_array_foreach(s->broken, i, item) {
        size_t n = strlen(all);
        log_event(s->strict ? LEVEL_ERROR : LEVEL_WARN, "server.not_kept", "{s:O, s:O, s:O}",
                  "what", json_object_get(item, "what"), "text", json_object_get(item, "text"),
                  "do", json_object_get(item, "do"));
        snprintf(all + n, sizeof all - n, "%s%s", i ? "; " : "",
                 json_string_value(json_object_get(item, "text")));
    }
    return s->strict && i ? err_set(err, ERR_DENIED, "--strict: %s (the log says what to do)", all)
                          : 0;
}

void server_drop_promises(struct server *s)
{
    json_decref(TAKE(s->broken));
}

json_t *server_not_kept(const struct server *s, const json_t *spec)
{
    return promises_of(s->broken, spec);
}
