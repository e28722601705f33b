/* base/log.h - what a server says about itself, a line an event
 *
 *     log_event(LEVEL_INFO, "server.started", "{s:s}", "address", address);
 * prints {"t": seconds, "level": "info", "event": "server.started", "address": "..."} on stderr, or
 * the same as text where a person looks on. Levels: error (a promise broke), warn (went on, says so),
 * info (a state changed), debug. The history of jobs is in the store, not here.
 *
 * Threads: any; a line is written by one call.
 */
#ifndef MUSTER_BASE_LOG_H
#define MUSTER_BASE_LOG_H

enum log_level { LEVEL_ERROR, LEVEL_WARN, LEVEL_INFO, LEVEL_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON, LOG_NONE };

/* At the start: as text, up to LEVEL_INFO. */
void log_open(enum log_format format, enum log_level most);

/* `fmt` is of json_pack and makes an object; "{}": nothing more to say. */
void log_event(enum log_level level, const char *event, const char *fmt, ...);

/* At the start: a token that no line may hold. Those that look like one (base/text.h) are never
 * written. */
void log_hide(const char *secret);

/* Is this level written? For what is costly to gather. */
int log_wants(enum log_level level);

#endif
