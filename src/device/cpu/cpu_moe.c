/* Experts on the CPU: rows are sorted by expert, each expert multiplies its own rows with the
 * kernel that suits their number, and the outputs are gathered back with the router's weights. */
#include "device/cpu/cpu.h"

#include <string.h>

static const RowView *expert_seg(const Weight *w, int e, int seg)
{
    return &w->segs[(int64_t)e * w->n_segs + seg];
}

static const LinKernel *expert_kernel(const Program *p, const Weight *w, int e, int seg, int rows)
{
    return cpu_lin_kernel(p->dev, cpu_lin_want(p->dev, w, expert_seg(w, e, seg)), rows);
}

int cpu_moe_route_tiles(const Program *p, const Stage *s)
{
    (void)p;
    (void)s;
    return 1;
}

void cpu_moe_route_run(Program *p, const Stage *s, int tile, int thread)
{
    (void)tile;
    (void)thread;
    const MoeDesc *moe = &s->op->u.moe;
    MoeWork *m = &p->moe;
    const int rows = p->step->n_rows;
    const int k = moe->top_k;
    p->dev->kernels.route_softmax(cpu_value(p, s->op->in[1]), p->plan->values[s->op->in[1]].ld,
                                  moe->n_experts, k, moe->renorm, rows, m->ids, m->weights);
    memset(m->start, 0, ((size_t)moe->n_experts + 1) * sizeof *m->start);
    for (int i = 0; i < rows * k; i++)
        m->start[m->ids[i] + 1]++;
    m->n_active = 0;
    for (int e = 0; e < moe->n_experts; e++) {
        if (m->start[e + 1] > 0)
            m->active[m->n_active++] = e;
        m->start[e + 1] += m->start[e];
        m->fill[e] = m->start[e];
    }
    for (int i = 0; i < rows * k; i++) {
        const int32_t at = m->fill[m->ids[i]]++;
        m->place[i] = at;
        m->row[at] = i / k;
    }
}

int cpu_moe_pack_tiles(const Program *p, const Stage *s)
{
    (void)s;
    return p->moe.n_active;
}

/* The first segment of the expert whose activations are packed as those of `seg`. */
static int first_alike(const Program *p, const Weight *w, int e, int seg, int rows)
{
    const LinLayout *l = expert_kernel(p, w, e, seg, rows)->layout;
    int i = 0;
    while (expert_kernel(p, w, e, i, rows)->layout != l ||
           expert_seg(w, e, i)->columns != expert_seg(w, e, seg)->columns)
        i++;
    return i;
}

/* An expert's segments may differ in format and order of columns; every packed form they need lies
 * behind the others in the expert's part of the buffer. */
static int64_t form_offset(const Program *p, const Weight *w, int e, int rows, int seg)
{
    const int first = first_alike(p, w, e, seg, rows);
    int64_t at = 0;
    for (int i = 0; i < first; i++)
        if (first_alike(p, w, e, i, rows) == i)
            at += expert_kernel(p, w, e, i, rows)->layout->row_bytes(w->k) * rows;
    return at;
}

static void pack_expert(const Program *p, int thread, const Weight *w, int e, const float *x,
                        int64_t ldx, const int32_t *idx, int rows, uint8_t *out)
{
    for (int i = 0; i < w->n_segs; i++)
        if (first_alike(p, w, e, i, rows) == i)
            cpu_pack(p, thread, expert_kernel(p, w, e, i, rows)->layout,
                     expert_seg(w, e, i)->columns, x, ldx, idx, rows, w->k,
                     out + form_offset(p, w, e, rows, i));
}

void cpu_moe_pack_run(Program *p, const Stage *s, int tile, int thread)
{
    const MoeWork *m = &p->moe;
    const int e = m->active[tile];
    const int32_t at = m->start[e];
    pack_expert(p, thread, s->op->u.moe.gate_up, e, cpu_value(p, s->op->in[0]),
                p->plan->values[s->op->in[0]].ld, m->row + at, m->start[e + 1] - at,
                m->pack_in + m->pack_in_row * at);
}

