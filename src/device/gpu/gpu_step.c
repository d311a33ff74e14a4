#include "device/gpu/gpu_step.h"

#include "device/gpu/gpu_plan.h"

#include <string.h>

_Static_assert(GPU_SEG_PAGES + KV_GROUPS_MAX <= GPU_SEG_WORDS, "a segment's words hold its tables");

void gpu_step_layout(const GraphPlan *g, const KvPoolDesc *kv, GpuStepLayout *out)
{
    GpuStepLayout l = {.max_rows = gpu_bucket(g->max_rows),
                       .max_out = gpu_bucket(g->max_out_rows),
                       .max_segs = g->max_segs,
                       .n_groups = kv->n_groups};
    int at = GPU_STEP_HEAD;
    l.tokens = at;
    at += l.max_rows;
    l.pos = at;
    at += l.max_rows;
    l.seg = at;
    at += l.max_rows;
    for (int i = 0; i < kv->n_groups; i++) {
        l.slots[i] = at;
        at += l.max_rows;
    }
    l.out_rows = at;
    at += l.max_out;
    l.samples = at;
    at += l.max_out * GPU_SAMPLE_WORDS;
    l.segs = at;
    at += l.max_segs * GPU_SEG_WORDS;
    l.pages = at;
    for (int i = 0; i < kv->n_groups; i++)
        at += l.max_segs * kv->seq_pages[i];
    l.max_words = (int32_t)i64_round_up(at, 4); /* copied 16 bytes at a time */
    *out = l;
}

static bool check_step(const GraphPlan *g, const KvPoolDesc *kv, const StepBlock *s, Error *err)
{
    if (s->n_rows < 1 || s->n_rows > g->max_rows || s->n_segs < 1 || s->n_segs > g->max_segs ||
        s->n_out < 0 || s->n_out > g->max_out_rows || s->n_samples < 0 || s->n_samples > s->n_out)
        return err_set(
            err, ERR_DEVICE,
            "step of %d rows, %d segments, %d outputs, %d samples; planned for %d, %d, %d",
            s->n_rows, s->n_segs, s->n_out, s->n_samples, g->max_rows, g->max_segs,
            g->max_out_rows);
    int row = 0;
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &s->segs[i];
        if (seg->row0 != row || seg->n_rows < 1 || seg->kv_len < seg->n_rows)
            return err_set(err, ERR_DEVICE, "segment %d: rows from %d (%d), cache of %d", i,
                           seg->row0, seg->n_rows, seg->kv_len);
        if (g->state_floats > 0 &&
            (seg->state_out < 0 || seg->state_out >= kv->n_states || seg->state_in >= kv->n_states))
            return err_set(err, ERR_DEVICE, "segment %d: state slots %d, %d of %d", i,
                           seg->state_in, seg->state_out, kv->n_states);
        row += seg->n_rows;
    }
    if (row != s->n_rows)
        return err_set(err, ERR_DEVICE, "segments cover %d of %d rows", row, s->n_rows);
    for (int i = 0; i < s->n_out; i++)
        if (s->out_rows[i] < 0 || s->out_rows[i] >= s->n_rows)
            return err_set(err, ERR_DEVICE, "output %d is row %d of %d", i, (int)s->out_rows[i],
                           s->n_rows);
    for (int i = 0; i < s->n_rows; i++)
        if (s->rows[i].token < -SAMPLE_SLOTS_MAX)
            return err_set(err, ERR_DEVICE, "row %d: sample slot %d of %d", i,
                           -1 - (int)s->rows[i].token, SAMPLE_SLOTS_MAX);
    for (int i = 0; i < s->n_samples; i++)
        if (s->samples[i].out < 0 || s->samples[i].out >= s->n_out || s->samples[i].slot < 0 ||
            s->samples[i].slot >= SAMPLE_SLOTS_MAX)
            return err_set(err, ERR_DEVICE, "sample %d: output %d of %d, slot %d", i,
                           (int)s->samples[i].out, s->n_out, (int)s->samples[i].slot);
    return true;
}

