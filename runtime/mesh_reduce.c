/* runtime/mesh_reduce.c - gather, tell, reduce and copy
 *
 * Each is the same few lines: write a part of the own region, post, wait for everybody's post,
 * read. Everybody posts, also those who have nothing to give: a post says as well that what was
 * there before has been read. Small gathers take turns between two slots, since to write a slot for
 * the second time a worker must have seen everybody's post for the other one.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/mesh_int.h"

enum { BLOCK = 1024 };          /* floats: the sums of a block stay in the nearest cache */

static const void *place_part(const struct mesh *m, int i, size_t offset)
{
    return (const char *)m->place[i].region + offset;
}

/* The next post of the own region, for those who share it. */
static void publish(struct mesh *m)
{
    uint64_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);

    m->post++;
    atomic_fetch_add_explicit(&m->posted, 1, memory_order_release);
    region_post(m->region, word_of(generation, m->post));
}

/* The link in place i when its peer reads by TCP. */
static struct link *reader(const struct mesh *m, int i)
{
    return i != m->self && m->place[i].link->they_read_tcp ? m->place[i].link : NULL;
}

/* The same part for everybody; of a board, it may come after its number. */
static int post_to_all(struct mesh *m, struct part part, bool board, struct err *err)
{
    publish(m);
    for (int d = 1; d < m->n; d++) {
        struct link *l = reader(m, (m->self + d) % m->n);
        int rc = !l      ? 0
                 : board ? link_lay(l, part, m->post, err)
                         : link_post(l, &part, 1, m->post, POST_NOW, err);
        if (rc < 0)
            return rc;
    }
    atomic_fetch_add_explicit(&m->bytes_sent, part.bytes * (size_t)(m->n - 1),
                              memory_order_relaxed);
    return 0;
}

/* ------------------------------------------------------------ small gathers */

int mesh_gather(struct mesh *m, float *rows, long stride, long count, struct err *err)
{
    const struct mesh_peer *own = &m->place[m->self].peer;
    const size_t slot = region_slot((int)(m->slots++ & 1)), row = (size_t)count * sizeof(float);
    float *to = (float *)((char *)m->region + slot);
    int rc;

    if (count < 0 || row * (size_t)m->config.shards > GATHER_BYTES)
        return err_set(err, ERR_INVALID, "a gather of %ld floats a shard", count);
    if ((rc = mesh_check(m, err)) < 0 || m->n == 1)
        return rc;
    for (int k = own->from; k < own->to; k++)
        memcpy(to + k * count, rows + k * stride, row);
    rc = post_to_all(m, (struct part){ slot + (size_t)own->from * row,
                                       (size_t)(own->to - own->from) * row }, false, err);
    for (int d = 1; d < m->n && rc == 0; d++) {
        int i = (m->self + d) % m->n;
        const float *from = place_part(m, i, slot);
        if ((rc = mesh_wait(m, i, m->post, err)) < 0)
            break;
        for (int k = m->place[i].peer.from; k < m->place[i].peer.to; k++)
            memcpy(rows + k * stride, from + k * count, row);
    }
    return rc < 0 || mesh_intact(m) ? rc : mesh_again(m, err);
}

int mesh_tell(struct mesh *m, int from, void *bytes, size_t n, struct err *err)
{
    const size_t slot = region_slot((int)(m->slots++ & 1));
    int rc;

    if (n > GATHER_BYTES || from < 0 || from >= m->n)
        return err_set(err, ERR_INVALID, "%zu bytes to tell from place %d", n, from);
    if ((rc = mesh_check(m, err)) < 0 || m->n == 1)
        return rc;
    if (from == m->self)
        memcpy((char *)m->region + slot, bytes, n);
    if ((rc = post_to_all(m, (struct part){ slot, from == m->self ? n : 0 }, false, err)) < 0 ||
        (rc = mesh_wait_all(m, m->post, err)) < 0)
        return rc;
    if (from != m->self)
        memcpy(bytes, place_part(m, from, slot), n);
    return mesh_intact(m) ? 0 : mesh_again(m, err);
}

/* ------------------------------------------------------------ reduce */

/* The additions of one element, in order: node[a] += node[b]. Node i is the sum that is at shard i:
 * that of a root stands at its first shard. */
