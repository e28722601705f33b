/* base/files.h - whole files: read them, and replace them so that no crash or full disk hurts
 *
 * A file is replaced by writing a new one beside it (NAME.tmp-PID-COUNT), fsync, rename over the
 * old name, fsync of the directory. Invariants, tested by failing every single call in turn:
 *   1. at any moment NAME is the whole old file or the whole new one;
 *   2. after a failure the old file is untouched and nothing is left beside it (only when the very
 *      last step, fsync of the directory, fails is the new file there already, whole);
 *   3. after success the new file survives a power cut.
 *
 * Failure injection: MUSTER_FAULT=KIND:N makes the N-th call (from 1) of KIND fail with ENOSPC, and
 * each one after it of the same kind: a disk that is full stays full. KIND is open, write, fsync,
 * rename or any (one count over all four). files_fault does the same from a test.
 *
 * Threads: any; a writer belongs to one thread at a time.
 */
#ifndef MUSTER_BASE_FILES_H
#define MUSTER_BASE_FILES_H

#include <stddef.h>
#include <stdio.h>

#include "base/err.h"
#include "base/own.h"

/* Expands a leading ~ and $MUSTER_DATA (default: ${XDG_CACHE_HOME:-~/.cache}/muster/data), and puts
 * `dir` (NULL or "": nothing) before a relative path; a URL (base/http.h) stays as it is. Caller
 * frees; NULL when out of memory. */
char *files_resolve(const char *dir, const char *path);

/* The whole file, or what a URL leads to, NUL-terminated (the NUL is not counted); "-" is standard
 * input. Longer than `max` bytes is refused. Caller frees *out; out_n may be NULL. */
int files_read(const char *path, size_t max, char **out, size_t *out_n, struct err *err);

int files_write(const char *path, const void *data, size_t n, struct err *err);

/* The same for a path that a user names: as file_writer_output does it. */
int files_output(const char *path, const void *data, size_t n, struct err *err);

/* With parents; a directory that is there is fine. */
int files_mkdir(const char *path, struct err *err);

/* The same guarantee for what is written in pieces. Small pieces are gathered. Nothing is at `path`
 * before file_writer_commit; file_writer_free without it takes everything back. */
struct file_writer;
int file_writer_open(const char *path, struct file_writer **out, struct err *err);
int file_writer_write(struct file_writer *w, const void *data, size_t n, struct err *err);
int file_writer_commit(struct file_writer *w, struct err *err);        /* then still free it */
void file_writer_free(struct file_writer *w);
OWN_DEFINE(file_writer)

/* A writer for a path that a user names (-o FILE). What is at `path` decides:
 *   nothing, or a regular file   replaced whole at the commit. Mode, owner, group, ACL and user
 *                                attributes stay where this process may set them; a file that may
 *                                not be written is refused. Other hard links keep the old content.
 *   a symbolic link              stays; the file that it leads to is replaced, or made, in that
 *                                file's own directory
 *   a device, FIFO or socket     written through as bytes come (a socket: as its client)
 *   "-", /dev/stdout,            that descriptor, from where it stands, whatever it is open on
 *   /proc/self/fd/N
 *   a directory                  refused
 * Not for paths of our own in directories that others may write: they could plant a link. */
int file_writer_output(const char *path, struct file_writer **out, struct err *err);

/* A stream into `w`, for stdio; close it before the commit. A write that fails sets the stream's
 * error; the commit then fails with the reason. NULL when out of memory. */
FILE *file_writer_stream(struct file_writer *w);

/* Fails the n-th call from now of `kind`, as MUSTER_FAULT does; NULL or n 0: none. */
void files_fault(const char *kind, long n);

#endif
