/* engine/conv_pool_forward.c - conv + bias + relu + maxpool 2 in one pass (see conv_pool_int.h) */
#include "engine/conv_pool_int.h"

/* ------------------------------------------------------------------ the image */

/* (u / 255 - mean) / std as PyTorch rounds it: each of the three operations once. */
INLINE v16 scale_bytes(v16 u, v16 mean, v16 std, v16 factor, bool exact)
{
    const v16 r = v_set1(1.f / 255);
    v16 quotient = v_mul(u, r);
    v16 rest =
        v_fma(quotient, v_set1(-255), u); /* exact, so that the next line rounds as u / 255 */
    v16 x = v_sub(v_fma(rest, r, quotient), mean);
    return exact ? v_mul(x, factor) : v_div(x, std);
}

/* A power of two divides exactly, hence by a multiplication. */
static bool is_power_of_two(float x)
{
    int e;
    return frexpf(x, &e) == .5f && e > -100 && e < 100;
}

INLINE void scale_plane(const struct conv_image *im, int c, const uint8_t *bytes, long n,
                        float *flat, bool exact)
{
    const v16 mean = v_set1(im->mean[c]), std = v_set1(im->std[c]);
    const v16 factor = v_set1(1 / im->std[c]);
    long i = 0;

    for (; i + 16 <= n; i += 16)
        v_store(flat + i, scale_bytes(v_from_u8(bytes + i), mean, std, factor, exact));
    if (i < n) {
        uint8_t tail[16] = { 0 };
        memcpy(tail, bytes + i, (size_t)(n - i));
        v_store(flat + i, scale_bytes(v_from_u8(tail), mean, std, factor, exact));
    }
}

/* Colours lie side by side; one of them is gathered at the end of its floats, which are then written
 * from the front and never overtake it. */
static const uint8_t *gather_color(const struct conv_image *im, int c, const uint8_t *image,
                                   float *flat)
{
    const long n = (long)im->h * im->w;
    uint8_t *bytes = (uint8_t *)(flat + n) - n;

    for (long i = 0; i < n; i++)
        bytes[i] = image[i * im->c + c];
    return bytes;
}

static void read_plane(const struct conv_image *im, int c, const uint8_t *image, float *flat)
{
    const uint8_t *bytes = im->c == 1 ? image : gather_color(im, c, image, flat);
    const long n = (long)im->h * im->w;

    if (is_power_of_two(im->std[c]))
        scale_plane(im, c, bytes, n, flat, true);
    else
        scale_plane(im, c, bytes, n, flat, false);
}

KERNEL void spread_rows(const struct conv_image *im, const float *flat, float *rows)
{
    for (int y = 0; y < im->h; y++)
        for (long i = 0; i < im->row; i += 16)
            v_store(rows + y * im->row + i, v_load(flat + (long)y * im->w + i / 2));
}

/* Stores of a row run into the next one, which overwrites them later. */
KERNEL void spread_planes(const struct conv_image *im, const struct conv_block *first,
                          const float *flat, float *planes)
{
    for (int y = 0; y < im->h; y++)
        for (int b = 0; b <= first->k; b++) {
            float *to = planes + ((y & 1) * (first->k + 1) + b) * im->plane + (y >> 1) * first->pw;
            const float *from = flat + (long)y * im->w + b;
            for (int j = 0; j < first->pw; j += 16)
                v_store(to + j, v_even(v_load(from + 2 * j), v_load(from + 2 * j + 16)));
        }
}

#if defined ISA_AVX512
/* Lane j is column first + step * j of a row whose columns 0..15 and w-16..w-1 are two vectors. */
INLINE __m512i column_index(int w, int first, int step)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i c = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(step)),
                                 _mm512_set1_epi32(first));
    __mmask16 right = _mm512_cmpgt_epi32_mask(c, _mm512_set1_epi32(15));
    return _mm512_mask_add_epi32(c, right, c, _mm512_set1_epi32(32 - w));
}

