/* drivers/index_page.c - pages of a package index: their links, resolved and replaced */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "drivers/index.h"

enum { LINK_MAX_BYTES = 8192 };

/* ------------------------------------------------------------------ URLs */

static bool is_http(const char *url)
{
    return !strncasecmp(url, "http://", 7) || !strncasecmp(url, "https://", 8);
}

/* Bytes of "scheme://host:port". */
static size_t origin_of(const char *url)
{
    const char *host = strstr(url, "://");
    return host ? (size_t)(host - url) + 3 + strcspn(host + 3, "/?#") : 0;
}

/* "host:port" with the scheme's port where none is named; without a user. */
static void authority_of(const char *url, char *out, size_t size)
{
    bool tls = !strncasecmp(url, "https", 5);
    const char *host = strstr(url, "://") + 3, *end = host + strcspn(host, "/?#");
    const char *at = memrchr(host, '@', (size_t)(end - host));

    if (at)
        host = at + 1;
    const char *colon = memrchr(host, ':', (size_t)(end - host));
    bool port = colon && !memchr(colon, ']', (size_t)(end - colon));
    snprintf(out, size, "%s %.*s%s", tls ? "s" : "p", (int)(end - host), host,
             port ? "" : tls ? ":443" : ":80");
}

bool index_same_origin(const char *a, const char *b)
{
    char x[512], y[512];

    if (!is_http(a) || !is_http(b) || origin_of(a) > 400 || origin_of(b) > 400)
        return false;
    authority_of(a, x, sizeof x);
    authority_of(b, y, sizeof y);
    return !strcasecmp(x, y);
}

bool index_has_credentials(const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    return memchr(host, '@', strcspn(host, "/?#")) != NULL;
}

/* "/a/./b/../c" in place; never above "/". The query is left alone. */
static void remove_dots(char *path)
{
    size_t end = strcspn(path, "?#"), from = 0, to = 0;

    while (from < end) {
        size_t n = 1 + strcspn(path + from + 1, "/?#");         /* "/name" */
        if (from + n > end)
            n = end - from;
        bool one = n == 2 && path[from + 1] == '.', two = n == 3 && !strncmp(path + from, "/..", 3);
        if (two)
            while (to && path[--to] != '/')
                continue;
        if (!one && !two) {
            memmove(path + to, path + from, n);
            to += n;
        } else if (from + n == end) {
            path[to++] = '/';
        }
        from += n;
    }
    if (!to)
        path[to++] = '/';
    memmove(path + to, path + end, strlen(path + end) + 1);
}

char *index_resolve(const char *base, const char *link)
{
    size_t origin = origin_of(base), path = origin + strcspn(base + origin, "?#");
    OWN_BUF url = BUF_INIT;

    if (!is_http(base))
        return NULL;
    if (is_http(link)) {
        buf_append(&url, link, strcspn(link, "#"));
        origin = origin_of(link);
    } else if (link[0] == '/' && link[1] == '/') {
        buf_append(&url, base, (size_t)(strchr(base, ':') - base) + 1);
        buf_append(&url, link, strcspn(link, "#"));
        origin = url.data ? origin_of(url.data) : 0;
    } else if (link[strcspn(link, ":/?#")] == ':') {
        return NULL;            /* mailto:, javascript:, file: */
    } else {
        const char *slash = link[0] == '/' ? base + origin
                                           : memrchr(base + origin, '/', path - origin);
        buf_append(&url, base, slash ? (size_t)(slash - base) : origin);
        if (link[0] != '/')
            buf_text(&url, "/");
        buf_append(&url, link, strcspn(link, "#"));
    }
    if (!url.data || url.failed || origin > url.n)
        return NULL;
    if (url.data[origin] != '/' && url.data[origin])
        return NULL;            /* "http://host?query": no index has such */
    if (!url.data[origin])
        buf_text(&url, "/");
    char *text = buf_take(&url);
    if (text)
        remove_dots(text + origin);
    return text;
}

/* ------------------------------------------------------------------ HTML */

/* "&#38;" or "&#x26;"; 0: it is none of an ASCII character. */
static size_t unescape_number(const char *p, size_t n, char *out)
{
    char text[12], *rest;
    const char *end = n > 3 && p[1] == '#' ? memchr(p, ';', n < 10 ? n : 10) : NULL;

    if (!end)
        return 0;
    bool hex = tolower((unsigned char)p[2]) == 'x';
    snprintf(text, sizeof text, "%.*s", (int)(end - p) - 2 - hex, p + 2 + hex);
    long value = strtol(text, &rest, hex ? 16 : 10);
    if (*rest || value < 0x20 || value > 0x7e)
        return 0;
    *out = (char)value;
    return (size_t)(end - p) + 1;
}

