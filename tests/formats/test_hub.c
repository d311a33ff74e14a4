/* Model names: paths, the store, the Hugging Face cache, and names that try to leave them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "formats/build_files.h"
#include "weights/hub.h"

static Arena arena;
static TempDir dir;
static HubRoots roots;

static int make(void **state)
{
    (void)state;
    Error err;
    arena_init(&arena, "test");
    temp_open(&dir);
    roots.store = arena_printf(&arena, &err, "%s/store", dir.path);
    roots.cache = arena_printf(&arena, &err, "%s/hub", dir.path);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    arena_free(&arena);
    temp_remove(dir.path);
    return 0;
}

static void resolves(const char *name, const char *want)
{
    const char *path;
    Error err = {0};
    char full[900];
    if (!hub_resolve(&arena, &roots, name, &path, &err))
        fail_msg("%s: %s", name, err.msg);
    assert_string_equal(path, temp_path(&dir, want, full, sizeof full));
}

static void refuses(const char *name, ErrCode code, const char *says)
{
    const char *path;
    Error err = {0};
    if (hub_resolve(&arena, &roots, name, &path, &err))
        fail_msg("%s: accepted as %s", name, path);
    expect_error(name, &err, code, &says, 1);
}

static void test_paths(void **state)
{
    (void)state;
    char path[900];
    temp_text(&dir, "plain/model.safetensors", "");
    temp_text(&dir, "plain/x.gguf", "");
    temp_text(&dir, "one/x.gguf", "");
    temp_text(&dir, "two/x.gguf", "");
    temp_text(&dir, "two/y.gguf", "");
    resolves(temp_path(&dir, "plain", path, sizeof path), "plain");
    resolves(temp_path(&dir, "plain/x.gguf", path, sizeof path), "plain/x.gguf");
    resolves(temp_path(&dir, "one", path, sizeof path), "one/x.gguf");
    refuses(temp_path(&dir, "two", path, sizeof path), ERR_USAGE, "x.gguf, y.gguf");
    refuses("./nothing/here", ERR_NOT_FOUND, "./nothing/here: no such file");
    refuses("/nothing/here.gguf", ERR_NOT_FOUND, "no such file");
}

static void test_store(void **state)
{
    (void)state;
    temp_text(&dir, "store/me/model-GGUF/model-Q4_0.gguf", "");
    temp_text(&dir, "store/me/model-GGUF/model-Q8_0.gguf", "");
    temp_text(&dir, "store/me/hf/model.safetensors", "");
    temp_text(&dir, "store/word/config.json", "{}");
    temp_text(&dir, "store/file.gguf", "");
    resolves("me/model-GGUF:q8_0", "store/me/model-GGUF/model-Q8_0.gguf");
    refuses("me/model-GGUF", ERR_USAGE, "2 GGUF models");
    refuses("me/model-GGUF:Q5_K", ERR_NOT_FOUND, "Q5_K");
    resolves("me/hf", "store/me/hf");
    resolves("word", "store/word");
    resolves("file", "store/file.gguf");
    resolves("file.gguf", "store/file.gguf");
    refuses("me/other", ERR_NOT_FOUND, "store");
}

static void test_cache(void **state)
{
    (void)state;
    temp_text(&dir, "hub/models--o--r/refs/main", "abc123\n");
    temp_text(&dir, "hub/models--o--r/snapshots/abc123/model.safetensors", "");
    temp_text(&dir, "hub/models--o--gone/refs/main", "abc123");
    temp_text(&dir, "hub/models--o--evil/refs/main", "../../../elsewhere");
    temp_text(&dir, "hub/models--o--long/refs/main",
              "0123456789012345678901234567890123456789012345678901234567890123456789"
              "0123456789012345678901234567890123456789012345678901234567890123456789"
              "0123456789012345678901234567890123456789012345678901234567890123456789");
    resolves("o/r", "hub/models--o--r/snapshots/abc123");
    refuses("o/gone", ERR_NOT_FOUND, "not here");
    refuses("o/evil", ERR_FORMAT, "names no revision");
    refuses("o/long", ERR_TOO_LONG, "refs/main");
    refuses("r", ERR_NOT_FOUND, "hub");                 /* the cache has no single words */
    temp_text(&dir, "store/o/r/model.safetensors", ""); /* the store comes first */
    resolves("o/r", "store/o/r");
}

