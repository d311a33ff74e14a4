/* Devices listed, opened and closed again and again in one process, by several threads, and after
 * the driver failed: what drivers keep for a process must not run out. */
#include "device/device_net.h"

#include <pthread.h>
#include <stdio.h>

static const DeviceOps *vulkan(void)
{
    int n;
    const DeviceOps *const *all = device_backends(&n);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i]->name, "vulkan") == 0)
            return all[i];
    return NULL;
}

/* The first in this process that asks the driver: a call that fails leaves nothing behind, and the
 * next one tries again. */
static void test_first_use_fails(void **state)
{
    (void)state;
    const DeviceOps *ops = vulkan();
    /* Calls in their order, and the VkResult of each: lost, out of memory, unknown. */
    static const struct {
        const char *call;
        int at, result;
    } faults[] = {{"vkEnumerateInstanceVersion", 1, -4},
                  {"vkCreateInstance", 2, -1},
                  {"vkCreateInstance", 2, -4},
                  {"vkEnumeratePhysicalDevices", 3, -13}};
    DeviceInfo infos[DEVICES_MAX];
    int n;
    Error err;
    const char *device = getenv("MERE_TEST_DEVICE");
    if (!ops || (device && strncmp(device, "vulkan", 6) != 0))
        skip();
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        char fault[64];
        (void)snprintf(fault, sizeof fault, "vulkan:%d:%d", faults[i].at, faults[i].result);
        assert_int_equal(setenv("MERE_FAULT", fault, 1), 0);
        if (ops->list(infos, &n, &err)) {
            assert_int_equal(n, 0); /* no driver */
            assert_int_equal(unsetenv("MERE_FAULT"), 0);
            skip();
        }
        if (!strstr(err.msg, faults[i].call))
            fail_msg("%s failed with \"%s\", wanted %s", fault, err.msg, faults[i].call);
    }
    assert_int_equal(unsetenv("MERE_FAULT"), 0);
    net_must(ops->list(infos, &n, &err), &err);
}

static void list_many(const DeviceOps *ops, int times)
{
    DeviceInfo first[DEVICES_MAX];
    int n_first;
    Error err;
    net_must(ops->list(first, &n_first, &err), &err);
    assert_true(n_first > 0);
    for (int i = 1; i < times; i++) {
        DeviceInfo infos[DEVICES_MAX];
        int n;
        net_must(ops->list(infos, &n, &err), &err);
        if (n != n_first)
            fail_msg("list %d: %d devices, %d before", i, n, n_first);
        for (int j = 0; j < n; j++)
            assert_string_equal(infos[j].id, first[j].id);
    }
}

static const DeviceOps *tested(int *index)
{
    const DeviceOps *ops = NULL;
    Error err;
    net_must(device_find(str_from(net_device()), &ops, index, &err), &err);
    return ops;
}

static void test_list(void **state)
{
    (void)state;
    int index;
    list_many(tested(&index), 200);
}

/* The smallest network there is: most of a session is opening. */
static void test_sessions(void **state)
{
    (void)state;
    enum { TIMES = 60, WIDTH = 32 };
    static const NetClass exact = {NUM_EXACT, KV_FORMAT_F32, 16};
    const int counts[NET_SEQS] = {1, 0, 0};
    float first[NET_VOCAB];
    Net n;
    net_begin(&n, 3);
    net_end(&n, net_embed(&n, WIDTH), WIDTH, 1, 1);
    for (int i = 0; i < TIMES; i++) {
        float logits[NET_VOCAB];
        NetRun r;
        Error err;
        const bool ok = net_open_device(&r, net_device(), NUM_EXACT, &err) &&
                        net_load(&r, &n, &exact, &err) && net_step(&r, counts, logits, &err);
        if (!ok)
            fail_msg("session %d: %s", i + 1, err.msg);
        net_close(&r);
        if (i == 0)
            memcpy(first, logits, sizeof first);
        assert_memory_equal(first, logits, sizeof first);
    }
    net_free(&n);
}

/* ---- threads ---- */

static void *list_and_open(void *out)
{
    const char **failed = out;
    const DeviceOps *ops = NULL;
    int index;
    static const char *const what[] = {"list", "open"};
    for (int i = 0; i < 10; i++) {
        Error err;
        if (!device_find(str_from(net_device()), &ops, &index, &err)) {
            *failed = what[0];
            return NULL;
        }
        const DeviceOptions opt = {.index = index, .threads = 1, .numerics = NUM_FAST};
        Device *d;
        if (!ops->open(&opt, &d, &err)) {
            *failed = what[1];
            return NULL;
        }
        ops->close(d);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    const char *failed[THREADS] = {0};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, list_and_open, &failed[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        if (failed[i])
            fail_msg("thread %d: %s failed", i, failed[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_use_fails), /* first: nothing else has asked the driver */
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
