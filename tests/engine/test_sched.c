/* The scheduler over the fake device: what a request gets is what it would get alone, whatever else
 * runs, is cancelled or fails; and nothing leaks. */
#include "engine/fake_device.h"

#include <poll.h>
#include <pthread.h>

static const FakeShape plain = {.vocab = 40,
                                .ctx = 64,
                                .slots = 3,
                                .chunk = 8,
                                .page_tokens = 4,
                                .n_groups = 1,
                                .queue = 200,
                                .snapshot_tokens = 16};

static void open_fake(Fake *f, const FakeShape *s)
{
    Error err;
    if (!fake_open(f, s, &err))
        fail_msg("%s", err.msg);
}

static Request *submit_to(Fake *f, const MereRequest *r)
{
    Error err;
    Request *q;
    if (!request_new(r, r->ids, r->n_ids, &f->limits, &q, &err) ||
        !events_add(&f->events, q, &err) || !sched_submit(f->sched, q, &err))
        fail_msg("%s", err.msg);
    return q;
}

static MereRequest ask(const int32_t *ids, int n, int max_tokens)
{
    MereRequest r = MERE_REQUEST_INIT;
    r.ids = ids;
    r.n_ids = n;
    r.max_tokens = max_tokens;
    return r;
}

static void run_all(Fake *f)
{
    Error err;
    int guard = 0;
    while (sched_step(f->sched)) {
        if (!sched_verify(f->sched, &err))
            fail_msg("%s", err.msg);
        assert_true(++guard < 100000);
    }
}

/* Everything that came for one request. */
typedef struct Got {
    int32_t tokens[64];
    int n;
    char text[1024];
    size_t n_text;
    bool ended;
    MereFinish finish;
    MereError error;
    MereUsage usage;
    int rows;
} Got;

static void add_text(Got *g, MereStr s)
{
    assert_true(g->n_text + s.len < sizeof g->text);
    if (s.len)
        memcpy(g->text + g->n_text, s.ptr, s.len);
    g->n_text += s.len;
    g->text[g->n_text] = '\0';
}

static bool take(Fake *f, Got *got, int n_got)
{
    MereEvent ev;
    if (!events_next(&f->events, &ev, 0))
        return false;
    assert_in_range(ev.user, 0, (uintmax_t)n_got - 1);
    Got *g = &got[ev.user];
    assert_false(g->ended);
    if (ev.type == MERE_EVENT_TOKEN) {
        assert_int_equal(ev.index, g->n);
        g->tokens[g->n++] = ev.token;
        add_text(g, ev.text);
    } else if (ev.type == MERE_EVENT_LOGITS) {
        assert_int_equal(ev.index, g->rows);
        g->rows++;
    } else {
        add_text(g, ev.text);
        g->ended = true;
        g->finish = ev.finish;
        g->error = ev.error;
        g->usage = ev.usage;
    }
    return true;
}

static void drain(Fake *f, Got *got, int n_got)
{
    while (take(f, got, n_got))
        ;
}

static void expect_tokens(const Fake *f, const Got *g, const int32_t *ids, int n, int max,
                          bool ignore_eos)
{
    int32_t want[64];
    const int n_want = fake_greedy(f, ids, n, max, ignore_eos, want);
    assert_true(g->ended);
    if (g->n != n_want || memcmp(g->tokens, want, (size_t)n_want * sizeof *want) != 0)
        fail_msg("%d tokens (first %d), wanted %d (first %d)", g->n, g->n ? g->tokens[0] : -1,
                 n_want, want[0]);
    const bool eos = n_want > 0 && want[n_want - 1] == FAKE_EOS && !ignore_eos;
    assert_int_equal(g->finish, eos ? MERE_FINISH_STOP : MERE_FINISH_LENGTH);
}

static void one_greedy_request(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
    MereRequest r = ask(ids, 17, 20);
    r.ignore_eos = true;
    submit_to(&f, &r);
    struct pollfd p = {f.events.fd, POLLIN, 0};
    assert_int_equal(poll(&p, 1, 0), 0);
    run_all(&f);
    assert_int_equal(poll(&p, 1, 0), 1);
    Got got = {0};
    drain(&f, &got, 1);
    assert_int_equal(poll(&p, 1, 0), 0);
    expect_tokens(&f, &got, ids, 17, 20, true);
    assert_int_equal(f.device.steps, 3 + 19); /* 8 + 8 + 1 rows, the last with the first token */
    assert_int_equal(got.usage.prompt_tokens, 17);
    assert_int_equal(got.usage.completion_tokens, 20);
    assert_int_equal(got.usage.cached_tokens, 0);
    assert_true(got.usage.ttft_ms > 0 && got.usage.prefill_ms > 0 && got.usage.decode_ms > 0);
    /* Again: all but the last prompt token is there. */
    submit_to(&f, &r);
    run_all(&f);
    Got again = {0};
    drain(&f, &again, 1);
    expect_tokens(&f, &again, ids, 17, 20, true);
    assert_int_equal(again.usage.cached_tokens, 16);
    SchedStats st;
    sched_stats(f.sched, &st);
    assert_int_equal(st.requests, 2);
    assert_int_equal(st.pages_used, 0);
    assert_int_equal(st.live, 0);
    fake_close(&f);
}