/* Tiles of one expert's weight. */
static int expert_tiles(const Program *p, const Weight *w, int e, int seg, int rows, int64_t *size)
{
    const RowView *v = expert_seg(w, e, seg);
    *size = cpu_lin_tile(p, expert_kernel(p, w, e, seg, rows), w->n);
    return (int)((v->n + *size - 1) / *size);
}

static int all_tiles(const Program *p, const Weight *w)
{
    const MoeWork *m = &p->moe;
    int sum = 0;
    int64_t size;
    for (int a = 0; a < m->n_active; a++) {
        const int e = m->active[a];
        for (int i = 0; i < w->n_segs; i++)
            sum += expert_tiles(p, w, e, i, m->start[e + 1] - m->start[e], &size);
    }
    return sum;
}

static void run_tile(Program *p, const Weight *w, int tile, int thread, const uint8_t *packed,
                     int64_t packed_row, float *y, int64_t ldy)
{
    const MoeWork *m = &p->moe;
    for (int a = 0; a < m->n_active; a++) {
        const int e = m->active[a];
        const int rows = m->start[e + 1] - m->start[e];
        int64_t first = 0;
        for (int i = 0; i < w->n_segs; i++) {
            int64_t size;
            const int n = expert_tiles(p, w, e, i, rows, &size);
            const RowView *v = expert_seg(w, e, i);
            if (tile < n) {
                const LinKernel *kernel = expert_kernel(p, w, e, i, rows);
                const uint8_t *x =
                    packed + packed_row * m->start[e] + form_offset(p, w, e, rows, i);
                const LinOut out = {.y = y + ldy * m->start[e] + first,
                                    .ldy = ldy,
                                    .bias = w->bias ? w->bias + w->n * e + first : NULL};
                kernel->run(v, tile * size, i64_min((tile + 1) * size, v->n), x, rows, &out,
                            p->work + p->work_bytes * thread);
                return;
            }
            tile -= n;
            first += v->n;
        }
    }
}

int cpu_moe_up_tiles(const Program *p, const Stage *s)
{
    return all_tiles(p, s->op->u.moe.gate_up);
}

void cpu_moe_up_run(Program *p, const Stage *s, int tile, int thread)
{
    const MoeWork *m = &p->moe;
    run_tile(p, s->op->u.moe.gate_up, tile, thread, m->pack_in, m->pack_in_row, m->up, m->ld_up);
}

int cpu_moe_act_tiles(const Program *p, const Stage *s)
{
    (void)s;
    return p->moe.n_active;
}

void cpu_moe_act_run(Program *p, const Stage *s, int tile, int thread)
{
    const MoeDesc *moe = &s->op->u.moe;
    const MoeWork *m = &p->moe;
    const int e = m->active[tile];
    const int32_t at = m->start[e];
    const int rows = m->start[e + 1] - at;
    float *gate = m->up + m->ld_up * at;
    /* In place: element i of the product is written after element i of the gate was read. */
    p->dev->kernels.silu_mul(gate, m->ld_up, gate + moe->ffn, m->ld_up, moe->ffn, rows, gate,
                             m->ld_up);
    pack_expert(p, thread, moe->down, e, gate, m->ld_up, NULL, rows,
                m->pack_mid + m->pack_mid_row * at);
}

int cpu_moe_down_tiles(const Program *p, const Stage *s)
{
    return all_tiles(p, s->op->u.moe.down);
}

void cpu_moe_down_run(Program *p, const Stage *s, int tile, int thread)
{
    const MoeWork *m = &p->moe;
    run_tile(p, s->op->u.moe.down, tile, thread, m->pack_mid, m->pack_mid_row, m->out, m->ld_out);
}

void cpu_moe_combine(Program *p, const Op *op, int r0, int r1)
{
    const MoeWork *m = &p->moe;
    const int k = op->u.moe.top_k;
    const Value *out = &p->plan->values[op->out];
    const int add = op->in[2];
    const int64_t lda = add >= 0 ? p->plan->values[add].ld : 0;
    p->dev->kernels.combine(m->out, m->ld_out, m->place + (int64_t)r0 * k,
                            m->weights + (int64_t)r0 * k, k,
                            add >= 0 ? cpu_value(p, add) + lda * r0 : NULL, lda, out->width,
                            r1 - r0, cpu_value(p, op->out) + (int64_t)out->ld * r0, out->ld);
}
