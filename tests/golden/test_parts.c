/* Models of several parts against transformers (f32): encoders with decoders (whisper, t5), a
 * vision tower with a text model (qwen2_vl). Encoder or tower outputs and teacher-forced logits;
 * decoders whole, in chunks and row by row, alone and in steps with another sequence. Pages hold 4
 * positions.
 */
#include "support/gguf_head.h"
#include "support/run_parts.h"
#include "support/tiny_fill.h"

#include "base/file.h"
#include "base/json.h"
#include "base/num.h"
#include "model/blocks/mrope.h"
#include "weights/checkpoint.h"
#include "weights/gguf_names.h"
#include "weights/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VOCAB = 320, HIDDEN = 64, MAX_ROWS = 128, MAX_TOKENS = 64, IMAGE_TOKEN = 312 };

/* Fast: 8-bit activations, f16 cache; as in test_tiny.c. */
static const double fast_kl_bound = 0.001;

typedef struct Fixture {
    Arena arena;
    const char *name, *dir;
    json_t *golden_json;
    Tensor *tensors;
    int64_t n_tensors;
    RunParts *run;
    double bound; /* the family's */
    double worst; /* largest difference seen */
} Fixture;

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

static Fixture *open_case(const char *name)
{
    Error err;
    Fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->name = name;
    arena_init(&f->arena, "test");
    const char *golden =
        arena_printf(&f->arena, &err, "%s/tiny/%s/golden.safetensors", TEST_DATA, name);
    const char *meta = arena_printf(&f->arena, &err, "%s/tiny/%s/golden.json", TEST_DATA, name);
    Str bytes = {NULL, 0};
    must(golden && meta && file_read(&f->arena, meta, 1 << 20, &bytes, &err), &err);
    f->golden_json = json_parse(meta, bytes, &err);
    must(f->golden_json != NULL, &err);
    must(file_read(&f->arena, golden, 1 << 20, &bytes, &err), &err);
    must(safetensors_parse(&f->arena, golden, (const uint8_t *)bytes.ptr, bytes.len, &f->tensors,
                           &f->n_tensors, &err),
         &err);
    must(tiny_fill(&f->arena, TEST_DATA, name, TEST_TMP, &f->dir, &err), &err);
    return f;
}

static void open_run(Fixture *f, Numerics numerics, const char *level)
{
    Error err;
    const RunOptions opt = {.numerics = numerics,
                            .kv = numerics == NUM_EXACT ? KV_FORMAT_F32 : KV_FORMAT_F16,
                            .threads = 2,
                            .level = level,
                            .page_tokens = 4,
                            .max_tokens = MAX_TOKENS,
                            .n_seqs = 2,
                            .max_rows = MAX_ROWS};
    must(run_parts_open(&f->arena, f->dir, &opt, &f->run, &err), &err);
    assert_int_equal(run_parts_model(f->run)->vocab, VOCAB);
    f->bound = run_parts_model(f->run)->family->max_abs_diff;
    assert_true(f->bound > 0 && f->bound <= 1e-4);
}

static void close_case(Fixture *f)
{
    run_parts_close(f->run);
    json_decref(f->golden_json);
    arena_free(&f->arena);
    free(f);
}

static void *take(Fixture *f, int64_t n, size_t size)
{
    Error err;
    void *p = arena_take(&f->arena, (size_t)n, size, &err);
    must(p != NULL, &err);
    return p;
}

/* A golden tensor of rows x cols as f32. */
static float *golden(Fixture *f, const char *name, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < f->n_tensors; i++) {
        const Tensor *t = &f->tensors[i];
        if (!str_is(t->name, name))
            continue;
        assert_int_equal(t->dims[0], rows);
        assert_int_equal(t->dims[1], cols);
        float *out = take(f, rows * cols, sizeof *out);
        for (int64_t j = 0; j < rows * cols; j++) {
            uint16_t half;
            if (t->dtype == DT_F32) {
                memcpy(out + j, t->data + 4 * j, sizeof *out);
                continue;
            }
            assert_int_equal(t->dtype, DT_F16);
            memcpy(&half, t->data + 2 * j, sizeof half);
            out[j] = num_from_f16(half);
        }
        return out;
    }
    fail_msg("%s: golden.safetensors has no %s", f->name, name);
    return NULL;
}

