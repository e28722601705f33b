/* protocols/aiplatform.h - AI Platform's training API, v1, as `ml` of Google's clients speaks it
 *
 * Jobs are the server's own (protocols/training.h translates). Models, versions and operations are
 * documents that are kept and given back: nothing serves them. Refused by name:
 * hyperparameter tuning, batch prediction, online prediction.
 */
#ifndef MUSTER_PROTOCOLS_AIPLATFORM_H
#define MUSTER_PROTOCOLS_AIPLATFORM_H

#include "server/http.h"

extern const struct protocol protocol_aiplatform;

#endif
