/* Pages, prefix tree and snapshots: known cases, then random sequences of operations after each of
 * which every reference is recounted (kv_verify), with contents checked through the fake device. */
#include "engine/fake_device.h"

typedef struct Rig {
    Arena a;
    Device device;
    Program program;
    KvPool *pool;
    KvPoolDesc desc;
    Kv *kv;
    KvSeq *seqs;
    int n_seqs, chunk, vocab;
} Rig;

static void rig_open(Rig *r, const FakeShape *s)
{
    Error err;
    *r = (Rig){.n_seqs = s->slots,
               .chunk = s->chunk,
               .vocab = s->vocab,
               .program = {s->vocab},
               .device = {.vocab = s->vocab, .in_flight = 1}};
    arena_init(&r->a, "rig");
    r->desc = fake_desc(s);
    r->pool = fake_pool(&r->desc);
    const KvDesc d = {.ops = &fake_ops,
                      .device = &r->device,
                      .pool = r->pool,
                      .desc = r->desc,
                      .ctx = s->ctx,
                      .slots = s->slots,
                      .max_rows = s->chunk,
                      .page_tokens = s->page_tokens,
                      .share = !s->no_share};
    if (!kv_open(&r->a, &d, &r->kv, &err))
        fail_msg("%s", err.msg);
    r->seqs = ARENA_ARRAY(&r->a, s->slots, KvSeq, &err);
    for (int i = 0; i < s->slots; i++)
        assert_true(kv_seq_init(r->kv, &r->a, &r->seqs[i], &err));
}

static void rig_close(Rig *r)
{
    fake_run_until(&r->device, 0);
    fake_pool_free(r->pool);
    arena_free(&r->a);
}

static void verify(Rig *r)
{
    const KvSeq *seqs[64];
    for (int i = 0; i < r->n_seqs; i++)
        seqs[i] = &r->seqs[i];
    Error err;
    if (!kv_verify(r->kv, seqs, r->n_seqs, &err))
        fail_msg("%s", err.msg);
}

/* Appends tokens up to length n and compares the logits after the last with the definition. */
static void extend(Rig *r, KvSeq *seq, const int32_t *tokens, int n)
{
    Error err;
    float logits[64];
    float want[64];
    while (seq->n_tokens < n) {
        const int rows = n - seq->n_tokens < r->chunk ? n - seq->n_tokens : r->chunk;
        Row row[64];
        for (int i = 0; i < rows; i++)
            row[i] = (Row){tokens[seq->n_tokens + i], seq->n_tokens + i};
        if (!kv_reserve(r->kv, seq, rows, &err))
            fail_msg("%s", err.msg);
        Segment seg = {0};
        kv_segment(r->kv, seq, rows, &seg);
        const int32_t out = rows - 1;
        const StepBlock step = {.n_rows = rows,
                                .n_segs = 1,
                                .n_out = 1,
                                .rows = row,
                                .segs = &seg,
                                .out_rows = &out,
                                .logits = logits};
        uint64_t ticket;
        assert_true(fake_submit(&r->device, &r->program, r->pool, &step, &ticket, &err));
        kv_commit(r->kv, seq, tokens, rows); /* before it ran */
        assert_true(fake_wait(&r->device, &r->program, ticket, 1, &err));
        fake_expect(&r->desc, tokens, seq->n_tokens, r->vocab, want);
        if (memcmp(logits, want, (size_t)r->vocab * sizeof(float)) != 0)
            fail_msg("other logits after %d tokens", seq->n_tokens);
    }
}

static const FakeShape plain = {
    .vocab = 11, .ctx = 40, .slots = 3, .chunk = 8, .page_tokens = 4, .n_groups = 1};

static void numbers(int32_t *out, int n, int from)
{
    for (int i = 0; i < n; i++)
        out[i] = from + i;
}

