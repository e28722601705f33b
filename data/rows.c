/* data/rows.c - picks the format; what is common to all of them */
#include "data/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct rows_ops *const formats[ROWS_FORMATS] = {
    [ROWS_CSV] = &rows_csv_ops,
    [ROWS_JSON] = &rows_json_ops,
    [ROWS_TFRECORD] = &rows_tfrecord_ops,
};

int rows_open(enum rows_format format, const char *const *paths, int n, const struct csv_options *o,
              struct rows **out, struct err *err)
{
    OWN(rows) r = calloc(1, sizeof *r);
    if (!r)
        return err_set(err, ERR_NOMEM, "no memory to read %s", paths[0]);
    r->ops = formats[format];
    if (r->ops->open(r, paths, n, o, err) < 0)
        return -err->code;
    *out = TAKE(r);
    return 0;
}

void rows_free(struct rows *r)
{
    if (!r)
        return;
    r->ops->free(r);
    free(r);
}

int rows_columns(const struct rows *r)
{
    return r->ops->columns ? r->ops->columns(r) : 0;
}

const char *rows_name(const struct rows *r, int column)
{
    return r->ops->name(r, column);
}

int rows_select(struct rows *r, const char *name, int as, struct err *err)
{
    return r->ops->select(r, name, as, 1, err);
}

int rows_select_list(struct rows *r, const char *name, int width, struct err *err)
{
    return r->ops->select(r, name, ROWS_NUMBER, width, err);
}

int rows_next(struct rows *r, const struct rows_block **out, struct err *err)
{
    return r->ops->next(r, out, err);
}

int rows_rewind(struct rows *r, struct err *err)
{
    return r->ops->rewind(r, err);
}

long rows_row(const struct rows *r, const struct rows_block *b, long slot)
{
    return r->ops->row(r, b, slot);
}

int rows_say(const struct rows *r, const struct rows_block *b, long slot, struct err *err)
{
    return r->ops->say(r, b, slot, err);
}

long rows_broken(const struct rows *r, const struct rows_block *b, long i, struct err *why)
{
    return r->ops->broken(r, b, i, why);
}

int rows_number(const char *text, size_t n, double *out)
{
    char copy[128], *end;

    while (n && (*text == ' ' || *text == '\t'))
        text++, n--;
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        n--;
    if (!n || n >= sizeof copy)
        return -1;
    for (size_t i = 0; i < n; i++)      /* strtod takes hexadecimal too; a table does not */
        if (text[i] == 'x' || text[i] == 'X' || text[i] == '(' || !text[i])
            return -1;
    memcpy(copy, text, n);
    copy[n] = 0;
    double v = strtod(copy, &end);
    if (end != copy + n)
        return -1;
    *out = v;
    return 0;
}
