/* pipelines/pip.c - what the pip calls in a step's command would install */
#include "pipelines/pip.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/own.h"

/* "name", "name[extra]==1.0; python_version<'3.9'": no address, file or option. */
static bool is_requirement(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n && isalnum((unsigned char)*s) && !strstr(s, "://") && !strchr(s, '/') &&
           !strchr(s, '@') && !strchr(s, '$') && (!s[n] || strchr("[<>=!~; ", s[n]));
}

/* One word of a shell's line; false: the line, or what && and the like leave of it, is over. */
static bool shell_word(const char **at, char *out, size_t size)
{
    const char *p = *at;
    size_t n = 0;
    while (*p == ' ' || *p == '\t' || (*p == '\\' && p[1] == '\n'))
        p += *p == '\\' ? 2 : 1;
    if (!*p || strchr("\n&|;)", *p))
        return false;
    for (char quote = 0; *p && (quote || !strchr(" \t\n&|;)", *p)); p++) {
        if (quote ? *p == quote : *p == '\'' || *p == '"')
            quote = quote ? 0 : *p;
        else if (n + 1 < size)
            out[n++] = *p;
    }
    out[n] = '\0';
    *at = p;
    return true;
}

static void add_installed(const char *text, struct buf *out)
{
    static const char *const takes[] = { "-r", "-i", "-c", "-t", "-f", "--index-url", "--target",
                                         "--extra-index-url", "--trusted-host", "--requirement",
                                         "--find-links", "--constraint" };
    for (const char *p = text; (p = strstr(p, "pip install ")); ) {
        char word[512], line[600];
        bool alone = false;
        p += strlen("pip install ");
        for (const char *q = p; shell_word(&q, word, sizeof word);)
            alone |= !strcmp(word, "--no-deps");
        while (shell_word(&p, word, sizeof word)) {
            bool skip = false;
            for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++)
                skip |= !strcmp(word, takes[i]);
            if (skip)
                shell_word(&p, word, sizeof word);
            else if (is_requirement(word)) {
                snprintf(line, sizeof line, "%s%s\n", word, alone ? " --no-deps" : "");
                if (!out->data || !strstr(out->data, line))
                    buf_text(out, line);
            }
        }
    }
}

char *pip_requirements(const json_t *command)
{
    OWN_BUF out = BUF_INIT;
    size_t i;
    json_t *word;

    json_array_foreach((json_t *)command, i, word) {
        const char *text = json_string_value(word);
        if (text)
            add_installed(text, &out);
    }
    return out.n ? buf_take(&out) : NULL;
}