static void a_prefix_is_found_to_the_token(void **state)
{
    (void)state;
    Rig r;
    rig_open(&r, &plain);
    int32_t a[40];
    numbers(a, 40, 100);
    KvSeq *s = &r.seqs[0];
    const Str none = {"", 0};
    assert_true(kv_admit(r.kv, s, a, 10, 30, none, true));
    assert_int_equal(s->n_tokens, 0);
    extend(&r, s, a, 22);
    verify(&r);
    kv_release(r.kv, s, a, true);
    verify(&r);
    assert_int_equal(kv_counts(r.kv).live, 0);
    assert_int_equal(kv_counts(r.kv).idle, 6);
    /* The same 22: all but the last. A longer one: 22. One that parts at 14: 14. Another salt: 0.
     */
    assert_true(kv_admit(r.kv, s, a, 22, 30, none, true));
    assert_int_equal(s->n_tokens, 21);
    extend(&r, s, a, 22);
    kv_release(r.kv, s, a, true);
    assert_true(kv_admit(r.kv, s, a, 30, 40, none, true));
    assert_int_equal(s->n_tokens, 22);
    extend(&r, s, a, 30);
    int32_t b[40];
    numbers(b, 40, 100);
    b[14] = 9;
    KvSeq *t = &r.seqs[1];
    assert_true(kv_admit(r.kv, t, b, 30, 40, none, true));
    assert_int_equal(t->n_tokens, 14);
    extend(&r, t, b, 30);
    extend(&r, s, a, 33);
    verify(&r);
    KvSeq *u = &r.seqs[2];
    assert_true(kv_admit(r.kv, u, a, 30, 40, (Str){"key", 3}, true));
    assert_int_equal(u->n_tokens, 0);
    kv_release(r.kv, u, a, true);
    assert_true(kv_admit(r.kv, u, a, 30, 40, none, false));
    assert_int_equal(u->n_tokens, 0);
    kv_release(r.kv, u, a, false);
    kv_release(r.kv, t, b, true);
    kv_release(r.kv, s, a, true);
    verify(&r);
    kv_clear(r.kv);
    verify(&r);
    assert_int_equal(kv_counts(r.kv).free, kv_counts(r.kv).total);
    assert_int_equal(kv_counts(r.kv).nodes, 0);
    rig_close(&r);
}

static void running_sequences_share(void **state)
{
    (void)state;
    Rig r;
    rig_open(&r, &plain);
    int32_t a[40];
    numbers(a, 40, 0);
    const Str none = {"", 0};
    /* Two compute the same blocks at the same time: one copy stays. */
    assert_true(kv_admit(r.kv, &r.seqs[0], a, 20, 30, none, true));
    assert_true(kv_admit(r.kv, &r.seqs[1], a, 20, 30, none, true));
    extend(&r, &r.seqs[0], a, 20);
    extend(&r, &r.seqs[1], a, 20);
    verify(&r);
    assert_int_equal(kv_counts(r.kv).live, 5);
    /* A third takes what a running one has. */
    assert_true(kv_admit(r.kv, &r.seqs[2], a, 18, 30, none, true));
    assert_int_equal(r.seqs[2].n_tokens, 17);
    extend(&r, &r.seqs[2], a, 18);
    verify(&r);
    for (int i = 0; i < 3; i++)
        kv_release(r.kv, &r.seqs[i], a, true);
    verify(&r);
    rig_close(&r);
}

static void admission_keeps_what_was_claimed(void **state)
{
    (void)state;
    FakeShape s = plain;
    s.pages_less = 5; /* 25 pages for three times 10 */
    Rig r;
    rig_open(&r, &s);
    int32_t a[40];
    numbers(a, 40, 0);
    const Str none = {"", 0};
    assert_true(kv_admit(r.kv, &r.seqs[0], a, 4, 40, none, true));
    assert_true(kv_admit(r.kv, &r.seqs[1], a, 4, 40, none, true));
    assert_false(kv_admit(r.kv, &r.seqs[2], a, 4, 24, none, true));
    assert_true(kv_admit(r.kv, &r.seqs[2], a, 4, 20, none, true));
    Error err;
    extend(&r, &r.seqs[0], a, 40);
    assert_false(kv_reserve(r.kv, &r.seqs[0], 1, &err));
    assert_int_equal(err.code, ERR_FULL);
    kv_release(r.kv, &r.seqs[1], a, true);
    kv_release(r.kv, &r.seqs[2], a, true);
    verify(&r);
    rig_close(&r);
}

static void a_pool_of_one_sequence_reuses_its_own_last_block(void **state)
{
    (void)state;
    FakeShape s = plain;
    s.slots = 1;
    s.ctx = 8;
    Rig r;
    rig_open(&r, &s);
    int32_t a[8];
    numbers(a, 8, 0);
    const Str none = {"", 0};
    assert_true(kv_admit(r.kv, &r.seqs[0], a, 7, 8, none, true));
    extend(&r, &r.seqs[0], a, 8);
    kv_release(r.kv, &r.seqs[0], a, true);
    /* Both pages are the tree's: the copy has nowhere to go, the block itself is taken. */
    assert_true(kv_admit(r.kv, &r.seqs[0], a, 8, 8, none, true));
    assert_int_equal(r.seqs[0].n_tokens, 7);
    verify(&r);
    extend(&r, &r.seqs[0], a, 8);
    kv_release(r.kv, &r.seqs[0], a, true);
    verify(&r);
    rig_close(&r);
}

