/* base/room.c - how much more may be written where a file is */
#include "base/room.h"

#include <sys/statvfs.h>

int64_t room_left(int fd, int kept)
{
    const int64_t most = (int64_t)1 << 30;
    struct statvfs fs;

    if (fstatvfs(fd, &fs) < 0)
        return INT64_MAX;
    const int64_t all = (int64_t)fs.f_blocks * (int64_t)fs.f_frsize;
    return (int64_t)fs.f_bavail * (int64_t)fs.f_frsize - (all < most ? all : most) / kept;
}
