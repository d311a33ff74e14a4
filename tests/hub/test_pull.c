/* Pulls from a hub that misbehaves: whatever happens, no damaged file has its name in the store. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "formats/build_files.h"
#include "support/fake_hub.h"
#include "weights/bundle.h"
#include "weights/listing.h"
#include "weights/pull.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { BIG = 300000, NOTES_MAX = 1 << 16 };

static Arena arena;
static TempDir dir;
static FakeHub *hub;
static PullOptions options;
static StrBuf notes;
static char big[2][BIG];
static uint64_t stop_at; /* progress says no once so many bytes are there */

static bool progress(void *ctx, const PullProgress *p)
{
    (void)ctx;
    return stop_at == 0 || p->phase != PULL_FETCHING || p->done_bytes < stop_at;
}

static void note(void *ctx, const char *text)
{
    (void)ctx;
    strbuf_printf(&notes, "%s\n", text);
}

static int make(void **state)
{
    (void)state;
    arena_init(&arena, "test");
    strbuf_init(&notes, NOTES_MAX);
    temp_open(&dir);
    stop_at = 0;
    uint32_t x = 1;
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < BIG; i++)
            big[f][i] = (char)((x = x * 1664525U + 1013904223U) >> 24);
    hub = calloc(1, sizeof *hub);
    assert_non_null(hub);
    hub->repo = "me/model";
    return 0;
}

static int clean(void **state)
{
    (void)state;
    if (hub->thread)
        fake_hub_stop(hub);
    free(hub);
    strbuf_free(&notes);
    arena_free(&arena);
    temp_remove(dir.path);
    return 0;
}

static void start(void)
{
    Error err;
    assert_true(fake_hub_start(hub));
    options =
        (PullOptions){.endpoint = arena_printf(&arena, &err, "http://127.0.0.1:%d", hub->port),
                      .store = arena_printf(&arena, &err, "%s/store", dir.path),
                      .revision = "main",
                      .jobs = 4,
                      .n_tries = 4,
                      .backoff_ms = 5,
                      .low_speed_s = 1,
                      .progress = progress,
                      .note = note};
}

static FakeFile *text(const char *path, const char *content)
{
    return fake_hub_add(hub, path, content, strlen(content));
}

static FakeFile *add_big(const char *path, int which)
{
    return fake_hub_add(hub, path, big[which], BIG);
}

static PullResult pulls(const char *name)
{
    PullResult r;
    Error err = {0};
    if (!pull_model(&arena, &options, name, &r, &err))
        fail_msg("%s: %s", name, err.msg);
    return r;
}

static void refuses(const char *name, ErrCode code, const char *says)
{
    PullResult r;
    Error err = {0};
    if (pull_model(&arena, &options, name, &r, &err))
        fail_msg("%s: pulled, wanted \"%s\"", name, says);
    expect_error(name, &err, code, &says, 1);
}

static const char *in_store(const char *name)
{
    Error err;
    return arena_printf(&arena, &err, "%s/store/me/model/%s", dir.path, name);
}