static int32_t *golden_ids(Fixture *f, const json_t *list, int *n)
{
    *n = (int)json_array_size(list);
    assert_true(*n > 0);
    int32_t *ids = take(f, *n, sizeof *ids);
    for (int i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

static void compare(Fixture *f, const char *what, int row0, const float *got, const float *want,
                    int rows, int cols)
{
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= f->bound))
            fail_msg("%s, %s: row %d, column %d is %.7g, wanted %.7g (off by %.3g)", f->name, what,
                     row0 + (int)(i / cols), (int)(i % cols), (double)got[i], (double)want[i], d);
        f->worst = fmax(f->worst, d);
    }
}

/* KL(golden || got) in nats, mean over the rows. */
static double kl(const float *want, const float *got, int rows)
{
    double sum = 0;
    for (int r = 0; r < rows; r++, want += VOCAB, got += VOCAB) {
        double all[2] = {0, 0};
        double cross = 0;
        for (int i = 0; i < VOCAB; i++) {
            all[0] += exp((double)want[i]);
            all[1] += exp((double)got[i]);
            cross += exp((double)want[i]) * ((double)want[i] - (double)got[i]);
        }
        sum += cross / all[0] - log(all[0]) + log(all[1]);
    }
    return sum / rows;
}

static void finish(Fixture *f, const char *class, const float *got, const float *want, int rows)
{
    const double d = kl(want, got, rows);
    if (!(d <= fast_kl_bound))
        fail_msg("%s, %s: mean KL %.3g nats, wanted %.3g at most", f->name, class, d,
                 fast_kl_bound);
    for (int i = 0; i < rows * VOCAB; i++)
        f->worst = fmax(f->worst, fabs((double)got[i] - (double)want[i]));
    print_message("%-9s %s: max |difference| %.2g, KL mean %.2g nats\n", f->name, class, f->worst,
                  d);
}

/* ---- encoder and decoder ---- */

typedef struct Speech {
    int n_source, n_ids;         /* rows of the encoder, of the decoder */
    const int32_t *source, *ids; /* source: tokens, NULL for mel */
    StepInput mel;
    const float *encoded, *logits;
} Speech;

/* What both families' golden data hold. */
static Speech speech(Fixture *f)
{
    Speech s = {0};
    s.ids = golden_ids(f, json_object_get(f->golden_json, "decoder_ids"), &s.n_ids);
    s.logits = golden(f, "logits", s.n_ids, VOCAB);
    const json_t *source = json_object_get(f->golden_json, "encoder_ids");
    if (source) {
        s.source = golden_ids(f, source, &s.n_source);
    } else { /* [mels][frames], two frames a row */
        enum { MELS = 80, FRAMES = 128 };
        const float *mel = golden(f, "input_features", MELS, FRAMES);
        float *frames = take(f, (int64_t)MELS * FRAMES, sizeof *frames);
        for (int i = 0; i < MELS * FRAMES; i++)
            frames[i % FRAMES * MELS + i / FRAMES] = mel[i];
        s.mel = (StepInput){.data = frames, .n = FRAMES};
        s.n_source = FRAMES / 2;
    }
    s.encoded = golden(f, "encoder_last_hidden", s.n_source, HIDDEN);
    return s;
}

static void encode(Fixture *f, const Speech *s, int seq)
{
    static float out[MAX_ROWS * HIDDEN];
    Error err;
    const RunRows rows = {.seq = seq, .n = s->n_source, .tokens = s->source};
    must(run_parts_step(f->run, "encoder", &rows, 1, &s->mel, s->source ? 0 : 1, NULL, out, &err),
         &err);
    if (f->bound > 0)
        compare(f, "encoder", 0, out, s->encoded, s->n_source, HIDDEN);
}

