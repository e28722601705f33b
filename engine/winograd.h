/* engine/winograd.h - F(2x2, 3x3): a 3x3 convolution of stride 1 with 16 products for 4 outputs
 *
 *   y = A'[(G w G') . (B' d B)]A      for each 4x4 tile d of the input and 2x2 tile y of the output
 *
 * and the gradients are the exact adjoints: with D = A dy A',
 *
 *   dd = B (U' D) B' (tiles overlap and add up),      dw = G' (sum of V . D) G.
 *
 * Sixteen channels at a time. A transformed tile is spread over 16 planes, `ps` floats apart. Its
 * sums come in another order than those of the direct form, so which of the two runs is decided by
 * shape.
 */
#ifndef MUSTER_ENGINE_WINOGRAD_H
#define MUSTER_ENGINE_WINOGRAD_H

#include "engine/vec.h"

/* V = B' d B: `x` is the tile's corner in an image with `c` floats a pixel, `row` a row. */
INLINE void wino_in(const float *x, const long c, const long row, float *v, const long ps)
{
    v16 t[16];

    UNROLL
    for (int i = 0; i < 4; i++) {
        v16 d0 = v_load(x + i * c), d1 = v_load(x + row + i * c);
        v16 d2 = v_load(x + 2 * row + i * c), d3 = v_load(x + 3 * row + i * c);
        t[i] = v_sub(d0, d2);
        t[4 + i] = v_add(d1, d2);
        t[8 + i] = v_sub(d2, d1);
        t[12 + i] = v_sub(d1, d3);
    }
    UNROLL
    for (int i = 0; i < 4; i++, v += 4 * ps) {
        v16 *r = t + 4 * i;
        v_store(v, v_sub(r[0], r[2]));
        v_store(v + ps, v_add(r[1], r[2]));
        v_store(v + 2 * ps, v_sub(r[2], r[1]));
        v_store(v + 3 * ps, v_sub(r[1], r[3]));
    }
}

/* y = A' m A + bias */
INLINE void wino_out(const float *m, const long ps, v16 bias, float *y, const long c,
                     const long row)
{
    v16 t[8];

    UNROLL
    for (int i = 0; i < 4; i++, m += ps) {
        v16 a = v_load(m), b = v_load(m + 4 * ps), e = v_load(m + 8 * ps), f = v_load(m + 12 * ps);
        t[i] = v_add(v_add(a, b), e);
        t[4 + i] = v_sub(v_sub(b, e), f);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        v16 *r = t + 4 * i;
        v_store(y + i * row, v_add(v_add(v_add(r[0], r[1]), r[2]), bias));
        v_store(y + i * row + c, v_add(v_sub(v_sub(r[1], r[2]), r[3]), bias));
    }
}

/* D = A dy A' */
INLINE void wino_dy(const float *y, const long c, const long row, float *d, const long ps)
{
    v16 y0[2] = { v_load(y), v_load(y + c) };
    v16 y1[2] = { v_load(y + row), v_load(y + row + c) };
    v16 t[8];

    UNROLL
    for (int i = 0; i < 2; i++) {
        t[i] = y0[i];
        t[2 + i] = v_add(y0[i], y1[i]);
        t[4 + i] = v_sub(y0[i], y1[i]);
        t[6 + i] = v_sub(v_zero(), y1[i]);
    }
    UNROLL
    for (int i = 0; i < 4; i++, d += 4 * ps) {
        v16 a = t[2 * i], b = t[2 * i + 1];
        v_store(d, a);
        v_store(d + ps, v_add(a, b));
        v_store(d + 2 * ps, v_sub(a, b));
        v_store(d + 3 * ps, v_sub(v_zero(), b));
    }
}

/* x += B m B' */
INLINE void wino_dd(const float *m, const long ps, float *x, const long c, const long row)
{
    v16 t[16];

    UNROLL
    for (int i = 0; i < 4; i++, m += ps) {
        v16 a = v_load(m), b = v_load(m + 4 * ps), e = v_load(m + 8 * ps), f = v_load(m + 12 * ps);
        t[i] = a;
        t[4 + i] = v_add(v_sub(b, e), f);
        t[8 + i] = v_sub(v_add(b, e), a);
        t[12 + i] = v_sub(v_zero(), f);
    }
    UNROLL
    for (int i = 0; i < 4; i++, x += row) {
        v16 *r = t + 4 * i;
        v_store(x, v_add(v_load(x), r[0]));
        v_store(x + c, v_add(v_load(x + c), v_add(v_sub(r[1], r[2]), r[3])));
        v_store(x + 2 * c, v_add(v_load(x + 2 * c), v_sub(v_add(r[1], r[2]), r[0])));
        v_store(x + 3 * c, v_sub(v_load(x + 3 * c), r[3]));
    }
}

/* U = G w G' for nine taps, `ws` floats apart. */
INLINE void wino_w(const float *w, const long ws, v16 u[16])
{
    v16 t[12], h = v_set1(.5f);

    for (int i = 0; i < 3; i++) {
        v16 a = v_load(w + i * ws), b = v_load(w + (3 + i) * ws), c = v_load(w + (6 + i) * ws);
        v16 s = v_add(a, c);
        t[i] = a;
        t[3 + i] = v_mul(h, v_add(s, b));
        t[6 + i] = v_mul(h, v_sub(s, b));
        t[9 + i] = c;
    }
    for (int i = 0; i < 4; i++) {
        v16 a = t[3 * i], b = t[3 * i + 1], c = t[3 * i + 2], s = v_add(a, c);
        u[4 * i] = a;
        u[4 * i + 1] = v_mul(h, v_add(s, b));
        u[4 * i + 2] = v_mul(h, v_sub(s, b));
        u[4 * i + 3] = c;
    }
}

/* dw = G' du G */
INLINE void wino_dw(const v16 u[16], v16 w[9])
{
    v16 t[12], h = v_set1(.5f);

    for (int i = 0; i < 4; i++) {
        v16 s = v_add(u[4 + i], u[8 + i]), d = v_sub(u[4 + i], u[8 + i]);
        t[i] = v_fma(h, s, u[i]);
        t[4 + i] = v_mul(h, d);
        t[8 + i] = v_fma(h, s, u[12 + i]);
    }
    for (int i = 0; i < 3; i++) {
        v16 *r = t + 4 * i, s = v_add(r[1], r[2]), d = v_sub(r[1], r[2]);
        w[3 * i] = v_fma(h, s, r[0]);
        w[3 * i + 1] = v_mul(h, d);
        w[3 * i + 2] = v_fma(h, s, r[3]);
    }
}

#endif
