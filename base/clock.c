/* base/clock.c - the calendar's clock, and how a test sets it */
#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int shift_fd = -1;

static void read_env(void)
{
    const char *path = getenv("MUSTER_CLOCK");

    if (path && *path)
        shift_fd = open(path, O_RDONLY | O_CLOEXEC);
}

static double shift(void)
{
    char text[32] = { 0 };

    return pread(shift_fd, text, sizeof text - 1, 0) > 0 ? strtod(text, NULL) : 0;
}

double clock_wall(void)
{
    struct timespec ts;

    pthread_once(&once, read_env);
    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec + (shift_fd < 0 ? 0 : shift());
}
