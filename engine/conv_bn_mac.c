/* engine/conv_bn_mac.c - convolution of one sample: forward, dx, dw
 *
 * The order of each sum:
 *   forward  bias, then (ky, kx, ci) ascending          Winograd: by plane over ci, then the
 *   dx       (ky, kx) descending, co ascending          transforms of winograd.h; its dw over
 *   dw       pixels in row order                        tiles in row order
 */
#include "engine/conv_bn_int.h"
#include "engine/winograd.h"

/* Tiles that are transformed at once, forward and backward: with their products they stay in L1 and
 * in L2. Eight rows of the micro-kernel are as fast as more where sums are this short. */
enum { WINO_ROWS = MAC_ROWS < 8 ? MAC_ROWS : 8, WINO_TILES = 64 };

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* Floats in front of panel j (a channel number) of `rows` rows. */
INLINE long panel_at(int j, long rows) { return j * rows; }

/* ------------------------------------------------------------------ direct */

static void direct_forward(const struct block *b, const float *xp, float *y, struct ahead *ahead)
{
    const long rows = (long)b->kh * b->kw * b->cis;
    struct mac g = { .a = xp, .ars = (long)b->sw * b->cis, .aks = 1, .ldc = b->cop,
                     .K = (long)b->kw * b->cis, .run = b->forward, .runs = b->kh,
                     .start = b->b ? MAC_LANES : MAC_ZERO, .times = b->fh,
                     .at = (long)b->sh * b->wp * b->cis, .ct = (long)b->wo * b->cop,
                     .ahead = ahead, .fresh = true };

    for (int j = 0; j < b->cop; j += PANEL) {
        g.b = b->w->w + panel_at(j, rows);
        g.ldb = panel_width(b->cop, j);
        g.bias = b->b ? b->b->w + j : NULL;
        g.c = y + j;
        ISA_FN(mac_rows)(&g, b->fw, (int)g.ldb / 16);
    }
}

static void direct_dx(const struct block *b, const float *e, float *dx, struct ahead *ahead)
{
    const long rows = (long)b->kh * b->kw * b->cop;

    for (int i = 0; i < b->phases; i++) {
        const struct dx_phase *f = &b->phase[i];
        struct mac g = { .a = e, .ars = b->cop, .aks = 1, .ldc = (long)b->sw * b->cip, .K = b->cop,
                         .run = f->run, .runs = f->runs, .times = f->rows,
                         .at = (long)b->ew * b->cop, .ct = (long)b->sh * b->wi * b->cip,
                         .ahead = ahead };
        for (int j = 0; j < b->cip; j += PANEL) {
            g.b = b->wt + panel_at(j, rows);
            g.ldb = panel_width(b->cip, j);
            g.c = dx + ((long)f->y * b->wi + f->x) * b->cip + j;
            ISA_FN(mac_rows)(&g, f->cols, (int)g.ldb / 16);
        }
    }
}

/* A row of taps is one row of the micro-kernel's tile for each (kx, ci). */
static void direct_dw(const struct block *b, const float *xp, const float *e, float *gw, bool first,
                      struct ahead *ahead)
{
    const long row = (long)b->kw * b->cis;
    struct mac g = { .a = xp, .ars = 1, .aks = (long)b->sw * b->cis, .ldb = b->cop, .K = b->fw,
                     .run = b->dw, .runs = b->fh, .start = first ? MAC_ZERO : MAC_ADD,
                     .times = b->kh, .at = (long)b->wp * b->cis, .ahead = ahead };

    for (int j = 0; j < b->cop; j += PANEL) {
        g.b = e + ((long)b->et * b->ew + b->el) * b->cop + j;
        g.ldc = panel_width(b->cop, j);
        g.c = gw + panel_at(j, b->kh * row);
        g.ct = row * g.ldc;
        ISA_FN(mac_rows)(&g, (int)row, (int)g.ldc / 16);
    }
}

/* Few taps in a row (a grey image has three) would leave most of a tile empty: all together. */
INLINE void taps(const int mr, const struct block *b, const float *xp, const float *e,
                 const long *tap, float *g, long ldg, bool first)
{
    v16 acc[MAC_ROWS];

    if (first)
        acc_zero(mr, acc);
    else
        acc_load(mr, 1, acc, g, ldg);
    for (int h = 0; h < b->ho; h++) {
        const float *x = xp + (long)h * b->sh * b->wp * b->cis;
        const float *d = e + (long)h * b->ew * b->cop;
        for (int w = 0; w < b->wo; w++, x += b->sw * b->cis, d += b->cop) {
            v16 v = v_pin(v_load(d));
            UNROLL
            for (int i = 0; i < mr; i++)
                acc[i] = v_fma(v_set1(x[tap[i]]), v, acc[i]);
        }
    }
    acc_store(mr, 1, acc, g, ldg);
}

