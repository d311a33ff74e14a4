/* lin_x.h: activations for the products, in shared memory.
 *
 * int8 (lin_pack): 32 k share a scale, 127 / max|x|. A row of k numbers is
 *   plane 0 [chunks][16 bytes]: of each chunk of 32 k the first 16 bytes
 *   64 bytes: f32 1 / rms of the row (packed rows only)
 *   plane 1 [chunks][16 bytes]: the last 16 bytes
 *   64 bytes
 *   side [chunks] {f32, f32}
 * so that the lanes of a warp, each at its own chunk, read without bank conflicts; the 64 bytes
 * keep the planes apart for kernels whose lanes read both. Chunks are LIN_X_CHUNKS(k), those past k
 * are zero. Kinds differ in the order of bytes and in the side values, d being the chunk's scale:
 *   S4    8 k as k 0 2 4 6 | 1 3 5 7 (the nibbles of a word, low | high); {d / 16, -8 d sum}
 *   A4    the same order; {d / 16, d sum}
 *   BYTES k ascending; {d, d sum}
 *   K6    order of S4; {d, sum of the first 16 | sum of the last 16 << 16 as int16}
 * f32 (lin_fill): see there.
 *
 * The norm's weights are multiplied in here, 1 / rms in the ending of the product: it is known only
 * after the whole row was read. */
#ifndef MERE_LIN_X_H
#define MERE_LIN_X_H

#include "gpu_compat.h"
#include "lin_params.h"

DEVICE const float *lin_row(const LinInput &in, int r)
{
    const int at = in.gather ? load_i32(in.gather + r) : r;
    return in.x + (int64_t)at * in.ld;
}

/* Sum over the threads of a CTA, in a fixed order: lanes by halves, then warps ascending (by who
 * reads ssq). */
DEVICE void lin_put_sum(float sum, float *ssq)
{
    UNROLL for (int o = 16; o; o >>= 1) sum += shfl_xor(sum, o);
    if (thread_id() % 32 == 0)
        ssq[thread_id() / 32] = sum;
}

DEVICE float lin_inv_rms(const float *ssq, int k, float eps)
{
    float q = 0;
    UNROLL for (int i = 0; i < LIN_WARPS; i++) q += ssq[i];
    return 1.0F / sqrtf(q / (float)k + eps);
}

DEVICE uint32_t lin_bytes(int a, int b, int c, int d)
{
    return byte_perm(byte_perm((uint32_t)a, (uint32_t)b, 0x0040),
                     byte_perm((uint32_t)c, (uint32_t)d, 0x0040), 0x5410);
}

/* Where a row's numbers are packed to. */
struct LinXRow {
    uint8_t *at;
    int chunks;
};

DEVICE f32x2 *lin_x_side(uint8_t *row, int chunks)
{
    return (f32x2 *)(row + 2 * LIN_X_PLANE(chunks));
}

/* Eight k of unit u of a row; the four lanes of a chunk work together. `share` scales them. */
template <int KIND> DEVICE void lin_pack8(const float v[8], float share, LinXRow row, int u)
{
    const int c = u / 4;
    const int part = u % 4;
    float m = 0;
    UNROLL for (int j = 0; j < 8; j++) m = fmaxf(m, fabsf(v[j]));
    m = fmaxf(m, shfl_xor(m, 1));
    m = fmaxf(m, shfl_xor(m, 2));
    const float to = m > 0 ? 127.0F / m : 0.0F;
    const float d = m * (1.0F / 127.0F) * share;
    int q[8];
    int sum = 0;
    UNROLL for (int j = 0; j < 8; j++)
    {
        q[j] = int_of_f32(v[j] * to);
        sum += q[j];
    }
    sum += shfl_xor(sum, 1);
    const int other = shfl_xor(sum, 2);
    u32x2 w;
    if (KIND == LIN_X_BYTES)
        w = u32x2{lin_bytes(q[0], q[1], q[2], q[3]), lin_bytes(q[4], q[5], q[6], q[7])};
    else
        w = u32x2{lin_bytes(q[0], q[2], q[4], q[6]), lin_bytes(q[1], q[3], q[5], q[7])};
    *(u32x2 *)(row.at + part / 2 * LIN_X_PLANE(row.chunks) + c * 16 + part % 2 * 8) = w;
    if (part == 0) {
        const float all = (float)(sum + other);
        f32x2 s;
        if (KIND == LIN_X_S4)
            s = f32x2{d * (1.0F / 16.0F), -8.0F * d * all};
        else if (KIND == LIN_X_A4)
            s = f32x2{d * (1.0F / 16.0F), d * all};
        else if (KIND == LIN_X_BYTES)
            s = f32x2{d, d * all};
        else
            s = f32x2{d, f32_of_bits(((uint32_t)sum & 0xffffu) | (uint32_t)other << 16)};
        lin_x_side(row.at, row.chunks)[c] = s;
    }
}

