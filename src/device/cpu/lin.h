/* lin.h: products of activation rows with stored weight rows, y[r][j] = x[r] . w[j], straight from
 * the published layout.
 *
 * A product has two halves. `pack` turns f32 activation rows into the record a kernel wants (int8
 * with block scales in the order the weights' codes come out, bf16, or plain f32), once for all
 * products that read the same rows. `run` then multiplies a range of weight rows. Records of one
 * layout are independent of each other and contiguous, so rows can be packed by several threads.
 *
 * Which pair to use depends on the weight's format, the numeric class and the number of rows:
 * lin_select. All functions are pure (no allocation, no state) and may run on any thread; runs over
 * disjoint weight rows write disjoint outputs. */
#ifndef MERE_DEVICE_CPU_LIN_H
#define MERE_DEVICE_CPU_LIN_H

#include "base/format.h"

/* Instruction sets, weakest first; a set is the OR of what the machine has (lin tests ask for any
 * subset). */
enum {
    CPU_AVX2 = 1 << 0,        /* AVX2, FMA, F16C */
    CPU_AVX512 = 1 << 1,      /* F, BW, VL, DQ */
    CPU_AVX512_VNNI = 1 << 2, /* VNNI, VBMI */
    CPU_AVX512_BF16 = 1 << 3,
    CPU_AMX = 1 << 4, /* AMX tile, bf16, int8; the process must have been granted the tile state */
};

/* What the machine and the kernel offer (CPUID, XCR0; asks the kernel for AMX tile state). */
unsigned cpu_isa_detect(void);
/* "avx512vnni" etc. of --cpu-level to the set of that level and all weaker ones; 0 and false when
 * unknown. "scalar" gives 0. */
bool cpu_isa_from_name(const char *name, unsigned *isa);

typedef enum LinClass {
    LIN_EXACT, /* f32 activations and weights, contract tree: k in blocks of 256 ascending; any
                  number of rows: same bits */
    LIN_FAST,  /* what the format's best kernel does */
    LIN_FAST_INVARIANT, /* as fast, but a row's result does not depend on how many rows there are */
    LIN_CLASS_COUNT
} LinClass;

typedef struct LinLayout {
    const char *name;
    /* Bytes of one packed row of k elements; a multiple of 64. */
    int64_t (*row_bytes)(int k);
    /* out: `rows` records, 64-byte aligned. Row i is x + (idx ? idx[i] : i) * ldx. */
    void (*pack)(const float *x, int64_t ldx, const int32_t *idx, int rows, int k, uint8_t *out);
} LinLayout;

/* Where results go: y[r * ldy + j] = dot + (bias ? bias[j] : 0) + (add ? add[r * ld_add + j] : 0),
 * j counted from the view's first row. y and add may be the same memory only if exactly equal (then
 * each element is read before it is written). */
typedef struct LinOut {
    float *y;
    int64_t ldy;
    const float *bias;
    const float *add;
    int64_t ld_add;
} LinOut;

typedef struct LinKernel {
    const char *name; /* shown by `mere bench -v` */
    const LinLayout *layout;
    int max_rows;  /* lin_select offers it for at most this many activation rows; 0: any */
    int tile_rows; /* split weight rows at multiples of this */
    bool invariant;
    /* Weight rows [j0, j1) of w with `rows` packed records x. `work` is this thread's scratch,
     * 64-byte aligned, work_bytes(k) long. */
    void (*run)(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                const LinOut *out, uint8_t *work);
    int64_t (*work_bytes)(int k);
} LinKernel;

/* The kernel for `rows` rows of weights in `format` (group only matters to PLANE formats). Never
 * NULL for a format of formats.def: the scalar reference is always there. */
const LinKernel *lin_select(unsigned isa, FormatId format, int group, LinClass cls, int rows);

#endif
