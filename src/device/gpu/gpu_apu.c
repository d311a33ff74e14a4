#include "device/gpu/gpu_apu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t MIB = (uint64_t)1 << 20;
static const uint64_t GIB = (uint64_t)1 << 30;
enum { PAGE = 4096 };

/* ---- reading ---- */

/* The number at the start of a file below root. */
static bool read_number(const char *root, const char *path, const char *pci, const char *name,
                        uint64_t *out)
{
    char full[512];
    char text[64];
    const int n = snprintf(full, sizeof full, "%s%s%s%s", root, path, pci, name);
    if (n < 0 || (size_t)n >= sizeof full)
        return false;
    FILE *f = fopen(full, "r");
    if (!f)
        return false;
    const bool got = fgets(text, sizeof text, f) != NULL;
    (void)fclose(f);
    char *end = text;
    const int64_t v = got ? strtoll(text, &end, 10) : 0;
    if (end == text)
        return false;
    *out = v < 0 ? 0 : (uint64_t)v; /* amdgpu.gttsize is -1 when it is not set */
    return true;
}

/* "MemTotal:  1234 kB" */
static bool read_meminfo(const char *root, GpuApuFacts *out)
{
    char full[512];
    char line[160];
    const int n = snprintf(full, sizeof full, "%s/proc/meminfo", root);
    if (n < 0 || (size_t)n >= sizeof full)
        return false;
    FILE *f = fopen(full, "r");
    if (!f)
        return false;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "MemTotal:", 9) == 0)
            out->mem_total = strtoull(line + 9, NULL, 10) * 1024;
        else if (strncmp(line, "MemAvailable:", 13) == 0)
            out->mem_available = strtoull(line + 13, NULL, 10) * 1024;
    }
    (void)fclose(f);
    return out->mem_total > 0 && out->mem_available > 0;
}

bool gpu_apu_read(const char *root, const char *pci, GpuApuFacts *out)
{
    static const char device[] = "/sys/bus/pci/devices/";
    *out = (GpuApuFacts){0};
    if (!read_number(root, device, pci, "/mem_info_vram_total", &out->vram_total) ||
        !read_number(root, device, pci, "/mem_info_vram_used", &out->vram_used) ||
        !read_number(root, device, pci, "/mem_info_gtt_total", &out->gtt_total) ||
        !read_number(root, device, pci, "/mem_info_gtt_used", &out->gtt_used) ||
        !read_meminfo(root, out))
        return false;
    uint64_t pages = 0;
    /* amdgpu-dkms and some makers' kernels call the module amdttm. */
    if (read_number(root, "/sys/module/ttm/parameters", "", "/pages_limit", &pages) ||
        read_number(root, "/sys/module/amdttm/parameters", "", "/pages_limit", &pages))
        out->pages_limit = pages * PAGE;
    uint64_t gttsize = 0;
    out->gttsize_set =
        read_number(root, "/sys/module/amdgpu/parameters", "", "/gttsize", &gttsize) && gttsize > 0;
    return true;
}

/* ---- the budget ---- */

static uint64_t min_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t reserve_of(const GpuApuFacts *f)
{
    if (f->reserve)
        return f->reserve;
    const uint64_t part = f->mem_total / 100 * 8;
    return part < 4 * GIB ? 4 * GIB : min_of(part, 10 * GIB);
}

/* What to set ttm.pages_limit to: all but what the host needs. */
static uint64_t target_of(const GpuApuFacts *f)
{
    return less(f->mem_total, (f->desktop ? 24 : 12) * GIB) / GIB * GIB;
}

static int gib(uint64_t bytes)
{
    return (int)((bytes + GIB / 2) / GIB);
}

static void advise(const GpuApuFacts *f, GpuApuApi api, uint64_t need, GpuApuBudget *b)
{
    const uint64_t target = target_of(f);
    const bool short_of = need == 0 || need > b->bytes;
    char *out = b->advice;
    const size_t max = sizeof b->advice;
    if (f->pages_limit > f->mem_total)
        (void)snprintf(out, max,
                       "ttm.pages_limit (%d GiB) is larger than RAM (%d GiB): a leftover from "
                       "another BIOS setting. Remove it or lower it to %" PRIu64 ".",
                       gib(f->pages_limit), gib(f->mem_total), target / PAGE);
    else if (f->gttsize_set)
        (void)snprintf(out, max,
                       "amdgpu.gttsize is set and deprecated; HIP ignores it. Use "
                       "ttm.pages_limit=%" PRIu64 " alone.",
                       target / PAGE);
    else if (api == GPU_APU_HIP && f->vram_total >= f->gtt_total && b->gtt > GIB && short_of)
        (void)snprintf(out, max,
                       "%d GiB are fixed for the GPU in the BIOS (UMA frame buffer); HIP will not "
                       "use the other %d GiB. Set the frame buffer to its minimum and raise "
                       "ttm.pages_limit, or use --device vulkan.",
                       gib(f->vram_total), gib(b->gtt));
    /* Only where much of the memory lies idle: at the default GTT is half of it. */
    else if (f->vram_total < f->mem_total && b->gtt_cap + 8 * GIB < target && short_of)
        (void)snprintf(out, max,
                       "GPU may map %d of %d GiB. To use %d GiB: add  ttm.pages_limit=%" PRIu64
                       "  to the kernel command line (amdttm.pages_limit too with amdgpu-dkms), "
                       "reboot. Above half of RAM, suspend and heavy swapping may fail.",
                       gib(b->gtt_cap), gib(f->mem_total), gib(target), target / PAGE);
}

void gpu_apu_budget(const GpuApuFacts *f, GpuApuApi api, uint64_t need, GpuApuBudget *out)
{
    GpuApuBudget b = {.reserve = reserve_of(f)};
    b.gtt_cap = min_of(f->gtt_total, f->mem_total); /* a stale limit cannot exceed the memory */
    if (f->pages_limit)
        b.gtt_cap = min_of(b.gtt_cap, f->pages_limit);
    /* Display and firmware live in the carve-out. */
    b.carve = less(less(f->vram_total, f->vram_used), 256 * MIB);
    b.gtt = min_of(less(b.gtt_cap, f->gtt_used), less(f->mem_available, b.reserve));
    if (api == GPU_APU_VULKAN)
        b.bytes = f->heaps_free ? min_of(b.carve + b.gtt, f->heaps_free) : b.carve + b.gtt;
    else /* HIP lives in GTT when the carve-out is the smaller of the two, else in the carve-out */
        b.bytes = f->vram_total < f->gtt_total ? b.gtt : b.carve;
    b.host = less(f->mem_available, b.reserve);
    advise(f, api, need, &b);
    *out = b;
}