static void holds(const char *name, const char *data, size_t n)
{
    Str found;
    Error err = {0};
    if (!file_read(&arena, in_store(name), 1 << 24, &found, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(found.len, n);
    assert_memory_equal(found.ptr, data, n);
}

static bool is_there(const char *name)
{
    return file_exists(in_store(name));
}

static uint64_t part_bytes(void)
{
    DIR *d = opendir(in_store(""));
    const struct dirent *e;
    uint64_t bytes = 0;
    while (d && (e = readdir(d)) != NULL)
        if (str_ends(str_from(e->d_name), ".part"))
            bytes += file_size(in_store(e->d_name));
    if (d)
        closedir(d);
    return bytes;
}

static void safetensors_repo(void)
{
    text("config.json", "{\"model_type\":\"llama\"}");
    text("tokenizer.json", "{}");
    text("README.md", "# hello");
    text(".gitattributes", "*");
    text("LICENSE", "free");
    text("pytorch_model.bin", "no");
    text("original/consolidated.00.pth", "no");
    text("model.safetensors.index.json",
         "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
         "\"b\":\"model-00002-of-00002.safetensors\"}}");
    add_big("model-00001-of-00002.safetensors", 0);
    add_big("model-00002-of-00002.safetensors", 1);
    text("consolidated.safetensors", "the same again");
    text("onnx/model.safetensors", "no");
}

/* ---- what is taken ---- */

static void test_safetensors(void **state)
{
    (void)state;
    safetensors_repo();
    hub->page = 3;
    start();
    PullResult r = pulls("me/model");
    assert_int_equal(r.n_files, 6);
    holds("config.json", "{\"model_type\":\"llama\"}", 22);
    holds("LICENSE", "free", 4);
    holds("model-00001-of-00002.safetensors", big[0], BIG);
    holds("model-00002-of-00002.safetensors", big[1], BIG);
    assert_false(is_there("README.md"));
    assert_false(is_there("consolidated.safetensors"));
    assert_false(is_there("pytorch_model.bin"));
    assert_int_equal(part_bytes(), 0);
    r = pulls("me/model"); /* all is checked, nothing is fetched */
    assert_int_equal(r.fetched_bytes, 0);
    /* a file that was damaged since comes again */
    const int fd = open(in_store("model-00002-of-00002.safetensors"), O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 1000), 1);
    close(fd);
    r = pulls("me/model");
    assert_int_equal(r.fetched_bytes, BIG);
    holds("model-00002-of-00002.safetensors", big[1], BIG);
}

static void test_gguf(void **state)
{
    (void)state;
    text("README.md", "x");
    add_big("mmproj-F16.gguf", 0);
    add_big("m-Q8_0.gguf", 0);
    add_big("m-Q4_0.gguf", 0);
    add_big("m-Q4_K_M.gguf", 1);
    add_big("BF16/m-BF16-00001-of-00002.gguf", 0);
    add_big("BF16/m-BF16-00002-of-00002.gguf", 1);
    start();
    PullResult r = pulls("me/model");
    assert_int_equal(r.n_files, 1);
    holds("m-Q4_K_M.gguf", big[1], BIG);
    assert_non_null(strstr(notes.ptr, "taking Q4_K_M; there are also Q8_0, Q4_0, BF16"));
    assert_false(is_there("mmproj-F16.gguf"));
    r = pulls("me/model:bf16");
    assert_int_equal(r.n_files, 2);
    holds("m-BF16-00001-of-00002.gguf", big[0], BIG);
    holds("m-BF16-00002-of-00002.gguf", big[1], BIG);
    refuses("me/model:Q5_K_M", ERR_NOT_FOUND, "no GGUF model named Q5_K_M; there are Q8_0, Q4_0");
}

static void test_split_missing(void **state)
{
    (void)state;
    add_big("m-Q4_0-00001-of-00003.gguf", 0);
    add_big("m-Q4_0-00003-of-00003.gguf", 0);
    start();
    refuses("me/model", ERR_FORMAT, "2 of the 3 files");
}

/* ---- what goes wrong on the way ---- */

static void test_cut(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->cut_at[0] = 100000;
    f->cut_at[1] = 1;
    f->cut_at[2] = 50001;
    start();
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_int_equal(atomic_load(&f->served_bytes), BIG); /* nothing twice */
    assert_int_equal(atomic_load(&f->first_range), 150002);
    assert_int_equal(atomic_load(&f->n_requests), 4);
}

static void test_stall(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->stall_at[0] = 70000;
    start();
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_int_equal(atomic_load(&f->served_bytes), BIG);
    assert_non_null(strstr(notes.ptr, "trying again"));
}

static void test_wrong_hash(void **state)
{
    static const char wrong[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->listed_sha256 = wrong;
    start();
    refuses("me/model", ERR_FORMAT, "hash is");
    assert_false(is_there("model.safetensors"));
    assert_false(is_there("config.json"));
    assert_int_equal(atomic_load(&f->n_requests), 2);
}

static void test_size_only(void **state)
{
    (void)state;
    text("config.json", "{}")->no_hash = true;
    FakeFile *f = add_big("model.safetensors", 0);
    f->no_hash = true;
    f->cut_at[0] = 5000;
    start();
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
}

static void test_ranges(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->cut_at[0] = 100000;
    f->ignores_range = true;
    start();
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_int_equal(atomic_load(&f->served_bytes), BIG + 100000);
}

static void test_range_lies(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->cut_at[0] = 100000;
    f->lies_range = true;
    start();
    refuses("me/model", ERR_FORMAT, "another range");
    assert_false(is_there("model.safetensors"));
}

static void test_busy(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->status[0] = 429;
    f->status[1] = 500;
    f->status[2] = 503;
    start();
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
}

static void test_gone(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    for (int i = 0; i < FAKE_TRIES; i++)
        f->status[i] = 500;
    start();
    refuses("me/model", ERR_IO, "answers 500 (4 tries)");
    assert_false(is_there("model.safetensors"));
    f->status[4] = 404;
    refuses("me/model", ERR_NOT_FOUND, "has not got it (404)");
    assert_false(is_there("config.json"));
}

static void test_list_refused(void **state)
{
    (void)state;
    text("config.json", "{}");
    start();
    hub->list_status = 404;
    refuses("me/model", ERR_NOT_FOUND, "no such model");
    hub->list_status = 401;
    refuses("me/model", ERR_IO, "/me/model and set HF_TOKEN");
    hub->list_status = 403;
    options.token = "hf_x";
    refuses("me/model", ERR_IO, "with this token. If it is gated, accept its licence at http://");
    hub->list_status = 401;
    hub->error_code = "RepoNotFound";
    refuses("me/model", ERR_NOT_FOUND, "no such model");
    assert_false(file_exists(options.store)); /* nothing is made before there is a model */
    options.endpoint = "http://127.0.0.1:1";
    refuses("me/model", ERR_IO, "connect");
}

static void test_token(void **state)
{
    (void)state;
    text("config.json", "{}");
    add_big("model.safetensors", 0)->elsewhere = true;
    hub->token = "hf_secret";
    start();
    refuses("me/model", ERR_IO, "set HF_TOKEN");
    options.token = "hf_secret";
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_true(atomic_load(&hub->token_at_hub));
    assert_false(atomic_load(&hub->token_elsewhere));
    options.token = "a\r\nEvil: b";
    refuses("me/model", ERR_USAGE, "HF_TOKEN");
}

static void test_redirects(void **state)
{
    Error err;
    (void)state;
    text("config.json", "{}");
    add_big("model.safetensors", 0)->elsewhere = true;
    start();
    hub->redirect_to = "file:///etc/passwd";
    refuses("me/model", ERR_FORMAT, "not followed");
    hub->redirect_to = arena_printf(&arena, &err, "http://127.0.0.1:%d/me/model/resolve/main/%s",
                                    hub->port, "model.safetensors");
    refuses("me/model", ERR_FORMAT, "redirects");
    hub->next = "http://localhost:1/next";
    refuses("me/model", ERR_FORMAT, "another host");
    assert_false(is_there("model.safetensors"));
}

/* ---- interrupted ---- */

static void test_cancel(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->bytes_s = 400000;
    start();
    stop_at = 60000;
    refuses("me/model", ERR_CANCELLED, "interrupted");
    assert_false(is_there("model.safetensors"));
    assert_false(is_there("config.json"));
    const uint64_t kept = part_bytes();
    assert_true(kept >= 60000 && kept < BIG);
    stop_at = 0;
    f->bytes_s = 0;
    const PullResult r = pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_true(r.fetched_bytes <= BIG + 2 - kept);
    assert_true(atomic_load(&f->first_range) >= 60000 - 2);
}

static pid_t in_child(void)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    PullResult r;
    Error err;
    Arena a;
    arena_init(&a, "child");
    _exit(pull_model(&a, &options, "me/model", &r, &err) ? 0 : 1);
}

static void test_killed(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->bytes_s = 400000;
    start();
    for (int round = 1; round <= 2; round++) {
        const pid_t pid = in_child();
        for (int i = 0; i < 500 && part_bytes() < (uint64_t)round * 50000; i++)
            usleep(10000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        assert_false(is_there("model.safetensors"));
        assert_true(part_bytes() >= (uint64_t)round * 50000);
    }
    f->bytes_s = 0;
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_true(atomic_load(&f->first_range) >= 100000 - 2);
}

static void test_two_at_once(void **state)
{
    int status;
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->bytes_s = 1000000;
    start();
    const pid_t pid = in_child();
    const PullResult r = pulls("me/model");
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(r.n_files, 2);
    holds("model.safetensors", big[0], BIG);
    assert_int_equal(atomic_load(&f->served_bytes), BIG); /* the second waited, and found it */
}

static void test_disk_full(void **state)
{
    struct rlimit was, small;
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    start();
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    PullResult r;
    Error err = {0};
    const bool pulled = pull_model(&arena, &options, "me/model", &r, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_false(pulled);
    assert_int_equal(err.code, ERR_FIT);
    assert_non_null(strstr(err.msg, "disk is full"));
    assert_false(is_there("model.safetensors"));
    pulls("me/model");
    holds("model.safetensors", big[0], BIG);
    assert_true(atomic_load(&f->first_range) > 0);
}

static void test_revision_changed(void **state)
{
    (void)state;
    text("config.json", "{}");
    FakeFile *f = add_big("model.safetensors", 0);
    f->bytes_s = 400000;
    start();
    stop_at = 60000;
    refuses("me/model", ERR_CANCELLED, "interrupted");
    stop_at = 0;
    f->bytes_s = 0;
    f->data = big[1]; /* the part of the old one is no beginning of the new one */
    pulls("me/model");
    holds("model.safetensors", big[1], BIG);
    assert_int_equal(atomic_load(&f->first_range), -1);
    assert_int_equal(part_bytes(), 0);
}

/* ---- hostile hubs ---- */

static void test_names(void **state)
{
    static const char *const paths[] = {"../../evil.gguf",
                                        "/tmp/evil.gguf",
                                        "a/../../evil.gguf",
                                        "a//b.gguf",
                                        "..",
                                        "a\\\\b.gguf",
                                        "a\\u0000b.gguf",
                                        "a\\nb.gguf",
                                        "\\u009bx.gguf",
                                        ".../\\u001b.gguf",
                                        ""};
    char listing[600];
    (void)state;
    start();
    hub->listing = listing;
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        PullResult r;
        Error err = {0};
        snprintf(listing, sizeof listing,
                 "[{\"type\":\"file\",\"path\":\"%s\",\"size\":1,\"oid\":"
                 "\"0123456789012345678901234567890123456789\"}]",
                 paths[i]);
        assert_false(pull_model(&arena, &options, "me/model", &r, &err));
        if (err.code != ERR_FORMAT)
            fail_msg("%s: %s", paths[i], err.msg);
    }
    static const char *const lists[] = {
        "",
        "{}",
        "[",
        "[1]",
        "[{}]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\"}]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\",\"size\":-1}]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\",\"size\":99999999999999999}]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\",\"size\":1,\"lfs\":{\"oid\":\"zz\",\"size\":1}}]"};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        hub->listing = lists[i];
        refuses("me/model", ERR_FORMAT, "");
    }
    char *large = malloc(LISTING_PAGE_MAX + 10);
    assert_non_null(large);
    memset(large, ' ', LISTING_PAGE_MAX + 9);
    large[LISTING_PAGE_MAX + 9] = '\0';
    hub->listing = large;
    refuses("me/model", ERR_FORMAT, "more than");
    free(large);
    assert_false(file_exists(options.store));
    static const char *const names[] = {"model", "../x", "a/b/c", "a/..", "/a", "a/b:../c", ""};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        refuses(names[i], ERR_USAGE, "");
}

static void test_index_names_unlisted(void **state)
{
    (void)state;
    text("config.json", "{}");
    text("model.safetensors", "");
    text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"other.safetensors\"}}");
    start();
    refuses("me/model", ERR_FORMAT, "other.safetensors, which the repository has not");
}

