/* gpu_compat.h: what kernels may use of the machine, for every compiler that reads them: nvcc now,
 * HIP later, and a plain C++ compiler that runs a kernel's threads as fibers (tests/emu), so that
 * kernels are tested where there is no GPU. Kernels include this and gpu_words.h and nothing else;
 * intrinsics and inline assembly occur here alone.
 *
 *   KERNEL(threads, min_ctas) name(const Params p) { ... }      extern "C", one struct by value
 *   SHARED(type, name, n)      static shared array
 *   SHARED_DYNAMIC(name)       uint8_t *name, 128-byte aligned
 * Threads of a warp that a *_sync function names must all call it. */
#ifndef MERE_GPU_COMPAT_H
#define MERE_GPU_COMPAT_H

#include <stdint.h>

#ifdef MERE_EMU
#include "emu/gpu_emu.h" /* defines everything below for the host */
#else

#define DEVICE __device__ __forceinline__
#define KERNEL(threads, min_ctas) extern "C" __global__ void __launch_bounds__(threads, min_ctas)
#define SHARED(type, name, n) __shared__ type name[n]
#define SHARED_DYNAMIC(name) extern __shared__ __align__(128) uint8_t name[]
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_2 _Pragma("unroll 2")
#define UNROLL_4 _Pragma("unroll 4")

struct alignas(16) u32x4 {
    uint32_t x, y, z, w;
};
struct alignas(8) u32x2 {
    uint32_t x, y;
};
struct alignas(16) f32x4 {
    float x, y, z, w;
};
struct alignas(8) f32x2 {
    float x, y;
};

DEVICE int thread_id()
{
    return (int)threadIdx.x;
}
DEVICE int block_threads()
{
    return (int)blockDim.x;
}
DEVICE int block_x()
{
    return (int)blockIdx.x;
}
DEVICE int block_y()
{
    return (int)blockIdx.y;
}
DEVICE int block_z()
{
    return (int)blockIdx.z;
}
DEVICE int grid_x()
{
    return (int)gridDim.x;
}
DEVICE int grid_y()
{
    return (int)gridDim.y;
}
DEVICE int grid_z()
{
    return (int)gridDim.z;
}
DEVICE void block_sync()
{
    __syncthreads();
}
DEVICE void warp_sync()
{
    __syncwarp();
}
template <class T> DEVICE T shfl_xor(T v, int mask)
{
    return __shfl_xor_sync(~0u, v, mask);
}
template <class T> DEVICE T shfl_down(T v, int delta)
{
    return __shfl_down_sync(~0u, v, delta);
}
template <class T> DEVICE T shfl_up(T v, int delta)
{
    return __shfl_up_sync(~0u, v, delta);
}
template <class T> DEVICE T shfl(T v, int lane)
{
    return __shfl_sync(~0u, v, lane);
}
DEVICE uint32_t warp_ballot(bool p)
{
    return __ballot_sync(~0u, p);
}

