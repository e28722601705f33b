/* data/csv_fill.c - a chunk of text to a block of columns
 *
 * First the layout: in a regular chunk every n_columns-th mark is a newline, and the marks
 * themselves say where each field is. A chunk with empty lines or ragged rows is made regular by
 * taking their marks out; the starts of rows then need an array of their own. Since only rows with
 * the right number of fields stay, rows * n_columns never exceeds the bytes of the text, whatever
 * the header claims.
 */
#include "data/csv_int.h"

enum { ALIGN = 64 };

void csv_full_block_free(struct csv_full_block *b)
{
    if (!b)
        return;
    for (int i = 0; b->fresh && i < b->block.n_columns; i++)
        free(b->fresh[i].text);
    csv_buffer_done(&b->heap);
    free(b->ragged);
    free(b->block.error);
    free(b);
}
OWN_DEFINE(csv_full_block)

static int is_regular(const struct csv_chunk *k, int n_columns)
{
    size_t rows = k->marks.newlines;

    /* One column: an empty line looks like a row. */
    if (n_columns == 1 || k->marks.n != rows * (size_t)n_columns)
        return 0;
    size_t wrong = 0;
    for (size_t r = 1; r <= rows; r++)
        wrong += k->buffer.text[k->marks.at[r * (size_t)n_columns - 1]] != '\n';
    return wrong == 0;
}

/* Takes out the marks of rows that stay out; their row starts go to w->prev. */
static int make_regular(struct csv_worker *w, int n_columns, long *out_rows, long *out_ragged)
{
    struct csv_marks *m = &w->chunk.marks;
    const char *text = w->chunk.buffer.text;
    long rows = 0, ragged = 0;
    uint32_t start = 0;

    if (w->prev_room < m->newlines) {
        free(w->prev);
        w->prev_room = 0;
        if (!(w->prev = malloc(m->newlines * sizeof *w->prev)))
            return -ERR_NOMEM;
        w->prev_room = m->newlines;
    }
    for (size_t i = 0, to = 0; i < m->n;) {
        size_t last = i;
        while (text[m->at[last]] != '\n')
            last++;
        uint32_t end = m->at[last];
        size_t fields = last - i + 1;
        if (fields == 1 && (end == start || (end == start + 1 && text[start] == '\r'))) {
            /* an empty line */
        } else if (fields == (size_t)n_columns) {
            memmove(m->at + to, m->at + i, fields * sizeof *m->at);
            to += fields;
            w->prev[rows++] = start - 1; /* wraps at the first byte, and back when 1 is added */
        } else {
            ragged++;
            if (csv_found_add(&w->found, (struct csv_found){ (uint32_t)rows, -1, CSV_BAD_FIELDS,
                                                             start, (uint32_t)fields }) < 0)
                return -ERR_NOMEM;
        }
        start = end + 1;
        i = last + 1;
    }
    *out_rows = rows;
    *out_ragged = ragged;
    return 0;
}

static size_t value_bytes(enum csv_type type)
{
    static const size_t bytes[] = {
        [CSV_SKIP] = 0,
        [CSV_F64] = sizeof(double),
        [CSV_F32] = sizeof(float),
        [CSV_I64] = sizeof(int64_t),
        [CSV_TEXT] = sizeof(struct csv_text),
        [CSV_DICT] = sizeof(uint32_t),
    };
    return bytes[type];
}

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Walks through a block's parts in the order in which they lie. With `b` NULL it only measures. */
static size_t lay_out(const struct csv_plan *plan, long rows, struct csv_full_block *b)
{
    size_t words = aligned(((size_t)rows + 63) / 64 * sizeof(uint64_t));
    size_t at = aligned(sizeof *b);
    char *base = (char *)b;

#define PART(pointer, bytes)                                                            \
    do {                                                                                \
        if (base)                                                                       \
            pointer = (void *)(base + at);                                              \
        at += aligned(bytes);                                                           \
    } while (0)
    PART(b->block.column, (size_t)plan->n_columns * sizeof(struct csv_column));
    PART(b->fresh, (size_t)plan->n_columns * sizeof(struct csv_fresh));
    PART(b->block.bad, words);
    for (int i = 0; i < plan->n_columns; i++) {
        if (plan->type[i] == CSV_SKIP)
            continue;
        PART(b->block.column[i].missing, words);
        PART(b->block.column[i].f64, (size_t)rows * value_bytes(plan->type[i]));
    }
#undef PART
    return at;
}