static void test_links(void **state)
{
    char path[900];
    (void)state;
    text("config.json", "{}");
    add_big("model.safetensors", 0);
    start();
    temp_text(&dir, "outside/model.safetensors", "mine");
    temp_text(&dir, "store/me/x", "");
    temp_path(&dir, "outside", path, sizeof path);
    Error err;
    const char *link = arena_printf(&arena, &err, "%s/store/me/model", dir.path);
    assert_int_equal(symlink(path, link), 0);
    refuses("me/model", ERR_IO, "no directory of its own");
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkdir(link, 0777), 0);
    const char *target = arena_printf(&arena, &err, "%s/model.safetensors", path);
    assert_int_equal(symlink(target, in_store("model.safetensors")), 0);
    pulls("me/model"); /* the link is replaced, not followed */
    holds("model.safetensors", big[0], BIG);
    assert_int_equal(file_size(target), 4);
}

static void test_offline(void **state)
{
    (void)state;
    start();
    setenv("HF_HUB_OFFLINE", "1", 1);
    setenv("HF_ENDPOINT", "http://localhost:1///", 1);
    setenv("HF_TOKEN", "abc", 1);
    PullOptions o;
    Error err = {0};
    PullResult r;
    assert_true(pull_options(&arena, &o, &err));
    assert_string_equal(o.endpoint, "http://localhost:1");
    assert_string_equal(o.token, "abc");
    assert_false(pull_model(&arena, &o, "me/model", &r, &err));
    assert_non_null(strstr(err.msg, "HF_HUB_OFFLINE is set"));
    setenv("HF_HUB_OFFLINE", "0", 1);
    unsetenv("HF_TOKEN");
    setenv("HF_HOME", dir.path, 1);
    temp_text(&dir, "token", "def\n");
    assert_true(pull_options(&arena, &o, &err));
    assert_null(o.offline);
    assert_string_equal(o.token, "def");
    assert_int_equal(atomic_load(&hub->n_requests), 0);
    unsetenv("HF_HOME");
    unsetenv("HF_ENDPOINT");
}

