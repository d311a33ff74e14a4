/* sample: draws tokens (engine/sample.h, steps 4 to 9), then ends the step: the last kernel of
 * every program.
 *
 * Grid: parts of the vocabulary x samples. Each CTA finds the largest logit of its part and the
 * part's share of the softmax; the CTA that ends a sample's last part draws. Greedy needs no more;
 * else candidates are taken in bands of falling logits, as many as fit shared memory, each band
 * sorted and summed, until the draw is decided: one band nearly always. Sums are in the order of
 * the candidates and so do not depend on which thread was first.
 *
 * The CTA that ends last of all writes the step's ticket where the host waits for it. */
#include "gpu_compat.h"
#include "gpu_words.h"

#include "sample_params.h"

#define BAND 2048 /* candidates: keys and sums of so many are 32 KiB */
#define WARPS (SAMPLE_THREADS / 32)
#define PER_THREAD (SAMPLE_PART / SAMPLE_THREADS)
#define NO_KEY (~(uint64_t)0)
#define TEMPERATURE_MIN 1e-4f /* below it the largest logit is taken */
#define MINUS_INFINITY f32_of_bits(0xff800000u)

/* e^x for x <= 0: the polynomial of engine/sample.c. */
DEVICE float exp_neg(float logit)
{
    const float x = logit > -87.0f ? logit : -87.0f;
    const float t = x * 1.44269504f + 12582912.0f;
    const float n = t - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    return p * f32_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

/* ---- the scan ---- */

struct Best {
    float max;
    int32_t id; /* -1: bad */
};

DEVICE Best better(Best a, Best b)
{
    if (a.id < 0 || b.id < 0)
        return Best{a.max, -1};
    return b.max > a.max || (b.max == a.max && b.id < a.id) ? b : a;
}

DEVICE Best warp_best(Best b)
{
    for (int m = 16; m > 0; m /= 2)
        b = better(b, Best{shfl_xor(b.max, m), shfl_xor(b.id, m)});
    return b;
}

DEVICE double warp_sum(double s)
{
    for (int m = 16; m > 0; m /= 2)
        s += shfl_xor(s, m);
    return s;
}

/* Parts of all threads, given to all. `max`, `id`: WARPS each, in shared memory. */
DEVICE Best block_best(Best b, float *max, int32_t *id)
{
    b = warp_best(b);
    if (thread_id() % 32 == 0) {
        max[thread_id() / 32] = b.max;
        id[thread_id() / 32] = b.id;
    }
    block_sync();
    b = warp_best(Best{max[thread_id() % WARPS], id[thread_id() % WARPS]});
    block_sync();
    return b;
}

DEVICE double block_sum(double s, double *sums)
{
    s = warp_sum(s);
    if (thread_id() % 32 == 0)
        sums[thread_id() / 32] = s;
    block_sync();
    s = warp_sum(sums[thread_id() % WARPS]);
    block_sync();
    return s;
}

/* scale 0: the sum is not wanted. */
DEVICE SamplePartial scan_part(const float *logits, int from, int to, float scale, float *max,
                               int32_t *id, double *sums)
{
    float v[PER_THREAD];
    Best b = {MINUS_INFINITY, 0x7fffffff};
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = from + i * SAMPLE_THREADS + thread_id();
        v[i] = at < to ? load_f32(logits + at) : MINUS_INFINITY;
    }
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = from + i * SAMPLE_THREADS + thread_id();
        const bool bad = !(v[i] <= 3.402823466e38f);
        b = better(b, Best{v[i], bad ? -1 : at < to ? at : 0x7fffffff});
    }
    b = block_best(b, max, id);
    double sum = 0;
    if (scale > 0 && b.max > MINUS_INFINITY && b.id >= 0) {
        float s = 0;
        UNROLL
        for (int i = 0; i < PER_THREAD; i++)
            s += v[i] > MINUS_INFINITY ? exp_neg((v[i] - b.max) * scale) : 0.0f;
        sum = block_sum((double)s, sums);
    }
    return SamplePartial{b.max, b.id, sum};
}