/* Tokens [from, to) in chunks; out[row] is every row's logits. */
static void decode(Fixture *f, const Speech *s, int seq, int from, int to, int chunk, float *out)
{
    Error err;
    for (int at = from; at < to; at += chunk) {
        const RunRows rows = {.seq = seq,
                              .from = at,
                              .n = to - at < chunk ? to - at : chunk,
                              .tokens = s->ids + at,
                              .fixed_len = s->n_source};
        must(run_parts_step(f->run, "decoder", &rows, 1, NULL, 0, NULL, out + (int64_t)at * VOCAB,
                            &err),
             &err);
    }
}

static void speech_alone(Fixture *f, const Speech *s)
{
    static float out[MAX_ROWS * VOCAB];
    const int chunks[] = {s->n_ids, 1, 3};
    encode(f, s, 0);
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        decode(f, s, 0, 0, s->n_ids, chunks[i], out);
        compare(f, "decoder", 0, out, s->logits, s->n_ids, VOCAB);
    }
    decode(f, s, 0, 0, 7, 7, out);
    decode(f, s, 0, 7, s->n_ids, 1, out);
    compare(f, "prefill, then decode", 0, out, s->logits, s->n_ids, VOCAB);
    finish(f, "exact", out, s->logits, s->n_ids);
}

/* The same beside a sequence with other rows of its own: neither sees the other. */
static void speech_together(Fixture *f, const Speech *s)
{
    enum { OTHER = 10, MELS = 80 };
    static float out[MAX_ROWS * VOCAB];
    Error err;
    int32_t ids[OTHER];
    float *frames = take(f, (int64_t)2 * (OTHER + s->n_source) * MELS, sizeof *frames);
    for (int i = 0; i < OTHER; i++)
        ids[i] = (s->ids[i % s->n_ids] * 7 + 5) % VOCAB;
    for (int i = 0; i < 2 * OTHER * MELS; i++)
        frames[i] = (float)(i * 37 % 64) / 32.0F - 1.0F;
    if (!s->source)
        memcpy(frames + (int64_t)2 * OTHER * MELS, s->mel.data,
               (size_t)(2 * s->n_source * MELS) * sizeof *frames);
    const StepInput mel = {.data = frames, .n = 2 * (OTHER + s->n_source)};
    const RunRows sources[] = {
        {.seq = 1, .n = OTHER, .tokens = s->source ? ids : NULL},
        {.seq = 0, .n = s->n_source, .tokens = s->source},
    };
    must(run_parts_step(f->run, "encoder", sources, 2, &mel, s->source ? 0 : 1, NULL, out, &err),
         &err);
    compare(f, "encoder of two", 0, out + (int64_t)OTHER * HIDDEN, s->encoded, s->n_source, HIDDEN);
    for (int at = 0; at < s->n_ids; at += 2) {
        const int n = s->n_ids - at < 2 ? s->n_ids - at : 2;
        const RunRows both[] = {
            {.seq = 0, .from = at, .n = n, .tokens = s->ids + at, .fixed_len = s->n_source},
            {.seq = 1, .from = at / 2, .n = 1, .tokens = ids + at / 2, .fixed_len = OTHER},
        };
        must(run_parts_step(f->run, "decoder", both, 2, NULL, 0, NULL, out, &err), &err);
        compare(f, "decoder of two", at, out, s->logits + (int64_t)at * VOCAB, n, VOCAB);
    }
}

static void test_speech_exact(void **state)
{
    Fixture *f = open_case(*state);
    open_run(f, NUM_EXACT, NULL);
    const Speech s = speech(f);
    speech_alone(f, &s);
    speech_together(f, &s);
    close_case(f);
}

static void test_speech_scalar(void **state)
{
    Fixture *f = open_case(*state);
    open_run(f, NUM_EXACT, "scalar");
    const Speech s = speech(f);
    speech_alone(f, &s);
    close_case(f);
}

static void test_speech_fast(void **state)
{
    static float out[MAX_ROWS * VOCAB];
    Fixture *f = open_case(*state);
    open_run(f, NUM_FAST, NULL);
    f->bound = 0;
    const Speech s = speech(f);
    encode(f, &s, 0);
    decode(f, &s, 0, 0, 5, 5, out);
    decode(f, &s, 0, 5, s.n_ids, 1, out);
    finish(f, "fast", out, s.logits, s.n_ids);
    close_case(f);
}