static struct csv_full_block *block_new(const struct csv_plan *plan, long rows, long ragged,
                                        struct csv_full_block *recycled)
{
    size_t need = lay_out(plan, rows, NULL);
    OWN(csv_full_block) b = recycled;
    struct csv_buffer heap = { 0 };

    if (b) {
        free(TAKE(b->ragged));
        free(TAKE(b->block.error));
        heap = b->heap;
        b->heap = (struct csv_buffer){ 0 };
    }
    if (!b || b->room < need) {
        /* An eighth more: blocks differ by a few rows, and each should serve the next. */
        size_t room = aligned(need + need / 8);
        csv_full_block_free(b);
        b = aligned_alloc(ALIGN, room);
        if (!b) {
            csv_buffer_done(&heap);
            return NULL;
        }
        b->room = room;
    }
    size_t room = b->room;
    memset(b, 0, aligned(sizeof *b) + aligned((size_t)plan->n_columns * sizeof(struct csv_column))
                     + aligned((size_t)plan->n_columns * sizeof(struct csv_fresh)));
    b->room = room;
    b->heap = heap;
    b->block.n_columns = plan->n_columns;
    b->block.rows = rows;
    b->block.ragged = ragged;
    lay_out(plan, rows, b);
    size_t words = ((size_t)rows + 63) / 64 * sizeof(uint64_t);
    memset(b->block.bad, 0, words);
    for (int i = 0; i < plan->n_columns; i++) {
        b->block.column[i].type = plan->type[i];
        if (plan->type[i] != CSV_SKIP)
            memset(b->block.column[i].missing, 0, words);
    }
    if (ragged && !(b->ragged = malloc((size_t)ragged * sizeof *b->ragged)))
        return NULL;
    return TAKE(b);
}