static void steps_mix_decode_and_prefill(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    int32_t a[40];
    for (int i = 0; i < 40; i++)
        a[i] = (i * 7 + 3) % 37 + 3;
    MereRequest first = ask(a, 4, 12);
    first.ignore_eos = true;
    submit_to(&f, &first);
    assert_true(sched_step(f.sched));
    MereRequest second = ask(a + 1, 30, 2);
    second.user = 1;
    second.ignore_eos = true;
    submit_to(&f, &second);
    /* One row of the first and seven of the second's prompt. */
    const int64_t before = f.device.rows;
    assert_true(sched_step(f.sched));
    assert_int_equal(f.device.rows - before, 8);
    run_all(&f);
    Got got[2] = {0};
    drain(&f, got, 2);
    expect_tokens(&f, &got[0], a, 4, 12, true);
    expect_tokens(&f, &got[1], a + 1, 30, 2, true);
    assert_true(f.device.most_rows <= 8);
    fake_close(&f);
}

static void text_and_stops_over_tokens(void **state)
{
    (void)state;
    /* Sampling is forced by biases: the text does not depend on the hash. */
    Fake f;
    open_fake(&f, &plain);
    const int32_t ids[] = {20, 21};
    const struct {
        int32_t forced;
        const char *text;
    } one[] = {{3, "aaaa"}, {8, ""}, {7, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}};
    for (size_t i = 0; i < COUNT_OF(one); i++) {
        const MereBias bias = {one[i].forced, 1000};
        const MereStr stop = MERE_STR("END");
        MereRequest r = ask(ids, 2, 4);
        r.sampling.bias = &bias;
        r.sampling.n_bias = 1;
        r.stops = &stop;
        r.n_stops = 1;
        submit_to(&f, &r);
        run_all(&f);
        Got got = {0};
        drain(&f, &got, 1);
        assert_string_equal(got.text, one[i].text);
        assert_int_equal(got.finish, i == 1 ? MERE_FINISH_STOP : MERE_FINISH_LENGTH);
        assert_int_equal(got.n, i == 1 ? 1 : 4);
    }
    /* "EN" again and again: each is held until the next shows that it was no stop. */
    const MereBias en = {9, 1000};
    const MereStr stops[] = {MERE_STR("ENENENEN!"), MERE_STR("END")};
    MereRequest r = ask(ids, 2, 5);
    r.sampling.bias = &en;
    r.sampling.n_bias = 1;
    r.stops = stops;
    r.n_stops = 2;
    submit_to(&f, &r);
    run_all(&f);
    MereEvent ev;
    static const char *const want[] = {"", "", "", "", "EN", "ENENENEN"};
    for (int i = 0; i < 6; i++) {
        assert_true(events_next(&f.events, &ev, 0));
        assert_int_equal(ev.text.len, strlen(want[i]));
        assert_memory_equal(ev.text.len ? ev.text.ptr : "", want[i], strlen(want[i]));
    }
    assert_int_equal(ev.type, MERE_EVENT_END);
    fake_close(&f);
}

static void logprobs_come_with_bytes(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    const int32_t ids[] = {20, 21, 22};
    MereRequest r = ask(ids, 3, 5);
    r.ignore_eos = true;
    r.sampling.logprobs = 4;
    submit_to(&f, &r);
    run_all(&f);
    MereEvent ev;
    int n = 0;
    while (events_next(&f.events, &ev, 0) && ev.type == MERE_EVENT_TOKEN) {
        assert_int_equal(ev.n_top, 4);
        assert_int_equal(ev.top[0].id, ev.token);
        assert_float_equal(ev.top[0].logprob, ev.logprob, 1e-6F);
        assert_true(ev.top[0].logprob >= ev.top[1].logprob && ev.top[3].logprob < 0);
        const Str piece = fake_text(NULL, ev.top[2].id);
        assert_int_equal(ev.top[2].bytes.len, piece.len);
        n++;
    }
    assert_int_equal(n, 5);
    fake_close(&f);
}

