/* lin_gemv.h: y = x W^T for up to R rows of x a CTA (grid y: which), with int8 activations: the
 * fast class's product for few rows. Output columns are shared evenly by grid x. K > 0: k is this,
 * for the shapes of many models: loops over it are known to the compiler. y[r][c] = inv_rms(r) *
 * sum + bias[c] + addend[r][c], or silu of gate times up. */
#ifndef MERE_LIN_GEMV_H
#define MERE_LIN_GEMV_H

#include "lin_rows.h"

template <class L, int R, int RW, int D, int BATCH, int AHEAD, int K>
DEVICE void lin_gemv(const LinParams &p, uint8_t *sm)
{
    const int k = K > 0 ? K : p.w.k;
    const int warp = thread_id() / 32;
    const int row0 = block_y() * R;
    const int chunks = LIN_X_CHUNKS(k);
    const int x_bytes = LIN_X_BYTES_OF(chunks);
    float *ssq = (float *)(sm + R * x_bytes); /* [R][LIN_WARPS] */
    const LinCols<RW> cols(p);
    const int nb = cols.blocks();
    const int b0 = (int)((int64_t)block_x() * nb / grid_x());
    const int b1 = (int)((int64_t)(block_x() + 1) * nb / grid_x());
    griddep_launch();
    if (b0 == b1)
        return;

    LinNormAhead<AHEAD> ahead;
    ahead.load(p.in, k);
    LinStream<L, RW, D> s;
    s.init(p.w, k);
    int blk = b0 + warp;
    if (blk < b1)
        s.begin(cols.at(p.w, blk));
    griddep_wait();

    const int rows = p.in.rows - row0 < R ? p.in.rows - row0 : R;
    if (p.in.packed) {
        const uint8_t *from = p.in.packed + (int64_t)row0 * x_bytes;
        NO_UNROLL for (int i = thread_id() * 16; i < R * x_bytes; i += LIN_THREADS * 16) *
            (u32x4 *)(sm + i) = i < rows * x_bytes ? load_u32x4(from + i) : u32x4{0, 0, 0, 0};
    } else {
        lin_pack<L::KIND, BATCH>(
            p.in, k, R, ahead,
            [&](int r) { return lin_row(p.in, row0 + (r < rows ? r : rows - 1)); },
            [](int, int) { return 1.0F; }, sm, ssq);
    }
    block_sync();

    float inv = 1;
    if (p.in.eps > 0) {
        const int x = thread_id() % 32 >> (5 - LinLog2<R * RW>::value + LinLog2<RW>::value);
        inv = p.in.packed ? *(const float *)(sm + x * x_bytes + chunks * 16)
                          : lin_inv_rms(ssq + x * LIN_WARPS, k, p.in.eps);
    }
    NO_UNROLL for (; blk < b1; blk += LIN_WARPS)
    {
        const bool more = blk + LIN_WARPS < b1;
        const LinOut<R, RW> out(p, cols, blk, row0);
        if (more)
            s.next = cols.at(p.w, blk + LIN_WARPS);
        float acc[R * RW];
        UNROLL for (int i = 0; i < R * RW; i++) acc[i] = 0;
        lin_mul_i8<R>(
            s, more, [&](int i) { return sm + i * x_bytes; }, chunks, acc);
        s.at = s.next;
        out.store(p, lin_reduce<R * RW>(acc) * inv);
    }
}

#endif
