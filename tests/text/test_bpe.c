/* Byte-pair encoding against its definition: join the pair of lowest rank, the leftmost first,
 * until none is left; for short pieces, for long ones, and through the piece cache. */
#include "text/text_data.h"

#include "text/bpe.h"
#include "text/bytelevel.h"

enum { LETTERS = 4, TOKENS_MAX = 64 };

typedef struct Model {
    Arena arena;
    Vocab vocab;
    Bpe bpe;
    int merges[TOKENS_MAX][3]; /* left, right, joined */
    int n_merges;
} Model;

static Str token(const Model *m, int id)
{
    return vocab_bytes(&m->vocab, id);
}

/* Random merges of the letters a to d; each makes a new token. */
static void build(Model *m, uint64_t seed, int n_merges)
{
    Error err = {0};
    *m = (Model){0};
    arena_init(&m->arena, "test");
    vocab_init(&m->vocab, "test");
    for (int i = 0; i < LETTERS; i++) {
        const char c = (char)('a' + i);
        assert_true(vocab_add(&m->vocab, i, (Str){&c, 1}, 0, &err));
    }
    int n = LETTERS;
    for (int tries = 0; tries < 1000 && m->n_merges < n_merges; tries++) {
        const int l = (int)(next_random(&seed) % (uint32_t)n);
        const int r = (int)(next_random(&seed) % (uint32_t)n);
        char both[64];
        const Str a = token(m, l);
        const Str b = token(m, r);
        if (a.len + b.len > 12)
            continue;
        memcpy(both, a.ptr, a.len);
        memcpy(both + a.len, b.ptr, b.len);
        bool known = false;
        for (int i = 0; i < n; i++)
            known = known || str_eq(token(m, i), (Str){both, a.len + b.len});
        if (known)
            continue;
        assert_true(vocab_add(&m->vocab, n, (Str){both, a.len + b.len}, 0, &err));
        const int merge[3] = {l, r, n++};
        memcpy(m->merges[m->n_merges++], merge, sizeof merge);
    }
    assert_true(vocab_index(&m->vocab, &err));
    bpe_init(&m->bpe, &m->vocab);
    for (int i = 0; i < m->n_merges; i++) {
        char both[64];
        const Str l = token(m, m->merges[i][0]);
        const Str r = token(m, m->merges[i][1]);
        memcpy(both, l.ptr, l.len);
        memcpy(both + l.len, r.ptr, r.len);
        if (!bpe_add_merge(&m->bpe, (Str){both, l.len + r.len}, l.len, &err))
            fail_msg("%s", err.msg);
    }
    assert_true(bpe_index(&m->bpe, &err));
    assert_true(vocab_freeze(&m->vocab, &err));
}

