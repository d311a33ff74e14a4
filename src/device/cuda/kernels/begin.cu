/* begin: the first kernel of every program. Brings this step's block from host memory to device
 * memory, as much of it as the bucket can need, and fills the rope tables of its rows.
 *
 * A read of host memory takes a microsecond or two, so all of them are issued at once: the tables
 * of pages, whose length the block tells, are read up to `copied` words without asking; only what
 * a long context has beyond them waits for the length. */
#include "gpu_compat.h"
#include "gpu_words.h"

#include "begin_params.h"

/* Sine and cosine in double precision of angles below 2^20 pi/2: the reduction and polynomials of
 * fdlibm (e_rem_pio2.c, k_sin.c, k_cos.c), without its cases for larger angles. What is rounded to
 * f32 afterwards is then nearly always what a correctly rounded function gives. */
DEVICE void sin_cos(double angle, double *sine, double *cosine)
{
    const int64_t q = (int64_t)(angle * 0.63661977236758134308 + (angle >= 0 ? 0.5 : -0.5));
    const double n = (double)q;
    /* pi/2 in two parts, the first of 33 bits: n times it is exact */
    const double x = (angle - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
    const double z = x * x;
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    s = x + x * z * s;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    c = 1.0 - (0.5 * z - z * z * c);
    const bool swap = (q & 1) != 0;
    *sine = swap ? c : s;
    *cosine = swap ? s : c;
    if (q & 2)
        *sine = -*sine;
    if ((q + 1) & 2)
        *cosine = -*cosine;
}

/* A token below 0 is what sample slot -1 - token holds; a slot whose logits were no numbers holds
 * -1, and its row's result will not be used. */
DEVICE int32_t real_token(const BeginParams &p, int32_t token)
{
    if (token < 0)
        token = load_i32((const int32_t *)p.sampled + (-1 - token));
    return token < 0 ? 0 : token;
}

DEVICE void copy_word(const BeginParams &p, const int32_t *host, int at)
{
    int32_t v = load_i32(host + at);
    if (at >= p.tokens && at < p.tokens + p.rows)
        v = real_token(p, v);
    ((int32_t *)p.step)[at] = v;
}

/* Rope tables of rows [row0, row0 + n), whose positions are in shared memory. */
DEVICE void fill_table(const BeginTable &t, const int32_t *pos, int row0, int n)
{
    const float *inv_freq = (const float *)t.inv_freq;
    f32x2 *out = (f32x2 *)t.out + (int64_t)row0 * t.half;
    for (int i = thread_id(); i < n * t.half; i += block_threads()) {
        double s, c;
        sin_cos((double)pos[i / t.half] * (double)load_f32(inv_freq + i % t.half), &s, &c);
        out[i] = f32x2{(float)(c * (double)t.scale), (float)(s * (double)t.scale)};
    }
}

KERNEL(BEGIN_THREADS, 1) begin(const BeginParams p)
{
    SHARED(int32_t, pos, BEGIN_ROWS);
    griddep_launch();
    const uint32_t number = (uint32_t)load_i32((const int32_t *)p.count);
    const int32_t *host = (const int32_t *)p.host + (int64_t)(number % p.ring) * p.max_words;
    const int first = block_x() * block_threads() + thread_id();
    const int stride = grid_x() * block_threads();
    const int words = load_i32(host + GPU_STEP_WORDS);
    const int row0 = block_x() * BEGIN_ROWS;
    const int n = p.rows - row0 < BEGIN_ROWS ? p.rows - row0 : BEGIN_ROWS;
    if (thread_id() < n)
        pos[thread_id()] = load_i32(host + p.pos + row0 + thread_id());
    int turn = 0; /* ranges go to different threads */
    for (int r = 0; r < p.n_ranges; r++) {
        for (int i = (turn + first) % stride; i < p.ranges[r].n; i += stride)
            copy_word(p, host, p.ranges[r].at + i);
        turn += stride - p.ranges[r].n % stride;
    }
    for (int i = p.pages + p.copied + first; i < words; i += stride)
        copy_word(p, host, i);
    block_sync();
    for (int t = 0; t < p.n_tables; t++)
        fill_table(p.tables[t], pos, row0, n > 0 ? n : 0);
}