/* ---- files of the converter ---- */

static const float *numbers(Fixture *f, const Checkpoint *ck, const char *name, int64_t n)
{
    Error err;
    float *x = take(f, n, sizeof *x);
    must(checkpoint_vector(ck, name, n, x, &err), &err);
    return x;
}

/* The n numbers of a tensor of the vision tower: q, k and v are parts of one of ours, as are the
 * frames of the patches. */
static const float *vision_numbers(Fixture *f, const Checkpoint *ck, const char *name, int64_t n)
{
    enum { PLANE = 14 * 14 };
    static const char *const parts[] = {".attn.q.", ".attn.k.", ".attn.v."};
    static const char patches[] = "visual.patch_embed.proj.weight";
    for (int i = 0; i < (int)COUNT_OF(parts); i++) {
        const char *at = strstr(name, parts[i]);
        char whole[80];
        if (!at)
            continue;
        (void)snprintf(whole, sizeof whole, "%.*s.attn.qkv.%s", (int)(at - name), name,
                       at + strlen(parts[i]));
        return numbers(f, ck, whole, 3 * n) + i * n;
    }
    if (strncmp(name, patches, sizeof patches - 1) != 0)
        return numbers(f, ck, name, n);
    const float *all = numbers(f, ck, patches, 2 * n);
    const bool second = name[sizeof patches - 1] != '\0';
    float *x = take(f, n, sizeof *x);
    for (int64_t i = 0; i < n / PLANE; i++)
        memcpy(x + i * PLANE, all + (2 * i + second) * PLANE, PLANE * sizeof *x);
    return x;
}

/* The converter's GGUF file `name` with our weights. */
static void write_converted(Fixture *f, const Checkpoint *ck, const char *name, const char *path)
{
    Error err;
    GgufHead h;
    json_t *config = NULL;
    const bool vision = str_starts(str_from(name), "mmproj");
    must(gguf_head_open(&f->arena, TEST_DATA, name, &h, &err) &&
             (vision || gguf_names_config(&h.gguf, &config, &err)),
         &err);
    for (int64_t i = 0; i < h.gguf.n_tensors; i++) {
        const Tensor *t = &h.gguf.tensors[i];
        const int64_t n = tensor_elements(t);
        Str ours;
        must(gguf_names_tensor(&f->arena, config, t->name, &ours, &err), &err);
        gguf_head_put(&h, t,
                      vision ? vision_numbers(f, ck, ours.ptr, n) : numbers(f, ck, ours.ptr, n));
    }
    json_decref(config);
    must(gguf_head_write(&h, path, &err), &err);
}

/* The converter's file as f->dir; golden data are those of scripts/make-gguf-heads.py. */
static void convert(Fixture *f)
{
    Error err;
    Checkpoint *ck;
    must(checkpoint_open(&f->arena, f->dir, &ck, &err), &err);
    f->dir = arena_printf(&f->arena, &err, "%s/tiny/converted-%s-%d.gguf", TEST_TMP, f->name,
                          (int)getpid());
    must(f->dir != NULL, &err);
    write_converted(f, ck, f->name, f->dir);
    checkpoint_close(ck);
    Str bytes;
    const char *path =
        arena_printf(&f->arena, &err, "%s/tiny-gguf/%s.safetensors", TEST_DATA, f->name);
    must(path && file_read(&f->arena, path, 1 << 20, &bytes, &err) &&
             safetensors_parse(&f->arena, path, (const uint8_t *)bytes.ptr, bytes.len, &f->tensors,
                               &f->n_tensors, &err),
         &err);
}

static void test_speech_gguf(void **state)
{
    Fixture *f = open_case(*state);
    convert(f);
    open_run(f, NUM_EXACT, NULL);
    const Speech s = speech(f);
    speech_alone(f, &s);
    assert_int_equal(unlink(f->dir), 0);
    close_case(f);
}

