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

/* One row times few rows of f32 weights (a router's): a warp each, 4 a CTA; weights and norm lie in
 * registers before the launch in front has ended. */
template <int K> DEVICE void lin_router(const LinParams &p)
{
    enum { Q = K / 128 };
    const int lane = thread_id() % 32;
    const int c = block_x() * 4 + thread_id() / 32;
    const int row = p.w.row0 + (c < p.n ? c : p.n - 1);
    const uint8_t *codes = p.w.codes + (uint64_t)row * p.w.code_stride16 * 16 + lane * 16;
    u32x4 w[Q];
    f32x4 norm[Q];
    f32x4 x[Q];
    griddep_launch();
    UNROLL for (int i = 0; i < Q; i++)
    {
        w[i] = load_stream(codes + i * 512);
        norm[i] = p.in.norm ? load_f32x4(p.in.norm + i * 128 + lane * 4) : f32x4{1, 1, 1, 1};
    }
    griddep_wait();
    UNROLL for (int i = 0; i < Q; i++) x[i] = load_f32x4(p.in.x + i * 128 + lane * 4);
    float sum = 0;
    float squares = 0;
    UNROLL for (int i = 0; i < Q; i++)
    {
        squares = fmaf(x[i].x, x[i].x, squares);
        squares = fmaf(x[i].y, x[i].y, squares);
        squares = fmaf(x[i].z, x[i].z, squares);
        squares = fmaf(x[i].w, x[i].w, squares);
        sum = fmaf(x[i].x * norm[i].x, f32_of_bits(w[i].x), sum);
        sum = fmaf(x[i].y * norm[i].y, f32_of_bits(w[i].y), sum);
        sum = fmaf(x[i].z * norm[i].z, f32_of_bits(w[i].z), sum);
        sum = fmaf(x[i].w * norm[i].w, f32_of_bits(w[i].w), sum);
    }
    UNROLL for (int o = 16; o; o >>= 1)
    {
        sum += shfl_xor(sum, o);
        squares += shfl_xor(squares, o);
    }
    if (lane > 0 || c >= p.n)
        return;
    if (p.in.eps > 0)
        sum *= 1.0F / sqrtf(squares / (float)K + p.in.eps);
    if (p.bias)
        sum += p.bias[c];
    if (p.addend)
        sum += load_f32(p.addend + c);
    p.y[c] = sum;
}

KERNEL(128, 2) lin_router_k2048(const LinParams p)
{
    lin_router<2048>(p);
}
KERNEL(128, 1) lin_router_k4096(const LinParams p)
{
    lin_router<4096>(p);
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