/* One colour, 16 to 32 columns: a row is two registers, and what is stored are permutations. */
INLINE void read_narrow(const struct conv_image *im, int k, int pw, const uint8_t *image,
                        float *planes, float *rows, bool exact)
{
    const v16 mean = v_set1(im->mean[0]), std = v_set1(im->std[0]), factor = v_set1(1 / im->std[0]);
    const long plane = im->plane, row = im->row;
    const int w = im->w, segments = rows ? (int)(row / 16) : 0;
    const long rows_step = rows ? row : 0;      /* no rows are wanted: NULL stays NULL */
    __m512i column[CONV_POOL_KERNEL + 1], segment[4];

    UNROLL for (int b = 0; b <= k; b++) column[b] = column_index(w, b, 2);
    UNROLL for (int i = 0; i < 4; i++) segment[i] = column_index(w, 8 * i, 1);
    for (int y = 0; y < im->h; y++, image += w, rows += rows_step) {
        v16 lo = scale_bytes(v_from_u8(image), mean, std, factor, exact);
        v16 hi = scale_bytes(v_from_u8(image + w - 16), mean, std, factor, exact);
        float *to = planes + (y & 1) * (k + 1) * plane + (y >> 1) * pw;
        UNROLL for (int i = 0; i < 4; i++)
            if (i < segments)
                v_store(rows + 16 * i, _mm512_permutex2var_ps(lo, segment[i], hi));
        UNROLL for (int b = 0; b <= k; b++)
            v_store(to + b * plane, _mm512_permutex2var_ps(lo, column[b], hi));
    }
}

#define NARROW(name, k, exact)                                                                \
    KERNEL void name(const struct conv_image *im, int pw, const uint8_t *image, float *planes,   \
                     float *rows)                                                              \
    {                                                                                         \
        read_narrow(im, k, pw, image, planes, rows, exact);                                     \
    }
NARROW(read_narrow_3, 3, false)
NARROW(read_narrow_5, 5, false)
NARROW(read_exact_3, 3, true)
NARROW(read_exact_5, 5, true)

/* False: these kernels do not fit. */
static bool read_fast(const struct conv_image *im, const struct conv_block *first,
                      const uint8_t *image, float *planes, float *rows)
{
    const bool exact = is_power_of_two(im->std[0]);

    if (im->c != 1 || im->w < 16 || im->w > 32 || (first->k != 3 && first->k != 5))
        return false;
    if (first->k == 5)
        (exact ? read_exact_5 : read_narrow_5)(im, first->pw, image, planes, rows);
    else
        (exact ? read_exact_3 : read_narrow_3)(im, first->pw, image, planes, rows);
    return true;
}
#else
static bool read_fast(const struct conv_image *im, const struct conv_block *first,
                      const uint8_t *image, float *planes, float *rows)
{
    (void)im, (void)first, (void)image, (void)planes, (void)rows;
    return false;
}
#endif

void ISA_FN(conv_image_read)(const struct conv_image *im, const struct conv_block *first,
                             const uint8_t *image, float *flat, float *planes, float *rows)
{
    if (read_fast(im, first, image, planes, rows))
        return;
    for (int c = 0; c < im->c; c++) {
        read_plane(im, c, image, flat);
        spread_planes(im, first, flat, planes + c * 2 * (first->k + 1) * im->plane);
        if (rows)
            spread_rows(im, flat, rows + c * im->h * im->row);
    }
}

/* ------------------------------------------------------------------ pooling */

/* Maximum of a pooling window (a b / c d, the first wins a tie) and where it is. */
INLINE v16 pool(v16 a, v16 b, v16 c, v16 d, mask16 *down, mask16 *right)
{
    mask16 top = v_gt(b, a), bottom = v_gt(d, c);
    v16 ab = v_max(b, a), cd = v_max(d, c);

    *down = v_gt(cd, ab);
    *right = (mask16)((*down & bottom) | (~*down & top));
    return v_max(cd, ab);
}

/* ------------------------------------------------------------------ first block */

/* Channels of a tile; four corners of each, and four inputs, must fit the registers. */
#if defined ISA_AVX512
enum { TILE = 6 };
#else
enum { TILE = 1 };
#endif

struct first {
    const struct conv_block *b;
    const float *planes, *w, *bias;
    long plane;
    uint16_t *at, *live;
};

/* Channels o .. o + n - 1 at sixteen positions: acc[4 i + corner]. k and n are constants. The compiler
 * is kept from knowing addresses: it would keep too many inputs, and spill. */
