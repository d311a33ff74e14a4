#include "engine/sample.h"

#include "base/num.h"

#include <float.h>
#include <math.h>

int64_t sample_bytes(int vocab)
{
    return (int64_t)vocab *
           (int64_t)(sizeof(int32_t) + 2 * sizeof(SampleCand) + sizeof(double) + sizeof(float));
}

bool sample_init(Arena *a, int vocab, Sampler *out, Error *err)
{
    *out = (Sampler){.vocab = vocab};
    out->counts = ARENA_ARRAY(a, vocab, int32_t, err);
    out->heap = ARENA_ARRAY(a, vocab, SampleCand, err);
    out->sorted = ARENA_ARRAY(a, vocab, SampleCand, err);
    out->mass = ARENA_ARRAY(a, vocab, double, err);
    out->raw = ARENA_ARRAY(a, vocab, float, err);
    return out->counts && out->heap && out->sorted && out->mass && out->raw;
}

/* ---- checks ---- */

static bool in_range(const char *name, float v, float lo, float hi, Error *err)
{
    if (v >= lo && v <= hi)
        return true;
    return err_set(err, ERR_REQUEST, "%s is %g, wanted %g to %g", name, (double)v, (double)lo,
                   (double)hi);
}

bool sample_check(const MereSampling *p, int vocab, Error *err)
{
    if (!in_range("temperature", p->temperature, 0, 100, err) ||
        !in_range("top_p", p->top_p, 0, 1, err) || !in_range("min_p", p->min_p, 0, 1, err) ||
        !in_range("repeat_penalty", p->repeat_penalty, 0, 100, err) ||
        !in_range("presence_penalty", p->presence_penalty, -100, 100, err) ||
        !in_range("frequency_penalty", p->frequency_penalty, -100, 100, err))
        return false;
    if (p->top_k < 0)
        return err_set(err, ERR_REQUEST, "top_k is %d, wanted 0 or more", (int)p->top_k);
    if (p->repeat_last < 0)
        return err_set(err, ERR_REQUEST, "repeat_last is %d, wanted 0 or more",
                       (int)p->repeat_last);
    if (p->logprobs < -1 || p->logprobs > SAMPLE_TOP_MAX)
        return err_set(err, ERR_REQUEST, "logprobs is %d, wanted at most %d", (int)p->logprobs,
                       SAMPLE_TOP_MAX);
    if (p->n_bias < 0 || p->n_bias > SAMPLE_BIAS_MAX || (p->n_bias > 0 && !p->bias))
        return err_set(err, ERR_REQUEST, "logit_bias has %d entries, wanted at most %d",
                       (int)p->n_bias, SAMPLE_BIAS_MAX);
    for (int i = 0; i < p->n_bias; i++) {
        const MereBias *b = &p->bias[i];
        if (b->id < 0 || b->id >= vocab)
            return err_set(err, ERR_REQUEST, "logit_bias names token %d, the vocabulary has %d",
                           (int)b->id, vocab);
        /* -infinity is a ban and fine; NaN and +infinity are not. */
        if (!(b->add <= 1e9F))
            return err_set(err, ERR_REQUEST, "logit_bias of token %d is %g, wanted at most 1e9",
                           (int)b->id, (double)b->add);
    }
    return true;
}

/* ---- numbers ---- */

