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

/* A call, and not talk of one: `python -m pip`, or pip where a command begins. */
static bool is_call(const char *text, const char *at)
{
    if (at - text >= 3 && !memcmp(at - 3, "-m ", 3))
        return true;
    while (at > text && at[-1] == ' ')
        at--;
    return at == text || strchr("\n;&|(", at[-1]);
}

static void add_installed(const char *text, struct buf *out)
{
    static const char *const takes[] = { "-r", "-i", "-c", "-t", "-f", "--index-url", "--target",
                                         "--extra-index-url", "--trusted-host", "--requirement",
                                         "--find-links", "--constraint" };
    for (const char *p = text; (p = strstr(p, "pip install ")); ) {
        char word[512], line[600];
        bool alone = false, call = is_call(text, p);
        p += strlen("pip install ");
        if (!call)
            continue;
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

/* sh -c, /bin/bash -ec: what follows is a text of commands. */
static bool is_shell(const json_t *program, const json_t *option)
{
    const char *name = json_string_value(program), *flags = json_string_value(option);
    const char *slash = name ? strrchr(name, '/') : NULL;
    size_t n = flags ? strlen(flags) : 0;
    name = slash ? slash + 1 : name;
    return name && (!strcmp(name, "sh") || !strcmp(name, "bash")) && n >= 2 && flags[0] == '-' &&
           flags[n - 1] == 'c';
}

char *pip_requirements(const json_t *command)
{
    OWN_BUF out = BUF_INIT;
    size_t i;
    json_t *word;

    json_array_foreach((json_t *)command, i, word)
        if (i >= 2 && is_shell(json_array_get(command, i - 2), json_array_get(command, i - 1)))
            add_installed(json_string_value(word) ? json_string_value(word) : "", &out);
    return out.n ? buf_take(&out) : NULL;
}