#define TAPS(mr)                                                                               \
    KERNEL void taps_##mr(const struct block *b, const float *xp, const float *e,              \
                          const long *tap, float *g, long ldg, bool first)                     \
    {                                                                                          \
        taps(mr, b, xp, e, tap, g, ldg, first);                                                \
    }
TAPS(1) TAPS(2) TAPS(3) TAPS(4) TAPS(5) TAPS(6)
#if defined ISA_AVX512
TAPS(7) TAPS(8) TAPS(9) TAPS(10) TAPS(11) TAPS(12) TAPS(13) TAPS(14)
#endif

static void (*const taps_of[MAC_ROWS + 1])(const struct block *b, const float *xp, const float *e,
                                           const long *tap, float *g, long ldg, bool first) = {
    NULL, taps_1, taps_2, taps_3, taps_4, taps_5, taps_6,
#if defined ISA_AVX512
    taps_7, taps_8, taps_9, taps_10, taps_11, taps_12, taps_13, taps_14,
#endif
};

static void taps_dw(const struct block *b, const float *xp, const float *e, float *gw, bool first)
{
    const int n = b->kh * b->kw * b->cis, parts = ceil_div(n, MAC_ROWS);

    e += ((long)b->et * b->ew + b->el) * b->cop;
    for (int j = 0; j < b->cop; j += 16) {
        long ldg = panel_width(b->cop, j / PANEL * PANEL);
        float *g = gw + panel_at(j / PANEL * PANEL, n) + j % PANEL;
        for (int p = 0; p < parts; p++) {
            int from = n * p / parts, to = n * (p + 1) / parts;
            taps_of[to - from](b, xp, e + j, b->tap + from, g + from * ldg, ldg, first);
        }
    }
}

/* ------------------------------------------------------------------ Winograd */

/* The corner of tile t in an image `wp` pixels wide. */
INLINE long tile_at(const struct block *b, int t, long wp)
{
    return 2 * (t / b->tw) * wp + 2 * (t % b->tw);
}

/* Output tile t, sixteen channels from j on; a tile at the edge may be cut. */
INLINE void put_tile(const struct block *b, int t, int j, const float *m, long ps, float *y)
{
    const long c = b->cop, row = b->wo * c;
    const int h = 2 * (t / b->tw), w = 2 * (t % b->tw);
    v16 bias = b->b ? v_load(b->b->w + j) : v_zero();

    y += h * row + w * c + j;
    if (h + 1 < b->ho && w + 1 < b->wo) {
        wino_out(m, ps, bias, y, c, row);
        return;
    }
    ALIGNED float cut[4 * 16];
    wino_out(m, ps, bias, cut, 16, 32);
    for (int i = 0; i < 4; i++)
        if (h + i / 2 < b->ho && w + i % 2 < b->wo)
            v_store(y + i / 2 * row + i % 2 * c, v_load(cut + 16 * i));
}

/* Asks for the lines of an output tile before they are written. */
INLINE void warm_tile(const struct block *b, int t, const float *y)
{
    y += tile_at(b, t, b->wo) * b->cop;
    for (int j = 0; j < 2 * b->cop; j += 16) {
        prefetch_write(y + j);
        prefetch_write(y + (long)b->wo * b->cop + j);
    }
}

KERNEL void wino_forward(const struct block *b, const float *xp, float *y, float *wino,
                         struct ahead *ahead)
{
    const int tiles = b->th * b->tw, chunks = ceil_div(tiles, WINO_ROWS);
    const long cis = b->cis;
    float *v = wino, *m = wino + 16 * WINO_ROWS * cis;

    for (int i = 0; i < chunks; i++) {
        const int t0 = tiles * i / chunks, n = tiles * (i + 1) / chunks - t0;
        for (int t = 0; t < n; t++) {
            const float *x = xp + tile_at(b, t0 + t, b->wp) * cis;
            for (int j = 0; j < cis; j += 16)
                wino_in(x + j, cis, b->wp * cis, v + t * cis + j, n * cis);
            warm_tile(b, t0 + t, y);
        }
        struct mac g = { .a = v, .ars = cis, .aks = 1, .K = cis, .c = m, .times = 16,
                         .at = n * cis, .ahead = ahead };
        for (int j = 0; j < b->cop; j += PANEL) {
            g.b = b->u + panel_at(j, 16 * cis);
            g.ldb = g.ldc = panel_width(b->cop, j);
            g.bt = cis * g.ldb;
            g.ct = n * g.ldc;
            ISA_FN(mac_rows)(&g, n, (int)g.ldb / 16);
            for (int t = 0; t < n; t++)
                for (int k = 0; k < g.ldc; k += 16)
                    put_tile(b, t0 + t, j + k, m + t * g.ldc + k, g.ct, y);
        }
    }
}