/* Tables of a segment's pages, and its rows' slots. False: a page that is not in the pool. */
static bool write_pages(const GpuStepLayout *l, const KvPoolDesc *kv, const Segment *seg,
                        int32_t *words, int32_t *at, int32_t *block, int index, Error *err)
{
    for (int g = 0; g < kv->n_groups; g++) {
        const int pt = kv->page_tokens[g];
        const int n = (seg->kv_len + pt - 1) / pt;
        if (n > kv->seq_pages[g])
            return err_set(err, ERR_DEVICE, "segment %d: %d pages, planned for %d", index, n,
                           kv->seq_pages[g]);
        for (int i = 0; i < n; i++)
            if (seg->pages[g][i] >= kv->n_pages[g])
                return err_set(err, ERR_DEVICE, "segment %d: page %d of %d", index,
                               (int)seg->pages[g][i], kv->n_pages[g]);
        words[GPU_SEG_PAGES + g] = *at;
        memcpy(block + *at, seg->pages[g], (size_t)n * sizeof *block);
        *at += n;
        for (int r = 0; r < seg->n_rows; r++) {
            const int p = seg->kv_len - seg->n_rows + r;
            const int32_t page = seg->pages[g][p / pt];
            block[l->slots[g] + seg->row0 + r] = page < 0 ? -1 : page * pt + p % pt;
        }
    }
    return true;
}

static void write_rows(const GpuStepLayout *l, const StepBlock *s, int32_t *block)
{
    const int bucket = gpu_bucket(s->n_rows);
    for (int r = 0; r < s->n_rows; r++) {
        block[l->tokens + r] = s->rows[r].token;
        block[l->pos + r] = s->rows[r].pos;
    }
    for (int r = s->n_rows; r < bucket; r++) {
        block[l->tokens + r] = 0;
        block[l->pos + r] = 0;
        block[l->seg + r] = -1;
        for (int g = 0; g < l->n_groups; g++)
            block[l->slots[g] + r] = -1;
    }
    for (int i = 0; i < l->max_out; i++)
        block[l->out_rows + i] = i < s->n_out ? s->out_rows[i] : 0;
}

static void write_sample(const SampleDesc *d, int32_t *words)
{
    const float random = (float)d->random;
    words[GPU_SAMPLE_OUT] = d->out;
    words[GPU_SAMPLE_SLOT] = d->slot;
    words[GPU_SAMPLE_TOP_K] = d->top_k;
    memcpy(&words[GPU_SAMPLE_TEMPERATURE], &d->temperature, sizeof(float));
    memcpy(&words[GPU_SAMPLE_TOP_P], &d->top_p, sizeof(float));
    memcpy(&words[GPU_SAMPLE_MIN_P], &d->min_p, sizeof(float));
    memcpy(&words[GPU_SAMPLE_RANDOM], &random, sizeof(float));
    words[GPU_SAMPLE_WORDS - 1] = 0;
}

bool gpu_step_write(const GpuStepLayout *l, const GraphPlan *g, const KvPoolDesc *kv,
                    const StepBlock *s, uint32_t ticket, int32_t *block, Error *err)
{
    if (!check_step(g, kv, s, err))
        return false;
    int32_t at = l->pages;
    int max_kv = 0;
    write_rows(l, s, block);
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &s->segs[i];
        int32_t *words = block + l->segs + (ptrdiff_t)i * GPU_SEG_WORDS;
        memset(words, 0, GPU_SEG_WORDS * sizeof *words);
        words[GPU_SEG_ROW0] = seg->row0;
        words[GPU_SEG_N_ROWS] = seg->n_rows;
        words[GPU_SEG_KV_LEN] = seg->kv_len;
        words[GPU_SEG_STATE_IN] = seg->state_in;
        words[GPU_SEG_STATE_OUT] = seg->state_out;
        for (int r = 0; r < seg->n_rows; r++)
            block[l->seg + seg->row0 + r] = i;
        if (!write_pages(l, kv, seg, words, &at, block, i, err))
            return false;
        max_kv = (int)i64_max(max_kv, seg->kv_len);
    }
    for (int i = 0; i < s->n_samples; i++)
        write_sample(&s->samples[i], block + l->samples + (ptrdiff_t)i * GPU_SAMPLE_WORDS);
    memset(block, 0, GPU_STEP_HEAD * sizeof *block);
    block[GPU_STEP_N_ROWS] = s->n_rows;
    block[GPU_STEP_N_SEGS] = s->n_segs;
    block[GPU_STEP_N_OUT] = s->n_out;
    block[GPU_STEP_N_SAMPLES] = s->n_samples;
    block[GPU_STEP_WORDS] = at;
    block[GPU_STEP_TICKET] = (int32_t)ticket;
    block[GPU_STEP_MAX_KV] = max_kv;
    return true;
}
