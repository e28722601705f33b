/* engine/conv_pool_window.h - backward through one kernel window at a time; a template
 *
 * Included by conv_pool_backward.c for 8 and for 16 input channels a vector: V is the type, VN its
 * width, W(name) the name of a function of that width. A window is `rows` x k vectors held in
 * registers; a kernel with more than fit is cut by rows, which leaves each element's sum as it was.
 * k and cp (0: the block's) are constants where it pays.
 */

/* Gradient of the input at one pooling window's corner: din += dout[o] * w[o] over the live o. */
INLINE void W(input_window)(const struct later_back *f, int k, int cp, int rows, long from,
                            const float *w, const float *dout, const uint16_t *corner)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step, ws = (long)k * k * step;
    float *x = f->din + from;
    V acc[WINDOW_MAX];

    UNROLL for (int t = 0; t < rows * k; t++) acc[t] = VLOAD(x + t / k * row + t % k * step);
    for (int g = 0; g < b->lanes / 16; g++)
        for (unsigned bits = corner[4 * g]; bits; bits &= bits - 1) {
            int o = 16 * g + __builtin_ctz(bits);
            V d = VSET1(dout[o]);
            const float *wo = w + o * ws;
            UNROLL for (int t = 0; t < rows * k; t++) acc[t] = VFMA(d, VLOAD(wo + t * step), acc[t]);
        }
    UNROLL for (int t = 0; t < rows * k; t++) VSTORE(x + t / k * row + t % k * step, acc[t]);
}

INLINE void W(input)(const struct later_back *f, int k, int cp, int rows)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step;
    const int groups = b->lanes / 16;

    for (int p = 0; p < b->positions; p++)
        for (int corner = 0; corner < 4; corner++) {
            const uint16_t *live = f->corner + (long)p * groups * 4 + corner;
            unsigned any = 0;
            for (int g = 0; g < groups; g++)
                any |= live[4 * g];
            if (!any)
                continue;
            long at = (2L * (p / b->pw) + (corner >> 1)) * row + (2L * (p % b->pw) + (corner & 1)) * step;
            for (int c = 0; c < step; c += VN) {
                int r = 0;
                for (; r + rows <= k; r += rows)
                    W(input_window)(f, k, cp, rows, at + r * row + c, f->w + r * k * step + c,
                                    f->dout + (long)p * b->op, live);
                for (; rows > 1 && r < k; r++)
                    W(input_window)(f, k, cp, 1, at + r * row + c, f->w + r * k * step + c,
                                    f->dout + (long)p * b->op, live);
            }
        }
}

/* Gradient of output channel o's weights, `rows` of its kernel, VN input channels. `from` is the
 * place in the input (relative to a window) and in the kernel `at` that of the sum. */
INLINE void W(weight_window)(const struct later_back *f, int k, int cp, int rows, int o, long from,
                             long at)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step;
    V acc[WINDOW_MAX];

    if (f->sum.from)
        UNROLL for (int t = 0; t < rows * k; t++) acc[t] = VLOAD(f->sum.from + at + t * step);
    else
        UNROLL for (int t = 0; t < rows * k; t++) acc[t] = VSET1(0);
    for (int word = 0; word < b->words; word++)
        for (unsigned bits = f->live[word * b->lanes + o]; bits; bits &= bits - 1) {
            int p = 16 * word + __builtin_ctz(bits);
            V d = VSET1(f->dout[(long)p * b->op + o]);
            const float *x = f->in + f->at[(long)p * b->lanes + o] + from;
            UNROLL for (int t = 0; t < rows * k; t++)
                acc[t] = VFMA(d, VLOAD(x + t / k * row + t % k * step), acc[t]);
        }
    if (f->sum.plus)
        UNROLL for (int t = 0; t < rows * k; t++)
            acc[t] = VADD(VLOAD(f->sum.plus + at + t * step), acc[t]);
    UNROLL for (int t = 0; t < rows * k; t++) VSTORE(f->sum.out + at + t * step, acc[t]);
}

INLINE void W(weight)(const struct later_back *f, int k, int cp, int rows)
{
    const struct conv_block *b = f->b;
    const long step = cp ? cp : b->cp, row = b->w * step;

    for (int o = 0; o < b->o; o++)
        for (int c = 0; c < step; c += VN) {
            long at = b->grad_weight + (long)o * k * k * step + c;
            int r = 0;
            for (; r + rows <= k; r += rows)
                W(weight_window)(f, k, cp, rows, o, r * row + c, at + r * k * step);
            for (; rows > 1 && r < k; r++)
                W(weight_window)(f, k, cp, 1, o, r * row + c, at + r * k * step);
        }
}

#if defined ISA_SCALAR
static void W(later)(const struct later_back *f)
{
    W(input)(f, f->b->k, 0, 1);
    W(weight)(f, f->b->k, 0, 1);
}
#else
/* A kernel for each size, cut to `rows` at a time; `wide` for more than one vector of channels. */
#define WINDOW_KERNELS(k, rows)                                                             \
    KERNEL void W(input_##k)(const struct later_back *f) { W(input)(f, k, VN, rows); }        \
    KERNEL void W(weight_##k)(const struct later_back *f) { W(weight)(f, k, VN, rows); }      \
    KERNEL void W(input_wide_##k)(const struct later_back *f) { W(input)(f, k, 0, rows); }    \
    KERNEL void W(weight_wide_##k)(const struct later_back *f) { W(weight)(f, k, 0, rows); }
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
    const int k = f->b->k, wide = f->b->cp != VN;

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
