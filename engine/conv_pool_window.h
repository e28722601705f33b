/* engine/conv_pool_window.h - backward through one kernel window at a time; a template
 *
 * Included by conv_pool_backward.c for 8 and for 16 input channels a vector: V is the type, VN its
 * width, W(name) the name of a function of that width. A window is `rows` x k vectors held in
 * registers; a kernel with more than fit is cut by rows, which leaves each element's sum as it was.
 * k and cp (0: the block's) are constants where it pays.
 */

/* Adds dout[o] * w[o] over the live o of one corner to a window that begins at column `shift` of the
 * k + 1 columns in acc. */
INLINE void W(input_corner)(int k, int shift, int groups, int rows, long step, const float *w,
                            const float *dout, const uint16_t *live, V *acc)
{
    const long ws = (long)k * k * step;

    for (int g = 0; g < groups; g++, w += 16 * ws, dout += 16)
        for (unsigned bits = live[4 * g]; bits; bits &= bits - 1) {
            const int o = __builtin_ctz(bits);
            const float *wo = w + o * ws;
            V d = VSET1(dout[o]);
            UNROLL for (int t = 0; t < rows * k; t++) {
                const int to = t / k * (k + 1) + t % k + shift;
                acc[to] = VFMA(d, VLOAD(wo + t * step), acc[to]);
            }
        }
}

/* Gradient of the input at the two upper or the two lower corners of a pooling window: `rows` rows of
 * their kernel windows, which overlap, VN channels. */
INLINE void W(input_window)(int k, int groups, int rows, long step, long row, float *x,
                            const float *w, const float *dout, const uint16_t *live)
{
    float *xr[CONV_POOL_KERNEL];
    V acc[WINDOW_MAX];

    UNROLL for (int r = 0; r < rows; r++) {
        xr[r] = x + r * row;
        HIDE(xr[r]);            /* else each vector's address is worked out by itself */
    }
    UNROLL for (int t = 0; t < rows * (k + 1); t++)
        acc[t] = VLOAD(xr[t / (k + 1)] + t % (k + 1) * step);
    W(input_corner)(k, 0, groups, rows, step, w, dout, live, acc);
    W(input_corner)(k, 1, groups, rows, step, w, dout, live + 1, acc);
    UNROLL for (int t = 0; t < rows * (k + 1); t++)
        VSTORE(xr[t / (k + 1)] + t % (k + 1) * step, acc[t]);
}

INLINE void W(input)(const struct later_back *f, int k, int cp, int narrow, int rows)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step, op = b->op;
    const int groups = narrow ? 1 : b->lanes / 16, pw = b->pw;
    const uint16_t *corner = f->corner;
    const float *dout = f->dout;
    float *line = f->din;

    for (int py = b->ph; py > 0; py--, line += 2 * row) {
        float *window = line;
        for (int px = pw; px > 0; px--, dout += op, corner += 4 * groups, window += 2 * step)
            for (int low = 0; low < 2; low++)
                for (int c = 0; c < step; c += VN) {
                    const float *w = f->w + c;
                    float *x = window + low * row + c;
                    int r = 0;
                    for (; r + rows <= k; r += rows, x += rows * row, w += rows * k * step)
                        W(input_window)(k, groups, rows, step, row, x, w, dout, corner + 2 * low);
                    for (; rows > 1 && r < k; r++, x += row, w += k * step)
                        W(input_window)(k, groups, 1, step, row, x, w, dout, corner + 2 * low);
                }
    }
}

/* Gradient of output channel o's weights: `rows` rows of its kernel, VN input channels. `in` is where
 * they begin in the input relative to a window, `at` in a shard's gradient. */
INLINE void W(weight_window)(const struct later_back *f, int k, int cp, int narrow, int rows, int o,
                             const float *in, long at)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step, op = b->op;
    const long lanes = narrow ? 16 : b->lanes;
    const float *dout = f->dout + o;
    const uint16_t *live = f->live + o, *window = f->at + o;
    V acc[WINDOW_MAX];

    if (f->sum.from)
        UNROLL for (int t = 0; t < rows * k; t++) acc[t] = VLOAD(f->sum.from + at + t * step);
    else
        UNROLL for (int t = 0; t < rows * k; t++) acc[t] = VSET1(0);
    for (int word = b->words; word > 0;
         word--, live += lanes, window += 16 * lanes, dout += 16 * op)
        for (unsigned bits = *live; bits; bits &= bits - 1) {
            const long p = __builtin_ctz(bits);
            const float *x = in + window[p * lanes], *xr[CONV_POOL_KERNEL];
            V d = VSET1(dout[p * op]);
            UNROLL for (int r = 0; r < rows; r++) {
                xr[r] = x + r * row;
                HIDE(xr[r]);
            }
            UNROLL for (int t = 0; t < rows * k; t++)
                acc[t] = VFMA(d, VLOAD(xr[t / k] + t % k * step), acc[t]);
        }
    if (f->sum.plus)
        UNROLL for (int t = 0; t < rows * k; t++)
            acc[t] = VADD(VLOAD(f->sum.plus + at + t * step), acc[t]);
    UNROLL for (int t = 0; t < rows * k; t++) VSTORE(f->sum.out + at + t * step, acc[t]);
}

INLINE void W(weight)(const struct later_back *f, int k, int cp, int narrow, int rows)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step;

    for (int o = 0; o < b->o; o++)
        for (int c = 0; c < step; c += VN) {
            long at = b->grad_weight + (long)o * k * k * step + c;
            int r = 0;
            for (; r + rows <= k; r += rows)
                W(weight_window)(f, k, cp, narrow, rows, o, f->in + r * row + c, at + r * k * step);
            for (; rows > 1 && r < k; r++)
                W(weight_window)(f, k, cp, narrow, 1, o, f->in + r * row + c, at + r * k * step);
        }
}

#if defined ISA_SCALAR
static void W(later)(const struct later_back *f)
{
    W(input)(f, f->b->k, 0, 0, 1);
    W(weight)(f, f->b->k, 0, 0, 1);
}
#else
/* A kernel for each size, cut to `rows` at a time; `wide` for more than one vector of input channels
 * or more than 16 outputs. */
#define WINDOW_KERNELS(k, rows)                                                              \
    KERNEL void W(input_##k)(const struct later_back *f) { W(input)(f, k, VN, 1, rows); }      \
    KERNEL void W(weight_##k)(const struct later_back *f) { W(weight)(f, k, VN, 1, rows); }    \
    KERNEL void W(input_wide_##k)(const struct later_back *f) { W(input)(f, k, 0, 0, rows); }  \
    KERNEL void W(weight_wide_##k)(const struct later_back *f) { W(weight)(f, k, 0, 0, rows); }
WINDOW_SIZES(WINDOW_KERNELS)
#undef WINDOW_KERNELS

static void W(later)(const struct later_back *f)
{
#define WINDOW_ROW(k, rows)                                                                 \
    [k] = { { W(input_##k), W(weight_##k) }, { W(input_wide_##k), W(weight_wide_##k) } },
    static void (*const kernels[CONV_POOL_KERNEL + 1][2][2])(const struct later_back *) = {
        WINDOW_SIZES(WINDOW_ROW)
    };
#undef WINDOW_ROW
    const int k = f->b->k, wide = f->b->cp != VN || f->b->lanes != 16;

    kernels[k][wide][0](f);
    kernels[k][wide][1](f);
}
#endif

#undef V
#undef VN
#undef W
#undef VLOAD
#undef VSTORE
#undef VSET1
#undef VFMA
#undef VADD
