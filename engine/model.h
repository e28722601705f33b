/* engine/model.h - a plan's parameters in files, and their digest
 *
 * A weights file holds the parameters by PyTorch's names. A checkpoint is the same file with the
 * optimizer's arrays beside them (NAME@1, NAME@2), the parameters of the best test so far where the
 * run keeps them (NAME@best), and notes that say where the run was. The digest is the SHA-256 over
 * names, shapes and values in model order; it is the same whatever stages, threads or instruction
 * set made them.
 */
#ifndef MUSTER_ENGINE_MODEL_H
#define MUSTER_ENGINE_MODEL_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "engine/plan.h"
#include "engine/safetensors.h"

/* `notes` (strings by name, NULL: none) go into the file's metadata. */
int model_save(const struct plan *p, const char *path, bool with_state, const json_t *notes,
               struct err *err);
/* A checkpoint. `best` (NULL: none) is a plan_copy of the run's best test, saved as NAME@best. */
int model_save_state(const struct plan *p, const char *path, const float *best,
                     const json_t *notes, struct err *err);
/* The parameters of a plan_copy, as a weights file, and their digest. */
int model_save_copy(const struct plan *p, const float *copy, const char *path, const json_t *notes,
                    struct err *err);
void model_digest_copy(const struct plan *p, const float *copy, char out_hex[65]);
/* Bytes of values in a weights file and in a checkpoint with a best one. */
int64_t model_bytes(const struct plan *p, bool with_state);

/* The same into `to`; the caller commits. */
int model_put(const struct plan *p, struct file_writer *to, bool with_state, const json_t *notes,
              struct err *err);

/* Every parameter of the plan must be there with its shape, and nothing else; `with_state` wants
 * the optimizer's arrays too. `what` names the file in messages. */
int model_load(struct plan *p, const struct safetensors *s, const char *what, bool with_state,
               struct err *err);

/* The best one of a checkpoint into a plan_copy. ERR_INVALID: the checkpoint has none. */
int model_load_best(const struct plan *p, const struct safetensors *s, const char *what,
                    float *copy, struct err *err);

void model_digest(const struct plan *p, char out_hex[65]);

/* A quick fingerprint of one parameter's values, to find where two runs part. */
uint64_t model_fingerprint(const struct plan *p, const struct param *q);

/* A copy of all parameters in memory, and back. */
struct snapshot;
struct snapshot *snapshot_new(const struct plan *p);
void snapshot_free(struct snapshot *s);
void snapshot_take(struct snapshot *s, const struct plan *p);
int snapshot_save(const struct snapshot *s, const char *path, const json_t *notes, struct err *err);

#endif