static void refused(Fixture *f, const char *part, const RunRows *rows, const StepInput *inputs,
                    int n_inputs, const char *says)
{
    static float out[MAX_ROWS * VOCAB];
    Error err;
    if (run_parts_step(f->run, part, rows, 1, inputs, n_inputs, NULL, out, &err))
        fail_msg("%s, %s: a step was taken, wanted \"%s\"", f->name, part, says);
    assert_int_equal(err.code, ERR_DEVICE);
    if (!strstr(err.msg, says))
        fail_msg("%s, %s: \"%s\", wanted \"%s\"", f->name, part, err.msg, says);
}

/* Steps that a part cannot take are refused, and leave the next one alone. */
static void test_refused_steps(void **state)
{
    Fixture *f = open_case(*state);
    open_run(f, NUM_EXACT, NULL);
    const Speech s = speech(f);
    const StepInput few = {.data = s.mel.data, .n = 7};
    const int32_t wild[8] = {0, 1, 2, 3, 4, 5, 6, 128};
    const StepInput outside = {.data = s.mel.data, .n = s.mel.n, .index = wild};
    const RunRows whole = {.n = 4};
    const RunRows later = {.from = 4, .n = 4};
    const RunRows alone = {.n = 1, .tokens = s.ids};
    refused(f, "encoder", &whole, NULL, 0, "input 0 is missing");
    refused(f, "encoder", &whole, &few, 1, "input 0 has 7 rows, wanted 8");
    refused(f, "encoder", &whole, &outside, 1, "row 7 is row 128 of 128");
    refused(f, "encoder", &later, &s.mel, 1, "4 of 8 rows, wanted all");
    refused(f, "decoder", &alone, NULL, 0, "has 0 keys in group 1");
    refused(f, "decoder", &(RunRows){.n = 1, .tokens = s.ids, .fixed_len = 4}, &s.mel, 1,
            "1 inputs, the graph has 0");
    speech_alone(f, &s);
    close_case(f);
}

/* ---- vision and text ---- */

typedef struct Picture {
    MropeGrid grid;
    int n_patches, n_rows, n_ids;
    const int32_t *ids;
    int32_t *pos;   /* [n_ids][3] */
    int32_t *index; /* [n_ids]: row of the image, -1 for text */
    const float *logits;
    float *features; /* [n_rows][HIDDEN], by the vision part */
} Picture;

static Picture picture(Fixture *f)
{
    Picture p = {.grid = {.frames = 1, .rows = 8, .cols = 4, .merge = 2}};
    Error err;
    int32_t next;
    p.n_patches = mrope_n_patches(&p.grid);
    p.n_rows = p.n_patches / 4;
    assert_int_equal(p.n_patches, 32);
    p.ids = golden_ids(f, json_object_get(f->golden_json, "ids"), &p.n_ids);
    p.logits = golden(f, "logits", p.n_ids, VOCAB);
    p.features = take(f, (int64_t)p.n_rows * HIDDEN, sizeof *p.features);
    p.pos = take(f, 3 * p.n_ids, sizeof *p.pos);
    p.index = take(f, p.n_ids, sizeof *p.index);
    must(mrope_positions(p.ids, p.n_ids, IMAGE_TOKEN, &p.grid, 1, p.pos, &next, &err), &err);
    const json_t *axes = json_object_get(f->golden_json, "position_ids_thw");
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < p.n_ids; i++)
            assert_int_equal(p.pos[3 * i + a], json_integer_value(json_array_get(
                                                   json_array_get(axes, (size_t)a), (size_t)i)));
    assert_int_equal(next - p.n_ids,
                     json_integer_value(json_object_get(f->golden_json, "rope_delta")));
    int row = 0;
    for (int i = 0; i < p.n_ids; i++)
        p.index[i] = p.ids[i] == IMAGE_TOKEN ? row++ : -1;
    assert_int_equal(row, p.n_rows);
    return p;
}

