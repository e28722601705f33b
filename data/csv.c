/* data/csv.c - delimited text to typed columns, in blocks
 *
 * DESIGN. Workers take turns at the input (`input_lock`): whoever holds it reads the next chunk
 * and gives it the next number. Outside the lock it converts the chunk and puts the block into
 * slot number % RING (`lock`). csv_next takes the blocks by number, so the order is the file's. A
 * worker that is RING ahead of the caller waits, which bounds the memory. A failure is posted under
 * its number like a block, so all rows before it are delivered first.
 *
 * Row and line numbers, and the codes of CSV_DICT columns, depend on all that came before; they are
 * settled in csv_next, in order.
 *
 * Lock order: input_lock, then lock.
 */
#include "data/csv.h"

#include <assert.h>
#include <pthread.h>

#include "data/csv_int.h"
#include "data/source.h"

enum { RING = 16, THREADS_MAX = 64, BLOCK_BYTES = 256 << 10 };

struct post {
    int ready;
    enum csv_end end;
    struct csv_full_block *block;       /* CSV_MORE */
    struct err err;
    int file, starts;
    long line;
};

/* A worker's code to the reader's. */
struct code_map {
    uint32_t *code;             /* CSV_NO_CODE: the text has no code yet */
    struct csv_text *text;
    uint32_t n, room;
};

struct csv {
    struct csv_input input;
    struct csv_plan plan;
    char **path;
    int n_paths;
    int threads;

    pthread_mutex_t input_lock;
    long taken;                 /* chunks numbered */
    int exhausted;              /* the last chunk was not CSV_MORE */

    pthread_mutex_t lock;
    pthread_cond_t posted, room;
    struct post ring[RING];
    long delivered;
    int stop;
    struct csv_full_block *idle;        /* given back */

    struct csv_worker *worker;  /* (threads) */
    pthread_t *thread;
    int running;                /* threads started */

    /* the caller's side */
    int started, ended;
    long rows, file_rows, file_lines;
    struct csv_dict *dict;      /* (n_columns) */
    struct code_map *map;       /* (threads, n_columns) */
};

static void stop_threads(struct csv *c)
{
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_cond_broadcast(&c->room);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->running; i++)
        pthread_join(c->thread[i], NULL);
    c->running = 0;
    for (int i = 0; i < RING; i++) {
        csv_full_block_free(c->ring[i].block);
        c->ring[i] = (struct post){ 0 };
    }
}

static void drop_workers(struct csv *c)
{
    for (int t = 0; c->worker && t < c->threads; t++) {
        struct csv_worker *w = &c->worker[t];
        for (int i = 0; w->dict && i < c->plan.n_columns; i++)
            csv_dict_done(&w->dict[i]);
        csv_chunk_done(&w->chunk);
        free(w->dict);
        free(w->found.item);
        free(w->prev);
    }
    for (int i = 0; c->map && i < c->threads * c->plan.n_columns; i++) {
        free(c->map[i].code);
        free(c->map[i].text);
    }
    free(TAKE(c->worker));
    free(TAKE(c->map));
    free(TAKE(c->thread));
}

void csv_free(struct csv *c)
{
    if (!c)
        return;
    stop_threads(c);
    drop_workers(c);
    while (c->idle) {
        struct csv_full_block *b = c->idle;
        c->idle = b->next;
        csv_full_block_free(b);
    }
    for (int i = 0; c->dict && i < c->plan.n_columns; i++)
        csv_dict_done(&c->dict[i]);
    for (int i = 0; c->path && i < c->n_paths; i++)
        free(c->path[i]);
    for (int i = 0; i < c->plan.missing.n; i++)
        free(c->plan.missing.text[i]);
    free(c->plan.missing.text);
    free(c->plan.missing.len);
    free(c->plan.type);
    free(c->path);
    free(c->dict);
    csv_input_done(&c->input);
    pthread_mutex_destroy(&c->input_lock);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->posted);
    pthread_cond_destroy(&c->room);
    free(c);
}

