/* base/clock.h - seconds that never go back, for measuring how long something takes; and those of the
 * calendar, for saying when it was
 *
 * A wait that must end (a retry, a deadline, the life of a session) is kept by clock_seconds, or by the
 * calendar with a clock_watch beside it: an administrator or NTP may set the calendar's clock at any
 * moment. What was stored by the calendar and is read again is bounded by its own length.
 */
#ifndef MUSTER_BASE_CLOCK_H
#define MUSTER_BASE_CLOCK_H

#include <math.h>
#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Since 1970. For tests: with MUSTER_CLOCK=FILE as many seconds are added as that file says now. */
double clock_wall(void);

/* What the calendar said at the last look, and how long the machine had been up. */
struct clock_watch { double wall, up; };

/* How far the calendar's clock was set since the last look, which `now` (clock_wall) becomes: below 0
 * when it was set back. 0: it was not, or by less than a second, as NTP does all the time. */
static inline double clock_was_set(struct clock_watch *w, double now)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);         /* a machine that sleeps lets time pass */
    const double up = (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
    const double by = w->up > 0 ? now - (w->wall + up - w->up) : 0;
    *w = (struct clock_watch){ now, up };
    return fabs(by) < 1 ? 0 : by;
}

#endif
