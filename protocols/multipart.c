/* protocols/multipart.c - multipart bodies, part by part, as they come */
#include "protocols/multipart.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { BLANKS_MAX = 256 };      /* after a boundary */

/* ------------------------------------------------------------ headers */

/* Where a parameter's value begins ("boundary" in "multipart/related; boundary=x"); NULL: none. */
static const char *parameter(const char *text, const char *name)
{
    size_t n = strlen(name);

    while ((text = strchr(text, ';'))) {
        text += 1 + strspn(text + 1, " \t");
        if (!strncasecmp(text, name, n) && text[n] == '=')
            return text + n + 1;
    }
    return NULL;
}

int multipart_init(struct multipart *m, const char *content_type, struct err *err)
{
    const char *at = content_type ? parameter(content_type, "boundary") : NULL;
    char quote = at && (*at == '"' || *at == '\'') ? *at++ : 0;
    char ends[] = { quote ? quote : ';', quote ? 0 : ' ', 0 };
    size_t n = at ? strcspn(at, ends) : 0;

    *m = (struct multipart){ .state = PART_PREAMBLE };
    if (n == 0 || n > MULTIPART_BOUNDARY_MAX || (quote && at[n] != quote))
        return err_set(err, ERR_INVALID, "the Content-Type of a multipart body names its boundary "
                       "(up to %d characters)", MULTIPART_BOUNDARY_MAX);
    m->n_delimiter = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\n--%.*s", (int)n, at);
    return 0;
}

void multipart_done(struct multipart *m)
{
    buf_done(&m->hold);
}

bool multipart_ended(const struct multipart *m)
{
    return m->state == PART_EPILOGUE;
}

void multipart_header(const char *head, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);

    out[0] = '\0';
    for (const char *line = head; *line;) {
        size_t length = strcspn(line, "\n");
        if (length > n && line[n] == ':' && !strncasecmp(line, name, n)) {
            const char *value = line + n + 1;
            size_t left = length - n - 1;
            while (left && isblank((unsigned char)*value))
                value++, left--;
            while (left && isspace((unsigned char)value[left - 1]))
                left--;
            snprintf(out, size, "%.*s", (int)left, value);
            return;
        }
        line += length + (line[length] == '\n');
    }
}

/* ------------------------------------------------------------ states: each uses some of `hold` */

/* Returns how many bytes are used up; 0: more is needed. */
struct step {
    struct multipart *m;
    const char *p;
    size_t n;
    const struct multipart_sink *sink;
    void *arg;
};

static long preamble(const struct step *s)
{
    struct multipart *m = s->m;
    const char *mark = m->delimiter + 1;        /* without the line end: it may be the first line */
    size_t n_mark = m->n_delimiter - 1;

    if (!m->mid_line && s->n >= n_mark && !memcmp(s->p, mark, n_mark)) {
        m->state = PART_BOUNDARY;
        return (long)n_mark;
    }
    const char *line = memchr(s->p, '\n', s->n);
    m->mid_line = !line && (m->mid_line || s->n >= n_mark);
    return line ? line - s->p + 1 : m->mid_line ? (long)s->n : 0;
}

/* What follows a boundary: "--" at the end, else the line end. */
static long boundary(const struct step *s, struct err *err)
{
    const char *line;

    if (s->n >= 2 && !memcmp(s->p, "--", 2)) {
        s->m->state = PART_EPILOGUE;
        return 2;
    }
    if (!(line = memchr(s->p, '\n', s->n < BLANKS_MAX ? s->n : BLANKS_MAX)))
        return s->n >= BLANKS_MAX ? err_set(err, ERR_INVALID, "a boundary of the multipart body is "
                                            "followed by other text") : 0;
    s->m->crlf = line > s->p && line[-1] == '\r';
    s->m->state = PART_HEAD;
    return line - s->p + 1;
}

/* The end of the head: its length with the empty line; 0: not there yet. */
static size_t head_length(const char *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *line = memchr(p + at, '\n', n - at);
        if (!line)
            return 0;
        size_t length = (size_t)(line - p) - at;
        if (length == 0 || (length == 1 && p[at] == '\r'))
            return (size_t)(line - p) + 1;
        at = (size_t)(line - p) + 1;
    }
    return 0;
}