INLINE void first_tile(const struct first *f, int k, int n, int o, int block, v16 *acc)
{
    const struct conv_block *b = f->b;
    const long plane = f->plane, ws = (long)b->c * k * 8, odd = (k + 1) * plane;
    const float *q = f->planes + 16 * block, *w[TILE];

    UNROLL for (int i = 0; i < 4 * n; i++) acc[i] = v_set1(f->bias[o + i / 4]);
    UNROLL for (int i = 0; i < n; i++) {
        w[i] = f->w + (o + i) * ws;
        HIDE(w[i]);
    }
    for (int c = b->c; c > 0; c--, q += 2 * odd) {
        const float *top = q, *low = q + odd;
        for (int ky = 0; ky < k; ky++) {
            const float *x0 = top, *x2 = low;
            UNROLL for (int kx = 0; kx < k; kx++) {
                v16 x[4] = { v_load(x0), v_load(x0 + plane), v_load(x2), v_load(x2 + plane) };
                UNROLL for (int i = 0; i < n; i++) {
                    v16 wv = v_set1(w[i][kx]);
                    UNROLL for (int j = 0; j < 4; j++)
                        acc[4 * i + j] = v_fma(wv, x[j], acc[4 * i + j]);
                }
                x0 += plane;
                x2 += plane;
                HIDE(x0);
                HIDE(x2);
            }
            UNROLL for (int i = 0; i < n; i++) w[i] += 8;
            const float *next =
                top + b->pw; /* rows alternate between the even and the odd planes */
            top = low;
            low = next;
        }
    }
}

/* Pools a tile into out[channel][16] and notes the winners. */
INLINE void first_pool(const struct first *f, int n, int o, int block, const v16 *acc, float *out)
{
    const struct conv_block *b = f->b;

    UNROLL for (int i = 0; i < n; i++) {
        mask16 down, right;
        v16 best = pool(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3], &down, &right);
        v_store(out + 16 * (o + i), v_relu(best));
        if (f->at) {
            f->live[(o + i) * ((b->words + 3) & ~3) + block] = v_gt(best, v_zero());
            v_store_offsets(f->at + (long)(o + i) * 16 * b->words + 16 * block,
                            b->base + 16 * block, down, b->row, right, 1);
        }
    }
}

INLINE void first_channels(const struct first *f, int k, int block, float *out)
{
    int o = 0;
    v16 acc[4 * TILE];

    for (; o + TILE <= f->b->o; o += TILE) {
        first_tile(f, k, TILE, o, block, acc);
        first_pool(f, TILE, o, block, acc, out);
    }
    for (; TILE > 2 && o + 2 <= f->b->o; o += 2) {
        first_tile(f, k, 2, o, block, acc);
        first_pool(f, 2, o, block, acc, out);
    }
    for (; TILE > 1 && o < f->b->o; o++) {
        first_tile(f, k, 1, o, block, acc);
        first_pool(f, 1, o, block, acc, out);
    }
}

#define FIRST_KERNEL(k)                                                                     \
    KERNEL void first_channels_##k(const struct first *f, int block, float *out)               \
    {                                                                                       \
        first_channels(f, k, block, out);                                                     \
    }
CONV_SIZES(FIRST_KERNEL)

/* (channels, 16) to `n` positions of op channels. */
INLINE void store_positions(const struct conv_block *b, const float *in, float *out, int n)
{
    if (b->op == 1) {
        memcpy(out, in, (size_t)n * sizeof *out);
        return;
    }
    for (int c = 0; c < b->op; c += 8) {
        ALIGNED float part[16 * 8];
        v16 v[8];
        UNROLL for (int i = 0; i < 8; i++) v[i] = v_load(in + 16 * (c + i));
        if (n == 16) {
            v_store_rows8(out + c, b->op, v);
            continue;
        }
        v_store_rows8(part, 8, v);
        for (int p = 0; p < n; p++)
            v8_store(out + (long)p * b->op + c, v8_load(part + 8 * p));
    }
}

