/* delta.cu: the gated delta rule. A CTA takes 32 columns of one v head of one segment and runs
 * through its rows in order with the state in registers: a warp has 8 columns, and 4 lanes share a
 * column, lane `part` holding rows 16 g + 4 part .. + 3 of it. Rows of q, k, v come 16 at a time
 * through shared memory, normed there; between rows nothing but two shuffles per sum is needed.
 *
 * The old state is read before griddep_wait: only earlier steps wrote it. */
#include "gpu_compat.h"
#include "gpu_words.h"
#include "ops_params.h"

enum { WARPS = 4, ROWS = 16, COLS = OPS_DELTA_COLS };

DEVICE float warp_sum(float v)
{
    UNROLL
    for (int o = 16; o > 0; o /= 2)
        v += shfl_xor(v, o);
    return v;
}

DEVICE float softplus(float x)
{
    return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
}

template <int G> struct Delta {
    float q[ROWS][16 * G], k[ROWS][16 * G]; /* zero past k_dim */
    float v[ROWS][COLS];
    float decay[ROWS], beta[ROWS];
};

struct Where {
    int64_t row0; /* first row of the segment */
    int n_rows;
    int head, col0;
};

/* Rows r0 .. of the segment, n of them, a warp a row. */
template <int G>
DEVICE void load_rows(const OpsDeltaParams &p, const Where &w, int r0, int n, Delta<G> &sh)
{
    const int lane = thread_id() & 31;
    const int64_t k_all = (int64_t)p.n_k_heads * p.k_dim;
    const int k_head = w.head / (p.n_v_heads / p.n_k_heads);
    for (int r = thread_id() / 32; r < n; r += WARPS) {
        const int64_t row = w.row0 + r0 + r;
        const float *q = (const float *)p.x + row * p.ldx + (int64_t)k_head * p.k_dim;
        const float *k = q + k_all;
        const float *v =
            (const float *)p.x + row * p.ldx + 2 * k_all + (int64_t)w.head * p.v_dim + w.col0;
        float qs = 0.0f;
        float ks = 0.0f;
        for (int i = lane; i < 16 * G; i += 32) {
            const float a = i < p.k_dim ? load_f32(q + i) : 0.0f;
            const float b = i < p.k_dim ? load_f32(k + i) : 0.0f;
            sh.q[r][i] = a;
            sh.k[r][i] = b;
            qs += a * a;
            ks += b * b;
        }
        sh.v[r][lane] = w.col0 + lane < p.v_dim ? load_f32(v + lane) : 0.0f;
        const float q_by = 1.0f / sqrtf(warp_sum(qs) + 1e-6f) / sqrtf((float)p.k_dim);
        const float k_by = 1.0f / sqrtf(warp_sum(ks) + 1e-6f);
        for (int i = lane; i < 16 * G; i += 32) {
            sh.q[r][i] *= q_by;
            sh.k[r][i] *= k_by;
        }
        if (lane == 0) {
            const float a = load_f32((const float *)p.a + row * p.lda + w.head);
            const float b = load_f32((const float *)p.b + row * p.ldb + w.head);
            const float dt = softplus(a + load_f32((const float *)p.dt_bias + w.head));
            sh.decay[r] = expf(-expf(load_f32((const float *)p.a_log + w.head)) * dt);
            sh.beta[r] = 1.0f / (1.0f + expf(-b));
        }
    }
}

/* Sum over the four lanes of a column. */
DEVICE float column_sum(float v)
{
    v += shfl_xor(v, 8);
    return v + shfl_xor(v, 16);
}

DEVICE f32x4 shared_f32x4(const float *p)
{
    return *(const f32x4 *)p;
}