/* Folders of Ollama and LM Studio, and repositories that keep a quant in a folder of its own. */
static void test_elsewhere(void **state)
{
#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define MODEL                                                                                      \
    "{\"layers\":[{\"mediaType\":\"x\"},{\"mediaType\":\"application/vnd.ollama.image.model\","
    Error err;
    (void)state;
    roots.ollama = arena_printf(&arena, &err, "%s/ollama", dir.path);
    roots.lmstudio[0] = arena_printf(&arena, &err, "%s/lm", dir.path);
    temp_text(&dir, "ollama/manifests/registry.ollama.ai/library/llama/latest",
              MODEL "\"digest\":\"sha256:" HEX "\"}]}");
    temp_text(&dir, "ollama/manifests/registry.ollama.ai/me/own/3b",
              MODEL "\"digest\":\"sha256:" HEX "\"}]}");
    temp_text(&dir, "ollama/manifests/registry.ollama.ai/library/evil/latest",
              MODEL "\"digest\":\"sha256:../../../../etc/passwd\"}]}");
    temp_text(&dir, "ollama/manifests/registry.ollama.ai/library/none/latest", "{}");
    temp_text(&dir, "lm/o/studio/x-Q4_0.gguf", "");
    temp_text(&dir, "lm/o/folders/Q8_0/x-Q8_0-00001-of-00002.gguf", "");
    temp_text(&dir, "lm/o/folders/BF16/x-BF16.gguf", "");
    resolves("llama", "ollama/blobs/sha256-" HEX);
    resolves("llama:latest", "ollama/blobs/sha256-" HEX);
    resolves("me/own:3b", "ollama/blobs/sha256-" HEX);
    refuses("me/own", ERR_NOT_FOUND, "mere pull");
    refuses("evil", ERR_FORMAT, "names no model blob");
    refuses("none", ERR_FORMAT, "names no model blob");
    resolves("o/studio", "lm/o/studio/x-Q4_0.gguf");
    resolves("o/folders:q8_0", "lm/o/folders/Q8_0/x-Q8_0-00001-of-00002.gguf");
    refuses("o/folders", ERR_USAGE, "say which");
    temp_text(&dir, "store/me/half/config.json.0123456789ab.part", "{");
    refuses("me/half", ERR_NOT_FOUND, "mere pull goes on");
    roots.ollama = NULL;
    roots.lmstudio[0] = NULL;
}

static void test_hostile_names(void **state)
{
    static const char *const names[] = {
        "",     "..",    "../x", "a/../b", "a/b/c",   "/x",       "a//b",  "a/",           ".a/b",
        "a/.b", "a b/c", "a/b:", "a/b:.",  "a/b:c/d", "a\\..\\b", "a/b\n", "caf\xc3\xa9/x"};
    (void)state;
    temp_text(&dir, "secret/model.safetensors", "");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *path;
        Error err = {0};
        if (file_is_dir(names[i])) /* ".." is a path that exists */
            continue;
        if (hub_resolve(&arena, &roots, names[i], &path, &err))
            fail_msg("\"%s\": accepted as %s", names[i], path);
        assert_true(err.code == ERR_USAGE || err.code == ERR_NOT_FOUND);
    }
    refuses("../secret", ERR_NOT_FOUND, "../secret");
    char name[1000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    refuses(name, ERR_USAGE, "no model name");
}

static void test_roots(void **state)
{
    (void)state;
    HubRoots r;
    Error err = {0};
    unsetenv("MERE_HOME");
    unsetenv("XDG_DATA_HOME");
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HOME");
    setenv("HOME", "/h", 1);
    assert_true(hub_roots(&arena, &r, &err));
    assert_string_equal(r.store, "/h/.local/share/mere/models");
    assert_string_equal(r.cache, "/h/.cache/huggingface/hub");
    setenv("XDG_DATA_HOME", "/d", 1);
    setenv("HF_HOME", "/f", 1);
    assert_true(hub_roots(&arena, &r, &err));
    assert_string_equal(r.store, "/d/mere/models");
    assert_string_equal(r.cache, "/f/hub");
    setenv("MERE_HOME", "/m", 1);
    setenv("HF_HUB_CACHE", "/c", 1);
    assert_true(hub_roots(&arena, &r, &err));
    assert_string_equal(r.store, "/m/models");
    assert_string_equal(r.cache, "/c");
    unsetenv("MERE_HOME");
    unsetenv("XDG_DATA_HOME");
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("HOME");
    assert_true(hub_roots(&arena, &r, &err));
    assert_true(!r.store && !r.cache);
    const char *path;
    assert_false(hub_resolve(&arena, &r, "a/b", &path, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_paths),     TEST(test_store),         TEST(test_cache),
        TEST(test_elsewhere), TEST(test_hostile_names), TEST(test_roots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
