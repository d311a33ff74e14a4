/* gpu_emu.h: gpu_compat.h for the host (emu.h). Same names, same meaning; what is added there is
 * added here. A kernel file is compiled inside a namespace of its own (register.awk), since its
 * helpers are private to it on the device too. */
#ifndef MERE_GPU_EMU_H
#define MERE_GPU_EMU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DEVICE inline
/* register.awk looks for EmuKernel in the preprocessed text. */
template <int threads, int min_ctas> using EmuKernel = void;
#define KERNEL(threads, min_ctas) static EmuKernel<(threads), (min_ctas)>
#define SHARED(type, name, n)                                                                      \
    static const int name##_site = emu_shared_site((int)(sizeof(type) * (n)), #name);              \
    type(&name)[n] = *(type(*)[n])emu_shared(name##_site)
#define SHARED_DYNAMIC(name) uint8_t *const name = emu_now.dynamic
#define UNROLL
#define NO_UNROLL
#define UNROLL_2
#define UNROLL_4

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

/* The running thread. */
struct EmuNow {
    int thread, threads, block[3], grid[3];
    uint8_t *dynamic;
};
extern EmuNow emu_now;

/* Where a call stands in the kernel, for messages. */
#define EMU_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

enum EmuKind {
    EMU_NONE,
    EMU_BLOCK_SYNC,
    EMU_CLUSTER_SYNC,
    EMU_WARP_SYNC,
    EMU_SHFL,
    EMU_BALLOT,
    EMU_MMA_BF16,
    EMU_MMA_F16,
    EMU_LOAD_MATRIX,
    EMU_LOAD_MATRIX_TRANS,
    EMU_REDUCE
};
/* What a lane brings to a collective of its warp, and what it takes away. */
union EmuSlot {
    uint32_t u[10];
    uint64_t d[5];
    float f[10];
    const void *p;
};

int emu_shared_site(int bytes, const char *name);
void *emu_shared(int site);
const float *emu_cluster_address(const float *shared, int rank, const char *file, int line);
void emu_block_sync(EmuKind kind, const char *file, int line);
/* Meets the other lanes; the slots of all 32 (of lanes that have ended: NaN). */
const EmuSlot *emu_meet(EmuKind kind, const EmuSlot *mine, const char *file, int line);
void emu_copy(void *shared, const void *global, int bytes, const char *file, int line);
void emu_copy_commit();
void emu_copy_wait(int newest);
[[noreturn]] void emu_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
float emu_f32_of_f16(uint32_t bits);
uint32_t emu_f16_of_f32(float f);

DEVICE const void *emu_aligned(const void *p, unsigned bytes, const char *file, int line)
{
    if ((uintptr_t)p % bytes)
        emu_fail(file, line, "address %p is not a multiple of %u", p, bytes);
    return p;
}

DEVICE int thread_id()
{
    return emu_now.thread;
}
DEVICE int block_threads()
{
    return emu_now.threads;
}
DEVICE int block_x()
{
    return emu_now.block[0];
}
DEVICE int block_y()
{
    return emu_now.block[1];
}
DEVICE int block_z()
{
    return emu_now.block[2];
}
DEVICE int grid_x()
{
    return emu_now.grid[0];
}
DEVICE int grid_y()
{
    return emu_now.grid[1];
}
DEVICE int grid_z()
{
    return emu_now.grid[2];
}
DEVICE void block_sync(EMU_AT)
{
    emu_block_sync(EMU_BLOCK_SYNC, file, line);
}
DEVICE void warp_sync(EMU_AT)
{
    EmuSlot s = {};
    emu_meet(EMU_WARP_SYNC, &s, file, line);
}

template <class T> DEVICE T emu_shfl(T v, int from, const char *file, int line)
{
    static_assert(sizeof(T) <= sizeof(EmuSlot), "");
    EmuSlot s = {};
    memcpy(&s, &v, sizeof v);
    const EmuSlot *all = emu_meet(EMU_SHFL, &s, file, line);
    T r;
    memcpy(&r, &all[from], sizeof r);
    return r;
}
template <class T> DEVICE T shfl_xor(T v, int mask, EMU_AT)
{
    return emu_shfl(v, (emu_now.thread ^ mask) % 32, file, line);
}
template <class T> DEVICE T shfl_down(T v, int delta, EMU_AT)
{
    const int lane = emu_now.thread % 32;
    return emu_shfl(v, lane + delta < 32 ? lane + delta : lane, file, line);
}
template <class T> DEVICE T shfl_up(T v, int delta, EMU_AT)
{
    const int lane = emu_now.thread % 32;
    return emu_shfl(v, lane >= delta ? lane - delta : lane, file, line);
}
template <class T> DEVICE T shfl(T v, int lane, EMU_AT)
{
    return emu_shfl(v, lane & 31, file, line);
}
DEVICE uint32_t warp_ballot(bool p, EMU_AT)
{
    EmuSlot s = {};
    s.u[0] = p;
    const EmuSlot *all = emu_meet(EMU_BALLOT, &s, file, line);
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)(all[i].u[0] == 1) << i;
    return mask;
}