/* One row; returns this column's result. s: the lane's rows of the column. */
template <int G> DEVICE float step_row(const Delta<G> &sh, int r, int part, int col, float s[G][4])
{
    const float decay = sh.decay[r];
    float seen = 0.0f;
    UNROLL
    for (int g = 0; g < G; g++) {
        const f32x4 k = shared_f32x4(&sh.k[r][16 * g + 4 * part]);
        UNROLL
        for (int i = 0; i < 4; i++)
            s[g][i] *= decay;
        seen += k.x * s[g][0];
        seen += k.y * s[g][1];
        seen += k.z * s[g][2];
        seen += k.w * s[g][3];
    }
    const float diff = sh.beta[r] * (sh.v[r][col] - column_sum(seen));
    float y = 0.0f;
    UNROLL
    for (int g = 0; g < G; g++) {
        const f32x4 k = shared_f32x4(&sh.k[r][16 * g + 4 * part]);
        const f32x4 q = shared_f32x4(&sh.q[r][16 * g + 4 * part]);
        s[g][0] += k.x * diff;
        s[g][1] += k.y * diff;
        s[g][2] += k.z * diff;
        s[g][3] += k.w * diff;
        y += q.x * s[g][0];
        y += q.y * s[g][1];
        y += q.z * s[g][2];
        y += q.w * s[g][3];
    }
    return column_sum(y);
}

template <int G> DEVICE void delta(const OpsDeltaParams &p)
{
    SHARED(Delta<G>, memory, 1);
    Delta<G> &sh = memory[0];
    griddep_launch();
    const int32_t *step = (const int32_t *)p.step;
    const int32_t *seg = step + p.segs_at + (int64_t)block_z() * GPU_SEG_WORDS;
    if (block_z() >= load_i32(step + GPU_STEP_N_SEGS)) {
        griddep_wait(); /* a launch that does not wait would let those after it pass this one */
        return;
    }
    Where w;
    w.row0 = load_i32(seg + GPU_SEG_ROW0);
    w.n_rows = load_i32(seg + GPU_SEG_N_ROWS);
    w.head = block_y();
    w.col0 = block_x() * COLS;
    const int64_t in = load_i32(seg + GPU_SEG_STATE_IN);
    const int64_t out = load_i32(seg + GPU_SEG_STATE_OUT);
    const int lane = thread_id() & 31;
    const int col = thread_id() / 32 * 8 + (lane & 7); /* of the CTA's */
    const int part = lane / 8;
    const bool have = w.col0 + col < p.v_dim;
    float *state =
        (float *)p.state + p.state_offset + (int64_t)w.head * p.k_dim * p.v_dim + w.col0 + col;
    float s[G][4];
    UNROLL
    for (int g = 0; g < G; g++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int row = 16 * g + 4 * part + i;
            s[g][i] = have && in >= 0 && row < p.k_dim
                          ? load_f32(state + in * p.state_floats + (int64_t)row * p.v_dim)
                          : 0.0f;
        }
    }
    griddep_wait();
    for (int r0 = 0; r0 < w.n_rows; r0 += ROWS) {
        const int n = w.n_rows - r0 < ROWS ? w.n_rows - r0 : ROWS;
        load_rows(p, w, r0, n, sh);
        block_sync();
        NO_UNROLL
        for (int r = 0; r < n; r++) {
            const float y = step_row(sh, r, part, col, s);
            if (part == 0 && have)
                ((float *)
                     p.out)[(w.row0 + r0 + r) * p.ldo + (int64_t)w.head * p.v_dim + w.col0 + col] =
                    y;
        }
        block_sync();
    }
    if (!have)
        return;
    UNROLL
    for (int g = 0; g < G; g++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int row = 16 * g + 4 * part + i;
            if (row < p.k_dim)
                state[out * p.state_floats + (int64_t)row * p.v_dim] = s[g][i];
        }
    }
}

KERNEL(128, 4) ops_delta_32(const OpsDeltaParams p)
{
    delta<2>(p);
}

KERNEL(128, 4) ops_delta_64(const OpsDeltaParams p)
{
    delta<4>(p);
}

KERNEL(128, 4) ops_delta_128(const OpsDeltaParams p)
{
    delta<8>(p);
}

KERNEL(128, 2) ops_delta_256(const OpsDeltaParams p)
{
    delta<16>(p);
}
