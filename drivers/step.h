/* drivers/step.h - the files of a step: inputs in place, volumes mounted, outputs found
 *
 * A job document of kind "command" may have a "step":
 *   files     [{"path", "text"}], [{"path", "object": "gs://...", "dir": bool}], [{"path", "secret"}]
 *             with "mode", the rights of a file, as a number (0755 is 493): what the program finds
 *             there when it starts; a file outside /tmp it may not change. A "dir" is an archive
 *             (tar), unpacked there; at the path of a mounted volume, only into a volume that is new
 *   outputs   [{"path", "dir": bool}]: where it will leave something, likely a directory
 *   mounts    [{"path", "from": "volume:NAME" | "empty:NAME" | "host:/DIR", "sub", "read_only"}]
 *   cwd       where it starts; default /tmp, or / where an output is
 *   init      [{"name", "command", "env"}]: programs that run before it, one after the other
 *   sidecars  the same: programs that run beside it and end with it
 *   result    its standard output is wanted
 *   share     it may use more than resources.cpu, of what the machine has free
 *
 * Its /tmp is DIR/work/tmp, so that what it leaves there outlives the sandbox. A mount or an output
 * may be where this machine has no directory: there is one inside. An output that is neither below
 * /tmp nor below a mount has its directory to itself, DIR/work/out/N; in a directory that the
 * machine has (/, /etc) it is there from the beginning, a file or a directory, and was left if it
 * has changed. A volume is the directory DATA/volumes/PROJECT/NAME/data (server/volumes.h). Objects
 * were staged as DIR/../inputs/N, N being the place in "files" (server/packages.h).
 */
#ifndef MUSTER_DRIVERS_STEP_H
#define MUSTER_DRIVERS_STEP_H

#include "drivers/task.h"

enum { STEP_FILES_MAX = 200, STEP_MOUNTS_MAX = 40 };

/* A place of the system's own: a step that mounted something over it would have no programs
 * left. */
bool step_is_system(const char *path);

/* ERR_INVALID with the key. Nothing that it names leads out of where it may. */
int step_check(const json_t *step, struct err *err);

/* Adds to `t` what the document's step says, puts its files in place and runs what comes before
 * it. */
int step_prepare(const struct task_order *o, task_step *run, void *arg, struct task *t,
                 struct err *err);

/* The program has ended: its secrets' files go. */
void step_forget(const char *dir);

/* What an attempt that has ended left at `path`: a file or a directory, opened so that nothing a
 * job puts there leads elsewhere. ERR_MISSING: nothing; ERR_DENIED: a link, a pipe, a device. A
 * directory is kept as a tar (base/tar.h), which is what "dir" of a file unpacks. */
struct step_place {
    const char *dir, *data_dir, *project;
    const json_t *step;
};
int step_output_open(const struct step_place *at, const char *path, int *out_fd, bool *out_is_dir,
                     struct err *err);

#endif
