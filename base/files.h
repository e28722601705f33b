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

/* Fails the n-th call from now of `kind`, as MUSTER_FAULT does; NULL or n 0: none. */
void files_fault(const char *kind, long n);

#endif