/* The launch before this one: reading what it wrote only after griddep_wait. */
DEVICE void griddep_launch()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void griddep_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Weights: read once, 16 bytes a lane, past L1. */
DEVICE u32x4 load_stream(const void *p)
{
    u32x4 v;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
#else
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
#endif
    return v;
}
DEVICE uint32_t load_stream_u32(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE u32x2 load_stream_u32x2(const void *p)
{
    u32x2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE uint32_t load_stream_u16(const void *p)
{
    uint16_t v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
DEVICE uint32_t load_stream_u8(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
/* What an earlier launch wrote: past L1. */
DEVICE float load_f32(const float *p)
{
    return __ldcg(p);
}
DEVICE f32x4 load_f32x4(const float *p)
{
    const float4 v = __ldcg((const float4 *)p);
    return f32x4{v.x, v.y, v.z, v.w};
}
DEVICE u32x4 load_u32x4(const void *p)
{
    const uint4 v = __ldcg((const uint4 *)p);
    return u32x4{v.x, v.y, v.z, v.w};
}
DEVICE int32_t load_i32(const int32_t *p)
{
    return __ldcg(p);
}

/* Four products of bytes. su: unsigned a, signed b. */
DEVICE int dot4_ss(uint32_t a, uint32_t b, int c)
{
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
DEVICE int dot4_us(uint32_t a, uint32_t b, int c)
{
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
DEVICE int dot4_uu(uint32_t a, uint32_t b, int c)
{
    asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
/* PTX's prmt: a selector of four bits takes one of eight bytes by its low three; the fourth asks
 * for that byte's sign instead. (CUDA's own __byte_perm drops the fourth.) */
DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
    return r;
}

DEVICE int popcount(uint32_t v)
{
    return __popc(v);
}

/* Number formats. */
DEVICE float f32_of_f16(uint32_t bits)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)bits));
    return f;
}
DEVICE uint32_t f16_of_f32(float f)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
DEVICE float f32_of_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}
DEVICE uint32_t bits_of_f32(float f)
{
    return __float_as_uint(f);
}
DEVICE float f32_of_bf16(uint32_t bits)
{
    return __uint_as_float(bits << 16);
}
DEVICE uint32_t bf16_of_f32(float f) /* nearest even; NaN stays NaN */
{
    const uint32_t u = __float_as_uint(f);
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 64u) : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
/* lo in the low half: nearest even. */
DEVICE uint32_t bf16x2_of_f32(float lo, float hi)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
#else
    return bf16_of_f32(lo) | bf16_of_f32(hi) << 16;
#endif
}
DEVICE uint32_t f16x2_of_f32(float lo, float hi)
{
    return f16_of_f32(lo) | f16_of_f32(hi) << 16;
}
/* Two f16 or bf16 at a time, rounded to nearest even, subnormal numbers kept. */
DEVICE uint32_t f16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t v;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
}
DEVICE uint32_t f16x2_add(uint32_t a, uint32_t b)
{
    uint32_t v;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
DEVICE uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t v;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
DEVICE uint32_t bf16x2_mul(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(0x80008000u));
    return v;
#else
    return bf16x2_of_f32(f32_of_bits(a << 16) * f32_of_bits(b << 16),
                         f32_of_bits(a & 0xffff0000u) * f32_of_bits(b & 0xffff0000u));
#endif
}
DEVICE int int_of_f32(float f)
{
    return __float2int_rn(f);
} /* nearest even */

DEVICE float exp_fast(float x)
{
    return __expf(x);
}
DEVICE float exp2_fast(float x)
{
    return exp2f(x);
}
DEVICE float rsqrt_f32(float x)
{
    return rsqrtf(x);
}
/* The exact class uses the C library's expf, logf, sqrtf, 1 / sqrtf. */

DEVICE uint32_t atomic_add(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}
DEVICE uint32_t atomic_max(uint32_t *p, uint32_t v)
{
    return atomicMax(p, v);
}
DEVICE void fence_device()
{
    __threadfence();
}
DEVICE void fence_system()
{
    __threadfence_system();
}

/* c += a b of one warp, m16 n8 k16, a row-major, b column-major, fragments as in PTX's
 * mma.m16n8k16. */
DEVICE void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
DEVICE void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
/* Four 8x8 matrices of 16-bit elements from shared memory: lane l gives the address of row l % 8 of
 * matrix l / 8. */
DEVICE void load_matrix(uint32_t r[4], const void *shared)
{
    const uint32_t p = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(p));
}
DEVICE void load_matrix_trans(uint32_t r[4], const void *shared)
{
    const uint32_t p = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(p));
}
/* 16 bytes from global to shared memory; `bytes` of them (0 or 16) are read, the rest are zero. */
DEVICE void copy_async16(void *shared, const void *global, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint32_t p = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(p), "l"(global), "r"(bytes));
#else
    *(u32x4 *)shared = bytes ? *(const u32x4 *)global : u32x4{0, 0, 0, 0};
#endif
}
DEVICE void copy_commit()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}
template <int N> DEVICE void copy_wait() /* all but the newest N groups have landed */
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Clusters (sm_90): the CTAs along x. */
DEVICE void cluster_sync()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
DEVICE float cluster_load_f32(const float *shared,
                              int rank) /* `shared` of CTA `rank` of the cluster */
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t p = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t q;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(q) : "r"(p), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(q));
    return v;
#else
    return *shared;
#endif
}

#endif
#endif