static int copy_missing(const struct csv_options *o, struct csv_missing *m)
{
    static const char *const only_empty[] = { "" };
    const char *const *text = o->missing ? o->missing : only_empty;
    int n = o->missing ? o->n_missing : 1;

    m->text = calloc((size_t)n + 1, sizeof *m->text);
    m->len = calloc((size_t)n + 1, sizeof *m->len);
    if (!m->text || !m->len)
        return -ERR_NOMEM;
    for (; m->n < n; m->n++) {
        if (!(m->text[m->n] = strdup(text[m->n])))
            return -ERR_NOMEM;
        m->len[m->n] = strlen(text[m->n]);
        m->empty |= m->len[m->n] == 0;
        m->lens |= 1ULL << (m->len[m->n] < 63 ? m->len[m->n] : 63);
    }
    return 0;
}

static int use_names(struct csv_input *in, const struct csv_options *o, struct err *err)
{
    if (o->n_names != in->n_names)
        return err_set(err, ERR_INVALID, "%s: has %d columns, and %d names are given for them",
                       source_path(in->source), in->n_names, o->n_names);
    for (int i = 0; i < in->n_names; i++) {
        char *name = strdup(o->names[i]);
        if (!name)
            return err_set(err, ERR_NOMEM, "no memory for the names of %d columns", in->n_names);
        free(in->name[i]);
        in->name[i] = name;
    }
    return 0;
}

static int open_with(struct csv *c, const char *const *paths, int n, const struct csv_options *o,
                     struct err *err)
{
    struct csv_input *in = &c->input;

    if (source_open(paths, n, &in->source, err) < 0 || csv_input_start(in, err) < 0)
        return -(int)err->code;
    if (o->names && o->no_header && use_names(in, o, err) < 0)
        return -(int)err->code;
    c->plan.n_columns = in->n_names;
    c->plan.type = calloc((size_t)in->n_names, sizeof *c->plan.type);
    c->dict = calloc((size_t)in->n_names, sizeof *c->dict);
    c->path = calloc((size_t)n, sizeof *c->path);
    if (!c->plan.type || !c->dict || !c->path || copy_missing(o, &c->plan.missing) < 0)
        return err_set(err, ERR_NOMEM, "%s: no memory to read it", paths[0]);
    for (; c->n_paths < n; c->n_paths++)
        if (!(c->path[c->n_paths] = strdup(paths[c->n_paths])))
            return err_set(err, ERR_NOMEM, "%s: no memory to read it", paths[0]);
    return 0;
}

int csv_open(const char *const *paths, int n, const struct csv_options *options, struct csv **out,
             struct err *err)
{
    static const struct csv_options none;
    const struct csv_options *o = options ? options : &none;
    char delimiter = o->delimiter ? o->delimiter : ',';

    if (strchr("\"\r\n", delimiter))
        return err_set(err, ERR_INVALID, "a quote or a line end cannot be the delimiter");
    OWN(csv) c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, ERR_NOMEM, "%s: no memory to read it", paths[0]);
    pthread_mutex_init(&c->input_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->posted, NULL);
    pthread_cond_init(&c->room, NULL);
    c->threads = o->threads < 1 ? 1 : o->threads > THREADS_MAX ? THREADS_MAX : o->threads;
    c->plan.isa = c->input.isa = csv_isa_pick();
    c->plan.delimiter = c->input.delimiter = delimiter;
    c->plan.allow_nonfinite = o->allow_nonfinite;
    c->input.no_header = o->no_header;
    c->input.skip = o->skip;
    c->input.block_bytes = !o->block_bytes                ? BLOCK_BYTES
                           : o->block_bytes > CSV_ROW_MAX ? CSV_ROW_MAX
                                                          : o->block_bytes;
    if (open_with(c, paths, n, o, err) < 0)
        return -(int)err->code;
    *out = TAKE(c);
    return 0;
}

int csv_columns(const struct csv *c)
{
    return c->plan.n_columns;
}

const char *csv_name(const struct csv *c, int column)
{
    return c->input.name[column];
}