static int by_place(const void *pa, const void *pb)
{
    const struct csv_found *a = pa, *b = pb;

    if (a->slot != b->slot)
        return a->slot < b->slot ? -1 : 1;
    if (a->column != b->column)
        return a->column < b->column ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static void copy_text(char out[48], const char *p, size_t n)
{
    size_t size = sizeof ((struct csv_error *)0)->text;
    size_t held = n < size ? n : size - 4;

    memcpy(out, p, held);
    /* Not inside a UTF-8 character. */
    while (held < n && held > 0 && ((unsigned char)p[held] & 0xc0) == 0x80)
        held--;
    memcpy(out + held, held < n ? "..." : "", held < n ? 4 : 1);
}

/* A text that is not UTF-8, for a sentence that is: other bytes and controls as \xNN. */
static void show_bytes(char out[48], const char *p, size_t n)
{
    const size_t size = sizeof ((struct csv_error *)0)->text;
    size_t at = 0;

    for (size_t i = 0; i < n;) {
        size_t len = (unsigned char)p[i] >= ' ' ? utf8_length(p + i, n - i) : 0;
        if (at + 8 > size) {
            at += (size_t)snprintf(out + at, size - at, "...");
            break;
        }
        if (len)
            memcpy(out + at, p + i, len);
        else
            snprintf(out + at, size - at, "\\x%02x", (unsigned char)p[i]);
        at += len ? len : 4;
        i += len ? len : 1;
    }
    out[at] = 0;
}

/* Errors in the order of the file, with rows and lines counted from the chunk's first. */
static int tell_errors(struct csv_worker *w, const struct csv_fields *first,
                       struct csv_full_block *b)
{
    struct csv_found_list *l = &w->found;
    const char *text = w->chunk.buffer.text;
    struct csv_block *block = &b->block;
    size_t kept = l->n < CSV_ERRORS_MAX ? l->n : CSV_ERRORS_MAX, counted_to = 0;
    long ragged = 0, lines = 0;

    if (!l->n)
        return 0;
    qsort(l->item, l->n, sizeof *l->item, by_place);
    block->error = calloc(kept, sizeof *block->error);
    if (!block->error)
        return -ERR_NOMEM;
    block->n_errors = (int)kept;
    for (size_t i = 0; i < l->n; i++) {
        const struct csv_found *f = &l->item[i];
        long row = (long)f->slot + ragged;
        if (f->column < 0) {
            b->ragged[ragged++] = f->slot;
        } else if (!csv_bit(block->bad, f->slot)) {
            block->bad[f->slot >> 6] |= 1ULL << (f->slot & 63);
            block->n_bad++;
        }
        if (i >= kept)
            continue;
        size_t start =
            f->column < 0 ? f->at : (size_t)(first->prev[f->slot * first->prev_step] + 1u);
        lines += (long)csv_count_lines(text + counted_to, start - counted_to);
        counted_to = start;
        block->error[i] = (struct csv_error){ .kind = f->kind, .column = f->column, .slot = f->slot,
                                              .row = row, .line = lines };
        if (f->column < 0)
            block->error[i].fields = f->len;
        else
            copy_text(block->error[i].text, text + f->at, f->len);
        if (f->kind == CSV_BAD_TEXT) {
            size_t at = utf8_check(text + f->at, f->len);
            utf8_say(text + f->at, f->len, at, block->error[i].why);
            show_bytes(block->error[i].text, text + f->at, f->len);
        }
    }
    return 0;
}

/* Texts that the worker's dictionary did not have before this chunk: the caller's side numbers
 * them, in the order of rows, whichever worker met them first. */
static int note_fresh(const struct csv_dict *d, uint32_t had, struct csv_fresh *fresh)
{
    if (d->n == had)
        return 0;
    fresh->n = d->n - had;
    fresh->text = malloc(fresh->n * sizeof *fresh->text);
    if (!fresh->text)
        return -ERR_NOMEM;
    memcpy(fresh->text, d->text + had, fresh->n * sizeof *fresh->text);
    return 0;
}

static int has_text(const struct csv_plan *plan)
{
    for (int i = 0; i < plan->n_columns; i++)
        if (plan->type[i] == CSV_TEXT)
            return 1;
    return 0;
}

static int fill_columns(const struct csv_plan *plan, struct csv_worker *w, struct csv_fields *f,
                        struct csv_full_block *b, int *out_column)
{
    struct csv_convert v = { .isa = plan->isa, .missing = &plan->missing,
                             .allow_nonfinite = plan->allow_nonfinite, .found = &w->found };
    const struct csv_fields first = *f;

    if (has_text(plan)) {
        if (b->heap.room < w->chunk.n)
            csv_buffer_done(&b->heap);
        if (csv_buffer_grow(&b->heap, w->chunk.n) < 0)
            return -ERR_NOMEM;
        v.heap = b->heap.text;
    }
    for (int i = 0; i < plan->n_columns; i++) {
        if (plan->type[i] == CSV_SKIP)
            continue;
        uint32_t had = w->dict[i].n;
        *out_column = v.column = i;
        v.dict = &w->dict[i];
        f->prev = i ? w->chunk.marks.at + i - 1 : first.prev;
        f->prev_step = i ? (size_t)plan->n_columns : first.prev_step;
        f->end = w->chunk.marks.at + i;
        f->last = i + 1 == plan->n_columns;
        int rc = csv_convert_column(&v, f, &b->block.column[i]);
        if (rc < 0)
            return rc;
        if (note_fresh(&w->dict[i], had, &b->fresh[i]) < 0)
            return -ERR_NOMEM;
    }
    *f = first;
    return 0;
}

int csv_fill(const struct csv_plan *plan, struct csv_worker *w, struct csv_full_block *recycled,
             struct csv_full_block **out, struct err *err)
{
    struct csv_chunk *k = &w->chunk;
    long rows, ragged = 0;
    int column = 0;

    if (!k->scanned)
        csv_scan(plan->isa, k->buffer.text, k->n, plan->delimiter, &k->marks);
    w->found.n = 0;
    struct csv_fields f = { .text = k->buffer.text, .end_step = (size_t)plan->n_columns,
                            .quoted = k->scanned };
    if (is_regular(k, plan->n_columns)) {
        /* Row r begins after mark r * n_columns - 1; there is room before the first for one. */
        rows = (long)k->marks.newlines;
        k->marks.at[-1] = UINT32_MAX;
        f.prev = k->marks.at - 1;
        f.prev_step = (size_t)plan->n_columns;
    } else {
        if (make_regular(w, plan->n_columns, &rows, &ragged) < 0) {
            csv_full_block_free(recycled);
            return err_set(err, ERR_NOMEM, "no memory for the rows of a block");
        }
        f.prev = w->prev;
        f.prev_step = 1;
    }
    f.rows = rows;

    OWN(csv_full_block) b = block_new(plan, rows, ragged, recycled);
    int rc = b ? fill_columns(plan, w, &f, b, &column) : -ERR_NOMEM;
    if (rc == -ERR_INVALID)
        return err_set(err, ERR_INVALID,
                       "column %d has more than %d different texts (use \"hash\")",
                       column + 1, CSV_DICT_MAX);
    if (rc < 0 || tell_errors(w, &f, b) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a block of %ld rows", rows);
    b->lines = (long)(k->scanned ? csv_count_lines(k->buffer.text, k->n) : k->marks.newlines);
    b->worker = w->id;
    *out = TAKE(b);
    return 0;
}