DEVICE void lin_load8(const float *p, float v[8])
{
    const f32x4 a = load_f32x4(p);
    const f32x4 b = load_f32x4(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* The norm's weights that a thread meets first: read before griddep_wait. */
template <int N> struct LinNormAhead {
    float v[N][8];
    DEVICE void load(const LinInput &in, int k)
    {
        UNROLL for (int i = 0; i < N; i++)
        {
            const int u = thread_id() + i * LIN_THREADS;
            if (in.norm && u < k / 8)
                lin_load8(in.norm + u * 8, v[i]);
            else
                UNROLL for (int j = 0; j < 8; j++) v[i][j] = 1;
        }
    }
};

/* Packs `rows` rows, row r from src(r), with share(r, chunk) multiplied in, to x + r * row bytes;
 * ssq [rows][LIN_WARPS] gets sums of squares when there is a norm. k a multiple of 32. BATCH units
 * of 8 k are under way at once in a thread: all are loaded before the first is used. */
template <int KIND, int BATCH, int AHEAD, class Src, class Share>
DEVICE void lin_pack(const LinInput &in, int k, int rows, const LinNormAhead<AHEAD> &ahead, Src src,
                     Share share, uint8_t *x, float *ssq)
{
    const int tid = thread_id();
    const int chunks = LIN_X_CHUNKS(k);
    const int units = k / 8;
    const int per = (chunks * 4 + LIN_THREADS - 1) / LIN_THREADS;
    const bool norm = in.eps > 0;
    float sum = 0;
    int r = 0;
    int i = 0;
    NO_UNROLL for (int s = 0; s < rows * per; s += BATCH)
    {
        float v[BATCH][8];
        int at_r[BATCH];
        int at_i[BATCH];
        UNROLL for (int b = 0; b < BATCH; b++)
        {
            at_r[b] = r;
            at_i[b] = i;
            const int u = tid + i * LIN_THREADS;
            if (r < rows && u < units)
                lin_load8(src(r) + u * 8, v[b]);
            else
                UNROLL for (int j = 0; j < 8; j++) v[b][j] = 0;
            if (++i == per) {
                i = 0;
                r++;
            }
        }
        UNROLL for (int b = 0; b < BATCH; b++)
        {
            const int u = tid + at_i[b] * LIN_THREADS;
            if (at_r[b] >= rows)
                continue;
            if (norm) {
                UNROLL for (int j = 0; j < 8; j++) sum = fmaf(v[b][j], v[b][j], sum);
                if (at_i[b] == 0) {
                    UNROLL for (int j = 0; j < 8; j++) v[b][j] *= ahead.v[0][j];
                } else if (AHEAD > 1 && at_i[b] == 1) {
                    UNROLL for (int j = 0; j < 8; j++) v[b][j] *= ahead.v[AHEAD - 1][j];
                } else if (in.norm && u < units) {
                    float w[8];
                    lin_load8(in.norm + u * 8, w);
                    UNROLL for (int j = 0; j < 8; j++) v[b][j] *= w[j];
                }
            }
            if (u < chunks * 4) { /* whole warps: chunks is a multiple of 32 */
                const LinXRow row = {x + at_r[b] * LIN_X_BYTES_OF(chunks), chunks};
                lin_pack8<KIND>(v[b], share(at_r[b], u / 4), row, u);
            }
            if (norm && at_i[b] == per - 1) {
                lin_put_sum(sum, ssq + at_r[b] * LIN_WARPS);
                sum = 0;
            }
        }
    }
}

/* ---- f32 ---- */

/* A row of a tile of f32 activations for lanes that take U k each: quad q (4 k) of lane-unit u at
 * ((q * (units + 1)) + u) * 16 bytes; `units` is a multiple of 32, and the odd one keeps the writes
 * of neighbouring quads off one bank. */
template <int U> DEVICE int lin_f32_row(int tile) /* floats */
{
    const int units = (tile + 32 * U - 1) / (32 * U) * 32;
    return (units + 1) * U;
}

/* Four of a row's numbers from k on; zero past the end. */
DEVICE f32x4 lin_load4(const float *p, int k, int n, bool aligned)
{
    if (aligned && k + 4 <= n)
        return load_f32x4(p + k);
    f32x4 v = {0, 0, 0, 0};
    if (k < n)
        v.x = load_f32(p + k);
    if (k + 1 < n)
        v.y = load_f32(p + k + 1);
    if (k + 2 < n)
        v.z = load_f32(p + k + 2);
    if (k + 3 < n)
        v.w = load_f32(p + k + 3);
    return v;
}

/* Fills rows [0, rows) of x with k0 .. k0 + tile - 1 of src(r), times the norm's weights; past k:
 * zeros. With ssq the sums of squares of what was read are left there (whole rows: k0 0, tile >=
 * k). k0 and tile are multiples of 4 * LIN_THREADS, so that a number is always the same thread's.*/
template <int U, class Src>
DEVICE void lin_fill(const LinInput &in, int k, int k0, int tile, int rows, Src src, float *x,
                     float *ssq)
{
    const int units = (tile + 32 * U - 1) / (32 * U) * 32;
    NO_UNROLL for (int r = 0; r < rows; r++)
    {
        const float *p = src(r);
        float *row = x + r * lin_f32_row<U>(tile);
        float sum = 0;
        NO_UNROLL for (int i = thread_id() * 4; i < units * U; i += LIN_THREADS * 16)
        {
            f32x4 v[4];
            UNROLL for (int b = 0; b < 4; b++)
            {
                const int at = i + b * LIN_THREADS * 4;
                v[b] = at < tile ? lin_load4(p, k0 + at, k, in.aligned) : f32x4{0, 0, 0, 0};
            }
            UNROLL for (int b = 0; b < 4; b++)
            {
                const int at = i + b * LIN_THREADS * 4;
                if (at >= units * U)
                    continue;
                f32x4 a = v[b];
                sum = fmaf(a.x, a.x, sum);
                sum = fmaf(a.y, a.y, sum);
                sum = fmaf(a.z, a.z, sum);
                sum = fmaf(a.w, a.w, sum);
                if (in.eps > 0 && in.norm && at < tile) {
                    const f32x4 w = lin_load4(in.norm, k0 + at, k, true);
                    a.x *= w.x, a.y *= w.y, a.z *= w.z, a.w *= w.w;
                }
                const int u = at / U;
                const int q = at % U / 4;
                *(f32x4 *)(row + (q * (units + 1) + u) * 4) = a;
            }
        }
        if (ssq)
            lin_put_sum(sum, ssq + r * LIN_WARPS);
    }
}

/* The sums of squares alone, in the order of lin_fill. */
template <class Src>
DEVICE void lin_squares(const LinInput &in, int k, int rows, Src src, float *ssq)
{
    NO_UNROLL for (int r = 0; r < rows; r++)
    {
        const float *p = src(r);
        float sum = 0;
        NO_UNROLL for (int at = thread_id() * 4; at < k; at += LIN_THREADS * 4)
        {
            const f32x4 a = lin_load4(p, at, k, in.aligned);
            sum = fmaf(a.x, a.x, sum);
            sum = fmaf(a.y, a.y, sum);
            sum = fmaf(a.z, a.z, sum);
            sum = fmaf(a.w, a.w, sum);
        }
        lin_put_sum(sum, ssq + r * LIN_WARPS);
    }
}

#endif