/* ---- bundles ---- */

static void test_bundle(void **state)
{
    char path[900];
    Error err = {0};
    PullResult r, back;
    (void)state;
    safetensors_repo();
    start();
    r = pulls("me/model");
    temp_path(&dir, "b.tar", path, sizeof path);
    if (!bundle_write(&arena, &options, &r, path, &err))
        fail_msg("%s", err.msg);
    const char *first = options.store;
    options.store = arena_printf(&arena, &err, "%s/second", dir.path);
    if (!bundle_read(&arena, &options, path, &back, &err))
        fail_msg("%s", err.msg);
    assert_string_equal(back.name, "me/model");
    assert_int_equal(back.n_files, r.n_files);
    for (int i = 0; i < r.n_files; i++) {
        Str a, b;
        assert_true(file_read(&arena,
                              arena_printf(&arena, &err, "%s/me/model/%s", first, r.files[i]),
                              1 << 24, &a, &err));
        assert_true(file_read(&arena, arena_printf(&arena, &err, "%s/%s", back.dir, r.files[i]),
                              1 << 24, &b, &err));
        assert_true(str_eq(a, b));
    }
    /* damaged anywhere or cut anywhere: nothing gets a name */
    Str whole;
    assert_true(file_read(&arena, path, 1 << 24, &whole, &err));
    char *copy = arena_strdup(&arena, whole.ptr, whole.len, &err);
    options.store = arena_printf(&arena, &err, "%s/third", dir.path);
    const char *third = arena_printf(&arena, &err, "%s/me/model/config.json", options.store);
    const size_t spots[] = {
        0, 100, 600, 1024, 900, 5000, 200000, 500000, whole.len - 1024 - 512 - 400};
    for (size_t i = 0; i < COUNT_OF(spots); i++) {
        copy[spots[i]] ^= 1;
        temp_write(&dir, "bad.tar", copy, whole.len);
        copy[spots[i]] ^= 1;
        char bad[900];
        if (bundle_read(&arena, &options, temp_path(&dir, "bad.tar", bad, sizeof bad), &back, &err))
            fail_msg("byte %zu changed: accepted", spots[i]);
        assert_false(file_exists(third));
        temp_write(&dir, "bad.tar", copy, spots[i]);
        if (bundle_read(&arena, &options, bad, &back, &err))
            fail_msg("cut at %zu: accepted", spots[i]);
        assert_int_equal(err.code, ERR_FORMAT);
        assert_false(file_exists(third));
    }
}