static void echo_gives_every_row(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    int32_t ids[23];
    for (int i = 0; i < 23; i++)
        ids[i] = i + 3;
    /* Another request goes on while the reader of the rows lags. */
    MereRequest other = ask(ids + 5, 3, 9);
    other.ignore_eos = true;
    other.user = 1;
    MereRequest r = ask(ids, 23, 0);
    r.echo_logits = true;
    submit_to(&f, &r);
    submit_to(&f, &other);
    run_all(&f); /* stops: three rows are unread */
    int rows = 0;
    Got got[2] = {0};
    float want[40];
    for (;;) {
        MereEvent ev;
        if (!events_next(&f.events, &ev, 0)) {
            if (!sched_step(f.sched))
                break;
            continue;
        }
        if (ev.type == MERE_EVENT_LOGITS) {
            assert_int_equal(ev.index, rows);
            assert_int_equal(ev.n_logits, 40);
            fake_expect(&f.desc, ids, ++rows, 40, want);
            assert_memory_equal(ev.logits, want, sizeof want);
        } else if (ev.type == MERE_EVENT_TOKEN) {
            got[1].tokens[got[1].n++] = ev.token;
        } else {
            got[ev.user].ended = true;
            got[ev.user].finish = ev.finish;
        }
    }
    assert_int_equal(rows, 23);
    assert_int_equal(got[0].finish, MERE_FINISH_LENGTH);
    expect_tokens(&f, &got[1], ids + 5, 3, 9, true);
    fake_close(&f);
}

static void limits_are_told(void **state)
{
    (void)state;
    FakeShape s = plain;
    s.queue = 2;
    Fake f;
    open_fake(&f, &s);
    Error err;
    Request *q;
    int32_t ids[70] = {0};
    const MereStr empty = {"", 0};
    const MereStr bad = {"\xff", 1};
    struct {
        MereRequest r;
        ErrCode code;
    } cases[] = {
        {ask(ids, 0, 1), ERR_REQUEST},   {ask(ids, 65, 1), ERR_TOO_LONG},
        {ask(ids, 60, 5), ERR_TOO_LONG}, {ask(ids, 64, 0), ERR_TOO_LONG},
        {ask(ids, 4, -1), ERR_REQUEST},  {ask(ids, 4, 1), ERR_REQUEST},
        {ask(ids, 4, 1), ERR_REQUEST},   {ask(ids, 4, 1), ERR_REQUEST},
        {ask(ids, 4, 1), ERR_REQUEST},
    };
    cases[5].r.stops = &empty;
    cases[5].r.n_stops = 1;
    cases[6].r.stops = &bad;
    cases[6].r.n_stops = 1;
    cases[7].r.cache_salt = (MereStr){(const char *)ids, 65};
    cases[8].r.sampling.top_p = 2;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const MereRequest *r = &cases[i].r;
        if (request_new(r, r->ids, r->n_ids, &f.limits, &q, &err))
            fail_msg("case %zu passed", i);
        assert_int_equal(err.code, cases[i].code);
    }
    ids[2] = 40;
    const MereRequest out_of_vocab = ask(ids, 4, 1);
    assert_false(request_new(&out_of_vocab, ids, 4, &f.limits, &q, &err));
    ids[2] = 0;
    const MereRequest r = ask(ids, 4, 1);
    submit_to(&f, &r);
    submit_to(&f, &r);
    assert_true(request_new(&r, ids, 4, &f.limits, &q, &err) && events_add(&f.events, q, &err));
    assert_false(sched_submit(f.sched, q, &err));
    assert_int_equal(err.code, ERR_FULL);
    events_remove(&f.events, q);
    request_free(q);
    fake_close(&f);
}

static void cancel_frees_before_the_next_step(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    Request *q[5];
    for (int i = 0; i < 5; i++) {
        MereRequest r = ask(ids, 8, 40);
        r.ignore_eos = true;
        r.user = (uint64_t)i;
        q[i] = submit_to(&f, &r);
    }
    for (int i = 0; i < 4; i++)
        assert_true(sched_step(f.sched));
    assert_true(events_cancel(&f.events, q[1]->id));
    assert_true(events_cancel(&f.events, q[4]->id)); /* still waits */
    assert_false(events_cancel(&f.events, 12345));
    assert_true(sched_step(f.sched));
    SchedStats st;
    sched_stats(f.sched, &st);
    assert_int_equal(st.live, 3); /* the fourth took the place */
    assert_int_equal(st.queued, 0);
    run_all(&f);
    Got got[5] = {0};
    drain(&f, got, 5);
    for (int i = 0; i < 5; i++) {
        if (i == 1 || i == 4)
            assert_int_equal(got[i].finish, MERE_FINISH_CANCELLED);
        else
            expect_tokens(&f, &got[i], ids, 8, 40, true);
    }
    fake_close(&f);
}