DEVICE SamplePartial join_parts(const SamplePartial *parts, int n, float scale)
{
    SamplePartial all = {MINUS_INFINITY, 0x7fffffff, 0};
    for (int i = 0; i < n; i++) {
        const u32x4 w = load_u32x4(parts + i);
        const Best b = better(Best{all.max, all.id}, Best{f32_of_bits(w.x), (int32_t)w.y});
        all.max = b.max;
        all.id = b.id;
    }
    for (int i = 0; i < n && scale > 0; i++) {
        const SamplePartial *p = parts + i;
        const float max = load_f32(&p->max);
        const u32x4 w = load_u32x4(p);
        union {
            uint32_t u[2];
            double d;
        } sum = {{w.z, w.w}};
        if (max > MINUS_INFINITY)
            all.sum += sum.d * (double)exp_neg((max - all.max) * scale);
    }
    return all;
}

/* ---- the draw ---- */

/* Rising keys are falling logits, of equals rising ids. */
DEVICE uint64_t key_of(float logit, int id)
{
    const uint32_t bits = bits_of_f32(logit + 0.0f); /* -0 is 0 */
    const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~rising << 32 | (uint32_t)id;
}

DEVICE float logit_of(uint64_t key)
{
    const uint32_t rising = ~(uint32_t)(key >> 32);
    return f32_of_bits(rising & 0x80000000u ? rising & 0x7fffffffu : ~rising);
}

struct Draw { /* the same in all threads */
    const float *logits;
    int vocab;
    float max, scale;
    uint64_t *keys;  /* [BAND] shared: the band, sorted */
    double *mass;    /* [BAND] shared: running sum of weights, of earlier bands too */
    double *sums;    /* [WARPS] shared */
    uint32_t *found; /* [2] shared */
    /* the band: candidates with from <= key < to */
    uint64_t from, to;
    int n;
    /* before the band */
    double base_mass;
    int base_count;
    uint64_t last_key;
};

/* Candidates with from <= key < to: how many there are; the first BAND met are in d.keys. */
DEVICE int gather(Draw &d, uint64_t from, uint64_t to)
{
    if (thread_id() == 0)
        d.found[0] = 0;
    block_sync();
    for (int id = thread_id(); id < d.vocab; id += SAMPLE_THREADS) {
        const float v = load_f32(d.logits + id);
        const uint64_t key = key_of(v, id);
        if (v > MINUS_INFINITY && key >= from && key < to) {
            const uint32_t at = atomic_add(d.found, 1);
            if (at < BAND)
                d.keys[at] = key;
        }
    }
    block_sync();
    const int n = (int)d.found[0];
    block_sync();
    return n;
}

/* Bitonic sort of the band's keys, filled up to a power of two. */
DEVICE void sort_band(Draw &d)
{
    int size = 2;
    while (size < d.n)
        size *= 2;
    for (int i = d.n + thread_id(); i < size; i += SAMPLE_THREADS)
        d.keys[i] = NO_KEY;
    block_sync();
    for (int k = 2; k <= size; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            for (int i = thread_id(); i < size / 2; i += SAMPLE_THREADS) {
                const int a = 2 * i - (i & (j - 1));
                const bool rising = (a & k) == 0;
                const uint64_t x = d.keys[a], y = d.keys[a + j];
                if ((x > y) == rising) {
                    d.keys[a] = y;
                    d.keys[a + j] = x;
                }
            }
            block_sync();
        }
}

DEVICE float weight(const Draw &d, int i)
{
    return exp_neg((logit_of(d.keys[i]) - d.max) * d.scale);
}

/* Running sums: each thread two candidates, then warps, then the block. */
DEVICE void sum_band(Draw &d)
{
    const int i = 2 * thread_id();
    const int lane = thread_id() % 32;
    const double a = i < d.n ? (double)weight(d, i) : 0.0;
    const double b = i + 1 < d.n ? (double)weight(d, i + 1) : 0.0;
    double sum = a + b;
    for (int m = 1; m < 32; m *= 2) {
        const double low = shfl_up(sum, m);
        sum += lane >= m ? low : 0.0;
    }
    if (lane == 31)
        d.sums[thread_id() / 32] = sum;
    block_sync();
    double before = d.base_mass;
    for (int w = 0; w < thread_id() / 32; w++)
        before += d.sums[w];
    before += sum - (a + b);
    if (i < d.n)
        d.mass[i] = before + a;
    if (i + 1 < d.n)
        d.mass[i + 1] = before + (a + b);
    block_sync();
}