static void test_bundle_names(void **state)
{
    static const char *const bad[] = {
        "{\"name\":\"me/model\",\"files\":[{\"name\":\"../x\",\"bytes\":0,\"sha256\":\"%s\"}]}",
        "{\"name\":\"me/model\",\"files\":[{\"name\":\"a/b\",\"bytes\":0,\"sha256\":\"%s\"}]}",
        "{\"name\":\"me/model\",\"files\":[{\"name\":\".x\",\"bytes\":0,\"sha256\":\"%s\"}]}",
        "{\"name\":\"../model\",\"files\":[{\"name\":\"x\",\"bytes\":0,\"sha256\":\"%s\"}]}",
        "{\"name\":\"model\",\"files\":[{\"name\":\"x\",\"bytes\":0,\"sha256\":\"%s\"}]}",
        "{\"name\":\"me/model\",\"files\":[]}"};
    (void)state;
    start();
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char block[1024] = "mere-bundle.json";
        char hash[65];
        char json[400];
        fake_hub_sha256("", 0, hash);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(json, sizeof json, bad[i], hash);
#pragma GCC diagnostic pop
        snprintf(block + 124, 12, "%011o", (unsigned)strlen(json));
        memcpy(block + 257, "ustar", 6);
        block[156] = '0';
        memset(block + 148, ' ', 8);
        unsigned sum = 0;
        for (int k = 0; k < 512; k++)
            sum += (unsigned char)block[k];
        snprintf(block + 148, 8, "%06o", sum);
        memcpy(block + 512, json, strlen(json));
        temp_write(&dir, "bad.tar", block, sizeof block);
        char path[900];
        PullResult r;
        Error err = {0};
        assert_false(
            bundle_read(&arena, &options, temp_path(&dir, "bad.tar", path, sizeof path), &r, &err));
        if (err.code != ERR_FORMAT)
            fail_msg("%s: %s", bad[i], err.msg);
        assert_false(file_exists(options.store));
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_safetensors),
        TEST(test_gguf),
        TEST(test_split_missing),
        TEST(test_cut),
        TEST(test_stall),
        TEST(test_wrong_hash),
        TEST(test_size_only),
        TEST(test_ranges),
        TEST(test_range_lies),
        TEST(test_busy),
        TEST(test_gone),
        TEST(test_list_refused),
        TEST(test_token),
        TEST(test_redirects),
        TEST(test_cancel),
        TEST(test_killed),
        TEST(test_two_at_once),
        TEST(test_disk_full),
        TEST(test_revision_changed),
        TEST(test_names),
        TEST(test_index_names_unlisted),
        TEST(test_links),
        TEST(test_offline),
        TEST(test_bundle),
        TEST(test_bundle_names),
    };
    json_setup();
    setenv("no_proxy", "*", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
