/* lin_acts.h: activation records of the int8 kernels, in the order in which a format's codes come
 * out of its registers. Private to lin*.c.
 *
 * A record is a run of chunks, then for some layouts one f32 a block of 32 elements (16 for Q2_K):
 * the sum of the quantised activations in it (biases multiply exactly what the codes multiply; sums
 * of the unquantised activations would double the error). k % 128 elements at the end are filled up
 * with zeros whose scales are zero.
 *
 *   pairs   128 elements: A 64 int8, B 64 int8, scales 16 f32 [, start 16]
 *   single   64 elements: A 64 int8, scales 16 f32 [, start 16]
 *
 * A 32-bit lane holds 4 elements of A and 4 of B, and has a scale of its own: max |x| / 127 over
 * them. start: what the integer sum begins with, -offset * sum(q) of the lane, for codes that are
 * stored with an offset; or scale * sum(q) (Q4_1). Rows whose lanes are all below 2^-120 count as
 * zero. */
#ifndef MERE_DEVICE_CPU_LIN_ACTS_H
#define MERE_DEVICE_CPU_LIN_ACTS_H

#include "device/cpu/lin.h"

enum {
    ACTS_PAIRS_START = 256, /* bytes of a chunk */
    ACTS_PAIRS = 192,
    ACTS_SINGLE_START = 192,
    ACTS_SINGLE = 128,
};

/* Order of A and B in 128 elements:
 *   halves  A: elements 0..15 of each block of 32, B: 16..31 (nibbles of Q4_0, Q4_1, MXFP4)
 *   odd     A: even elements, B: odd elements (PLANE 4-bit)
 *   eights  A: elements 0..7 of each 16, B: 8..15 (scales of 16; codes of 1 to 6 bits)
 *   natural single chunks, as they are (Q8_0, AFFINE8, Q6_K, Q1_0)
 *   q4_k    single chunks: elements 0..31, 64..95, then 32..63, 96..127 */
extern const LinLayout lin_acts_q4_0;    /* halves, start: offset 8 */
extern const LinLayout lin_acts_q5_0;    /* halves, start: offset 16 */
extern const LinLayout lin_acts_iq4;     /* halves, start: offset 127 */
extern const LinLayout lin_acts_q4_1;    /* halves, start: scaled sums */
extern const LinLayout lin_acts_mxfp4;   /* halves, start: offset 12, scales halved */
extern const LinLayout lin_acts_mxfp4p;  /* odd, start: offset 12, scales halved */
extern const LinLayout lin_acts_affine4; /* odd, block sums */
extern const LinLayout lin_acts_affine2; /* eights, block sums */
extern const LinLayout lin_acts_q2_k;    /* eights, sums of 16 */
extern const LinLayout lin_acts_q3_k;    /* eights, start: offset 4 */
extern const LinLayout lin_acts_tq2_0;   /* eights, start: offset 1 */
extern const LinLayout lin_acts_nvfp4;   /* eights, start: offset 12, scales halved */
extern const LinLayout lin_acts_q1_0;    /* natural, start: offset 1 */
extern const LinLayout lin_acts_q8_0;    /* natural, start: offset 128 */
extern const LinLayout lin_acts_q6_k;    /* natural, start: offset 32 */
extern const LinLayout lin_acts_affine8; /* natural, block sums */
extern const LinLayout lin_acts_q4_k;    /* q4_k, block sums */

/* Where the block sums are: behind k / 128 chunks of 128 elements (rounded up). */
static inline int64_t lin_acts_sums_at(int k, int chunk_bytes, int chunk)
{
    return i64_round_up(k, 128) / chunk * chunk_bytes;
}

#endif