static int64_t by_definition(const Model *m, Str text, int32_t *ids)
{
    int64_t n = 0;
    for (size_t i = 0; i < text.len; i++)
        ids[n++] = text.ptr[i] - 'a';
    for (;;) {
        int best = m->n_merges;
        int64_t at = -1;
        for (int64_t i = 0; i + 1 < n; i++) {
            for (int k = 0; k < best; k++) {
                if (m->merges[k][0] == ids[i] && m->merges[k][1] == ids[i + 1]) {
                    best = k;
                    at = i;
                }
            }
        }
        if (at < 0)
            return n;
        ids[at] = m->merges[best][2];
        memmove(ids + at + 1, ids + at + 2, (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

static void test_definition(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 60; round++) {
        Model m;
        build(&m, (uint64_t)round + 100, 5 + round % 30);
        BpeWork w;
        Error err = {0};
        assert_true(bpe_work_init(&w, 4096, &err));
        for (int i = 0; i < 60; i++) {
            char text[400];
            int32_t want[400];
            const size_t n = 1 + next_random(&seed) % (i % 3 ? 20 : sizeof text - 1);
            for (size_t k = 0; k < n; k++)
                text[k] = (char)('a' + next_random(&seed) % (i % 2 ? 2 : LETTERS));
            const int64_t n_want = by_definition(&m, (Str){text, n}, want);
            for (int again = 0; again < 2; again++) { /* the second time from the cache */
                w.n = 0;
                assert_true(bpe_encode(&m.bpe, &w, (Str){text, n}, &err));
                assert_string_equal(ids_text(&m.arena, w.ids, w.n),
                                    ids_text(&m.arena, want, n_want));
            }
        }
        bpe_work_free(&w);
        bpe_free(&m.bpe);
        vocab_free(&m.vocab);
        arena_free(&m.arena);
    }
}

/* Bytes that the vocabulary lacks are the unknown token, or nothing. */
static void test_missing_bytes(void **state)
{
    (void)state;
    Model m;
    Error err = {0};
    build(&m, 7, 3);
    BpeWork w;
    assert_true(bpe_work_init(&w, 10, &err));
    assert_true(bpe_encode(&m.bpe, &w, str_from("azb"), &err));
    assert_true(bpe_encode(&m.bpe, &w, str_from("z"), &err));
    assert_true(w.n > 0 && w.n <= 2);
    bpe_work_free(&w);
    m.bpe.unk = 3;
    assert_true(bpe_work_init(&w, 10, &err));
    assert_true(bpe_encode(&m.bpe, &w, str_from("z"), &err));
    assert_string_equal(ids_text(&m.arena, w.ids, w.n), "3");
    bpe_work_free(&w);
    bpe_free(&m.bpe);
    vocab_free(&m.vocab);
    arena_free(&m.arena);
}

static void test_vocab(void **state)
{
    (void)state;
    Arena a;
    Vocab v;
    Error err = {0};
    char name[32];
    arena_init(&a, "test");
    vocab_init(&v, "v");
    for (int i = 0; i < 5000; i++) {
        const int n = snprintf(name, sizeof name, "token-%d", i * 7);
        assert_true(vocab_add(&v, i * 3, (Str){name, (size_t)n}, i % 5 ? 0 : VOCAB_RAW, &err));
    }
    assert_false(vocab_add(&v, 3, str_from("x"), 0, &err));
    assert_int_equal(err.code, ERR_FORMAT);
    assert_false(vocab_add(&v, -1, str_from("x"), 0, &err));
    assert_false(vocab_add(&v, TOKENIZER_VOCAB_MAX, str_from("x"), 0, &err));
    assert_true(vocab_index(&v, &err));
    assert_true(vocab_set_added(&v, 4, str_from("<new>"), true, &err));
    assert_true(vocab_freeze(&v, &err));
    for (int i = 0; i < 5000; i++) {
        const int n = snprintf(name, sizeof name, "token-%d", i * 7);
        assert_int_equal(vocab_find(&v, (Str){name, (size_t)n}), i % 5 ? i * 3 : -1);
    }
    assert_int_equal(vocab_find(&v, str_from("token-1")), -1);
    assert_true(vocab_has(&v, 4) && !vocab_has(&v, 5) && !vocab_has(&v, v.n) && !vocab_has(&v, -1));
    assert_text("added", vocab_bytes(&v, 4), str_from("<new>"));
    vocab_free(&v);
    arena_free(&a);
}

/* Strings of every length that differ in one byte, and both ways to their key. */
static void test_keys(void **state)
{
    (void)state;
    enum { LONGEST = 300 };
    char text[LONGEST + VOCAB_PAD];
    Vocab v;
    Error err = {0};
    int id = 0;
    vocab_init(&v, "v");
    for (int round = 0; round < 2; round++) { /* then they are looked for */
        for (size_t len = 1; len <= LONGEST; len += len < 24 ? 1 : 23) {
            memset(text, 'a', sizeof text);
            for (size_t i = 0; i <= len; i++) {
                if (i < len)
                    text[i] = 'b'; /* "baa", "bba", "bbb", "aaa" */
                else
                    memset(text, 'a', len);
                const VocabKey key = vocab_key(text, len);
                const VocabKey padded = vocab_key_padded(text, len);
                assert_true(key.lo == padded.lo && key.hi == padded.hi && key.hash == padded.hash);
                if (round == 0)
                    assert_true(vocab_add(&v, id++, (Str){text, len}, 0, &err));
                else
                    assert_int_equal(vocab_find(&v, (Str){text, len}), id++);
            }
        }
        if (round == 0) {
            assert_true(vocab_index(&v, &err));
            assert_true(vocab_freeze(&v, &err));
        }
        id = 0;
    }
    assert_int_equal(vocab_find(&v, str_from("c")), -1);
    assert_int_equal(vocab_find(&v, str_from("aaaaaaaaaaaaaaaaaaaaaaac")), -1);
    vocab_free(&v);
}

/* The short way through a JSON string gives what the long one gives. */
static void test_scan(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "a",        "Z",        "\xC4\xA0", "\xC3\xA9", "\xC5\x83", "~",    "\xC2\xA1",
        "1234567",  "!#[]^",    " ",        "\"",       "\\n",      "\x7F", "\xE4\xB8\xAD",
        "\xC2\xAD", "\xC5\x84", "\x01",     "\xC4"};
    enum { GOOD = 9 };
    uint64_t seed = 3;
    for (int round = 0; round < 20000; round++) {
        char text[128];
        char want[128];
        char got[128];
        size_t n = 0;
        size_t good = 0;
        bool bad = false;
        for (uint32_t i = next_random(&seed) % 12; i > 0; i--) {
            const uint32_t k =
                next_random(&seed) % (round % 2 ? (uint32_t)COUNT_OF(parts) : (uint32_t)GOOD);
            memcpy(text + n, parts[k], strlen(parts[k]));
            n += strlen(parts[k]);
            bad = bad || k >= GOOD;
            good = bad ? good : n;
        }
        const int64_t n_want = bytelevel_decode((Str){text, good}, want);
        assert_true(n_want >= 0);
        const char *p = text;
        const size_t n_got = bytelevel_scan(&p, text + n, got, sizeof got);
        assert_int_equal(p - text, good);
        assert_text("scanned", (Str){got, n_got}, (Str){want, (size_t)n_want});
        p = text;
        assert_true(bytelevel_scan(&p, text + n, got, 3) <= 3);
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition), cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_vocab),      cmocka_unit_test(test_keys),
        cmocka_unit_test(test_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
