/* tests/unit/math_lanes.c - the functions of engine/math.h, built for one instruction set */
#include "engine/math.h"

/* y = f(x), n a multiple of 16; b is the exponent of pow. In the order of math_test.c. */
void ISA_FN(math_lanes)(int f, const float *x, const float *b, float *y, long n);

void ISA_FN(math_lanes)(int f, const float *x, const float *b, float *y, long n)
{
    for (long i = 0; i < n; i += 16) {
        v16 v = v_load(x + i), r = v_zero();
        switch (f) {
        case 0: r = v_exp(v); break;
        case 1: r = v_log(v); break;
        case 2: r = v_tanh(v); break;
        case 3: r = v_erf(v); break;
        case 4: r = v_rsqrt(v); break;
        case 5: r = v_sin(v); break;
        case 6: r = v_cos(v); break;
        case 7: r = v_sigmoid(v); break;
        case 8: r = v_pow(v, v_load(b + i)); break;
        }
        v_store(y + i, r);
    }
}