double sample_random(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53U * c[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57U * c[2];
        const uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                                  (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    const uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
    return (double)bits * 0x1p-53;
}

/* e^x for x <= 0, relative error below 2e-7; at and below -87 e^-87 (1e-38: nothing). Plain
 * arithmetic without a branch, so every machine gives the same bits and loops over it become vector
 * code. x = n ln2 + r with |r| <= ln2 / 2; ln2 in two parts. */
static inline float exp_neg(float logit)
{
    const float x = logit > -87.0F ? logit : -87.0F;
    const float t = x * 1.44269504F + 12582912.0F; /* 1.5 * 2^23: rounds to an integer */
    const float n = t - 12582912.0F;
    const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = (p * r) * r + r + 1.0F;
    return p * num_float((uint32_t)((int32_t)n + 127) << 23);
}

/* Below this a temperature is greedy: the next likely token would have to be within 0.01 nats. */
#define TEMPERATURE_MIN 1e-4F

enum { LANES = 8 };

/* The largest of n logits; *bad when one is NaN or +infinity. */
static float max_logit(const float *x, int n, bool *bad)
{
    float m[LANES];
    int odd[LANES];
    for (int j = 0; j < LANES; j++) {
        m[j] = -INFINITY;
        odd[j] = 0;
    }
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float v = x[i + j];
            m[j] = v > m[j] ? v : m[j];
            odd[j] |= !(v <= FLT_MAX);
        }
    for (; i < n; i++) {
        m[0] = x[i] > m[0] ? x[i] : m[0];
        odd[0] |= !(x[i] <= FLT_MAX);
    }
    for (int j = 1; j < LANES; j++) {
        m[0] = m[j] > m[0] ? m[j] : m[0];
        odd[0] |= odd[j];
    }
    *bad = odd[0] != 0;
    return m[0];
}

/* Sum of e^((x - max) * scale). Each block of 256 in f32 lanes, blocks in double. */
static double sum_exp(const float *x, int n, float max, float scale)
{
    double sum = 0;
    for (int at = 0; at < n; at += 256) {
        const int end = at + 256 < n ? at + 256 : n;
        float lane[LANES] = {0};
        int i = at;
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += exp_neg((x[i + j] - max) * scale);
        for (; i < end; i++)
            lane[0] += exp_neg((x[i] - max) * scale);
        for (int j = 0; j < LANES; j++)
            sum += (double)lane[j];
    }
    return sum;
}

/* ---- steps ---- */

/* The n most likely, by insertion: nearly every logit fails the first comparison. */
static void top_logprobs(const float *logits, int vocab, double lse, int n, Sampled *out)
{
    SampleTop *top = out->top;
    int have = 0;
    for (int id = 0; id < vocab && n > 0; id++) {
        const float v = logits[id];
        if (have == n && v <= top[have - 1].logprob)
            continue;
        int at = have < n ? have++ : have - 1;
        for (; at > 0 && top[at - 1].logprob < v; at--)
            top[at] = top[at - 1];
        top[at] = (SampleTop){id, v};
    }
    for (int i = 0; i < have; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
    out->n_top = have;
}

static bool has_repeat(const MereSampling *p)
{
    return p->repeat_penalty > 0 && (p->repeat_penalty < 1 || p->repeat_penalty > 1);
}

static bool has_counts(const MereSampling *p)
{
    return fabsf(p->presence_penalty) > 0 || fabsf(p->frequency_penalty) > 0;
}

static bool changes_logits(const MereSampling *p)
{
    return p->n_bias > 0 || has_repeat(p) || has_counts(p);
}

bool sample_is_plain(const MereSampling *p)
{
    return p->logprobs < 0 && !changes_logits(p);
}

static void penalise(Sampler *s, const MereSampling *p, const SampleHistory *h, float *logits)
{
    if (has_repeat(p)) {
        const int last = p->repeat_last > 0 ? p->repeat_last : 64;
        const int from = h->n_tokens > last ? h->n_tokens - last : 0;
        for (int i = from; i < h->n_tokens; i++) {
            const int32_t id = h->tokens[i];
            if (s->counts[id]++ > 0)
                continue;
            logits[id] =
                logits[id] > 0 ? logits[id] / p->repeat_penalty : logits[id] * p->repeat_penalty;
        }
        for (int i = from; i < h->n_tokens; i++)
            s->counts[h->tokens[i]] = 0;
    }
    if (has_counts(p)) {
        for (int i = h->n_prompt; i < h->n_tokens; i++)
            s->counts[h->tokens[i]]++;
        for (int i = h->n_prompt; i < h->n_tokens; i++) {
            const int32_t id = h->tokens[i];
            if (s->counts[id] == 0)
                continue;
            logits[id] -= p->presence_penalty + p->frequency_penalty * (float)s->counts[id];
            s->counts[id] = 0;
        }
    }
}

static int32_t find_logit(const float *logits, int vocab, float v)
{
    for (int i = 0; i < vocab; i++)
        if (logits[i] >= v)
            return i;
    return 0;
}

static bool before(SampleCand a, SampleCand b)
{
    return a.logit > b.logit || (a.logit >= b.logit && a.id < b.id);
}

static void sift(SampleCand *heap, int n, int at)
{
    const SampleCand c = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], c))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = c;
}

/* Candidates from the most likely down. */
typedef struct Stream {
    Sampler *s;
    const float *logits;
    float max, temperature;
    float above; /* all logits >= this have been in the heap */
    int band, n;
} Stream;

/* Nats below the maximum, after the temperature. A trained model's next token is nearly always
 * within the first two. */
static const float bands[] = {3, 8, 16, 32};

