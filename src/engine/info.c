#include "engine/info.h"

#include "weights/checkpoint.h"

static MereStr str_of(const char *s)
{
    return (MereStr){s, s ? strlen(s) : 0};
}

static bool fill_groups(Arena *a, const Checkpoint *ck, MereInfo *out, Error *err)
{
    CheckpointGroup *groups;
    int n;
    if (!checkpoint_groups(ck, a, &groups, &n, err))
        return false;
    MereGroup *own = ARENA_ARRAY(a, n, MereGroup, err);
    if (!own)
        return false;
    for (int i = 0; i < n; i++) {
        const CheckpointGroup *g = &groups[i];
        const char *format = g->group_size > 0 && strchr(g->format, ' ')
                                 ? arena_printf(a, err, "%s g%d", g->format, g->group_size)
                                 : g->format;
        if (!format)
            return false;
        own[i] = (MereGroup){str_of(g->name), str_of(format), (int32_t)g->n_tensors, g->bytes};
    }
    out->groups = own;
    out->n_groups = n;
    return true;
}

static bool fill_eos(Arena *a, const Model *m, const Tokenizer *tokenizer, MereInfo *out,
                     Error *err)
{
    const json_t *list = json_object_get(checkpoint_config(m->ck), "eos_token_id");
    const size_t n = json_is_array(list) ? json_array_size(list) : json_is_integer(list) ? 1 : 0;
    int32_t *ids = ARENA_ARRAY(a, n + 2, int32_t, err);
    if (!ids)
        return false;
    int32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(list) ? json_array_get(list, i) : list;
        const json_int_t id = json_integer_value(v);
        if (json_is_integer(v) && id >= 0 && id < m->vocab)
            ids[count++] = (int32_t)id;
    }
    /* The tokenizer's own: many files name the end of a turn only there. */
    const int own[2] = {tokenizer ? tokenizer_eos(tokenizer) : -1,
                        tokenizer ? tokenizer_eot(tokenizer) : -1};
    for (int i = 0; i < 2; i++) {
        bool known = own[i] < 0 || own[i] >= m->vocab;
        for (int32_t j = 0; j < count && !known; j++)
            known = ids[j] == own[i];
        if (!known)
            ids[count++] = own[i];
    }
    out->eos_ids = ids;
    out->n_eos = count;
    return true;
}

static int64_t count_params(const Model *m)
{
    int64_t n = (m->derived_bytes - m->derived_weight_bytes) / (int64_t)sizeof(float);
    for (int i = 0; i < m->n_weights; i++) {
        const Weight *w = m->weights[i];
        bool again = false; /* a tied head is the embedding again */
        for (int j = 0; j < i && !again; j++)
            again = w->n_segs > 0 && m->weights[j]->n_segs > 0 &&
                    m->weights[j]->segs[0].data == w->segs[0].data;
        if (!again)
            n += w->n * w->k * (w->n_experts > 0 ? w->n_experts : 1);
    }
    return n;
}

bool info_fill(Arena *a, const Model *m, const Tokenizer *tokenizer, MereInfo *out, Error *err)
{
    *out = (MereInfo){.size = sizeof *out,
                      .path = str_of(checkpoint_path(m->ck)),
                      .family = str_of(m->family->name),
                      .container = str_of(checkpoint_is_gguf(m->ck) ? "gguf" : "safetensors"),
                      .vocab = m->vocab,
                      .hidden = m->hidden,
                      .n_layers = m->n_layers,
                      .max_ctx = m->max_ctx,
                      .n_params = count_params(m),
                      .bos_id = tokenizer ? tokenizer_bos(tokenizer) : -1};
    Str type;
    Str chat;
    if (!json_get_str_or(checkpoint_config(m->ck), m->doc, "model_type", &type, err) ||
        !checkpoint_chat_template(m->ck, a, NULL, &chat, err) || !fill_groups(a, m->ck, out, err) ||
        !fill_eos(a, m, tokenizer, out, err))
        return false;
    out->model_type = (MereStr){type.ptr, type.len};
    out->has_chat_template = chat.ptr != NULL;
    out->tokenizer = str_of(tokenizer ? tokenizer_describe(tokenizer) : "none");
    return true;
}
