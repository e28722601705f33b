/* base/own.h - scope-bound ownership for locals
 *
 * OWN(x) p frees p at the end of its scope by x_free; TAKE(p) hands p over and leaves NULL.
 */
#ifndef MUSTER_BASE_OWN_H
#define MUSTER_BASE_OWN_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OWN_DEFINE(x) static inline void x##_own(struct x **p) { x##_free(*p); }
#define OWN(x) __attribute__((cleanup(x##_own))) struct x *
#define TAKE(p) __extension__({ __typeof__(p) take_ = (p); (p) = NULL; take_; })

/* The same for what is not ours: memory, descriptors, streams, JSON values. */
#define OWN_MEM __attribute__((cleanup(own_mem)))
#define OWN_FD __attribute__((cleanup(own_fd)))
#define OWN_FILE __attribute__((cleanup(own_file)))
#define OWN_JSON __attribute__((cleanup(own_json)))

static inline void own_mem(void *p) { free(*(void **)p); }
static inline void own_fd(int *fd) { if (*fd >= 0) close(*fd); }
static inline void own_file(FILE **f) { if (*f) fclose(*f); }
static inline void own_json(json_t **j) { json_decref(*j); }

#endif