static bool stream_fill(Stream *t)
{
    while (t->n == 0 && t->band <= (int)COUNT_OF(bands)) {
        const bool last = t->band == (int)COUNT_OF(bands);
        const float low = last ? -INFINITY : t->max - bands[t->band] * t->temperature;
        t->band++;
        for (int id = 0; id < t->s->vocab; id++) {
            const float v = t->logits[id];
            if (v >= low && v < t->above && v > -INFINITY)
                t->s->heap[t->n++] = (SampleCand){v, id};
        }
        t->above = low;
        for (int i = t->n / 2 - 1; i >= 0; i--)
            sift(t->s->heap, t->n, i);
    }
    return t->n > 0;
}

static bool stream_next(Stream *t, SampleCand *out)
{
    if (t->n == 0 && !stream_fill(t))
        return false;
    SampleCand *heap = t->s->heap;
    *out = heap[0];
    heap[0] = heap[--t->n];
    if (t->n > 0)
        sift(heap, t->n, 0);
    return true;
}

static int32_t draw(Sampler *s, const MereSampling *p, const float *logits, float max, double u)
{
    const float scale = 1.0F / p->temperature;
    Stream t = {s, logits, max, p->temperature, INFINITY, 0, 0};
    const bool cut_k = p->top_k > 0 && p->top_k < s->vocab;
    const bool cut_p = p->top_p > 0 && p->top_p < 1;
    int n = 0;
    double sum = 0;
    if (cut_k) {
        SampleCand c;
        while (n < p->top_k && stream_next(&t, &c)) {
            sum += (double)exp_neg((c.logit - max) * scale);
            s->sorted[n] = c;
            s->mass[n++] = sum;
        }
    }
    const double total = cut_k ? sum : sum_exp(logits, s->vocab, max, scale);
    if (!cut_k) {
        /* Without a cut that depends on the order, the draw's target is known before the walk. */
        const double stop = cut_p ? (double)p->top_p * total : p->min_p > 0 ? total : u * total;
        SampleCand c;
        while ((n == 0 || sum < stop || (!cut_p && p->min_p <= 0 && sum <= stop)) &&
               stream_next(&t, &c)) {
            const float w = exp_neg((c.logit - max) * scale);
            if (n > 0 && w < p->min_p)
                break;
            sum += (double)w;
            s->sorted[n] = c;
            s->mass[n++] = sum;
        }
        if (!cut_p && p->min_p <= 0)
            return s->sorted[n - 1].id;
    }
    int keep = n;
    if (cut_k && cut_p) {
        for (keep = 1; keep < n && s->mass[keep - 1] < (double)p->top_p * total; keep++)
            ;
    }
    if (cut_k && p->min_p > 0)
        while (keep > 1 && exp_neg((s->sorted[keep - 1].logit - max) * scale) < p->min_p)
            keep--;
    const double target = u * s->mass[keep - 1];
    int i = 0;
    while (i < keep - 1 && s->mass[i] <= target)
        i++;
    return s->sorted[i].id;
}

bool sample_next(Sampler *s, const MereSampling *p, const SampleHistory *h, float *logits,
                 Sampled *out, Error *err)
{
    const int vocab = s->vocab;
    out->token = 0;
    out->logprob = 0;
    out->n_top = 0;
    bool bad;
    const float *own = logits; /* as the model gave them */
    float max = max_logit(logits, vocab, &bad);
    if (bad || max == -INFINITY)
        return err_set(err, ERR_FAILED, "the logits at position %d are not finite", h->n_tokens);
    double lse = 0;
    if (p->logprobs >= 0) {
        lse = (double)max + log(sum_exp(logits, vocab, max, 1));
        top_logprobs(logits, vocab, lse, p->logprobs, out);
    }
    if (changes_logits(p)) {
        if (p->logprobs >= 0) {
            memcpy(s->raw, logits, (size_t)vocab * sizeof *logits);
            own = s->raw;
        }
        for (int i = 0; i < p->n_bias; i++)
            logits[p->bias[i].id] += p->bias[i].add;
        penalise(s, p, h, logits);
        max = max_logit(logits, vocab, &bad);
        if (bad || max == -INFINITY)
            return err_set(err, ERR_REQUEST, "biases and penalties leave no token at position %d",
                           h->n_tokens);
    }
    if (p->temperature < TEMPERATURE_MIN)
        out->token = find_logit(logits, vocab, max);
    else
        out->token = draw(s, p, logits, max, sample_random(p->seed, (uint64_t)h->n_tokens));
    if (p->logprobs >= 0)
        out->logprob = (float)((double)own[out->token] - lse);
    return true;
}