DEVICE void griddep_launch()
{
}
DEVICE void griddep_wait()
{
}

DEVICE u32x4 load_stream(const void *p, EMU_AT)
{
    return *(const u32x4 *)emu_aligned(p, 16, file, line);
}
DEVICE uint32_t load_stream_u32(const void *p, EMU_AT)
{
    return *(const uint32_t *)emu_aligned(p, 4, file, line);
}
DEVICE u32x2 load_stream_u32x2(const void *p, EMU_AT)
{
    return *(const u32x2 *)emu_aligned(p, 8, file, line);
}
DEVICE uint32_t load_stream_u16(const void *p, EMU_AT)
{
    return *(const uint16_t *)emu_aligned(p, 2, file, line);
}
DEVICE uint32_t load_stream_u8(const void *p)
{
    return *(const uint8_t *)p;
}
DEVICE float load_f32(const float *p, EMU_AT)
{
    return *(const float *)emu_aligned(p, 4, file, line);
}
DEVICE f32x4 load_f32x4(const float *p, EMU_AT)
{
    return *(const f32x4 *)emu_aligned(p, 16, file, line);
}
DEVICE u32x4 load_u32x4(const void *p, EMU_AT)
{
    return *(const u32x4 *)emu_aligned(p, 16, file, line);
}
DEVICE int32_t load_i32(const int32_t *p, EMU_AT)
{
    return *(const int32_t *)emu_aligned(p, 4, file, line);
}

DEVICE int dot4_ss(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
DEVICE int dot4_us(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(uint8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
DEVICE int dot4_uu(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(uint8_t)(a >> 8 * i) * (int)(uint8_t)(b >> 8 * i);
    return c;
}
DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
    const uint64_t ab = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t sel = s >> 4 * i & 15;
        uint32_t byte = (uint32_t)(ab >> 8 * (sel & 7)) & 255;
        if (sel & 8)
            byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}

DEVICE int popcount(uint32_t v)
{
    return __builtin_popcount(v);
}
DEVICE float f32_of_f16(uint32_t bits)
{
    return emu_f32_of_f16(bits & 0xffffu);
}
DEVICE uint32_t f16_of_f32(float f)
{
    return emu_f16_of_f32(f);
}
DEVICE float f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
DEVICE uint32_t bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
DEVICE float f32_of_bf16(uint32_t bits)
{
    return f32_of_bits(bits << 16);
}
DEVICE uint32_t bf16_of_f32(float f)
{
    const uint32_t u = bits_of_f32(f);
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 64u) : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
DEVICE uint32_t bf16x2_of_f32(float lo, float hi)
{
    return bf16_of_f32(lo) | bf16_of_f32(hi) << 16;
}
DEVICE uint32_t f16x2_of_f32(float lo, float hi)
{
    return f16_of_f32(lo) | f16_of_f32(hi) << 16;
}
DEVICE uint32_t f16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16)
        r |= f16_of_f32((float)((double)f32_of_f16(a >> i) * (double)f32_of_f16(b >> i) +
                                (double)f32_of_f16(c >> i)))
             << i;
    return r;
}
DEVICE uint32_t f16x2_add(uint32_t a, uint32_t b)
{
    return f16x2_fma(a, 0x3c003c00u, b);
}
DEVICE uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    return f16x2_fma(a, b, 0x80008000u);
}
DEVICE uint32_t bf16x2_mul(uint32_t a, uint32_t b)
{
    return bf16x2_of_f32(f32_of_bf16(a & 0xffffu) * f32_of_bf16(b & 0xffffu),
                         f32_of_bf16(a >> 16) * f32_of_bf16(b >> 16));
}
DEVICE int int_of_f32(float f) /* saturates as the device does; NaN is 0 */
{
    return f != f               ? 0
           : f >= 2147483648.0F ? INT32_MAX
           : f < -2147483648.0F ? INT32_MIN
                                : (int)lrintf(f);
}
DEVICE float exp_fast(float x)
{
    return expf(x);
}
DEVICE float exp2_fast(float x)
{
    return exp2f(x);
}
DEVICE float rsqrt_f32(float x)
{
    return 1.0F / sqrtf(x);
}