/* The image twice in one step, as two segments: both as the reference sees it alone. */
static void see(Fixture *f, Picture *p)
{
    enum { PATCH = 1176 };
    static float out[MAX_ROWS * HIDDEN];
    Error err;
    const size_t n = (size_t)p->n_patches;
    const float *pixels = golden(f, "pixel_values", p->n_patches, PATCH);
    float *data = take(f, 2 * p->n_patches * PATCH, sizeof *data);
    int32_t *pos = take(f, 4 * p->n_patches, sizeof *pos);
    mrope_patches(&p->grid, pos);
    memcpy(pos + 2 * n, pos, 2 * n * sizeof *pos);
    memcpy(data, pixels, n * PATCH * sizeof *data);
    memcpy(data + n * PATCH, pixels, n * PATCH * sizeof *data);
    const StepInput in = {.data = data, .n = 2 * p->n_patches};
    const RunRows rows[] = {{.seq = 1, .n = p->n_patches}, {.seq = 0, .n = p->n_patches}};
    must(run_parts_step(f->run, "vision", rows, 2, &in, 1, pos, out, &err), &err);
    const float *want = golden(f, "image_features", p->n_rows, HIDDEN);
    for (int i = 0; i < 2 && f->bound > 0; i++)
        compare(f, "vision", 0, out + (int64_t)i * p->n_rows * HIDDEN, want, p->n_rows, HIDDEN);
    memcpy(p->features, out, (size_t)(p->n_rows * HIDDEN) * sizeof *out);
}

/* Rows of the text in chunks; image rows are the tower's. */
static void tell(Fixture *f, const Picture *p, int from, int to, int chunk, float *out)
{
    Error err;
    for (int at = from; at < to; at += chunk) {
        const RunRows rows = {
            .from = at, .n = to - at < chunk ? to - at : chunk, .tokens = p->ids + at};
        const StepInput in = {.data = p->features, .n = p->n_rows, .index = p->index + at};
        must(run_parts_step(f->run, "text", &rows, 1, &in, 1, p->pos + (int64_t)3 * at,
                            out + (int64_t)at * VOCAB, &err),
             &err);
    }
}

/* Without an image it is an ordinary text model: no input, one position a row. */
static void tell_text_only(Fixture *f)
{
    static float out[MAX_ROWS * VOCAB];
    Error err;
    int n;
    const int32_t *ids = golden_ids(f, json_object_get(f->golden_json, "text_only_ids"), &n);
    const float *want = golden(f, "logits_text_only", n, VOCAB);
    const RunRows rows = {.n = n, .tokens = ids};
    must(run_parts_step(f->run, "text", &rows, 1, NULL, 0, NULL, out, &err), &err);
    compare(f, "text alone", 0, out, want, n, VOCAB);
}

static void picture_alone(Fixture *f)
{
    static float out[MAX_ROWS * VOCAB];
    Picture p = picture(f);
    const int chunks[] = {p.n_ids, 1, 3};
    see(f, &p);
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        tell(f, &p, 0, p.n_ids, chunks[i], out);
        compare(f, "text", 0, out, p.logits, p.n_ids, VOCAB);
    }
    tell(f, &p, 0, 17, 17, out);
    tell(f, &p, 17, p.n_ids, 1, out);
    compare(f, "prefill, then decode", 0, out, p.logits, p.n_ids, VOCAB);
    tell_text_only(f);
    finish(f, "exact", out, p.logits, p.n_ids);
}

static void test_picture_exact(void **state)
{
    Fixture *f = open_case(*state);
    open_run(f, NUM_EXACT, NULL);
    picture_alone(f);
    close_case(f);
}

static void test_picture_scalar(void **state)
{
    Fixture *f = open_case(*state);
    open_run(f, NUM_EXACT, "scalar");
    picture_alone(f);
    close_case(f);
}

static void test_picture_fast(void **state)
{
    static float out[MAX_ROWS * VOCAB];
    Fixture *f = open_case(*state);
    open_run(f, NUM_FAST, NULL);
    f->bound = 0;
    Picture p = picture(f);
    see(f, &p);
    tell(f, &p, 0, 17, 17, out);
    tell(f, &p, 17, p.n_ids, 1, out);
    finish(f, "fast", out, p.logits, p.n_ids);
    close_case(f);
}

/* Text and vision tower as two files of one directory, which is f->dir then. */
typedef struct Pair {
    const char *text, *vision;
} Pair;

