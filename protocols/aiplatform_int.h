/* protocols/aiplatform_int.h - the handlers of models, versions and operations */
#ifndef MUSTER_PROTOCOLS_AIPLATFORM_INT_H
#define MUSTER_PROTOCOLS_AIPLATFORM_INT_H

#include "base/err.h"
#include "protocols/filter.h"
#include "server/http.h"

int aiplatform_create_model(struct request *q, struct err *err);
int aiplatform_create_version(struct request *q, struct err *err);
int aiplatform_list_models(struct request *q, struct err *err);
int aiplatform_list_versions(struct request *q, struct err *err);
int aiplatform_list_operations(struct request *q, struct err *err);
int aiplatform_get(struct request *q, struct err *err); /* any of the three, by its path */
int aiplatform_patch(struct request *q, struct err *err);
int aiplatform_delete(struct request *q, struct err *err);
int aiplatform_set_default(struct request *q, struct err *err);
int aiplatform_cancel_operation(struct request *q, struct err *err);

/* For filter_match: `arg` is a JSON object, `path` leads into it. */
void aiplatform_field(void *arg, const char *path, struct filter_value *out);

#endif