/* One character of an attribute's value: an entity, or itself. Returns the bytes that it takes. */
static size_t unescape(const char *p, size_t n, char *out)
{
    static const struct { const char *name; char value; } entities[] = {
        { "&amp;", '&' }, { "&quot;", '"' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&apos;", '\'' } };
    size_t taken = *p == '&' ? unescape_number(p, n, out) : 0;

    for (size_t i = 0; !taken && *p == '&' && i < sizeof entities / sizeof entities[0]; i++)
        if (n >= strlen(entities[i].name) &&
            !strncasecmp(p, entities[i].name, strlen(entities[i].name))) {
            *out = entities[i].value;
            taken = strlen(entities[i].name);
        }
    if (taken)
        return taken;
    *out = *p;
    return 1;
}

struct attribute {
    const char *value;
    size_t n;
};

/* The value of href in the tag [p, end), which may be quoted or not. */
static bool find_href(const char *p, const char *end, struct attribute *out)
{
    while (p < end) {
        while (p < end && (isspace((unsigned char)*p) || *p == '/'))
            p++;
        const char *name = p;
        while (p < end && !isspace((unsigned char)*p) && *p != '=')
            p++;
        size_t n = (size_t)(p - name);
        while (p < end && isspace((unsigned char)*p))
            p++;
        if (p == end || *p != '=') {
            if (!n && p < end)
                p++;
            continue;
        }
        for (p++; p < end && isspace((unsigned char)*p);)
            p++;
        char quote = p < end && (*p == '"' || *p == '\'') ? *p++ : 0;
        const char *value = p;
        while (p < end && (quote ? *p != quote : !isspace((unsigned char)*p)))
            p++;
        if (n == 4 && !strncasecmp(name, "href", 4)) {
            *out = (struct attribute){ value, (size_t)(p - value) };
            return true;
        }
        p += p < end;
    }
    return false;
}

/* The end of the tag that begins at p ('<'): its '>', not one inside quotes. */
static const char *tag_end(const char *p, const char *end)
{
    char quote = 0;
    for (; p < end; p++) {
        if (quote)
            quote = *p == quote ? 0 : quote;
        else if (*p == '"' || *p == '\'')
            quote = *p;
        else if (*p == '>')
            return p;
    }
    return NULL;
}

static bool is_tag(const char *p, const char *end, const char *name)
{
    size_t n = strlen(name);
    return (size_t)(end - p) > n + 1 && !strncasecmp(p + 1, name, n) &&
           isspace((unsigned char)p[n + 1]);
}

static bool read_link(const struct attribute *a, char out[LINK_MAX_BYTES])
{
    size_t n = 0;
    for (size_t i = 0; i < a->n && n < LINK_MAX_BYTES - 1;) {
        char c;
        i += unescape(a->value + i, a->n - i, &c);
        if ((unsigned char)c > 0x20 && c != 0x7f)
            out[n++] = c;
    }
    out[n] = '\0';
    return n < LINK_MAX_BYTES - 1;
}

static void put_escaped(struct buf *out, const char *text)
{
    for (; *text; text++)
        if (strchr("&\"<>'", *text))
            buf_printf(out, "&#%d;", *text);
        else
            buf_append(out, text, 1);
}

void index_rewrite(const char *html, size_t n, const char *base, index_link *link, void *arg,
                   struct buf *out)
{
    const char *end = html + n, *copied = html;
    char text[LINK_MAX_BYTES];

    for (const char *p = html; (p = memchr(p, '<', (size_t)(end - p)));) {
        const char *close = tag_end(p, end);
        struct attribute href;
        if (!close)
            break;
        bool named = is_tag(p, close, "a") && find_href(p + 2, close, &href);
        if (named) {
            char *url = read_link(&href, text) ? index_resolve(base, text) : NULL;
            buf_append(out, copied, (size_t)(href.value - copied));
            if (url) {
                struct buf to = BUF_INIT;
                link(arg, url, &to);
                put_escaped(out, to.data ? to.data : "");
                put_escaped(out, text + strcspn(text, "#"));
                buf_done(&to);
            }
            copied = href.value + href.n;
            free(url);
        }
        p = close + 1;
    }
    buf_append(out, copied, (size_t)(end - copied));
}