int csv_find(const struct csv *c, const char *name, int *out, struct err *err)
{
    int found = -1, all = c->plan.n_columns;
    char list[300] = "";
    size_t n = 0;

    for (int i = 0; i < all; i++) {
        if (strcmp(csv_name(c, i), name) != 0)
            continue;
        if (found >= 0)
            return err_set(err, ERR_INVALID, "%s: columns %d and %d are both named \"%s\"",
                           c->path[0], found + 1, i + 1, name);
        found = i;
    }
    if (found >= 0) {
        *out = found;
        return 0;
    }
    for (int i = 0; i < all && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", csv_name(c, i));
    if (n >= sizeof list)
        memcpy(list + sizeof list - 4, "...", 4);
    return err_set(err, ERR_MISSING, "%s: has no column \"%s\" (there are: %s)", c->path[0], name,
                   list);
}

void csv_select(struct csv *c, int column, enum csv_type type)
{
    assert(!c->started && column >= 0 && column < c->plan.n_columns);
    c->plan.type[column] = type;
}

/* Converts the worker's chunk, or passes its end on. */
static void make_post(struct csv *c, struct csv_worker *w, struct post *p)
{
    *p = (struct post){ .ready = 1, .end = w->chunk.end, .err = w->chunk.err, .file = w->chunk.file,
                        .starts = w->chunk.starts, .line = w->chunk.line };
    if (p->end != CSV_MORE)
        return;
    pthread_mutex_lock(&c->lock);
    struct csv_full_block *recycled = c->idle;
    if (recycled)
        c->idle = recycled->next;
    pthread_mutex_unlock(&c->lock);
    if (csv_fill(&c->plan, w, recycled, &p->block, &p->err) < 0) {
        p->end = CSV_FAILED;
        err_add(&p->err, "%s", c->path[p->file]);
    }
}

/* Takes the next chunk and its number; -1: there is none, or it is time to stop. */
static long take_chunk(struct csv *c, struct csv_worker *w)
{
    long number = -1;

    pthread_mutex_lock(&c->input_lock);
    pthread_mutex_lock(&c->lock);
    while (!c->stop && !c->exhausted && c->taken - c->delivered >= RING)
        pthread_cond_wait(&c->room, &c->lock);
    int go_on = !c->stop && !c->exhausted;
    pthread_mutex_unlock(&c->lock);
    if (go_on) {
        csv_input_chunk(&c->input, &w->chunk);
        number = c->taken++;
        c->exhausted = w->chunk.end != CSV_MORE;
    }
    pthread_mutex_unlock(&c->input_lock);
    return number;
}

static void *work(void *arg)
{
    struct csv_worker *w = arg;
    struct csv *c = w->csv;
    struct post p;
    long number;

    while ((number = take_chunk(c, w)) >= 0) {
        make_post(c, w, &p);
        pthread_mutex_lock(&c->lock);
        c->ring[number % RING] = p;
        if (number == c->delivered)
            pthread_cond_signal(&c->posted);
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

/* Threads are worth starting for more than a few blocks. */
static int wants_threads(const struct csv *c)
{
    int64_t size = source_size(c->input.source);

    return c->threads > 1 &&
           (c->n_paths > 1 || size < 0 || (uint64_t)size > 4 * c->input.block_bytes);
}

static int start(struct csv *c, struct err *err)
{
    size_t columns = (size_t)c->plan.n_columns, threads;

    if (!wants_threads(c))
        c->threads = 1;
    threads = (size_t)c->threads;
    c->started = 1;
    c->stop = 0;
    c->worker = calloc(threads, sizeof *c->worker);
    c->thread = calloc(threads, sizeof *c->thread);
    c->map = calloc(threads * columns, sizeof *c->map);
    if (!c->worker || !c->thread || !c->map)
        return err_set(err, ERR_NOMEM, "%s: no memory to read it", c->path[0]);
    for (int i = 0; i < c->threads; i++) {
        c->worker[i].csv = c;
        c->worker[i].id = i;
        if (!(c->worker[i].dict = calloc(columns, sizeof *c->worker[i].dict)))
            return err_set(err, ERR_NOMEM, "%s: no memory to read it", c->path[0]);
    }
    /* Without a thread to be had, csv_next does the work itself. */
    for (int i = 0; c->threads > 1 && i < c->threads; i++) {
        if (pthread_create(&c->thread[i], NULL, work, &c->worker[i]) != 0)
            break;
        c->running++;
    }
    return 0;
}

/* The post that is next in order. */
static void take_post(struct csv *c, struct post *p)
{
    if (!c->running) {
        csv_input_chunk(&c->input, &c->worker[0].chunk);
        make_post(c, &c->worker[0], p);
        return;
    }
    pthread_mutex_lock(&c->lock);
    struct post *slot = &c->ring[c->delivered % RING];
    while (!slot->ready)
        pthread_cond_wait(&c->posted, &c->lock);
    *p = *slot;
    *slot = (struct post){ 0 };
    c->delivered++;
    pthread_cond_signal(&c->room);
    pthread_mutex_unlock(&c->lock);
}

static int map_add(struct code_map *m, const struct csv_fresh *fresh)
{
    if (m->room - m->n < fresh->n) {
        uint32_t room = 2 * m->room + fresh->n;
        uint32_t *code = realloc(m->code, room * sizeof *code);
        if (code)
            m->code = code;
        struct csv_text *text = realloc(m->text, room * sizeof *text);
        if (text)
            m->text = text;
        if (!code || !text)
            return -ERR_NOMEM;
        m->room = room;
    }
    memcpy(m->text + m->n, fresh->text, fresh->n * sizeof *fresh->text);
    memset(m->code + m->n, 0xff, fresh->n * sizeof *m->code);   /* CSV_NO_CODE */
    m->n += fresh->n;
    return 0;
}

/* The worker's codes become the reader's: numbered by first appearance in the file. */
static int settle_codes(struct csv *c, struct csv_full_block *b, int column)
{
    struct code_map *m = &c->map[b->worker * c->plan.n_columns + column];
    uint32_t *code = b->block.column[column].code;

    if (b->fresh[column].n && map_add(m, &b->fresh[column]) < 0)
        return -ERR_NOMEM;
    for (long r = 0; r < b->block.rows; r++) {
        if (code[r] == CSV_NO_CODE)
            continue;
        uint32_t *known = &m->code[code[r]];
        if (*known == CSV_NO_CODE) {
            const struct csv_text *t = &m->text[code[r]];
            int rc = csv_dict_code(&c->dict[column], t->p, t->n, known);
            if (rc < 0)
                return rc;
        }
        code[r] = *known;
    }
    return 0;
}

static int settle(struct csv *c, const struct post *p, struct err *err)
{
    struct csv_full_block *b = p->block;

    for (int i = 0; i < c->plan.n_columns; i++) {
        int rc = c->plan.type[i] == CSV_DICT ? settle_codes(c, b, i) : 0;
        if (rc == -ERR_INVALID)
            return err_set(err, ERR_INVALID,
                           "%s: column \"%s\" has more than %d different texts (use \"hash\")",
                           c->path[p->file], csv_name(c, i), CSV_DICT_MAX);
        if (rc < 0)
            return err_set(err, ERR_NOMEM, "%s: no memory for the texts of column \"%s\"",
                           c->path[p->file], csv_name(c, i));
    }
    b->block.path = c->path[p->file];
    b->block.first = c->rows;
    b->rows_before = c->file_rows;
    for (int i = 0; i < b->block.n_errors; i++) {
        b->block.error[i].row += c->file_rows + 1;
        b->block.error[i].line += c->file_lines + 1;
    }
    c->rows += b->block.rows;
    c->file_rows += b->block.rows + b->block.ragged;
    c->file_lines += b->lines;
    return 0;
}

/* 1234567 as 1,234,567 */
static const char *with_commas(char out[32], long n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%ld", n), k = 0;

    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = 0;
    return out;
}

static int say_end(struct csv *c, const struct post *p, struct err *err)
{
    char row[32], line[32];

    if (p->end == CSV_FAILED) {
        *err = p->err;
        return -(int)err->code;
    }
    with_commas(row, c->file_rows + 1);
    with_commas(line, c->file_lines + 1);
    if (p->end == CSV_UNCLOSED)
        return err_set(err, ERR_INVALID, "%s: row %s (line %s): a quote is opened and never closed",
                       c->path[p->file], row, line);
    return err_set(err, ERR_INVALID,
                   "%s: row %s (line %s) is longer than %d MiB (is a quote left open?)",
                   c->path[p->file], row, line, CSV_ROW_MAX >> 20);
}

int csv_next(struct csv *c, struct csv_block **out, struct err *err)
{
    struct post p;

    if (!c->started && start(c, err) < 0)
        return -(int)err->code;
    while (!c->ended) {
        take_post(c, &p);
        if (p.starts) {
            c->file_rows = 0;
            c->file_lines = p.line - 1;
        }
        c->ended = p.end != CSV_MORE;
        if (p.end == CSV_END)
            break;
        if (p.end != CSV_MORE)
            return say_end(c, &p, err);
        if (settle(c, &p, err) < 0) {
            c->ended = 1;
            csv_full_block_free(p.block);
            return -(int)err->code;
        }
        if (p.block->block.rows || p.block->block.ragged) {
            *out = &p.block->block;
            return 0;
        }
        csv_block_free(c, &p.block->block);     /* nothing but empty lines */
    }
    *out = NULL;
    return 0;
}

void csv_block_free(struct csv *c, struct csv_block *b)
{
    struct csv_full_block *full = (struct csv_full_block *)b;

    if (!b)
        return;
    for (int i = 0; i < b->n_columns; i++) {
        free(full->fresh[i].text);
        full->fresh[i].text = NULL;
    }
    pthread_mutex_lock(&c->lock);
    full->next = c->idle;
    c->idle = full;
    pthread_mutex_unlock(&c->lock);
}

int csv_rewind(struct csv *c, struct err *err)
{
    stop_threads(c);
    drop_workers(c);
    c->started = c->ended = c->exhausted = 0;
    c->taken = c->delivered = 0;
    c->rows = c->file_rows = c->file_lines = 0;
    if (source_rewind(c->input.source, err) < 0)
        return -(int)err->code;
    return csv_input_start(&c->input, err);
}

long csv_dict(const struct csv *c, int column, const struct csv_text **out_texts)
{
    *out_texts = c->dict[column].text;
    return c->dict[column].n;
}

long csv_block_row(const struct csv_block *b, long slot)
{
    const struct csv_full_block *full = (const struct csv_full_block *)b;
    long before = 0;

    while (before < b->ragged && full->ragged[before] <= slot)
        before++;
    return full->rows_before + slot + before + 1;
}

long csv_block_ragged(const struct csv_block *b, long i, long *out_row)
{
    const struct csv_full_block *full = (const struct csv_full_block *)b;

    *out_row = full->rows_before + full->ragged[i] + i + 1;
    return full->ragged[i];
}

int csv_error_say(const struct csv *c, const struct csv_block *b, const struct csv_error *e,
                  struct err *err)
{
    static const char *const facts[] = {
        [CSV_BAD_NUMBER] = "is not a number",
        [CSV_BAD_FINITE] = "is not a finite number",
        [CSV_BAD_INTEGER] = "is not an integer",
        [CSV_BAD_QUOTE] = "has text after its closing quote",
    };
    char row[32], line[32];

    with_commas(row, e->row);
    with_commas(line, e->line);
    if (e->kind == CSV_BAD_FIELDS)
        return err_set(err, ERR_INVALID, "%s: row %s (line %s) has %ld fields, the %s has %d",
                       b->path, row, line, e->fields, c->input.no_header ? "first row" : "header",
                       c->plan.n_columns);
    return err_set(err, ERR_INVALID, "%s: row %s (line %s), column \"%s\": \"%s\" %s", b->path, row,
                   line, csv_name(c, e->column), e->text,
                   e->kind == CSV_BAD_TEXT ? e->why : facts[e->kind]);
}
