/* pipelines/runs_act.h - what the thread of runs does for a run: begin leaves, stop them, wait
 *
 * All of it may be done twice. The names of jobs follow from run, node and attempt.
 */
#ifndef MUSTER_PIPELINES_RUNS_ACT_H
#define MUSTER_PIPELINES_RUNS_ACT_H

#include "pipelines/runs_int.h"

/* Begins up to `max` leaves that are wanted; *out_more: there may be more of them. */
void runs_act_begin(struct runs *r, struct live *l, double now, int max, bool *out_more);
/* Stops those that are not wanted any more. */
void runs_act_stop(struct runs *r, struct live *l);
/* Begins or ends those whose time has come; *next: when the next one's does, if that is sooner. */
void runs_act_later(struct runs *r, struct live *l, double now, double *next);

/* runs_thread.c: a leaf whose job runs is found by the job's events. False: no memory. */
bool runs_track(struct runs *r, struct leaf *f);
bool runs_tracks(struct runs *r, int64_t uid);
bool leaf_hear(struct leaf *f, const char *type, double t, const json_t *body);
void leaf_ended(struct runs *r, struct leaf *f);
void leaf_finish(struct runs *r, struct leaf *f);

#endif