/* V and D of n tiles from t0 on. */
KERNEL void wino_gather(const struct block *b, const float *xp, const float *e, int t0, int n,
                        float *v, float *d)
{
    const long cis = b->cis, cop = b->cop;

    for (int t = 0; t < n; t++) {
        const float *x = xp + tile_at(b, t0 + t, b->wp) * cis;
        const float *y = e + tile_at(b, t0 + t, b->ew) * cop;
        for (int j = 0; j < cis; j += 16)
            wino_in(x + j, cis, b->wp * cis, v + t * cis + j, n * cis);
        for (int j = 0; j < cop; j += 16)
            wino_dy(y + j, cop, b->ew * cop, d + t * cop + j, n * cop);
    }
}

KERNEL void wino_scatter(const struct block *b, const float *m, int t0, int n, float *dx)
{
    const long cis = b->cis;

    for (int t = 0; t < n; t++)
        for (int j = 0; j < cis; j += 16)
            wino_dd(m + t * cis + j, n * cis, dx + tile_at(b, t0 + t, b->wp) * cis + j, cis,
                    b->wp * cis);
}

static void wino_backward(const struct block *b, const float *xp, const float *e, float *dx,
                          float *gu, bool first, float *wino, struct ahead *ahead)
{
    const int tiles = b->th * b->tw, chunks = ceil_div(tiles, WINO_TILES);
    const long cis = b->cis, cop = b->cop;
    float *v = wino, *m = v + 16 * WINO_TILES * cis, *d = m + 16 * WINO_TILES * cis;

    if (b->dx)
        memset(dx, 0, (size_t)dx_size(b) * sizeof *dx);
    for (int i = 0; i < chunks; i++) {
        const int t0 = tiles * i / chunks, n = tiles * (i + 1) / chunks - t0;
        wino_gather(b, xp, e, t0, n, v, d);
        for (int p = 0; p < 16; p++) {
            struct mac x = { .a = d + p * n * cop, .ars = cop, .aks = 1, .K = cop, .ldc = cis,
                             .times = 1, .ahead = ahead };
            for (int j = 0; b->dx && j < cis; j += PANEL) {
                x.ldb = panel_width(b->cis, j);
                x.b = b->ut + panel_at(j, 16 * cop) + p * cop * x.ldb;
                x.c = m + p * n * cis + j;
                ISA_FN(mac_rows)(&x, n, (int)x.ldb / 16);
            }
            struct mac w = { .a = v + p * n * cis, .ars = 1, .aks = cis, .ldb = cop, .K = n,
                             .start = first && i == 0 ? MAC_ZERO : MAC_ADD, .times = 1 };
            for (int j = 0; j < cop; j += PANEL) {
                w.b = x.a + j;
                w.ldc = panel_width(b->cop, j);
                w.c = gu + panel_at(j, 16 * cis) + p * cis * w.ldc;
                ISA_FN(mac_rows)(&w, b->cis, (int)w.ldc / 16);
            }
        }
        if (b->dx)
            wino_scatter(b, m, t0, n, dx);
    }
}

/* ------------------------------------------------------------------ either */

long conv_wino_floats(const struct block *b)
{
    long forward = 16 * WINO_ROWS * ((long)b->cis + PANEL);
    long backward = 16 * WINO_TILES * (2l * b->cis + b->cop);

    return !b->wino ? 0 : forward > backward ? forward : backward;
}

void conv_forward(const struct block *b, const float *xp, float *y, float *wino,
                  struct ahead *ahead)
{
    if (b->wino)
        wino_forward(b, xp, y, wino, ahead);
    else
        direct_forward(b, xp, y, ahead);
}

void conv_dx_dw(const struct block *b, const float *xp, const float *e, float *dx, float *gw,
                bool first, float *wino, struct ahead *ahead)
{
    if (b->wino) {
        wino_backward(b, xp, e, dx, gw, first, wino, ahead);
        return;
    }
    if (b->dx)
        direct_dx(b, e, dx, ahead);
    if (b->tap)
        taps_dw(b, xp, e, gw, first);
    else
        direct_dw(b, xp, e, gw, first, ahead);
}

long conv_tiles_forward(const struct block *b)
{
    long vecs = ceil_div(b->cop / 16, MAC_VECS);

    if (b->wino)
        return 16 * ceil_div(b->th * b->tw, WINO_ROWS) * vecs;
    return vecs * b->fh * ceil_div(b->fw, MAC_ROWS);
}

long conv_tiles_backward(const struct block *b)
{
    long vecs = ceil_div(b->cip / 16, MAC_VECS);

    if (!b->dx)
        return 8;
    if (b->wino)
        return 16 * ceil_div(b->th * b->tw, MAC_ROWS) * vecs;
    return vecs * b->hi * ceil_div(b->wi, MAC_ROWS);
}