static void windows_give_pages_back(void **state)
{
    (void)state;
    FakeShape s = plain;
    s.n_groups = 2;
    s.windows[1] = 6;
    s.slots = 1;
    Rig r;
    rig_open(&r, &s);
    assert_int_equal(r.desc.n_pages[0], 10);
    assert_int_equal(r.desc.n_pages[1], 5 + 3); /* ceil(13 / 4) + 1, and ceil(6 / 4) + 1 */
    int32_t a[40];
    numbers(a, 40, 0);
    const Str none = {"", 0};
    KvSeq *q = &r.seqs[0];
    assert_true(kv_admit(r.kv, q, a, 4, 40, none, true));
    for (int n = 1; n <= 37; n++) {
        extend(&r, q, a, n);
        verify(&r);
        for (int b = 0; b < (n - 5) / 4; b++)
            assert_int_equal(q->pages[1][b], -1);
    }
    kv_release(r.kv, q, a, true);
    verify(&r);
    /* The window's pages of the end are still there, those of the beginning are not. */
    assert_true(kv_admit(r.kv, q, a, 38, 40, none, true));
    assert_int_equal(q->n_tokens, 37);
    extend(&r, q, a, 38);
    kv_release(r.kv, q, a, true);
    verify(&r);
    rig_close(&r);
}

static void state_resumes_at_snapshots_only(void **state)
{
    (void)state;
    FakeShape s = plain;
    s.state = true;
    s.n_snapshots = 2;
    Rig r;
    rig_open(&r, &s);
    int32_t a[40];
    numbers(a, 40, 0);
    const Str none = {"", 0};
    KvSeq *q = &r.seqs[0];
    assert_true(kv_admit(r.kv, q, a, 20, 40, none, true));
    extend(&r, q, a, 10);
    kv_snapshot(r.kv, q, a);
    kv_snapshot(r.kv, q, a); /* is there already */
    assert_int_equal(kv_counts(r.kv).states_kept, 1);
    extend(&r, q, a, 23);
    verify(&r);
    kv_release(r.kv, q, a, true); /* its own state becomes the second snapshot */
    assert_int_equal(kv_counts(r.kv).states_kept, 2);
    verify(&r);
    assert_true(kv_admit(r.kv, q, a, 22, 40, none, true));
    assert_int_equal(q->n_tokens, 10);
    extend(&r, q, a, 22);
    KvSeq *t = &r.seqs[1];
    assert_true(kv_admit(r.kv, t, a, 24, 40, none, true));
    assert_int_equal(t->n_tokens, 23);
    /* While a sequence is about to read a snapshot, it cannot go. */
    assert_true(kv_admit(r.kv, &r.seqs[2], a, 12, 40, none, true));
    assert_int_equal(r.seqs[2].n_tokens, 10);
    kv_snapshot(r.kv, q, a);
    verify(&r);
    extend(&r, t, a, 30);
    extend(&r, &r.seqs[2], a, 16);
    kv_snapshot(r.kv, q, a);
    verify(&r);
    for (int i = 0; i < 3; i++)
        kv_release(r.kv, &r.seqs[i], a, i == 1);
    verify(&r);
    kv_clear(r.kv);
    verify(&r);
    assert_int_equal(kv_counts(r.kv).states_free, 5);
    rig_close(&r);
}

