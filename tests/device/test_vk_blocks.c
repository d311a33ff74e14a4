/* Weights and caches that do not fit one allocation of a Vulkan device, made so by a small limit.
 */
#include "device/device_check.h"

#if __has_include(<vulkan/vulkan_core.h>)

#include "device/vulkan/vk.h"

enum { HIDDEN = 64, WIDE = 2048, LAYERS = 3, LIMIT = 256 << 10, PAGE = 64 };

static bool is_vulkan(const NetRun *r)
{
    return strcmp(r->ops->name, "vulkan") == 0;
}

/* Layers of attention, then products of which each weight is larger than an allocation. */
static void build(Net *n)
{
    net_begin(n, 11);
    (void)snprintf(n->what, sizeof n->what, "blocks of %d bytes", LIMIT);
    Graph *g = n->graph;
    T x = net_embed(n, HIDDEN);
    for (int i = 0; i < LAYERS; i++) {
        const AttnDesc a = {
            .n_heads = 2, .n_kv_heads = 2, .head_dim = 16, .v_dim = 16, .scale = 0.25F};
        T y = g_lin(g, net_one(n, "qkv", &net_f32, 3 * 32, HIDDEN), x);
        y = g_attn(g, g_slice(g, y, 0, 32), g_slice(g, y, 32, 32), g_slice(g, y, 64, 32), &a);
        x = g_add(g, x, g_lin(g, net_one(n, "o", &net_f32, HIDDEN, 32), y));
    }
    net_end(n, g_lin(g, net_one(n, "wide", &net_f32, WIDE, HIDDEN), x), WIDE, 4, NET_SEQS);
}

static void check_blocks(const VkBlock *blocks, int n, const char *what)
{
    if (n < 2)
        fail_msg("%s: one block: nothing was split", what);
    for (int i = 0; i < n; i++)
        if (blocks[i].bytes > LIMIT)
            fail_msg("%s: block %d has %lld bytes, at most %d", what, i, (long long)blocks[i].bytes,
                     LIMIT);
}

static void test_split(void **state)
{
    Session *s = *state;
    NetRun *r = &s->exact;
    Net n;
    Error err;
    const NetClass c = {NUM_EXACT, KV_FORMAT_F32, PAGE};
    if (!is_vulkan(r))
        skip();
    build(&n);
    float *want = reference(s, &n, 2, PAGE);
    float *got = net_take(&n, (size_t)net_script_out(2) * NET_VOCAB, sizeof *got);
    const int64_t before = r->device->facts.max_bytes;
    r->device->facts.max_bytes = LIMIT;
    const bool ok = net_load(r, &n, &c, &err);
    r->device->facts.max_bytes = before;
    net_must(ok, &err);
    check_blocks(r->weights->blocks, r->weights->n_blocks, "weights");
    check_blocks(r->pool->blocks, r->pool->n_blocks, "cache");
    net_run(r, &n, 2, got);
    net_compare(&n, "exact", 2, got, want, EXACT_BOUND);
    unload(r);
    net_free(&n);
}

/* What cannot be split is refused with both sizes. */
static void test_too_small(void **state)
{
    Session *s = *state;
    NetRun *r = &s->exact;
    Net n;
    Error err;
    const NetClass c = {NUM_EXACT, KV_FORMAT_F32, PAGE};
    if (!is_vulkan(r))
        skip();
    build(&n);
    const int64_t before = r->device->facts.max_bytes;
    r->device->facts.max_bytes = 32 << 10; /* a layer's keys have more */
    const bool ok = net_load(r, &n, &c, &err);
    r->device->facts.max_bytes = before;
    assert_false(ok);
    assert_int_equal(err.code, ERR_NOMEM);
    assert_non_null(strstr(err.msg, "32768"));
    unload(r);
    net_free(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_split),
                                       cmocka_unit_test(test_too_small)};
    return cmocka_run_group_tests(tests, open_session, close_session);
}

#else

int main(void)
{
    return 77; /* no Vulkan headers, no Vulkan backend */
}

#endif