DEVICE uint32_t atomic_add(uint32_t *p, uint32_t v)
{
    const uint32_t old = *p;
    *p = old + v;
    return old;
}
DEVICE uint32_t atomic_max(uint32_t *p, uint32_t v)
{
    const uint32_t old = *p;
    *p = old > v ? old : v;
    return old;
}
DEVICE void fence_device()
{
}
DEVICE void fence_system()
{
}

DEVICE void emu_mma(EmuKind kind, float c[4], const uint32_t a[4], const uint32_t b[2],
                    const char *file, int line)
{
    EmuSlot s;
    memcpy(s.u, a, 16);
    memcpy(s.u + 4, b, 8);
    memcpy(s.u + 6, c, 16);
    const EmuSlot *all = emu_meet(kind, &s, file, line);
    memcpy(c, all[emu_now.thread % 32].u + 6, 16);
}
DEVICE void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], EMU_AT)
{
    emu_mma(EMU_MMA_BF16, c, a, b, file, line);
}
DEVICE void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2], EMU_AT)
{
    emu_mma(EMU_MMA_F16, c, a, b, file, line);
}
DEVICE void emu_matrix(EmuKind kind, uint32_t r[4], const void *shared, const char *file, int line)
{
    EmuSlot s = {};
    s.p = shared;
    const EmuSlot *all = emu_meet(kind, &s, file, line);
    memcpy(r, all[emu_now.thread % 32].u + 6, 16);
}
DEVICE void load_matrix(uint32_t r[4], const void *shared, EMU_AT)
{
    emu_matrix(EMU_LOAD_MATRIX, r, shared, file, line);
}
DEVICE void load_matrix_trans(uint32_t r[4], const void *shared, EMU_AT)
{
    emu_matrix(EMU_LOAD_MATRIX_TRANS, r, shared, file, line);
}
DEVICE void copy_async16(void *shared, const void *global, int bytes, EMU_AT)
{
    emu_copy(shared, global, bytes, file, line);
}
DEVICE void copy_commit()
{
    emu_copy_commit();
}
template <int N> DEVICE void copy_wait()
{
    emu_copy_wait(N);
}

DEVICE void cluster_sync(EMU_AT)
{
    emu_block_sync(EMU_CLUSTER_SYNC, file, line);
}
DEVICE float cluster_load_f32(const float *shared, int rank, EMU_AT)
{
    return *emu_cluster_address(shared, rank, file, line);
}

/* For register.awk. */
template <int threads, int min_ctas> constexpr int emu_first = threads;
void emu_register(const char *name, int max_threads, size_t params_bytes, void (*fn)(),
                  void (*call)(void (*)(), const void *));
template <class P> void emu_call(void (*fn)(), const void *params)
{
    ((void (*)(P))fn)(*(const P *)params);
}
template <class P> void emu_register_kernel(const char *name, int max_threads, void (*fn)(P))
{
    emu_register(name, max_threads, sizeof(P), (void (*)())fn, emu_call<P>);
}

#endif
