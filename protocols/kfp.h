/* protocols/kfp.h - the API of Kubeflow Pipelines, v1beta1 and v2beta1, on one server
 *
 * What the kfp SDKs call, 1.8 and 2.x, and their command lines. Both versions of the API show the
 * same pipelines, experiments and runs. The token is in the base URL: the SDKs send no header.
 * A namespace is a project: none is named, or the token's own is. Errors are
 * {"error": a sentence, "code": of gRPC, "message": the same, "details": [...]}.
 *
 * Where the states of v2beta1 are concerned, a run that was terminated ends as FAILED, with a
 * message that says so: the SDK's own wait never ends on CANCELED.
 */
#ifndef MUSTER_PROTOCOLS_KFP_H
#define MUSTER_PROTOCOLS_KFP_H

#include "server/http.h"

extern const struct protocol protocol_kfp_v1;           /* pipelines, experiments */
extern const struct protocol protocol_kfp_v1_runs;      /* runs, recurring runs */
extern const struct protocol protocol_kfp_v2;
extern const struct protocol protocol_kfp_v2_runs;

#endif