static Pair convert_pair(Fixture *f)
{
    Error err;
    Checkpoint *ck;
    must(checkpoint_open(&f->arena, f->dir, &ck, &err), &err);
    f->dir =
        arena_printf(&f->arena, &err, "%s/tiny/converted-%s-%d", TEST_TMP, f->name, (int)getpid());
    must(f->dir != NULL, &err);
    assert_int_equal(mkdir(f->dir, 0777), 0);
    const Pair p = {arena_printf(&f->arena, &err, "%s/%s.gguf", f->dir, f->name),
                    arena_printf(&f->arena, &err, "%s/mmproj-%s.gguf", f->dir, f->name)};
    must(p.text && p.vision, &err);
    write_converted(f, ck, "qwen2_vl", p.text);
    write_converted(f, ck, "mmproj-qwen2_vl", p.vision);
    checkpoint_close(ck);
    return p;
}

static void remove_pair(const Fixture *f, const Pair *p)
{
    assert_int_equal(unlink(p->text), 0);
    assert_int_equal(unlink(p->vision), 0);
    assert_int_equal(rmdir(f->dir), 0);
}

static void test_picture_gguf(void **state)
{
    Fixture *f = open_case(*state);
    const Pair p = convert_pair(f);
    open_run(f, NUM_EXACT, NULL);
    picture_alone(f);
    run_parts_close(f->run);
    const char *dir = f->dir;
    f->dir = p.text; /* the file alone names the model, too */
    open_run(f, NUM_FAST, NULL);
    f->dir = dir;
    remove_pair(f, &p);
    close_case(f);
}

static void write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wbe");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void not_opened(Fixture *f, const char *says)
{
    Error err;
    const RunOptions opt = {
        .threads = 1, .page_tokens = 4, .max_tokens = MAX_TOKENS, .n_seqs = 1, .max_rows = 4};
    if (run_parts_open(&f->arena, f->dir, &opt, &f->run, &err))
        fail_msg("opened, wanted \"%s\"", says);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\", wanted \"%s\"", err.msg, says);
}

/* A vision tower that lacks something: names are those of Hugging Face once they are known. */
static void test_picture_gguf_damaged(void **state)
{
    static const char *const cases[][3] = {
        {"v.patch_embd.weight.1", "v.patch_embd.weight.2",
         "\"visual.patch_embed.proj.weight\" has 4 dimensions"},
        {"v.patch_embd.weight", "v.patch_embd.height",
         "\"visual.patch_embed.proj.weight\" is missing"},
        {"v.blk.1.attn_k.bias", "v.blk.1.attn_k.bios",
         "\"visual.blocks.1.attn.k.bias\" is missing"},
        {"v.blk.1.attn_v.weight", "v.blk.1.attn_v.height", "\"visual.blocks.1.attn.v.weight\""},
        {"v.blk.0.attn_q.weight", "v.blk.0.attn_q.height", "\"visual.blocks.0.attn.qkv.weight\""},
        {"mm.2.weight", "mm.3.weight", "\"visual.merger.mlp.2.weight\""},
        {"v.blk.0.ffn_up.weight", "v.blk.0.ffn_up.height",
         "mmproj-qwen2_vl.gguf: tensor \"v.blk.0.ffn_up.weight\" is missing"},
        {"clip.vision.block_count", "clip.vision.block_kount",
         "mmproj-qwen2_vl.gguf: key \"clip.vision.block_count\" is missing"},
        {"qwen2vl_merger", "qwen9vl_merger", "mmproj-qwen2_vl.gguf: architecture \"clip\" with"},
    };
    Fixture *f = open_case(*state);
    const Pair p = convert_pair(f);
    Error err;
    Str bytes;
    must(file_read(&f->arena, p.vision, 1 << 20, &bytes, &err), &err);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const size_t n = strlen(cases[i][0]);
        char *at = memmem(bytes.ptr, bytes.len, cases[i][0], n);
        assert_non_null(at);
        memcpy(at, cases[i][1], n);
        write_bytes(p.vision, bytes.ptr, bytes.len);
        not_opened(f, cases[i][2]);
        memcpy(at, cases[i][0], n);
    }
    static const char second[] = "v.patch_embd.weight.1";
    char *info = memmem(bytes.ptr, bytes.len, second, sizeof second - 1);
    assert_non_null(info);
    info += sizeof second - 1; /* count of dimensions, dimensions, type */
    info[4] = 13;
    write_bytes(p.vision, bytes.ptr, bytes.len);
    not_opened(f, "\"visual.patch_embed.proj.weight.1\" has 4 dimensions");
    info[4] = 14;
    info[4 + 4 * 8] = 1;
    write_bytes(p.vision, bytes.ptr, bytes.len);
    not_opened(f, "\"visual.patch_embed.proj.weight.1\" is F16, the first frame is F32");
    info[4 + 4 * 8] = 0;
    write_bytes(p.vision, bytes.ptr, bytes.len / 2);
    not_opened(f, "mmproj-qwen2_vl.gguf: tensor");
    write_bytes(p.vision, bytes.ptr, 0);
    not_opened(f, "mmproj-qwen2_vl.gguf: magic");
    remove_pair(f, &p);
    close_case(f);
}