void ISA_FN(conv_first_forward)(const struct conv_block *b, const float *planes, long plane,
                                const float *w, const float *bias, float *out, uint16_t *at,
                                uint16_t *live, const uint8_t *next)
{
#define FIRST_ROW(k) [k] = first_channels_##k,
    static void (*const kernels[CONV_POOL_KERNEL + 1])(const struct first *, int, float *) = {
        CONV_SIZES(FIRST_ROW)
    };
    const struct first f = { b, planes, w, bias, plane, at, live };
    const long image = (long)b->h * b->w * b->c, piece = (image + b->words - 1) / b->words;
    ALIGNED float pooled[16 * 512];

    for (int c = b->o; c < b->op; c++)
        v_store(pooled + 16 * c, v_zero());
    for (int block = 0; block < b->words; block++) {
        int n = b->positions - 16 * block;
        /* Spread over the loop: a burst would fill the miss buffers and stall all else. */
        if (next)
            for (long i = block * piece; i < (block + 1) * piece; i += 64)
                __builtin_prefetch(next + i);
        kernels[b->k](&f, block, pooled);
        store_positions(b, pooled, out + 16L * block * b->op, n < 16 ? n : 16);
        if (at && n < 16)
            for (int o = 0; o < b->o; o++)
                live[o * ((b->words + 3) & ~3) + block] &= (uint16_t)((1 << n) - 1);
    }
}

/* ------------------------------------------------------------------ later blocks */

/* Pooled columns of a tile: four sums each. */
#if defined ISA_AVX512
enum { COLUMNS = 4 };
#else
enum { COLUMNS = 1 };
#endif

struct later {
    const struct conv_block *b;
    const float *in, *w;        /* w: of this group of 16 output channels */
    v16 bias;
    int group;
    float *out;
    uint16_t *at, *live, *corner;
    struct dots *dots;
};

/* Goes on with the dot product of row o: n vectors of the sample, from float `at` on. */
INLINE void dots_add(const struct dots *d, int o, int n, long at, const v16 *x)
{
    const float *w = d->row[o] + at;
    v16 sum = at ? v_load(d->sum + 16 * o) : v_zero();

    UNROLL for (int j = 0; j < n; j++) sum = v_fma(v_load(w + 16 * j), x[j], sum);
    v_store(d->sum + 16 * o, sum);
}

/* One input channel of one tap. */
INLINE void later_tap(int n, long step, const float *x, const float *y, const float *w, v16 *acc)
{
    v16 wv = v_load(w);

    UNROLL for (int j = 0; j < 2 * n; j++) acc[j] = v_fma(v_set1(x[j * step]), wv, acc[j]);
    UNROLL for (int j = 0; j < 2 * n; j++)
        acc[2 * n + j] = v_fma(v_set1(y[j * step]), wv, acc[2 * n + j]);
}

/* Two rows of 2 n positions from pooled (py, px) on: acc[row * 2 n + column]. cp, n and ride are
 * constants (cp 0: the block's). `ride`: the dot products go on with the n positions of the tile
 * before, a row after each input channel: a burst of weights would have to be waited for. */
INLINE void later_tile(const struct later *f, int cp, int n, int py, int px, bool ride, v16 *acc)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step;
    const float *in = f->in + 2 * py * row + 2 * px * step, *w = f->w;
    const int channels = b->c, rows = ride ? f->dots->rows : 0;
    const long before = 16L * (py * b->pw + px - n);
    v16 made[COLUMNS];
    int o = 0;

    if (ride)
        UNROLL for (int j = 0; j < n; j++) made[j] = v_load(f->out + before + 16 * j);
    UNROLL for (int j = 0; j < 4 * n; j++) acc[j] = f->bias;
    for (int ky = 0; ky < b->k; ky++)
        for (int kx = 0; kx < b->k; kx++) {
            const float *x = in + ky * row + kx * step, *y = x + row;
            HIDE(x);
            HIDE(y);
            for (int i = channels; i > 0; i--, x++, y++, w += 16) {
                later_tap(n, step, x, y, w, acc);
                if (ride && o < rows)
                    dots_add(f->dots, o++, n, before, made);
            }
        }
    while (ride && o < rows)
        dots_add(f->dots, o++, n, before, made);
}

