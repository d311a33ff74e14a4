/* What goes with products: activations packed once for several CTAs, silu of two halves. */
#include "lin_x.h"

template <int KIND> DEVICE void lin_pack_row(const LinPackParams &p)
{
    SHARED(float, ssq, LIN_WARPS);
    const int chunks = LIN_X_CHUNKS(p.k);
    const int r = block_x();
    uint8_t *to = p.out + (int64_t)r * LIN_X_BYTES_OF(chunks);
    griddep_launch();
    LinNormAhead<2> ahead;
    ahead.load(p.in, p.k);
    griddep_wait();
    lin_pack<KIND, 2>(
        p.in, p.k, 1, ahead, [&](int) { return lin_row(p.in, r); },
        [](int, int) { return 1.0F; }, to, ssq);
    block_sync();
    if (p.in.eps > 0 && thread_id() == 0)
        *(float *)(to + chunks * 16) = lin_inv_rms(ssq, p.k, p.in.eps);
}

KERNEL(LIN_THREADS, 1) lin_pack_s4(const LinPackParams p)
{
    lin_pack_row<LIN_X_S4>(p);
}
KERNEL(LIN_THREADS, 1) lin_pack_a4(const LinPackParams p)
{
    lin_pack_row<LIN_X_A4>(p);
}
KERNEL(LIN_THREADS, 1) lin_pack_bytes(const LinPackParams p)
{
    lin_pack_row<LIN_X_BYTES>(p);
}
KERNEL(LIN_THREADS, 1) lin_pack_k6(const LinPackParams p)
{
    lin_pack_row<LIN_X_K6>(p);
}

/* y[r][c] = silu(x[r][c]) * x[r][n + c]; grid y: rows. */
KERNEL(256, 1) lin_silu_halves(const LinSiluHalves p)
{
    griddep_launch();
    griddep_wait();
    const float *x = p.x + (int64_t)block_y() * p.ld_x;
    float *y = p.y + (int64_t)block_y() * p.ld_y;
    for (int c = block_x() * 256 + thread_id(); c < p.n; c += grid_x() * 256) {
        const float gate = load_f32(x + c);
        y[c] = gate / (1.0F + expf(-gate)) * load_f32(x + p.n + c);
    }
}