/* Two images, a video of two frames, and placeholders that do not fit. */
static void test_positions(void **state)
{
    (void)state;
    enum { I = IMAGE_TOKEN };
    static const int32_t ids[] = {5, I, I, 6, I, I, I, I, 7};
    static const int32_t want[][3] = {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {3, 3, 3}, {4, 4, 4},
                                      {4, 5, 4}, {5, 4, 4}, {5, 5, 4}, {6, 6, 6}};
    static const MropeGrid grids[] = {{1, 2, 4, 2}, {2, 4, 2, 2}};
    int32_t pos[COUNT_OF(ids)][3];
    int32_t next;
    Error err;
    must(mrope_positions(ids, COUNT_OF(ids), I, grids, 2, pos[0], &next, &err), &err);
    assert_memory_equal(pos, want, sizeof want);
    assert_int_equal(next, 7);
    assert_false(mrope_positions(ids, COUNT_OF(ids), I, grids, 1, pos[0], &next, &err));
    assert_false(mrope_positions(ids, 6, I, grids, 2, pos[0], &next, &err));
    assert_false(mrope_positions(ids, 3, I, grids, 2, pos[0], &next, &err));
    assert_int_equal(mrope_n_patches(&(MropeGrid){1, 3, 4, 2}), 0);
    assert_int_equal(mrope_n_patches(&(MropeGrid){1, 1 << 20, 1 << 20, 2}), 0);
}

int main(void)
{
    static char whisper[] = "whisper";
    static char t5[] = "t5";
    static char t5_gated[] = "t5_gated";
    static char qwen2_vl[] = "qwen2_vl";
    const struct CMUnitTest tests[] = {
        {"whisper exact", test_speech_exact, NULL, NULL, whisper},
        {"whisper exact, scalar", test_speech_scalar, NULL, NULL, whisper},
        {"whisper fast", test_speech_fast, NULL, NULL, whisper},
        {"whisper refused steps", test_refused_steps, NULL, NULL, whisper},
        {"t5 exact", test_speech_exact, NULL, NULL, t5},
        {"t5 exact, scalar", test_speech_scalar, NULL, NULL, t5},
        {"t5 fast", test_speech_fast, NULL, NULL, t5},
        {"t5 by the converter", test_speech_gguf, NULL, NULL, t5},
        {"t5_gated by the converter", test_speech_gguf, NULL, NULL, t5_gated},
        {"t5_gated exact", test_speech_exact, NULL, NULL, t5_gated},
        {"t5_gated exact, scalar", test_speech_scalar, NULL, NULL, t5_gated},
        {"t5_gated fast", test_speech_fast, NULL, NULL, t5_gated},
        {"qwen2_vl exact", test_picture_exact, NULL, NULL, qwen2_vl},
        {"qwen2_vl exact, scalar", test_picture_scalar, NULL, NULL, qwen2_vl},
        {"qwen2_vl fast", test_picture_fast, NULL, NULL, qwen2_vl},
        {"qwen2_vl by the converter", test_picture_gguf, NULL, NULL, qwen2_vl},
        {"qwen2_vl by the converter, damaged", test_picture_gguf_damaged, NULL, NULL, qwen2_vl},
        {"positions", test_positions, NULL, NULL, NULL},
    };
    json_setup();
    return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
