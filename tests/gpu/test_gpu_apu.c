/* The memory budget of AMD APUs over recorded trees of sysfs and proc: the cases that machines with
 * 128 and 64 GB show, and what happens when files are missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/gpu/gpu_apu.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PCI "0000:c4:00.0"

static const double GIB = 1073741824.0;

/* GiB; 0 for a file that is not there. */
typedef struct Tree {
    const char *name;
    double vram, vram_used, gtt, gtt_used, pages_limit, total, available;
    bool amdttm, gttsize;
} Tree;

static void make_dirs(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(path, 0777);
        *at = '/';
    }
}

static void write_text(const char *root, const char *path, const char *text)
{
    char full[512];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    make_dirs(full);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void write_number(const char *root, const char *path, double gib, double unit)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64 "\n", (uint64_t)(gib * GIB / unit));
    write_text(root, path, text);
}

static GpuApuFacts read_tree(const Tree *t)
{
    char root[256];
    char text[256];
    GpuApuFacts f;
    (void)snprintf(root, sizeof root, "%s/apu/%s", TEST_TMP, t->name);
    write_number(root, "/sys/bus/pci/devices/" PCI "/mem_info_vram_total", t->vram, 1);
    write_number(root, "/sys/bus/pci/devices/" PCI "/mem_info_vram_used", t->vram_used, 1);
    write_number(root, "/sys/bus/pci/devices/" PCI "/mem_info_gtt_total", t->gtt, 1);
    write_number(root, "/sys/bus/pci/devices/" PCI "/mem_info_gtt_used", t->gtt_used, 1);
    if (t->pages_limit > 0)
        write_number(root,
                     t->amdttm ? "/sys/module/amdttm/parameters/pages_limit"
                               : "/sys/module/ttm/parameters/pages_limit",
                     t->pages_limit, 4096);
    write_text(root, "/sys/module/amdgpu/parameters/gttsize", t->gttsize ? "122880\n" : "-1\n");
    (void)snprintf(text, sizeof text,
                   "MemTotal:       %10" PRIu64 " kB\nMemFree:         1000000 kB\n"
                   "MemAvailable:   %10" PRIu64 " kB\n",
                   (uint64_t)(t->total * GIB / 1024), (uint64_t)(t->available * GIB / 1024));
    write_text(root, "/proc/meminfo", text);
    assert_true(gpu_apu_read(root, PCI, &f));
    return f;
}

static void near_gib(const char *what, const char *tree, uint64_t bytes, double want)
{
    const double got = (double)bytes / GIB;
    if (got < want - 0.3 || got > want + 0.3)
        fail_msg("%s: %s is %.2f GiB, wanted %.2f", tree, what, got, want);
}

typedef struct Case {
    Tree tree;
    double vulkan, hip; /* GiB of budget */
    const char *advice; /* a piece of Vulkan's line, NULL: none */
} Case;

/* 128 GB and 64 GB machines, headless (90 % of memory available). */
static const Case cases[] = {
    {{"carve96", 96, 0.2, 15.5, 0.1, 15.5, 31, 28, false, false}, 95.55 + 15.4, 95.55, NULL},
    {{"carve96-stale", 96, 0.2, 105, 0.1, 105, 31, 28, false, false},
     95.55 + 24,
     24,
     "ttm.pages_limit (105 GiB) is larger than RAM (31 GiB)"},
    {{"gtt120", 0.5, 0.1, 120, 0.2, 120, 124.9, 121, false, false}, 0.15 + 111.0, 111, NULL},
    {{"gtt120-desktop", 0.5, 0.1, 120, 0.2, 120, 124.9, 111, false, false}, 0.15 + 101, 101, NULL},
    {{"default128", 0.5, 0.1, 62.4, 0.1, 62.4, 124.9, 120, false, false},
     0.15 + 62.3,
     62.3,
     "GPU may map 62 of 125 GiB. To use 112 GiB: add  ttm.pages_limit=29360128"},
    {{"default128-dkms", 0.5, 0.1, 62.4, 0.1, 62.4, 124.9, 120, true, false},
     0.15 + 62.3,
     62.3,
     "amdttm.pages_limit too"},
    {{"gttsize", 0.5, 0.1, 120, 0.1, 62.4, 124.9, 120, false, true},
     0.15 + 62.3,
     62.3,
     "amdgpu.gttsize is set and deprecated"},
    {{"default64", 0.5, 0.1, 31.2, 0.1, 31.2, 62.5, 59, false, false},
     0.15 + 31.1,
     31.1,
     "To use 50 GiB: add  ttm.pages_limit=13107200"},
    {{"limit64", 0.5, 0.1, 50, 0.1, 50, 62.5, 59, false, false}, 0.15 + 49.9, 49.9, NULL},
};

