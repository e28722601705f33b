/* base/room.h - how much more may be written where a file is
 *
 * What users write (uploads, logs) stops before the disk is full: the rest is for records that must
 * still be made when all else is refused, and to delete something takes a few of those.
 */
#ifndef MUSTER_BASE_ROOM_H
#define MUSTER_BASE_ROOM_H

#include <stdint.h>

/* Bytes that are free where `fd` is, less one part in `kept` of a small disk, or 1 GB / `kept` of a
 * large one. Below 0: those are being used. INT64_MAX: not known, the write will say. */
int64_t room_left(int fd, int kept);

#endif
