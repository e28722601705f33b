/* base/sealed.c - small JSON files of our own that tell when a byte of them has changed */
#include "base/sealed.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/own.h"

enum { SEALED_MAX = 64 << 20 };
static const char member[] = "\"crc32c\":\"";

/* member, 8 digits, and the two that close it. */
enum { SEAL = sizeof member - 1 + 8 + 2 };

char *sealed_text(const json_t *doc)
{
    OWN_MEM char *plain = json_dumps(doc, JSON_COMPACT);
    size_t n = plain ? strlen(plain) : 0;
    char *text = n ? malloc(n + SEAL + 2) : NULL;

    if (!text)
        return NULL;
    memcpy(text, plain, n);
    if (json_object_size(doc))
        text[n - 1] = ',';      /* in place of the brace */
    else
        n--;
    snprintf(text + n, SEAL + 1, "%s%08x\"}", member, crc32c(text, n));
    return text;
}

static int damaged(const char *path, struct err *err)
{
    return err_set(err, ERR_IO, "%s is damaged: it is not what was written (restore a backup)", path);
}

int sealed_load(const char *path, json_t **out, struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n;
    char digits[9];

    if (files_read(path, SEALED_MAX, &text, &n, err) < 0)
        return -(int)err->code;
    const char *seal = n > SEAL ? text + n - SEAL : NULL;
    bool sealed = seal && !memcmp(seal, member, sizeof member - 1);
    if (sealed) {
        snprintf(digits, sizeof digits, "%08x", crc32c(text, (size_t)(seal - text)));
        if (memcmp(seal + sizeof member - 1, digits, 8))
            return damaged(path, err);
    }
    json_t *doc = json_loadb(text, n, 0, NULL);
    if (!doc)
        return damaged(path, err);
    if (sealed)
        json_object_del(doc, "crc32c");
    *out = doc;
    return 0;
}