static long head(const struct step *s, struct err *err)
{
    size_t n = head_length(s->p, s->n);
    char text[MULTIPART_HEAD_MAX + 1];

    if (n > MULTIPART_HEAD_MAX || (!n && s->n > MULTIPART_HEAD_MAX))
        return err_set(err, ERR_INVALID, "the head of a part is longer than %d bytes",
                       MULTIPART_HEAD_MAX);
    if (!n)
        return 0;
    if (memchr(s->p, 0, n))
        return err_set(err, ERR_INVALID, "the head of a part has a NUL in it");
    memcpy(text, s->p, n);
    text[n] = '\0';
    s->m->state = PART_DATA;
    s->m->data_begun = false;
    int rc = s->sink->part(s->arg, text, err);
    return rc < 0 ? rc : (long)n;
}

/* Is what follows a delimiter what follows a boundary? -1: too early to say. */
static int is_boundary(const char *after, size_t n)
{
    if (n == 0)
        return -1;
    if (*after == '-')
        return n < 2 ? -1 : after[1] == '-';
    return *after == '\r' || *after == '\n' || *after == ' ' || *after == '\t';
}

static int tell(const struct step *s, size_t n, struct err *err)
{
    if (n)
        s->m->data_begun = true;
    return n ? s->sink->data(s->arg, s->p, n, err) : 0;
}

static long data(const struct step *s, struct err *err)
{
    struct multipart *m = s->m;
    size_t from = 0;

    /* A part without bytes may have its boundary right after the head. */
    if (!m->data_begun && s->n >= m->n_delimiter - 1 &&
        !memcmp(s->p, m->delimiter + 1, m->n_delimiter - 1)) {
        m->state = PART_BOUNDARY;
        int rc = s->sink->end(s->arg, err);
        return rc < 0 ? rc : (long)m->n_delimiter - 1;
    }
    for (;;) {
        const char *at = memmem(s->p + from, s->n - from, m->delimiter, m->n_delimiter);
        if (!at)
            break;
        size_t before = (size_t)(at - s->p), after = before + m->n_delimiter;
        int is = is_boundary(s->p + after, s->n - after);
        if (is < 0) {           /* hand on what is surely data, and wait */
            size_t sure = before ? before - 1 : 0;
            int rc = tell(s, sure, err);
            return rc < 0 ? rc : (long)sure;
        }
        if (is) {
            bool cr = m->crlf && before && s->p[before - 1] == '\r';
            int rc = tell(s, before - cr, err);
            if (rc == 0)
                rc = s->sink->end(s->arg, err);
            m->state = PART_BOUNDARY;
            return rc < 0 ? rc : (long)after;
        }
        from = before + 1;
    }
    /* The tail may be the beginning of a delimiter, with the CR before it. */
    if (s->n <= m->n_delimiter + 1)
        return 0;
    size_t sure = s->n - m->n_delimiter - 1;
    int rc = tell(s, sure, err);
    return rc < 0 ? rc : (long)sure;
}

int multipart_feed(struct multipart *m, const void *bytes, size_t n,
                   const struct multipart_sink *sink, void *arg, struct err *err)
{
    size_t used = 0;

    if (m->state == PART_EPILOGUE)
        return 0;
    buf_append(&m->hold, bytes, n);
    if (buf_ok(&m->hold, err) < 0)
        return -(int)err->code;
    while (m->state != PART_EPILOGUE && used < m->hold.n) {
        struct step s = { m, m->hold.data + used, m->hold.n - used, sink, arg };
        long took = m->state == PART_PREAMBLE ? preamble(&s)
                    : m->state == PART_BOUNDARY ? boundary(&s, err)
                    : m->state == PART_HEAD ? head(&s, err) : data(&s, err);
        if (took < 0)
            return -(int)err->code;
        if (took == 0)
            break;
        used += (size_t)took;
    }
    memmove(m->hold.data, m->hold.data + used, m->hold.n - used);
    m->hold.n -= used;
    m->hold.data[m->hold.n] = '\0';
    return 0;
}
