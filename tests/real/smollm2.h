/* smollm2.h: SmolLM2-135M-Instruct's golden answers (tests/data/real: transformers in F32 on the
 * dequantised weights) and how a model is held against them; test programs of real/ include it.
 *
 * The GGUF is looked for in the directory MERE_TEST_MODELS, then in the model store. It runs on the
 * device MERE_TEST_DEVICE, which is printed (default cpu). */
#ifndef MERE_TESTS_SMOLLM2_H
#define MERE_TESTS_SMOLLM2_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "mere.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPTS_MAX = 16, NEW_MAX = 64 };
#define MARGIN 0.02

static char model_name[4096];

typedef struct Fix {
    MereEngine *engine;
    MereModel *model;
    Arena arena;
    json_t *golden;
} Fix;

/* Opens the model in exact numerics with four slots, and the golden file. */
static void fix_open(Fix *f, const char *name)
{
    MereError err;
    Error own;
    MereOptions opt = MERE_OPTIONS_INIT;
    opt.numerics = MERE_EXACT;
    opt.slots = 4;
    opt.ctx = 256;
    const char *device = getenv("MERE_TEST_DEVICE");
    device = device ? device : "cpu";
    opt.device = (MereStr){device, strlen(device)};
    if (!mere_engine_open(&opt, &f->engine, &err))
        fail_msg("%s", err.msg);
    const MereStr id = mere_engine_device_id(f->engine);
    print_message("on %.*s\n", (int)id.len, id.ptr);
    assert_true(id.len == strlen(device) && memcmp(id.ptr, device, id.len) == 0);
    if (!mere_model_open(f->engine, (MereStr){name, strlen(name)}, &opt, &f->model, &err))
        fail_msg("%s", err.msg);
    arena_init(&f->arena, "test");
    Str text;
    if (!file_read(&f->arena, TEST_DATA "/real/SmolLM2-135M-Instruct-Q4_1.json", 1 << 20, &text,
                   &own))
        fail_msg("%s", own.msg);
    f->golden = json_parse("golden", text, &own);
    if (!f->golden)
        fail_msg("%s", own.msg);
}

static void fix_close(Fix *f)
{
    json_decref(f->golden);
    arena_free(&f->arena);
    mere_model_close(f->model);
    mere_engine_close(f->engine);
}

static json_t *prompt(const Fix *f, size_t i)
{
    return json_array_get(json_object_get(f->golden, "prompts"), i);
}

static size_t n_prompts(const Fix *f)
{
    return json_array_size(json_object_get(f->golden, "prompts"));
}

static int read_ids(const json_t *list, int32_t *out, size_t max)
{
    const size_t n = json_array_size(list);
    assert_in_range(n, 1, max);
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int)n;
}

typedef struct Answer {
    int32_t tokens[NEW_MAX];
    int n;
    float top[5];
    int32_t top_id[5];
    bool ended;
} Answer;

static void check_answer(const json_t *p, size_t i, const Answer *a, int *compared)
{
    int32_t want[NEW_MAX];
    const int n = read_ids(json_object_get(p, "greedy_ids"), want, NEW_MAX);
    const json_t *margins = json_object_get(p, "top1_margin_nats");
    for (int t = 0; t < n; t++) {
        if (a->tokens[t] != want[t]) {
            const double margin = json_number_value(json_array_get(margins, (size_t)t));
            if (margin >= MARGIN)
                fail_msg("prompt %zu, token %d: %d, wanted %d (margin %.3f nats)", i, t,
                         (int)a->tokens[t], (int)want[t], margin);
            break; /* the texts part here, within the tie */
        }
        ++*compared;
    }
    const json_t *tops = json_object_get(p, "first_step_top5_logprobs");
    for (size_t j = 0; j < 5; j++) {
        const json_t *pair = json_array_get(tops, j);
        const int32_t id = (int32_t)json_integer_value(json_array_get(pair, 0));
        const double logprob = json_number_value(json_array_get(pair, 1));
        bool found = false;
        for (int k = 0; k < 5; k++)
            if (a->top_id[k] == id) {
                found = true;
                if (fabs((double)a->top[k] - logprob) > 1e-3)
                    fail_msg("prompt %zu: logprob of %d is %.6f, wanted %.6f", i, (int)id,
                             (double)a->top[k], logprob);
            }
        if (!found)
            fail_msg("prompt %zu: %d is not among the first five", i, (int)id);
    }
}

static void greedy_tokens_are_the_references(void **state)
{
    const Fix *f = *state;
    static Answer answers[PROMPTS_MAX];
    MereError err;
    const size_t n = n_prompts(f);
    assert_in_range(n, 10, PROMPTS_MAX);
    for (size_t i = 0; i < n; i++) {
        int32_t ids[256];
        MereRequest r = MERE_REQUEST_INIT;
        r.n_ids = read_ids(json_object_get(prompt(f, i), "prompt_ids"), ids, 256);
        r.ids = ids;
        r.user = i;
        r.ignore_eos = true;
        r.sampling.logprobs = 5;
        r.max_tokens = (int32_t)json_array_size(json_object_get(prompt(f, i), "greedy_ids"));
        uint64_t id;
        if (!mere_submit(f->model, &r, &id, &err))
            fail_msg("%s", err.msg);
    }
    MereEvent ev;
    for (size_t left = n; left > 0;) {
        assert_true(mere_next(f->engine, &ev, -1));
        Answer *a = &answers[ev.user];
        if (ev.type == MERE_EVENT_TOKEN) {
            for (int j = 0; j < 5 && ev.index == 0; j++) {
                a->top[j] = ev.top[j].logprob;
                a->top_id[j] = ev.top[j].id;
            }
            a->tokens[a->n++] = ev.token;
        } else {
            if (ev.finish != MERE_FINISH_LENGTH)
                fail_msg("prompt %d: %s %s", (int)ev.user, mere_finish_name(ev.finish),
                         ev.error.msg);
            left--;
        }
    }
    int compared = 0;
    for (size_t i = 0; i < n; i++)
        check_answer(prompt(f, i), i, &answers[i], &compared);
    print_message("%d tokens of %zu prompts are the reference's\n", compared, n);
    MereStats st;
    mere_stats(f->model, &st);
    assert_int_equal(st.live, 0);
    assert_int_equal(st.pages_used, 0);
}

/* The file under either of its names, in MERE_TEST_MODELS or in the store. */
static bool find_model(void)
{
    static const char *const names[] = {"SmolLM2-135M-Instruct-Q4_1.gguf",
                                        "SmolLM2-135M-Instruct.Q4_1.gguf"};
    const char *dir = getenv("MERE_TEST_MODELS");
    for (size_t i = 0; dir && i < COUNT_OF(names); i++) {
        const int n = snprintf(model_name, sizeof model_name, "%s/%s", dir, names[i]);
        if (n > 0 && (size_t)n < sizeof model_name && file_exists(model_name))
            return true;
    }
    snprintf(model_name, sizeof model_name, "SmolLM2-135M-Instruct-Q4_1");
    MereInfo *info;
    if (!mere_info_read((MereStr){model_name, strlen(model_name)}, &info, NULL))
        return false;
    mere_info_free(info);
    return true;
}

#endif