struct tree {
    const float *leaf[SHARDS_MAX];
    struct {
        int a, b;
    } add[SHARDS_MAX];
    int n;
    int top;                    /* where the sum is */
};

/* As shard_tree in engine/optim_step.h does it: pairs over the shard index; where one of a pair is
 * empty the other is passed on. Inside a root only its first shard stands for all. */
static void plant(const struct mesh *m, unsigned filled, struct tree *t)
{
    int at[SHARDS_MAX];         /* node that holds the sum of the subtree; -1: empty */

    *t = (struct tree){ .top = -1 };
    for (int i = 0; i < SHARDS_MAX; i++)
        at[i] = -1;
    for (int i = 0; i < m->n; i++)
        for (int r = 0; r < m->place[i].roots; r++) {
            int first = m->place[i].first[r], width = m->place[i].width[r];
            if (!(filled >> first & ((1u << width) - 1)))
                continue;
            t->leaf[first] = place_part(m, i, region_root(m->config.floats, m->side, r));
            at[first] = first;
        }
    for (int width = 1; width < m->config.shards; width *= 2)
        for (int i = 0; i < m->config.shards; i += 2 * width) {
            int b = at[i + width];
            if (at[i] >= 0 && b >= 0) {
                t->add[t->n].a = at[i];
                t->add[t->n++].b = b;
            } else if (b >= 0) {
                at[i] = b;
            }
        }
    t->top = at[0];
}

/* n is a multiple of 16, and said so: then any compiler makes vectors of it. */
static void add_up(float *restrict to, const float *a, const float *b, long n)
{
    for (long i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++)
            to[i + j] = a[i + j] + b[i + j];
}

/* Four leaves that are all there, the common case of more than two, in one pass. */
static void add_four(float *restrict to, const float *a, const float *b, const float *c,
                     const float *d, long n)
{
    for (long i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++)
            to[i + j] = (a[i + j] + b[i + j]) + (c[i + j] + d[i + j]);
}

/* Elements [from, to) of the sum, to[0] being element `from`. */
static void add_block(const struct tree *t, float *to, long from, long n)
{
    _Alignas(64) float held[SHARDS_MAX][BLOCK];
    const float *node[SHARDS_MAX];

    for (int i = 0; i < SHARDS_MAX; i++)
        node[i] = t->leaf[i] ? t->leaf[i] + from : NULL;
    if (t->n == 3 && t->add[0].a == t->add[2].a && t->add[1].a == t->add[2].b) {
        add_four(to, node[t->add[0].a], node[t->add[0].b], node[t->add[1].a],
                 node[t->add[1].b], n);
        return;
    }
    for (int i = 0; i < t->n; i++) {
        int a = t->add[i].a;
        float *sum = i == t->n - 1 ? to : held[i];
        add_up(sum, node[a], node[t->add[i].b], n);
        node[a] = sum;
    }
    if (t->n == 0 && t->top >= 0)
        memcpy(to, node[t->top], (size_t)n * sizeof *to);
    else if (t->top < 0)
        memset(to, 0, (size_t)n * sizeof *to);
}

/* Of two workers with a root each, each takes the other's whole one. The same for everybody: it
 * follows from the list and the batch. */
static bool is_whole(const struct mesh *m, const struct tree *t)
{
    return m->n <= 2 && t->n <= 1 && t->top >= 0;
}

/* The own roots with samples. */
static int own_roots(const struct mesh *m, unsigned filled, int root[MESH_ROOTS])
{
    const struct place *own = &m->place[m->self];
    int n = 0;

    for (int r = 0; r < own->roots; r++)
        if (filled >> own->first[r] & ((1u << own->width[r]) - 1))
            root[n++] = r;
    return n;
}

/* Elements [from, to) of an own root. */
static struct part root_part(const struct mesh *m, int root, long from, long to)
{
    return (struct part){ region_root(m->config.floats, m->side, root) +
                              (size_t)from * sizeof(float),
                          (size_t)(to - from) * sizeof(float) };
}

