#include "device/cpu/lin.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From asm/prctl.h: asks the kernel for the large part of the extended state (AMX tile data is
 * component 18 of XCR0) that a process must request before its first use. */
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* XCR0: SSE, AVX; then opmask and both halves of ZMM; then AMX tile configuration and data. */
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };

/* Leaf 7 edx: AMX-BF16, AMX-TILE, AMX-INT8. cpuid.h of gcc and of clang name them differently. */
enum { AMX_BITS = 1 << 22 | 1 << 24 | 1 << 25 };

typedef struct Regs {
    unsigned eax, ebx, ecx, edx;
} Regs;

static Regs cpuid(unsigned leaf, unsigned sub)
{
    Regs r = {0};
    __get_cpuid_count(leaf, sub, &r.eax, &r.ebx, &r.ecx, &r.edx); /* zeros: no such leaf */
    return r;
}

/* Register components that the operating system saves. Needs OSXSAVE. */
static unsigned xcr0(void)
{
    unsigned lo;
    unsigned hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

static bool all(unsigned value, unsigned bits)
{
    return (value & bits) == bits;
}

unsigned cpu_isa_detect(void)
{
    const Regs f1 = cpuid(1, 0);
    const Regs f7 = cpuid(7, 0);
    const Regs f71 = cpuid(7, 1);
    if (!(f1.ecx & bit_OSXSAVE))
        return 0;
    const unsigned saved = xcr0();
    unsigned isa = 0;
    if (!all(saved, XCR0_AVX) || !all(f1.ecx, bit_AVX | bit_FMA | bit_F16C) ||
        !all(f7.ebx, bit_AVX2 | bit_BMI2))
        return 0;
    isa |= CPU_AVX2;
    if (!all(saved, XCR0_AVX512) ||
        !all(f7.ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ))
        return isa;
    isa |= CPU_AVX512;
    if (!all(f7.ecx, bit_AVX512VNNI | bit_AVX512VBMI | bit_AVX512VBMI2))
        return isa;
    isa |= CPU_AVX512_VNNI;
    if (!(f71.eax & bit_AVX512BF16))
        return isa;
    isa |= CPU_AVX512_BF16;
    /* The permission covers the whole process and the threads it starts later. */
    if (all(saved, XCR0_AMX) && all(f7.edx, AMX_BITS) &&
        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)
        isa |= CPU_AMX;
    return isa;
}

bool cpu_isa_from_name(const char *name, unsigned *isa)
{
    static const struct {
        const char *name;
        unsigned isa;
    } levels[] = {
        {"scalar", 0},
        {"avx2", CPU_AVX2},
        {"avx512", CPU_AVX2 | CPU_AVX512},
        {"avx512vnni", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI},
        {"avx512bf16", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16},
        {"amx", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16 | CPU_AMX},
    };
    for (size_t i = 0; i < COUNT_OF(levels); i++) {
        if (strcmp(name, levels[i].name) == 0) {
            *isa = levels[i].isa;
            return true;
        }
    }
    *isa = 0;
    return false;
}
