/* base/clock.h - seconds that never go back, for measuring how long something takes; and those of the
 * calendar, for saying when it was */
#ifndef MUSTER_BASE_CLOCK_H
#define MUSTER_BASE_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Since 1970. */
static inline double clock_wall(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

#endif
