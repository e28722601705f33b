/* drivers/container_mounts.c - folders of volumes at paths that nobody else can change
 *
 * podman takes paths and looks them up itself, later. A path into a volume is not safe for that:
 * what is in a volume is anybody's who mounts it, and a folder that was looked at may be a link.
 * So what was opened is bound, by its descriptor, at PLACE/KEEPER-N, and podman is given that. The
 * place is not in the data directory: whoever removes a job's files must never come upon a volume.
 * Only root can do so; podman without rights has the path, and no more rights than its user.
 *
 * A keeper that was killed leaves its mounts: they go with the next sweep (drivers/container.h).
 * Nothing here is removed but what is empty.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/container_int.h"
#include "drivers/sandbox_int.h"

#define PLACE "/run/muster-mounts"

/* Ours alone, and no link of somebody else's. */
static bool has_place(void)
{
    struct stat st;
    return (mkdir(PLACE, 0700) == 0 || errno == EEXIST) && lstat(PLACE, &st) == 0 &&
           S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077);
}

int container_bind(int fd, int ns, char *out, size_t size)
{
    static int made;
    struct stat st;

    if (geteuid() != 0 || !has_place() || fstat(fd, &st) < 0)
        return -1;
    snprintf(out, size, PLACE "/%d-%d", (int)getpid(), ++made);
    if (S_ISDIR(st.st_mode)) {
        if (mkdir(out, 0700) < 0)
            return -1;
    } else {
        OWN_FD int file = open(out, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0)
            return -1;
    }
    if (sandbox_bind(fd, out, ns, 0) == 0)
        return 0;
    remove(out);
    return -1;
}

void container_unbind(bool (*is_gone)(long keeper))
{
    DIR *d = opendir(PLACE);
    for (const struct dirent *e; d && (e = readdir(d));) {
        char path[sizeof PLACE + NAME_MAX + 2], *end;
        long keeper = strtol(e->d_name, &end, 10);
        if (keeper <= 0 || *end != '-' || !is_gone(keeper))
            continue;
        snprintf(path, sizeof path, PLACE "/%s", e->d_name);
        umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
        remove(path);           /* what is still mounted stays: it is busy */
    }
    if (d)
        closedir(d);
}
