/* Kernels by which the emulator tests itself: tests/kernels_cuda/test_emu.c. */
#include "gpu_compat.h"

struct SumParams {
    const float *x; /* [grid][threads] */
    float *y;       /* [grid] */
};
KERNEL(256, 1) emu_sum(const SumParams p)
{
    SHARED(float, part, 8);
    float v = p.x[block_x() * block_threads() + thread_id()];
    for (int o = 16; o > 0; o /= 2)
        v += shfl_xor(v, o);
    if (thread_id() % 32 == 0)
        part[thread_id() / 32] = v;
    block_sync();
    if (thread_id() < 32) {
        float s = thread_id() < block_threads() / 32 ? part[thread_id()] : 0.0F;
        for (int o = 4; o > 0; o /= 2)
            s += shfl_down(s, o);
        if (thread_id() == 0)
            p.y[block_x()] = s;
    }
}

/* y[16][8] = a[16][16] b[8][16]^T, bf16 inputs. Without `wait` the copies are read before they
 * land. */
struct MmaParams {
    const uint16_t *a, *b;
    float *y;
    int wait;
};
KERNEL(32, 1) emu_mma_tile(const MmaParams p)
{
    SHARED_DYNAMIC(mem);
    const int lane = thread_id();
    copy_async16(mem + lane * 16, p.a + lane * 8, 16);
    if (lane < 16)
        copy_async16(mem + 512 + lane * 16, p.b + lane * 8, 16);
    else
        copy_async16(mem + 512 + lane * 16, nullptr, 0);
    copy_commit();
    if (p.wait)
        copy_wait<0>();
    warp_sync();
    uint32_t a[4], b[4];
    load_matrix(a, mem + lane % 16 * 32 + lane / 16 * 16);
    load_matrix(b, mem + 512 + lane % 8 * 32 + lane / 8 % 2 * 16);
    float c[4] = {0, 0, 0, 0};
    mma_bf16(c, a, b);
    for (int i = 0; i < 4; i++)
        p.y[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

/* v_rank of each CTA of a cluster, summed by all. */
struct ClusterParams {
    float *y; /* [grid] */
};
KERNEL(64, 1) emu_cluster_sum(const ClusterParams p)
{
    SHARED_DYNAMIC(mem);
    SHARED(float, own, 1);
    if (thread_id() == 63) {
        *(float *)mem = (float)(block_x() + 1);
        own[0] = (float)(10 * block_x());
    }
    cluster_sync();
    float s = 0;
    for (int r = 0; r < 4; r++)
        s += cluster_load_f32((const float *)mem, r) + cluster_load_f32(own, r);
    if (thread_id() == 5)
        p.y[block_x()] = s;
    cluster_sync();
}

struct FaultParams {
    int fault;
    float *y;
};
/* 0: none; 1: a barrier that half of the threads miss; 2: two kinds of collectives in a warp; 3: a
 * read of what was never written; 4: a write behind a shared array; 5: a write in front of dynamic
 * memory; 6: a lane's misaligned vector; 7: lanes that wait in a collective while the rest of the
 * warp waits at a barrier */
KERNEL(128, 1) emu_fault(const FaultParams p)
{
    SHARED(float, mem, 128);
    SHARED_DYNAMIC(dyn);
    const int t = thread_id();
    if (p.fault != 3)
        mem[t] = 1.0F;
    if (p.fault == 1 && t >= 64)
        shfl(t, 0);
    else if (p.fault == 1)
        block_sync();
    if (p.fault == 1 && t < 32)
        block_sync();
    if (p.fault == 2 && t == 7)
        warp_sync();
    else if (p.fault == 2)
        warp_ballot(true);
    float *volatile behind = mem + 128;
    if (p.fault == 4 && t == 0)
        *behind = 1.0F;
    if (p.fault == 5 && t == 0)
        dyn[-1] = 1;
    if (p.fault == 6)
        p.y[t] = load_f32x4(p.y + t).x;
    if (p.fault == 7 && t % 32 > 4)
        warp_sync();
    block_sync();
    p.y[t] = mem[t];
}
