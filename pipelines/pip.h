/* pipelines/pip.h - what the pip calls in a step's command would install
 *
 * Components that the SDKs make of Python functions install the SDK and what the function asks for
 * each time they start. What they name is put into the step's environment when that is made, so
 * that the call in the step finds all of it there and needs no network.
 */
#ifndef MUSTER_PIPELINES_PIP_H
#define MUSTER_PIPELINES_PIP_H

#include <jansson.h>

/* A line each: "kfp==2.17.0 --no-deps\npandas\n", as drivers/environment.h reads them. Caller
 * frees; NULL: nothing. Options, addresses and files are left to pip. */
char *pip_requirements(const json_t *command);

#endif
