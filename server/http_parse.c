/* server/http_parse.c - the head of a request, escapes, bodies in chunks: bytes from outside */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <arpa/inet.h>

#include "server/http_int.h"

/* ------------------------------------------------------------ the head */

size_t head_end(const char *bytes, size_t n, size_t *from)
{
    const char *at = bytes + (*from > 3 ? *from - 3 : 0), *end = bytes + n;

    while (end - at >= 4) {
        const char *cr = memchr(at, '\r', (size_t)(end - at) - 3);
        if (!cr)
            break;
        if (!memcmp(cr, "\r\n\r\n", 4))
            return (size_t)(cr - bytes) + 4;
        at = cr + 1;
    }
    *from = n;
    return 0;
}

/* Letters of a method or a header's name (RFC 9110, "token"). */
static bool is_name(unsigned char c)
{
    return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static const char *parse_length(const char *text, int64_t *out)
{
    int64_t n = 0;

    if (!*text || strlen(text) > 18)
        return "the Content-Length is no number";
    for (; *text; text++) {
        if (!isdigit((unsigned char)*text))
            return "the Content-Length is no number";
        n = n * 10 + (*text - '0');
    }
    *out = n;
    return NULL;
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    while (*list) {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, ", \t");
        if (len == n && !strncasecmp(list, word, n))
            return true;
        list += len;
    }
    return false;
}

/* What the headers mean for how the bytes after them are read. */
static int understand(struct head *h, const char **why)
{
    const char *length = NULL, *coding = NULL, *host = NULL, *login = NULL;
    const char *connection = "";

    for (int i = 0; i < h->n_headers; i++) {
        const char *name = h->headers[i].name, *value = h->headers[i].value;
        const char **at = !strcasecmp(name, "content-length") ? &length
            : !strcasecmp(name, "transfer-encoding") ? &coding
            : !strcasecmp(name, "host") ? &host
            : !strcasecmp(name, "authorization") ? &login : NULL;
        if (at && *at) {
            *why = "a header that may be there once is there twice";
            return 400;
        }
        if (at)
            *at = value;
        if (!strcasecmp(name, "connection"))
            connection = value;
        if (!strcasecmp(name, "expect")) {
            if (strcasecmp(value, "100-continue")) {
                *why = "there is no such expectation as in the Expect header";
                return 417;
            }
            h->expects_continue = h->minor > 0;
        }
    }
    if (length && coding) {
        *why = "a request has a Content-Length or a Transfer-Encoding, not both";
        return 400;
    }
    if (length && (*why = parse_length(length, &h->length)))
        return 400;
    if (coding && (strcasecmp(coding, "chunked") || h->minor == 0)) {
        *why = "the only Transfer-Encoding here is \"chunked\"";
        return h->minor ? 501 : 400;
    }
    h->chunked = coding != NULL;
    if (host ? !*host : h->minor > 0) {
        *why = "a request needs a Host header";
        return 400;
    }
    h->host = host ? host : "";
    h->keep_alive =
        h->minor > 0 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    return 0;
}

/* "GET /path HTTP/1.1", of n bytes and a NUL. */
static int parse_line(char *line, size_t n, struct head *h, const char **why)
{
    char *target = memchr(line, ' ', n), *version = target ? strchr(target + 1, ' ') : NULL;

    *why = "the first line is no HTTP request";
    if (!version || target == line || target - line > 16)
        return 400;
    for (char *p = line; p < target; p++)
        if (!isupper((unsigned char)*p))
            return 400;
    *target++ = 0;
    *version++ = 0;
    if (strcmp(version, "HTTP/1.1") && strcmp(version, "HTTP/1.0")) {
        *why = "only HTTP/1.1 and HTTP/1.0 are spoken here";
        return strncmp(version, "HTTP/", 5) ? 400 : 505;
    }
    for (char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '#')
            return 400;
    h->method = line;
    h->target = target;
    h->minor = version[7] - '0';
    if (*target != '/') {       /* absolute form: what a proxy sends; the Host header still counts */
        char *path = !strncasecmp(target, "http://", 7) ? strchr(target + 7, '/')
            : !strncasecmp(target, "https://", 8) ? strchr(target + 8, '/') : NULL;
        if (!path)
            return 400;
        h->target = path;
    }
    return 0;
}

int head_parse(char *bytes, size_t n, struct head *out, const char **why)
{
    char *end = bytes + n - 2;          /* the empty line */
    struct head h = { 0 };
    char *line = bytes;

    for (bool first = true; line < end; first = false) {
        char *stop = memchr(line, '\r', (size_t)(end - line) + 1);
        *why = "a line of the head does not end in CR LF";
        if (!stop || stop[1] != '\n' || memchr(line, '\n', (size_t)(stop - line)))
            return 400;
        *why = "there is a NUL in the head";
        if (memchr(line, 0, (size_t)(stop - line)))
            return 400;
        *stop = 0;
        if (first) {
            int status = parse_line(line, (size_t)(stop - line), &h, why);
            if (status)
                return status;
            line = stop + 2;
            continue;
        }
        *why = "a header has no name, a blank in it, or goes on over two lines";
        char *colon = line;
        while (is_name((unsigned char)*colon))
            colon++;
        if (colon == line || *colon != ':')
            return 400;
        *why = "there are too many headers";
        if (h.n_headers == HEADERS_MAX)
            return 431;
        *colon = 0;
        char *value = colon + 1 + strspn(colon + 1, " \t"), *last = stop;
        while (last > value && (last[-1] == ' ' || last[-1] == '\t'))
            *--last = 0;
        *why = "there is a control character in a header";
        for (char *p = value; *p; p++)
            if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
                return 400;
        h.headers[h.n_headers++] = (struct pair){ line, value };
        line = stop + 2;
    }
    *why = "the first line is no HTTP request";
    if (!h.method)
        return 400;
    int status = understand(&h, why);
    if (status == 0)
        *out = h;
    return status;
}