/* Where a band from `from` on probably ends: so many nats below the largest logit. */
DEVICE uint64_t guess_end(const Draw &d, uint64_t from)
{
    const float nats[4] = {5, 10, 20, 40};
    for (int i = 0; i < 4; i++) {
        const uint64_t key = key_of(d.max - nats[i] / d.scale, 0);
        if (key > from)
            return key;
    }
    return NO_KEY;
}

/* The next candidates. False: there are none. */
DEVICE bool load_band(Draw &d, uint64_t from)
{
    uint64_t to = guess_end(d, from);
    d.n = 0;
    while (from < NO_KEY) {
        d.n = gather(d, from, to);
        if (d.n > BAND) {
            to = from + (to - from) / 2; /* a key is in one place: at last there is but one */
            continue;
        }
        if (d.n > 0 || to == NO_KEY)
            break;
        from = to;
        to = NO_KEY;
    }
    d.from = from;
    d.to = to;
    if (d.n == 0)
        return false;
    sort_band(d);
    sum_band(d);
    return true;
}

DEVICE void rewind_draw(Draw &d)
{
    const bool first = d.base_count == 0 && d.n > 0;
    d.base_mass = 0;
    d.base_count = 0;
    d.last_key = NO_KEY;
    if (!first)
        load_band(d, 0);
}

struct Walk { /* what a walk took */
    double mass;
    int count;
    uint64_t key; /* of the last */
};

struct Stop {
    double mass; /* the walk ends with the candidate that brings the sum to it */
    bool above;  /* ... or above it */
    int count;   /* at most so many */
    float min_w; /* ends before the first lighter one, which is never the first of all */
};

/* How many of the band's candidates the walk takes where it ends in this band; -1: it goes on. */
DEVICE int walk_end(Draw &d, const Stop &stop)
{
    if (thread_id() == 0)
        d.found[1] = 0;
    block_sync();
    for (int i = thread_id(); i < d.n; i += SAMPLE_THREADS) {
        const int rank = d.base_count + i;
        const bool before = rank >= stop.count || (rank > 0 && weight(d, i) < stop.min_w);
        const bool after = stop.above ? d.mass[i] > stop.mass : d.mass[i] >= stop.mass;
        if (before || after)
            atomic_max(d.found + 1, (uint32_t)(2 * BAND - (before ? i : i + 1)));
    }
    block_sync();
    const int end = (int)d.found[1];
    block_sync();
    return end ? 2 * BAND - end : -1;
}

DEVICE Walk walk(Draw &d, const Stop &stop)
{
    rewind_draw(d);
    for (;;) {
        const int end = walk_end(d, stop);
        const int n = end < 0 ? d.n : end;
        const double mass = n > 0 ? d.mass[n - 1] : d.base_mass;
        const uint64_t key = n > 0 ? d.keys[n - 1] : d.last_key;
        block_sync(); /* read before the next band overwrites them */
        const Walk w = {mass, d.base_count + n, key};
        if (end >= 0)
            return w;
        d.base_mass = mass;
        d.base_count += n;
        d.last_key = key;
        if (!load_band(d, d.to))
            return w;
    }
}

/* Steps 5 to 9. total: weights of the whole vocabulary. */
DEVICE uint64_t draw(Draw &d, const int32_t *sample, double total)
{
    const int top_k = load_i32(sample + GPU_SAMPLE_TOP_K);
    const float top_p = load_f32((const float *)sample + GPU_SAMPLE_TOP_P);
    const float min_p = load_f32((const float *)sample + GPU_SAMPLE_MIN_P);
    const float random = load_f32((const float *)sample + GPU_SAMPLE_RANDOM);
    const double forever = 1e300;
    Stop stop = {forever, false, top_k > 0 && top_k < d.vocab ? top_k : d.vocab, 0};
    if (stop.count < d.vocab)
        total = walk(d, stop).mass;
    if (top_p > 0 && top_p < 1)
        stop.mass = (double)top_p * total;
    stop.min_w = min_p;
    if (stop.mass < forever || min_p > 0) {
        const Walk kept = walk(d, stop);
        total = kept.mass;
        stop.count = kept.count;
    }
    stop.mass = (double)(random < 1.0f ? random : 0.99999994f) * total;
    stop.above = true;
    stop.min_w = 0;
    return walk(d, stop).key;
}

