/* engine/isa.c - which instruction set the kernels use */
#include <stdlib.h>
#include <string.h>

#include "engine/kernels.h"
#include "engine/plan.h"

static const struct {
    const char *name;
    const struct kernels *kernels;
} isas[] = {
    [ISA_SCALAR_ID] = { "scalar", &kernels_scalar },
    [ISA_AVX2_ID] = { "avx2", &kernels_avx2 },
    [ISA_AVX512_ID] = { "avx512", &kernels_avx512 },
};

static enum isa isa_of_machine(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return ISA_AVX512_ID;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return ISA_AVX2_ID;
    return ISA_SCALAR_ID;
}

/* A name that the machine cannot run is lowered to what it can, never raised. */
enum isa isa_best(void)
{
    enum isa best = isa_of_machine();
    const char *want = getenv("MUSTER_ISA");

    for (int i = 0; want && i < (int)best; i++)
        if (strcmp(want, isas[i].name) == 0)
            return (enum isa)i;
    return best;
}

const char *isa_name(enum isa isa)
{
    return isas[isa].name;
}

const struct kernels *kernels_of(enum isa isa)
{
    return isas[isa].kernels;
}