void mesh_ready(struct mesh *m, unsigned filled, long from)
{
    int root[MESH_ROOTS], n = own_roots(m, filled, root);
    struct tree t;
    struct err err;

    if (mesh_check(m, &err) < 0 || m->n == 1)
        return;
    plant(m, filled, &t);
    for (int d = 1; d < m->n; d++) {
        const int i = (m->self + d) % m->n;
        struct place *p = &m->place[i];
        const bool whole = is_whole(m, &t);
        const long first = whole || from > p->from ? from : p->from;
        const long end = whole || p->shown < p->to ? p->shown : p->to;
        struct link *l = reader(m, i);
        int rc = l && first < end ? 0 : -1;
        for (int r = 0; r < n && rc == 0; r++)
            rc = link_show(l, root_part(m, root[r], first, end), &err);
        if (rc == 0)
            p->shown = first;
    }
}

bool mesh_wants_ready(const struct mesh *m)
{
    for (int i = 0; i < m->n && !m->late; i++)
        if (reader(m, i))
            return true;
    return false;
}

/* To each only the piece of the roots that it adds up, or all of them; and of that, what was not
 * shown. */
static int post_roots(struct mesh *m, unsigned filled, bool whole, struct err *err)
{
    const struct place *own = &m->place[m->self];
    int root[MESH_ROOTS], n = own_roots(m, filled, root);
    uint64_t early;

    publish(m);
    for (int d = 1; d < m->n; d++) {
        int i = (m->self + d) % m->n, rc = 0;
        struct place *p = &m->place[i];
        const long from = whole ? 0 : p->from, to = whole ? m->config.floats : p->to;
        const long end = p->shown < from ? from : p->shown < to ? p->shown : to;
        struct link *l = reader(m, i);
        struct part part[MESH_ROOTS];
        for (int r = 0; r < n; r++)
            part[r] = root_part(m, root[r], from, end);
        if (l) {
            l->mark = link_mark(l, &early);
            atomic_fetch_add_explicit(&m->bytes_early, early, memory_order_relaxed);
            rc = link_post(l, part, n, m->post, POST_LATER, err);
        }
        p->shown = m->config.floats;
        if (rc < 0)
            return rc;
    }
    long others = whole ? m->config.floats : m->config.floats - (own->to - own->from);
    atomic_fetch_add_explicit(&m->bytes_sent, (size_t)n * (size_t)others * sizeof(float),
                              memory_order_relaxed);
    return 0;
}

/* Everybody has posted its roots, and so has what we sent before ours: it is gone. */
static int wait_roots(struct mesh *m, struct err *err)
{
    int rc = mesh_wait_all(m, m->post, err);

    for (int i = 0; i < m->n && rc == 0; i++)
        if (reader(m, i))
            link_wait(m->place[i].link, m->place[i].link->mark);
    return rc;
}

/* The own segment from everybody's roots, then everybody's segments. */
static int reduce_by_segments(struct mesh *m, const struct tree *t, struct err *err)
{
    const struct place *own = &m->place[m->self];
    float *sum = (float *)((char *)m->region + region_sum());
    int rc;

    for (long at = own->from; at < own->to; at += BLOCK)
        add_block(t, sum + (at - own->from), at, own->to - at < BLOCK ? own->to - at : BLOCK);
    if (!mesh_intact(m))
        return mesh_again(m, err);
    const struct part part = { region_sum(), (size_t)(own->to - own->from) * sizeof(float) };
    if ((rc = post_to_all(m, part, false, err)) < 0 ||
        (rc = mesh_wait_all(m, m->post, err)) < 0)
        return rc;
    for (int i = 0; i < m->n; i++)
        m->segment[i] = (struct grad_segment){ m->place[i].from, m->place[i].to,
                                               place_part(m, i, region_sum()), NULL };
    return m->n;
}

/* One or two leaves as they are: what is left to add, the user adds. */
static int leave_whole(struct mesh *m, const struct tree *t)
{
    m->segment[0] = (struct grad_segment){ 0, m->config.floats, t->leaf[t->top], NULL };
    if (t->n == 1) {
        m->segment[0].sum = t->leaf[t->add[0].a];
        m->segment[0].plus = t->leaf[t->add[0].b];
    }
    return 1;
}

int mesh_reduce(struct mesh *m, unsigned filled, const struct grad_segment **out, int *out_n,
                struct err *err)
{
    struct tree t;
    int rc;

    if ((rc = mesh_check(m, err)) < 0)
        return rc;
    plant(m, filled, &t);
    const bool whole = is_whole(m, &t);
    if (m->n > 1 && ((rc = post_roots(m, filled, whole, err)) < 0 ||
                     (rc = wait_roots(m, err)) < 0))
        return rc;
    rc = whole ? leave_whole(m, &t) : reduce_by_segments(m, &t, err);
    if (rc < 0)
        return rc;
    m->side = !m->side;
    *out = m->segment;
    *out_n = rc;
    return 0;
}