static void test_budgets(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        const GpuApuFacts f = read_tree(&c->tree);
        GpuApuBudget b;
        gpu_apu_budget(&f, GPU_APU_VULKAN, 0, &b);
        near_gib("vulkan", c->tree.name, b.bytes, c->vulkan);
        if (c->advice ? !strstr(b.advice, c->advice) : b.advice[0] != '\0')
            fail_msg("%s: advice is \"%s\", wanted \"%s\"", c->tree.name, b.advice,
                     c->advice ? c->advice : "");
        gpu_apu_budget(&f, GPU_APU_HIP, 0, &b);
        near_gib("hip", c->tree.name, b.bytes, c->hip);
    }
}

/* HIP on a large carve-out is told of the memory that it does not use. */
static void test_hip_advice(void **state)
{
    (void)state;
    const GpuApuFacts f = read_tree(&cases[0].tree);
    GpuApuBudget b;
    gpu_apu_budget(&f, GPU_APU_HIP, 0, &b);
    assert_non_null(strstr(b.advice, "96 GiB are fixed for the GPU in the BIOS"));
    gpu_apu_budget(&f, GPU_APU_HIP, (uint64_t)(20 * GIB), &b); /* fits: nothing to say */
    assert_string_equal(b.advice, "");
}

/* Advice only where it would change the answer. */
static void test_advice_when_short(void **state)
{
    (void)state;
    const GpuApuFacts f = read_tree(&cases[4].tree);
    GpuApuBudget b;
    gpu_apu_budget(&f, GPU_APU_VULKAN, (uint64_t)(20 * GIB), &b);
    assert_string_equal(b.advice, "");
    gpu_apu_budget(&f, GPU_APU_VULKAN, (uint64_t)(80 * GIB), &b);
    assert_non_null(strstr(b.advice, "29360128"));
}

/* What the driver says, what the user reserves, and what is in use bound the budget. */
static void test_bounds(void **state)
{
    (void)state;
    GpuApuFacts f = read_tree(&cases[2].tree);
    GpuApuBudget b;
    f.heaps_free = (uint64_t)(40 * GIB);
    gpu_apu_budget(&f, GPU_APU_VULKAN, 0, &b);
    near_gib("heaps", "gtt120", b.bytes, 40);
    f.heaps_free = 0;
    f.reserve = (uint64_t)(64 * GIB);
    gpu_apu_budget(&f, GPU_APU_VULKAN, 0, &b);
    near_gib("reserve", "gtt120", b.bytes, 0.15 + 57);
    f.reserve = 0;
    f.gtt_used = (uint64_t)(100 * GIB);
    gpu_apu_budget(&f, GPU_APU_VULKAN, 0, &b);
    near_gib("gtt in use", "gtt120", b.bytes, 0.15 + 20);
    f.mem_available = (uint64_t)(5 * GIB); /* less than the reserve */
    gpu_apu_budget(&f, GPU_APU_VULKAN, 0, &b);
    near_gib("no memory", "gtt120", b.bytes, 0.15);
    assert_int_equal(b.host, 0);
}

static void test_no_amdgpu(void **state)
{
    (void)state;
    GpuApuFacts f;
    assert_false(gpu_apu_read(TEST_TMP "/apu/nowhere", PCI, &f));
    char root[256];
    (void)snprintf(root, sizeof root, "%s/apu/broken", TEST_TMP);
    write_text(root, "/sys/bus/pci/devices/" PCI "/mem_info_vram_total", "none\n");
    assert_false(gpu_apu_read(root, PCI, &f));
    assert_false(gpu_apu_read(root, "", &f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets),           cmocka_unit_test(test_hip_advice),
        cmocka_unit_test(test_advice_when_short), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_no_amdgpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
