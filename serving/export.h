/* serving/export.h - a model in the formats of others
 *
 * safetensors  the parameters by PyTorch's names
 * torch        a state dict that torch.load(weights_only=True) opens
 * onnx         the graph too; inputs are float32 images (N, C, H, W) after scaling, numbers after
 *              scaling ("numeric", (N, F)) and ids (int64, (N)), one a categorical feature
 */
#ifndef MUSTER_SERVING_EXPORT_H
#define MUSTER_SERVING_EXPORT_H

#include "base/err.h"
#include "base/files.h"
#include "engine/plan.h"

int export_onnx(const struct plan *p, struct file_writer *to, struct err *err);

/* Writes to `to`; the caller commits. NULL when the format is not known. */
typedef int (*export_fn)(const struct plan *p, struct file_writer *to, struct err *err);
export_fn export_find(const char *format);

#endif
