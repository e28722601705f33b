/* cli/client.c - how commands find the server and call it */
#include "cli/client.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"

static const char *env_of(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

char *client_data_dir(const char *option)
{
    const char *dir = option ? option : env_of("MUSTER_DATA_DIR"), *xdg = env_of("XDG_DATA_HOME");
    char *out = NULL;

    if (dir)
        return files_resolve(NULL, dir);
    if (xdg && asprintf(&out, "%s/muster", xdg) < 0)
        out = NULL;
    return xdg ? out : files_resolve(NULL, "~/.local/share/muster");
}