/* Random prompts from a small alphabet with long common starts, in every shape. */
static void random_operations_leak_nothing(void **state)
{
    (void)state;
    static const FakeShape shapes[] = {
        {.vocab = 5, .ctx = 32, .slots = 4, .chunk = 8, .page_tokens = 4, .n_groups = 1},
        {.vocab = 5,
         .ctx = 32,
         .slots = 4,
         .chunk = 3,
         .page_tokens = 4,
         .n_groups = 1,
         .pages_less = 14},
        {.vocab = 5,
         .ctx = 32,
         .slots = 4,
         .chunk = 8,
         .page_tokens = 4,
         .n_groups = 2,
         .windows = {0, 7}},
        {.vocab = 5,
         .ctx = 48,
         .slots = 3,
         .chunk = 5,
         .page_tokens = 2,
         .n_groups = 3,
         .windows = {5, 0, 9},
         .pages_less = 20},
        {.vocab = 5,
         .ctx = 32,
         .slots = 3,
         .chunk = 8,
         .page_tokens = 4,
         .n_groups = 1,
         .windows = {6}},
        {.vocab = 5,
         .ctx = 32,
         .slots = 3,
         .chunk = 8,
         .page_tokens = 4,
         .n_groups = 1,
         .state = true,
         .n_snapshots = 3},
        {.vocab = 5,
         .ctx = 32,
         .slots = 3,
         .chunk = 8,
         .page_tokens = 8,
         .n_groups = 2,
         .windows = {0, 5},
         .state = true,
         .n_snapshots = 2,
         .pages_less = 3},
        {.vocab = 5,
         .ctx = 32,
         .slots = 3,
         .chunk = 8,
         .page_tokens = 4,
         .n_groups = 0,
         .state = true,
         .n_snapshots = 3},
        {.vocab = 5, .ctx = 32, .slots = 1, .chunk = 8, .page_tokens = 4, .n_groups = 1},
    };
    for (size_t c = 0; c < COUNT_OF(shapes); c++) {
        Rig r;
        rig_open(&r, &shapes[c]);
        srand(11 + (unsigned)c);
        int32_t tokens[4][64];
        int total[4];
        int hits = 0;
        for (int op = 0; op < 6000; op++) {
            const int i = rand() % r.n_seqs;
            KvSeq *s = &r.seqs[i];
            if (!s->live) {
                const int n = 1 + rand() % (shapes[c].ctx - 1);
                for (int j = 0; j < 64; j++) /* few forks, so that prefixes are common */
                    tokens[i][j] = j * 3 + (rand() % 12 == 0 ? rand() % 2 : 0);
                total[i] = n + rand() % (shapes[c].ctx - n + 1);
                const Str salt = {"s", (size_t)(rand() % 8 == 0)};
                if (kv_admit(r.kv, s, tokens[i], n, total[i], salt, rand() % 10 != 0)) {
                    assert_in_range(s->n_tokens, 0, n - 1);
                    hits += s->n_tokens > 0;
                    extend(&r, s, tokens[i], n < s->n_tokens + 5 ? n : s->n_tokens + 5);
                }
            } else if (rand() % 5 == 0 || s->n_tokens == total[i]) {
                kv_release(r.kv, s, tokens[i], rand() % 4 != 0);
            } else {
                const int more = 1 + rand() % 9;
                const int n = s->n_tokens + more < total[i] ? s->n_tokens + more : total[i];
                extend(&r, s, tokens[i], n);
                if (rand() % 3 == 0)
                    kv_snapshot(r.kv, s, tokens[i]);
            }
            if (op % 3 == 0)
                verify(&r);
        }
        for (int i = 0; i < r.n_seqs; i++)
            if (r.seqs[i].live)
                kv_release(r.kv, &r.seqs[i], tokens[i], true);
        verify(&r);
        kv_clear(r.kv);
        verify(&r);
        const KvCounts k = kv_counts(r.kv);
        assert_int_equal(k.free, k.total);
        assert_int_equal(k.nodes, 0);
        assert_int_equal(k.states_free, r.desc.n_states);
        if (hits < 100)
            fail_msg("shape %zu: only %d prefix hits", c, hits);
        rig_close(&r);
    }
}

static void sizes_are_counted(void **state)
{
    (void)state;
    FakeShape s = plain;
    s.n_groups = 2;
    s.windows[1] = 9;
    s.state = true;
    s.n_snapshots = 4;
    s.ctx = 4096;
    s.slots = 8;
    Rig r;
    const KvPoolDesc desc = fake_desc(&s);
    const KvDesc d = {.desc = desc,
                      .ctx = s.ctx,
                      .slots = s.slots,
                      .max_rows = s.chunk,
                      .page_tokens = s.page_tokens,
                      .share = true};
    rig_open(&r, &s);
    const int64_t said = kv_bytes(&d);
    const int64_t took = (int64_t)arena_bytes(&r.a);
    /* Arena blocks end in unused space: at most 1 MiB of the last, and a little of each. */
    if (took < said / 2 || took > said + said / 4 + (2 << 20))
        fail_msg("kv_bytes says %lld, the arena holds %lld", (long long)said, (long long)took);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_is_found_to_the_token),
        cmocka_unit_test(running_sequences_share),
        cmocka_unit_test(admission_keeps_what_was_claimed),
        cmocka_unit_test(a_pool_of_one_sequence_reuses_its_own_last_block),
        cmocka_unit_test(windows_give_pages_back),
        cmocka_unit_test(state_resumes_at_snapshots_only),
        cmocka_unit_test(random_operations_leak_nothing),
        cmocka_unit_test(sizes_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