/* ------------------------------------------------------------ boards */

int mesh_post(struct mesh *m, long from, long n, struct err *err)
{
    int rc = mesh_check(m, err);

    assert(from >= 0 && n >= 0 && from + n <= m->config.board);
    if (rc == 0 && m->n > 1)
        rc = post_to_all(m, (struct part){ region_board(m->config.floats) +
                                               (size_t)from * sizeof(float),
                                           (size_t)n * sizeof(float) }, true, err);
    /* Not everybody has it, and the number of a later post would say that they have. Nor may we
     * wait by a number that does not count it: others reached that with the post before. */
    if (rc < 0)
        m->ready = false;
    return rc;
}

/* All parts of its board that the peer has announced in this generation have come. */
static bool has_laid(const struct mesh *m, const struct link *l, uint64_t *out_laid)
{
    const uint64_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
    const uint64_t owed = atomic_load_explicit(&l->owed, memory_order_acquire);
    const uint64_t laid = *out_laid = atomic_load_explicit(&l->laid, memory_order_acquire);

    return word_age(owed, generation) != 0 ||
           (word_age(laid, generation) == 0 && word_post(laid) >= word_post(owed));
}

int mesh_wait_for(struct mesh *m, int place, struct err *err)
{
    const struct place *p = &m->place[place];
    uint64_t laid;
    int rc;

    if (place == m->self)
        return 0;
    if (!m->ready)
        return mesh_again(m, err);
    if ((rc = mesh_wait(m, place, m->post, err)) < 0)
        return rc;
    while (!has_laid(m, p->link, &laid)) {
        if (mesh_aborted(m))
            return mesh_again(m, err);
        if (atomic_load(&p->link->dead) && !has_laid(m, p->link, &laid))
            return err_set(err, ERR_AGAIN, "worker %" PRIu64 " is lost", p->peer.id);
        word_wait(&p->link->laid, laid);
    }
    return 0;
}

/* ------------------------------------------------------------ copies */

static int send_state(struct mesh *m, struct link *l, const char *state, size_t n,
                      struct err *err)
{
    struct wire_header h = { WIRE_STATE, atomic_load(&m->generation), n, 0 };
    size_t done = 0;

    do {
        h.length = n - done < MESH_STATE_CHUNK ? n - done : MESH_STATE_CHUNK;
        if (mesh_aborted(m))
            return mesh_again(m, err);
        int rc = link_send(l, &h, &(struct wire_piece){ state + done, (size_t)h.length }, 1, err);
        if (rc < 0)
            return rc;
        done += (size_t)h.length;
    } while (done < n);
    return 0;
}

static int take_state(struct mesh *m, struct link *l, void **out, size_t *out_n, struct err *err)
{
    uint64_t generation = atomic_load(&m->generation);
    int rc = 0;
    bool got = false;

    pthread_mutex_lock(&m->lock);
    while (!got && rc == 0) {
        struct arrival *a = l->arrivals;
        struct timespec until;
        if (a) {
            l->arrivals = a->next;
            if ((got = a->generation == generation)) {
                *out = TAKE(a->bytes);
                *out_n = a->n;
            }
            free(a->bytes);
            free(a);
        } else if (l->state == LINK_DEAD) {
            rc = err_set(err, ERR_AGAIN, "%s", l->why.text);
        } else if (mesh_aborted(m)) {
            rc = mesh_again(m, err);
        } else {
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += 2000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&m->changed, &m->lock, &until);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int mesh_copy(struct mesh *m, int source, uint64_t to, const void *state, size_t n, void **out,
              size_t *out_n, struct err *err)
{
    int rc = mesh_check(m, err);

    if (rc < 0)
        return rc;
    assert(source >= 0 && source < m->n && !(to >> source & 1));
    if (source != m->self)
        return to >> m->self & 1 ? take_state(m, m->place[source].link, out, out_n, err) : 0;
    for (int d = 1; d < m->n && rc == 0; d++) {
        int i = (m->self + d) % m->n;
        if (to >> i & 1)
            rc = send_state(m, m->place[i].link, state, n, err);
    }
    return rc;
}