/* ---- the step's end ---- */

/* Whether this CTA is the last of n to come here; the counter is left 0. All threads. */
DEVICE bool is_last(uint32_t *counter, uint32_t n, uint32_t *flag)
{
    if (thread_id() == 0) {
        fence_device();
        const uint32_t before = atomic_add(counter, 1);
        *flag = before == n - 1;
        if (before == n - 1)
            *counter = 0;
        fence_device();
    }
    block_sync();
    const bool last = *flag != 0;
    block_sync();
    return last;
}

DEVICE void write_result(const SampleParams &p, const int32_t *sample, int index, uint32_t number,
                         int32_t token, float logit)
{
    ((int32_t *)p.sampled)[load_i32(sample + GPU_SAMPLE_SLOT)] = token;
    uint32_t *result = (uint32_t *)p.results + 2 * ((number % p.ring) * (int64_t)p.max_out + index);
    result[0] = (uint32_t)token;
    result[1] = bits_of_f32(logit);
    fence_system();
}

KERNEL(SAMPLE_THREADS, 1) sample(const SampleParams p)
{
    SHARED(uint64_t, keys, BAND);
    SHARED(double, mass, BAND);
    SHARED(double, sums, WARPS);
    SHARED(float, max, WARPS);
    SHARED(int32_t, ids, WARPS);
    SHARED(uint32_t, found, 2);
    SHARED(uint32_t, flag, 1);
    griddep_launch();
    griddep_wait();
    const int32_t *step = (const int32_t *)p.step;
    const uint32_t number = (uint32_t)load_i32((const int32_t *)p.count);
    const int index = block_y();
    uint32_t *counters = (uint32_t *)p.counters;
    if (index < load_i32(step + GPU_STEP_N_SAMPLES)) {
        const int32_t *s = step + p.samples_at + index * GPU_SAMPLE_WORDS;
        const float temperature = load_f32((const float *)s + GPU_SAMPLE_TEMPERATURE);
        const float scale = temperature < TEMPERATURE_MIN ? 0.0f : 1.0f / temperature;
        const float *logits =
            (const float *)p.logits + (int64_t)load_i32(s + GPU_SAMPLE_OUT) * p.vocab;
        const int from = block_x() * SAMPLE_PART;
        const int to = from + SAMPLE_PART < p.vocab ? from + SAMPLE_PART : p.vocab;
        SamplePartial *parts = (SamplePartial *)p.partials + (int64_t)index * p.n_parts;
        const SamplePartial mine = scan_part(logits, from, to, scale, max, ids, sums);
        if (thread_id() == 0)
            parts[block_x()] = mine;
        if (is_last(counters + 1 + index, (uint32_t)p.n_parts, flag)) {
            const SamplePartial all = join_parts(parts, p.n_parts, scale);
            const bool bad = all.id < 0 || !(all.max > MINUS_INFINITY);
            int32_t token = bad ? -1 : all.id;
            float logit = all.max;
            if (!bad && scale > 0) {
                Draw d = {logits, p.vocab, all.max, scale, keys, mass, sums, found, 0, 0, 0, 0, 0, NO_KEY};
                const uint64_t key = draw(d, s, all.sum);
                token = (int32_t)(uint32_t)key;
                logit = logit_of(key);
            }
            if (thread_id() == 0)
                write_result(p, s, index, number, token, bad ? 0.0f : logit);
        }
    }
    if (!is_last(counters, (uint32_t)(grid_x() * grid_y()), flag) || thread_id() != 0)
        return;
    *(uint32_t *)p.count = number + 1;
    fence_system();
    *(volatile uint32_t *)p.done = (uint32_t)load_i32(step + GPU_STEP_TICKET);
}