INLINE void later_pool(const struct later *f, int n, int py, int px, const v16 *acc)
{
    const struct conv_block *b = f->b;

    UNROLL for (int j = 0; j < n; j++) {
        const long p = (long)py * b->pw + px + j;
        float *out = f->out + p * b->op + 16 * f->group;
        mask16 down, right;
        v16 best = pool(acc[2 * j], acc[2 * j + 1], acc[2 * n + 2 * j], acc[2 * n + 2 * j + 1],
                        &down, &right);
        v16 value = v_relu(best);
        if (b->op >= 16)
            v_store(out, value);
        else if (b->op == 8)
            v8_store(out, v_low(value));
        else
            v_store_n(out, value, 1);
        if (!f->at)
            continue;
        mask16 live = v_gt(best, v_zero());
        uint16_t *at = f->at + p * b->lanes + 16 * f->group;
        uint16_t *word = f->live + p / 16 * b->lanes + 16 * f->group;
        uint16_t *corner = f->corner + (p * (b->lanes / 16) + f->group) * 4;
        v_fill_u16(at, (2 * py * b->w + 2 * (px + j)) * b->cp);
        v_store_offsets(at, at, down, b->w * b->cp, right, b->cp);
        v_store_offsets(word, word, live, 1 << p % 16, 0, 0);
        corner[0] = (uint16_t)(live & ~down & ~right);
        corner[1] = (uint16_t)(live & ~down & right);
        corner[2] = (uint16_t)(live & down & ~right);
        corner[3] = (uint16_t)(live & down & right);
    }
}

INLINE void later_rows(const struct later *f, int cp, bool ride)
{
    for (int py = 0; py < f->b->ph; py++) {
        int px = 0;
        v16 acc[4 * COLUMNS];
        for (; px + COLUMNS <= f->b->pw; px += COLUMNS) {
            if (ride && (py || px))
                later_tile(f, cp, COLUMNS, py, px, true, acc);
            else
                later_tile(f, cp, COLUMNS, py, px, false, acc);
            later_pool(f, COLUMNS, py, px, acc);
        }
        for (; COLUMNS > 2 && px + 2 <= f->b->pw; px += 2) {
            later_tile(f, cp, 2, py, px, false, acc);
            later_pool(f, 2, py, px, acc);
        }
        for (; COLUMNS > 1 && px < f->b->pw; px++) {
            later_tile(f, cp, 1, py, px, false, acc);
            later_pool(f, 1, py, px, acc);
        }
    }
}

KERNEL void later_rows_8(const struct later *f) { later_rows(f, 8, false); }
KERNEL void later_rows_16(const struct later *f) { later_rows(f, 16, false); }
KERNEL void later_rows_any(const struct later *f) { later_rows(f, 0, false); }
KERNEL void later_rows_dots(const struct later *f) { later_rows(f, 8, true); }

/* A position is one vector of the sample, and every tile has the same number of them. With one
 * column a tile, to load and store the sums would cost more than is won. */
bool ISA_FN(conv_dots_fit)(const struct conv_block *b)
{
    return COLUMNS > 1 && b->cp == 8 && b->lanes == 16 && b->op == 16 && b->pw % COLUMNS == 0;
}

void ISA_FN(conv_later_forward)(const struct conv_block *b, const float *in, const float *w,
                                const float *bias, float *out, uint16_t *at, uint16_t *live,
                                uint16_t *corner, struct dots *dots)
{
    const bool ride = dots && dots->rows;

    if (at)
        memset(live, 0, (size_t)b->words * b->lanes * sizeof *live);
    for (int g = 0; g < b->lanes / 16; g++) {
        const struct later f = { b, in, w + (long)g * b->k * b->k * b->c * 16,
                                 v_load(bias + 16 * g), g, out, at, live, corner, dots };
        (ride ? later_rows_dots :
         b->cp == 8 ? later_rows_8 : b->cp == 16 ? later_rows_16 : later_rows_any)(&f);
    }
    if (ride)
        dots->done = 16L * (b->positions - COLUMNS);
}

/* (O, T, cp) to [group of 16 outputs][T][C][16]. */
void ISA_FN(conv_pack)(const struct conv_block *b, const float *w, float *packed)
{
    const int t = b->k * b->k;

    for (int g = 0; g < b->lanes / 16; g++)
        for (int k = 0; k < t; k++)
            for (int c = 0; c < b->c; c += 4) {
                const float *from = w + (16L * g * t + k) * b->cp + c;
                v16 r[4];
                v_load_columns4(r, from, (long)t * b->cp);
                for (int i = 0; i < 4 && c + i < b->c; i++, packed += 16)
                    v_store(packed, r[i]);
            }
}
