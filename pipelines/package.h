/* pipelines/package.h - what a client uploads: the text of a pipeline, or an archive that holds it
 *
 * The SDKs write a .tar.gz, a .zip or plain YAML, and name them as they like, so that the bytes
 * decide which it is. Of an archive the member pipeline.yaml is taken, else the only one that ends
 * in .yaml or .yml, as the SDK's own reader does. An archive is read in a process of its own that
 * has given up its rights (drivers/archive.h): links, devices, paths that climb and bombs are
 * refused, each by name.
 */
#ifndef MUSTER_PIPELINES_PACKAGE_H
#define MUSTER_PIPELINES_PACKAGE_H

#include "base/buf.h"

enum {
    PACKAGE_BYTES_MAX = 32 << 20,       /* as it comes; Kubeflow's own limit */
    PACKAGE_TEXT_MAX = 16 << 20,        /* a workflow of 10,000 steps has 2 MB */
};

/* The YAML text of a package, appended to `out`. `name` stands for the package in messages. */
int package_read(const void *bytes, size_t n, const char *name, struct buf *out, struct err *err);

#endif