const char *head_find(const struct head *h, const char *name)
{
    for (int i = 0; i < h->n_headers; i++)
        if (!strcasecmp(h->headers[i].name, name))
            return h->headers[i].value;
    return NULL;
}

/* ------------------------------------------------------------ escapes */

bool utf8_valid(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;

    while (p < end) {
        if (*p < 0x80) {
            p++;
            continue;
        }
        int more = *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
        unsigned long code = *p & (0x3f >> more);
        if (*p < 0xc2 || *p > 0xf4 || end - p <= more)
            return false;
        for (int i = 1; i <= more; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return false;
            code = code << 6 | (p[i] & 0x3f);
        }
        static const unsigned long least[] = { 0, 0x80, 0x800, 0x10000 };
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
            return false;
        p += more + 1;
    }
    return true;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
        : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

long percent_decode(const char *text, size_t n, bool plus_is_blank, char *out)
{
    char *to = out;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '%') {
            int high = i + 2 < n ? hex_value(text[i + 1]) : -1;
            int low = i + 2 < n ? hex_value(text[i + 2]) : -1;
            if (high < 0 || low < 0 || (high == 0 && low == 0))
                return -1;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus_is_blank) {
            c = ' ';
        } else if (!c) {
            return -1;
        }
        *to++ = c;
    }
    *to = 0;
    return utf8_valid(out, (size_t)(to - out)) ? to - out : -1;
}

int queries_parse(const char *text, char *out, struct pair *pairs, int max)
{
    int n = 0;

    while (*text) {
        const size_t part = strcspn(text, "&"), name = strcspn(text, "=&");
        if (part && n < max) {
            long used = percent_decode(text, name, true, out);
            if (used < 0)
                return -1;
            pairs[n].name = out;
            pairs[n++].value = out += used + 1;
            used = name < part ? percent_decode(text + name + 1, part - name - 1, true, out) : 0;
            if (used < 0)
                return -1;
            out[used] = 0;
            out += used + 1;
        }
        text += part + (text[part] == '&');
    }
    return n;
}

/* ------------------------------------------------------------ chunks */

enum { CHUNK_DIGITS = 12, CHUNK_EXTRA = 8192 };

/* One byte that is not data; -1: wrong. */
static int chunks_byte(struct chunks *c, char b)
{
    switch (c->state) {
    case CHUNK_SIZE: {
        int digit = hex_value(b);
        if (digit >= 0) {
            if (++c->digits > CHUNK_DIGITS)
                return -1;
            c->left = c->left << 4 | (unsigned)digit;
        } else if (c->digits && b == '\r') {
            c->state = CHUNK_SIZE_LF;
        } else if (c->digits && b == ';') {
            c->state = CHUNK_EXTENSION;
        } else {
            return -1;
        }
        return 0;
    }
    case CHUNK_EXTENSION:
        if (b == '\n' || ++c->extra > CHUNK_EXTRA)
            return -1;
        if (b == '\r')
            c->state = CHUNK_SIZE_LF;
        return 0;
    case CHUNK_SIZE_LF:
        c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER;
        return b == '\n' ? 0 : -1;
    case CHUNK_DATA_CR:
        c->state = CHUNK_DATA_LF;
        return b == '\r' ? 0 : -1;
    case CHUNK_DATA_LF:
        c->state = CHUNK_SIZE;
        c->digits = 0;
        return b == '\n' ? 0 : -1;
    case CHUNK_TRAILER:         /* trailers are read over */
        c->state = b == '\r' ? CHUNK_END_LF : CHUNK_TRAILER_LINE;
        return b == '\n' || ++c->extra > CHUNK_EXTRA ? -1 : 0;
    case CHUNK_TRAILER_LINE:
        if (b == '\r')
            c->state = CHUNK_TRAILER_LF;
        return b == '\n' || ++c->extra > CHUNK_EXTRA ? -1 : 0;
    case CHUNK_TRAILER_LF:
        c->state = CHUNK_TRAILER;
        return b == '\n' ? 0 : -1;
    case CHUNK_END_LF:
        c->state = CHUNK_DONE;
        return b == '\n' ? 0 : -1;
    case CHUNK_DATA:
    case CHUNK_DONE:
        break;
    }
    return -1;
}

long chunks_take(struct chunks *c, char *bytes, size_t n, char **out, size_t *out_n)
{
    size_t i = 0;

    *out = bytes;
    *out_n = 0;
    while (i < n && c->state != CHUNK_DONE) {
        if (c->state == CHUNK_DATA) {
            size_t take = n - i < c->left ? n - i : (size_t)c->left;
            *out = bytes + i;
            *out_n = take;
            c->left -= take;
            if (!c->left)
                c->state = CHUNK_DATA_CR;
            return (long)(i + take);
        }
        if (chunks_byte(c, bytes[i++]) < 0)
            return -1;
    }
    return (long)i;
}

/* ------------------------------------------------------------ hosts */

bool host_allowed(const char *host, const char *const *names)
{
    char name[256];
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    struct in_addr v4;

    if (n >= sizeof name || n > strlen(host))
        return false;
    const char *port = host + n;
    if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")]))
        return false;
    memcpy(name, host, n);
    name[n] = 0;
    if (!strcasecmp(name, "localhost") || !strcmp(name, "[::1]"))
        return true;
    if (inet_pton(AF_INET, name, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127)
        return true;
    for (; names && *names; names++)
        if (!strcasecmp(name, *names))
            return true;
    return false;
}