static void a_failed_step_ends_its_requests_only(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    f.device.fail_step = 3;
    for (int i = 0; i < 5; i++) {
        MereRequest r = ask(ids + i % 3, 5, 10);
        r.ignore_eos = true;
        r.user = (uint64_t)i;
        submit_to(&f, &r);
    }
    run_all(&f);
    Got got[5] = {0};
    drain(&f, got, 5);
    for (int i = 0; i < 5; i++) {
        if (i < 3) {
            assert_int_equal(got[i].finish, MERE_FINISH_ERROR);
            assert_int_equal(got[i].error.code, ERR_DEVICE);
        } else {
            expect_tokens(&f, &got[i], ids + i % 3, 5, 10, true);
        }
    }
    /* A lost device or a broken file ends everything, and what comes later is refused. */
    f.device.fail_step = f.device.steps + 2;
    f.device.lost = true;
    Got more[4] = {0};
    for (int i = 0; i < 4; i++) {
        MereRequest r = ask(ids, 5, 10);
        r.ignore_eos = true;
        r.user = (uint64_t)i;
        submit_to(&f, &r);
    }
    run_all(&f);
    drain(&f, more, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(more[i].error.code, ERR_LOST);
    Error err;
    Request *q;
    const MereRequest r = ask(ids, 5, 10);
    assert_true(request_new(&r, ids, 5, &f.limits, &q, &err));
    assert_false(sched_submit(f.sched, q, &err));
    assert_int_equal(err.code, ERR_LOST);
    request_free(q);
    fake_close(&f);

    open_fake(&f, &plain);
    MereRequest last = ask(ids, 5, 10);
    last.ignore_eos = true;
    submit_to(&f, &last);
    assert_true(sched_step(f.sched));
    f.device.broken = true;
    run_all(&f);
    Got one = {0};
    drain(&f, &one, 1);
    assert_int_equal(one.error.code, ERR_IO);
    fake_close(&f);
}

static void closing_with_live_requests(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    for (int i = 0; i < 6; i++) {
        MereRequest r = ask(ids, 8, 40);
        r.user = (uint64_t)i;
        submit_to(&f, &r);
    }
    for (int i = 0; i < 3; i++)
        assert_true(sched_step(f.sched));
    sched_close(f.sched);
    f.sched = NULL;
    Got got[6] = {0};
    drain(&f, got, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(got[i].finish, MERE_FINISH_CANCELLED);
    fake_close(&f);
}

/* Random arrivals, lengths, salts, cancels and readers in every shape: each answer is that of the
 * request alone. */
static void storms_change_nothing(void **state)
{
    (void)state;
    FakeShape shapes[6];
    for (int i = 0; i < 6; i++)
        shapes[i] = plain;
    shapes[1].chunk = 3;
    shapes[1].n_groups = 2;
    shapes[1].windows[1] = 7;
    shapes[2].slots = 5;
    shapes[2].pages_less = 40;
    shapes[3].state = true;
    shapes[3].n_snapshots = 3;
    shapes[4].state = true;
    shapes[4].n_snapshots = 2;
    shapes[4].n_groups = 2;
    shapes[4].windows[0] = 5;
    shapes[4].chunk = 64;
    shapes[5].no_share = true;
    shapes[5].chunk = 1;
    enum { N = 150 };
    for (int c = 0; c < 6; c++) {
        Fake f;
        open_fake(&f, &shapes[c]);
        srand(5 + (unsigned)c);
        static int32_t ids[N][64];
        static int n_ids[N];
        static int max[N];
        static Request *q[N];
        static Got got[N];
        memset(got, 0, sizeof got);
        int sent = 0;
        int cancelled = 0;
        int cached = 0;
        int guard = 0;
        for (;;) {
            while (sent < N && rand() % 3 == 0) {
                n_ids[sent] = 1 + rand() % 40;
                max[sent] = 1 + rand() % 20;
                for (int i = 0; i < 64; i++)
                    ids[sent][i] = 3 + i % 30 + (rand() % 25 == 0);
                MereRequest r = ask(ids[sent], n_ids[sent], max[sent]);
                r.user = (uint64_t)sent;
                r.ignore_eos = sent % 2;
                if (sent % 7 == 0)
                    r.cache_salt = MERE_STR("other");
                q[sent] = submit_to(&f, &r);
                sent++;
            }
            if (sent > 0 && rand() % 6 == 0) {
                const int i = rand() % sent;
                if (!got[i].ended)
                    cancelled += events_cancel(&f.events, q[i]->id);
            }
            const bool more = sched_step(f.sched);
            Error err;
            if (!sched_verify(f.sched, &err))
                fail_msg("shape %d: %s", c, err.msg);
            for (int i = rand() % 40; i > 0 && take(&f, got, N); i--)
                ;
            if (!more && sent == N)
                break;
            assert_true(++guard < 100000);
        }
        drain(&f, got, N);
        for (int i = 0; i < N; i++) {
            assert_true(got[i].ended);
            cached += got[i].usage.cached_tokens;
            if (got[i].finish != MERE_FINISH_CANCELLED) {
                expect_tokens(&f, &got[i], ids[i], n_ids[i], max[i], i % 2);
                continue;
            }
            int32_t want[64];
            fake_greedy(&f, ids[i], n_ids[i], got[i].n, true, want);
            assert_memory_equal(got[i].tokens, want, (size_t)got[i].n * sizeof *want);
        }
        const KvCounts k = kv_counts(sched_kv(f.sched));
        assert_int_equal(k.live, 0);
        assert_int_equal(k.states_live, 0);
        assert_int_equal(f.events.n_all, 0);
        if ((cached > 100) == shapes[c].no_share || cancelled < 3)
            fail_msg("shape %d: %d cached tokens, %d cancelled", c, cached, cancelled);
        fake_close(&f);
    }
}

/* ---- two steps in flight, tokens drawn by the device ---- */

static FakeShape gpu(FakeShape s)
{
    s.gpu = true;
    return s;
}

static void answers_do_not_wait_for_the_host(void **state)
{
    (void)state;
    Fake f;
    const FakeShape s = gpu(plain);
    open_fake(&f, &s);
    const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
    MereRequest r = ask(ids, 17, 20);
    r.ignore_eos = true;
    submit_to(&f, &r);
    run_all(&f);
    Got got = {0};
    drain(&f, &got, 1);
    expect_tokens(&f, &got, ids, 17, 20, true);
    /* As many steps as one at a time: the last token is known beforehand. */
    assert_int_equal(f.device.steps, 3 + 19);
    assert_int_equal(f.device.most_flights, 2);
    assert_int_equal(f.device.ahead_rows, 19);
    assert_int_equal(f.device.drawn_here, 20);
    fake_close(&f);
}

/* A request that needs its logits takes part in every step, at the price of waiting for each. */
static void host_and_device_draw_in_one_step(void **state)
{
    (void)state;
    Fake f;
    const FakeShape s = gpu(plain);
    open_fake(&f, &s);
    const int32_t ids[] = {5, 6, 7, 8};
    MereRequest here = ask(ids, 4, 12);
    here.ignore_eos = true;
    here.sampling.logprobs = 2;
    MereRequest there = ask(ids + 1, 3, 12);
    there.ignore_eos = true;
    there.user = 1;
    submit_to(&f, &here);
    submit_to(&f, &there);
    run_all(&f);
    Got got[2] = {0};
    drain(&f, got, 2);
    expect_tokens(&f, &got[0], ids, 4, 12, true);
    expect_tokens(&f, &got[1], ids + 1, 3, 12, true);
    assert_int_equal(f.device.steps, 12);
    assert_int_equal(f.device.drawn_here, 12);
    fake_close(&f);
}

/* The end is found when a row for the token behind it is with the device: the request ends, its
 * place is free at once, and what the row computed belongs to the prefix. */
static void late_stops_spoil_nothing(void **state)
{
    (void)state;
    for (int with_state = 0; with_state < 2; with_state++) {
        FakeShape s = gpu(plain);
        s.state = with_state;
        s.n_snapshots = with_state ? 4 : 0;
        Fake f;
        open_fake(&f, &s);
        int late = 0;
        for (int i = 0; i < 60; i++) {
            int32_t ids[64];
            for (int j = 0; j < 64; j++)
                ids[j] = 3 + (i * 31 + j * j) % 37;
            MereRequest r = ask(ids, 9, 40);
            submit_to(&f, &r);
            run_all(&f);
            Got got = {0};
            drain(&f, &got, 1);
            expect_tokens(&f, &got, ids, 9, 40, false);
            if (got.finish != MERE_FINISH_STOP || got.n < 2)
                continue;
            late++;
            /* The answer, its end token too, and more: found up to the end token. */
            memcpy(ids + 9, got.tokens, (size_t)got.n * sizeof *ids);
            const int n = 9 + got.n + 3;
            r = ask(ids, n, 5);
            r.ignore_eos = true;
            submit_to(&f, &r);
            run_all(&f);
            Got next = {0};
            drain(&f, &next, 1);
            expect_tokens(&f, &next, ids, n, 5, true);
            assert_int_equal(next.usage.cached_tokens, 9 + got.n);
        }
        assert_true(late > 10);
        fake_close(&f);
    }
}

/* A step fails when it is waited for, at every place: who was live ends with the error, who waited
 * gets a right answer, and so do those that come later. */
static void steps_that_fail_late(void **state)
{
    (void)state;
    for (int at = 1; at < 24; at++)
        for (int lost = 0; lost < 2; lost++) {
            FakeShape s = gpu(plain);
            s.state = at % 2;
            s.n_snapshots = s.state ? 3 : 0;
            Fake f;
            open_fake(&f, &s);
            f.device.fail_wait = at;
            f.device.lost = lost;
            int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
            for (int i = 0; i < 5; i++) {
                MereRequest r = ask(ids + i % 3, 5, 10);
                r.ignore_eos = true;
                r.user = (uint64_t)i;
                submit_to(&f, &r);
            }
            run_all(&f);
            Got got[6] = {0};
            drain(&f, got, 6);
            int failed = 0;
            for (int i = 0; i < 5; i++) {
                assert_true(got[i].ended);
                if (got[i].finish == MERE_FINISH_ERROR) {
                    assert_int_equal(got[i].error.code, lost ? ERR_LOST : ERR_DEVICE);
                    failed++;
                } else {
                    expect_tokens(&f, &got[i], ids + i % 3, 5, 10, true);
                }
            }
            assert_true(failed > 0 || f.device.steps < at);
            if (!lost) {
                MereRequest r = ask(ids, 8, 10);
                r.ignore_eos = true;
                r.user = 5;
                submit_to(&f, &r);
                run_all(&f);
                drain(&f, got, 6);
                expect_tokens(&f, &got[5], ids, 8, 10, true);
            }
            assert_int_equal(kv_counts(sched_kv(f.sched)).live, 0);
            assert_int_equal(kv_counts(sched_kv(f.sched)).states_live, 0);
            fake_close(&f);
        }
}

static void two_in_flight_when_closed_or_settled(void **state)
{
    (void)state;
    const FakeShape s = gpu(plain);
    for (int steps = 0; steps < 8; steps++) {
        Fake f;
        open_fake(&f, &s);
        int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
        for (int i = 0; i < 6; i++) {
            MereRequest r = ask(ids, 8, 40);
            r.ignore_eos = true;
            r.user = (uint64_t)i;
            submit_to(&f, &r);
        }
        for (int i = 0; i < steps; i++)
            assert_true(sched_step(f.sched));
        assert_false(sched_idle(f.sched));
        if (steps % 2)
            sched_settle(f.sched);
        sched_close(f.sched);
        f.sched = NULL;
        Got got[6] = {0};
        drain(&f, got, 6);
        for (int i = 0; i < 6; i++)
            assert_int_equal(got[i].finish, MERE_FINISH_CANCELLED);
        fake_close(&f);
    }
}

/* How many tokens an answer has when text that contains `stop` ends it. */
static int stopped_at(const int32_t *tokens, int n, const char *stop)
{
    char text[1024] = "";
    size_t len = 0;
    for (int i = 0; i < n; i++) {
        const Str piece = fake_text(NULL, tokens[i]);
        memcpy(text + len, piece.ptr, piece.len);
        len += piece.len;
        text[len] = '\0';
        if (strstr(text, stop))
            return i + 1;
    }
    return n;
}

typedef struct Storm {
    int32_t ids[64];
    int n_ids, max;
    bool ignore_eos, echo;
    const char *stop;
    MereSampling sampling;
    Request *q;
} Storm;

static void storm_new(Storm *r, int i)
{
    static const char *const stops[] = {"ab", "w w w ", "stop ", "b"};
    *r = (Storm){.n_ids = 1 + rand() % 40,
                 .max = 1 + rand() % 20,
                 .ignore_eos = i % 2,
                 .echo = rand() % 12 == 0,
                 .stop = rand() % 3 == 0 ? stops[rand() % 4] : NULL,
                 .sampling = {.logprobs = -1, .seed = (uint64_t)i + 1}};
    for (int j = 0; j < 64; j++)
        r->ids[j] = 3 + j % 30 + (rand() % 25 == 0);
    if (rand() % 2) {
        r->sampling.temperature = 0.5F + (float)(rand() % 20) * 0.1F;
        r->sampling.top_k = rand() % 3 ? 0 : 1 + rand() % 9;
        r->sampling.top_p = rand() % 3 ? 0 : 0.7F;
        r->sampling.min_p = rand() % 3 ? 0 : 0.1F;
    }
    if (rand() % 4 == 0)
        r->sampling.logprobs = rand() % 3;
    if (rand() % 6 == 0)
        r->sampling.presence_penalty = 0.5F;
}

static Request *storm_send(Fake *f, Storm *r, int i)
{
    MereRequest m = ask(r->ids, r->n_ids, r->echo ? 0 : r->max);
    const MereStr stop = {r->stop, r->stop ? strlen(r->stop) : 0};
    m.user = (uint64_t)i;
    m.ignore_eos = r->ignore_eos;
    m.echo_logits = r->echo;
    m.sampling = r->sampling;
    m.stops = &stop;
    m.n_stops = r->stop && !r->echo;
    if (i % 7 == 0)
        m.cache_salt = MERE_STR("other");
    return submit_to(f, &m);
}

static void storm_check(const Fake *f, const Storm *r, const Got *g, int i)
{
    if (!g->ended)
        fail_msg("request %d did not end", i);
    if (r->echo) {
        assert_true(g->rows == r->n_ids || g->finish != MERE_FINISH_LENGTH);
        return;
    }
    int32_t want[64];
    int n = fake_answer(f, r->ids, r->n_ids, r->max, r->ignore_eos, &r->sampling, want);
    if (r->stop)
        n = stopped_at(want, n, r->stop);
    const bool whole = g->finish == MERE_FINISH_STOP || g->finish == MERE_FINISH_LENGTH;
    if (whole ? g->n != n : g->n > n)
        fail_msg("request %d: %d tokens, wanted %d", i, g->n, n);
    for (int j = 0; j < g->n; j++)
        if (g->tokens[j] != want[j])
            fail_msg("request %d of %d tokens: token %d is %d, wanted %d", i, r->n_ids, j,
                     g->tokens[j], want[j]);
}

/* Everything at once, on a device that is late: draws here and there, stops in the text, echoes,
 * cancels, steps that are refused or fail. */
static void late_storms_change_nothing(void **state)
{
    (void)state;
    FakeShape shapes[7];
    for (int i = 0; i < 7; i++)
        shapes[i] = gpu(plain);
    shapes[1].chunk = 3;
    shapes[1].n_groups = 2;
    shapes[1].windows[1] = 7;
    shapes[2].slots = 5;
    shapes[2].pages_less = 40;
    shapes[3].state = true;
    shapes[3].n_snapshots = 3;
    shapes[4].state = true;
    shapes[4].n_snapshots = 2;
    shapes[4].n_groups = 2;
    shapes[4].windows[0] = 5;
    shapes[4].chunk = 64;
    shapes[5].no_share = true;
    shapes[5].chunk = 1;
    shapes[6].windows[0] = 3;
    shapes[6].slots = 6;
    shapes[6].chunk = 2;
    enum { N = 150 };
    for (int c = 0; c < 28; c++) {
        Fake f;
        open_fake(&f, &shapes[c % 7]);
        const bool failures = c >= 14;
        srand(100 + (unsigned)c);
        static Storm all[N];
        static Got got[N];
        memset(got, 0, sizeof got);
        int sent = 0;
        int ended[5] = {0};
        /* Reading the end of the queue gives back the last row, so an echo may go on after it. */
        for (int idle = 0, guard = 0; idle < 2 && guard < 100000; guard++) {
            while (sent < N && rand() % 3 == 0) {
                storm_new(&all[sent], sent);
                all[sent].q = storm_send(&f, &all[sent], sent);
                sent++;
            }
            if (sent > 0 && rand() % 6 == 0) {
                const int i = rand() % sent;
                if (!got[i].ended)
                    events_cancel(&f.events, all[i].q->id);
            }
            if (failures && rand() % 60 == 0)
                f.device.fail_step = f.device.steps + 1 + rand() % 3;
            if (failures && rand() % 120 == 0)
                f.device.fail_wait = f.device.steps + 1 + rand() % 3;
            const bool more = sched_step(f.sched);
            Error err;
            if (!sched_verify(f.sched, &err))
                fail_msg("shape %d: %s", c, err.msg);
            bool took = false;
            for (int i = 1 + rand() % 40; i > 0 && take(&f, got, N); i--)
                took = true;
            idle = more || took || sent < N ? 0 : idle + 1;
        }
        drain(&f, got, N);
        for (int i = 0; i < N; i++) {
            storm_check(&f, &all[i], &got[i], i);
            ended[got[i].finish]++;
        }
        assert_int_equal(kv_counts(sched_kv(f.sched)).live, 0);
        assert_int_equal(kv_counts(sched_kv(f.sched)).states_live, 0);
        assert_int_equal(f.events.n_all, 0);
        assert_int_equal(f.device.most_flights, 2);
        if (ended[MERE_FINISH_STOP] < 3 || ended[MERE_FINISH_LENGTH] < 3 ||
            ended[MERE_FINISH_CANCELLED] < 3 || (ended[MERE_FINISH_ERROR] > 0) != failures ||
            f.device.ahead_rows < 50)
            fail_msg("shape %d: %d stops, %d full, %d cancelled, %d errors, %d rows ahead", c,
                     ended[MERE_FINISH_STOP], ended[MERE_FINISH_LENGTH],
                     ended[MERE_FINISH_CANCELLED], ended[MERE_FINISH_ERROR], f.device.ahead_rows);
        fake_close(&f);
    }
}

/* Same seed, same answer, whatever else is in the steps. */
static void seeds_repeat(void **state)
{
    (void)state;
    Fake f;
    open_fake(&f, &plain);
    int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    Got got[3] = {0};
    for (int i = 0; i < 3; i++) {
        MereRequest r = ask(ids, 8, 30);
        r.ignore_eos = true;
        r.user = (uint64_t)i;
        r.sampling.temperature = 1.2F;
        r.sampling.seed = 99;
        submit_to(&f, &r);
        if (i == 0)
            run_all(&f); /* alone, then two at once */
    }
    run_all(&f);
    drain(&f, got, 3);
    for (int i = 1; i < 3; i++)
        assert_memory_equal(got[0].tokens, got[i].tokens, sizeof got[0].tokens);
    MereRequest r = ask(ids, 8, 30);
    r.sampling.temperature = 1.2F;
    submit_to(&f, &r);
    run_all(&f);
    MereEvent ev = {0};
    while (events_next(&f.events, &ev, 0) && ev.type != MERE_EVENT_END)
        ;
    assert_true(ev.seed != 0);
    fake_close(&f);
}

/* An allocation that fails anywhere in opening or in a request. */
static void allocation_failures(void **state)
{
    (void)state;
    const size_t before = mem_in_use();
    for (uint64_t n = 1; n < 1000; n++) {
        Fake f;
        Error err;
        mem_fail_at(n, false);
        const bool ok = fake_open(&f, &plain, &err);
        const uint64_t used = mem_count_get();
        mem_fail_at(0, false);
        if (!ok)
            assert_int_equal(err.code, ERR_NOMEM);
        fake_close(&f);
        assert_int_equal(mem_in_use(), before);
        if (used < n)
            break;
        assert_false(ok);
    }
    Fake f;
    open_fake(&f, &plain);
    const int32_t ids[] = {3, 4, 5, 6};
    MereRequest r = ask(ids, 4, 8);
    const MereStr stop = MERE_STR("zzz");
    r.stops = &stop;
    r.n_stops = 1;
    r.ignore_eos = true;
    r.sampling.logprobs = 5;
    int failures = 0;
    for (uint64_t n = 1; n < 100; n++) {
        Error err;
        Request *q;
        mem_fail_at(n, true);
        bool ok = request_new(&r, ids, 4, &f.limits, &q, &err);
        if (ok) {
            assert_true(events_add(&f.events, q, &err) && sched_submit(f.sched, q, &err));
            while (sched_step(f.sched))
                ;
        }
        const uint64_t used = mem_count_get();
        mem_fail_at(0, false);
        if (!ok) {
            assert_int_equal(err.code, ERR_NOMEM);
            failures++;
            continue;
        }
        Got got = {0};
        drain(&f, &got, 1);
        expect_tokens(&f, &got, ids, 4, 8, true);
        if (used < n)
            break;
    }
    assert_true(failures >= 3); /* request, arena, events */
    fake_close(&f);
    assert_int_equal(mem_in_use(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_greedy_request),
        cmocka_unit_test(steps_mix_decode_and_prefill),
        cmocka_unit_test(text_and_stops_over_tokens),
        cmocka_unit_test(logprobs_come_with_bytes),
        cmocka_unit_test(echo_gives_every_row),
        cmocka_unit_test(limits_are_told),
        cmocka_unit_test(cancel_frees_before_the_next_step),
        cmocka_unit_test(a_failed_step_ends_its_requests_only),
        cmocka_unit_test(closing_with_live_requests),
        cmocka_unit_test(storms_change_nothing),
        cmocka_unit_test(answers_do_not_wait_for_the_host),
        cmocka_unit_test(host_and_device_draw_in_one_step),
        cmocka_unit_test(late_stops_spoil_nothing),
        cmocka_unit_test(steps_that_fail_late),
        cmocka_unit_test(two_in_flight_when_closed_or_settled),
        cmocka_unit_test(late_storms_change_nothing),
        cmocka_unit_test(seeds_repeat),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
