/* cli/client.h - how commands find the server and call it
 *
 * The server is $MUSTER_SERVER (a URL), or else what DATA/server.json says, where DATA is
 * $MUSTER_DATA_DIR or ${XDG_DATA_HOME:-~/.local/share}/muster. The token is $MUSTER_TOKEN, or else in
 * DATA/token. The project is $MUSTER_PROJECT, $CLOUDSDK_CORE_PROJECT, or "default".
 */
#ifndef MUSTER_CLI_CLIENT_H
#define MUSTER_CLI_CLIENT_H

#include <jansson.h>

#include "base/err.h"
#include "base/own.h"

/* `option` when it is given, else as above. Caller frees; NULL: no memory. */
char *client_data_dir(const char *option);

#endif
