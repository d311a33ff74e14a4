#include "weights/checkpoint.h"

#include "weights/config.h"
#include "weights/dirlist.h"
#include "weights/gguf_names.h"
#include "weights/quant.h"
#include "weights/safetensors.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE_FILE_MAX = 256 << 20, STEM_MAX = 400 };

struct Checkpoint {
    const char *path;
    const char *doc;
    json_t *config;
    bool is_gguf;
    Gguf gguf;          /* names already mapped */
    SafetensorsSet set; /* when not GGUF */
    const Tensor *tensors;
    int64_t n_tensors;
    TensorMap map;
    uint64_t bytes;
};

/* ---- open ---- */

/* The vision tower, in the mmproj file beside the text. */
static bool add_vision(Arena *a, Checkpoint *ck, Error *err)
{
    const char *path;
    Gguf vision;
    return gguf_projector(a, ck->doc, &path, err) && gguf_add(a, &ck->gguf, path, &vision, err) &&
           gguf_names_vision(&vision, ck->config, err);
}

static bool open_gguf(Arena *a, Checkpoint *ck, const char *path, Error *err)
{
    Gguf *g = &ck->gguf;
    if (!gguf_open(a, path, g, err))
        return false;
    ck->doc = g->doc;
    ck->is_gguf = true;
    if (!gguf_names_config(g, &ck->config, err) ||
        (gguf_names_has_vision(ck->config) && !add_vision(a, ck, err)) ||
        !tensor_map_init(&ck->map, a, g->tensors, g->n_tensors, err))
        return false;
    for (int64_t i = 0; i < g->n_tensors; i++) {
        const Str name = g->tensors[i].name;
        if (!gguf_names_tensor(a, ck->config, name, &g->tensors[i].name, err))
            return false;
        if (tensor_map_put(&ck->map, i) != i)
            return err_set(err, ERR_FORMAT, "%s: tensor \"%.*s\" appears twice", ck->doc,
                           (int)name.len, name.ptr);
    }
    ck->tensors = g->tensors;
    ck->n_tensors = g->n_tensors;
    return true;
}

static bool open_dir(Arena *a, Checkpoint *ck, const char *dir, Error *err)
{
    if (!config_read(a, dir, &ck->config, &ck->doc, err) ||
        !safetensors_open(a, dir, &ck->set, err))
        return false;
    ck->map = ck->set.map;
    ck->tensors = ck->set.tensors;
    ck->n_tensors = ck->set.n_tensors;
    return true;
}

/* A directory whose weights are GGUF files, with or without a config.json beside them. */
static bool holds_gguf(Arena *a, const char *dir, bool *yes, Error *err)
{
    const ArenaMark mark = arena_mark(a);
    const char *const *names;
    int n_safetensors;
    int n_gguf;
    const bool ok = dirlist_read(a, dir, ".safetensors", &names, &n_safetensors, err) &&
                    dirlist_read(a, dir, ".gguf", &names, &n_gguf, err);
    arena_rewind(a, mark);
    if (ok)
        *yes = n_safetensors == 0 && n_gguf > 0;
    return ok;
}

/* Files named by their hash (Ollama's blobs) are known by their first bytes. */
static bool begins_as_gguf(const char *path)
{
    char magic[4] = "";
    FILE *f = fopen(path, "rbe");
    const bool yes = f && fread(magic, 1, sizeof magic, f) == sizeof magic &&
                     memcmp(magic, "GGUF", sizeof magic) == 0;
    if (f)
        fclose(f);
    return yes;
}

static bool open_path(Arena *a, Checkpoint *ck, Error *err)
{
    if (!file_is_dir(ck->path)) {
        if (file_exists(ck->path) && !str_ends(str_from(ck->path), ".gguf") &&
            !begins_as_gguf(ck->path))
            return err_set(err, ERR_FORMAT, "%s: neither a directory nor a .gguf file", ck->path);
        return open_gguf(a, ck, ck->path, err);
    }
    bool is_gguf;
    if (!holds_gguf(a, ck->path, &is_gguf, err))
        return false;
    if (!is_gguf)
        return open_dir(a, ck, ck->path, err);
    const char *path;
    return gguf_in_dir(a, ck->path, (Str){0}, &path, err) && open_gguf(a, ck, path, err);
}

bool checkpoint_open(Arena *a, const char *path, Checkpoint **out, Error *err)
{
    Checkpoint *ck = ARENA_NEW(a, Checkpoint, err);
    if (!ck)
        return false;
    ck->path = arena_strdup(a, path, strlen(path), err);
    if (!ck->path || !open_path(a, ck, err)) {
        checkpoint_close(ck);
        return false;
    }
    for (int64_t i = 0; i < ck->n_tensors; i++)
        ck->bytes += ck->tensors[i].bytes;
    *out = ck;
    return true;
}

void checkpoint_close(Checkpoint *ck)
{
    if (!ck)
        return;
    json_decref(ck->config);
    ck->config = NULL;
    gguf_close(&ck->gguf);
    safetensors_close(&ck->set);
}

/* ---- what it is ---- */

const json_t *checkpoint_config(const Checkpoint *ck)
{
    return ck->config;
}

const char *checkpoint_doc(const Checkpoint *ck)
{
    return ck->doc;
}

const char *checkpoint_path(const Checkpoint *ck)
{
    return ck->path;
}

const Gguf *checkpoint_gguf(const Checkpoint *ck)
{
    return ck->is_gguf ? &ck->gguf : NULL;
}

bool checkpoint_side_file(const Checkpoint *ck, Arena *a, const char *name, Str *out, Error *err)
{
    *out = (Str){0};
    if (ck->is_gguf)
        return true;
    const char *path = arena_printf(a, err, "%s/%s", ck->path, name);
    if (!path)
        return false;
    return !file_exists(path) || file_read(a, path, SIDE_FILE_MAX, out, err);
}

bool checkpoint_strings(const Checkpoint *ck, Arena *a, const char *key, Str **out, int64_t *n,
                        Error *err)
{
    *out = NULL;
    *n = 0;
    const GgufKv *kv = ck->is_gguf ? gguf_find(&ck->gguf, key) : NULL;
    if (!kv)
        return true;
    if (kv->type != GGUF_ARRAY || kv->item != GGUF_STR)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is no array of strings", ck->doc, key);
    Str *list = ARENA_ARRAY(a, kv->n, Str, err);
    if (!list)
        return false;
    const uint8_t *at = kv->data;
    for (uint64_t i = 0; i < kv->n; i++)
        list[i] = gguf_next_str(&at);
    *out = list;
    *n = (int64_t)kv->n;
    return true;
}

/* ---- chat template ---- */

/* "chat_template" of a parsed file: a string, or a list of {name, template}. *v is NULL when it has
 * none of that name. */
static bool template_in(const json_t *obj, const char *doc, const char *name, const json_t **v,
                        Error *err)
{
    const json_t *all = json_object_get(obj, "chat_template");
    *v = NULL;
    if (!all || json_is_null(all))
        return true;
    if (json_is_string(all)) {
        if (!name)
            *v = all;
        return true;
    }
    if (!json_is_array(all))
        return err_set(err, ERR_FORMAT, "%s: \"chat_template\" is neither a string nor a list",
                       doc);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *item = json_array_get(all, i);
        const json_t *is = json_object_get(item, "name");
        const json_t *text = json_object_get(item, "template");
        if (!json_is_string(is) || !json_is_string(text))
            return err_set(err, ERR_FORMAT,
                           "%s: chat_template[%zu] has no \"name\" or \"template\"", doc, i);
        if (strcmp(json_string_value(is), name ? name : "default") == 0)
            *v = text;
    }
    return true;
}

static bool template_from_json(const Checkpoint *ck, Arena *a, const char *file, const char *name,
                               Str *out, Error *err)
{
    Str text;
    *out = (Str){0};
    if (!checkpoint_side_file(ck, a, file, &text, err))
        return false;
    if (!text.ptr)
        return true;
    json_t *obj = json_parse(file, text, err);
    const json_t *v = NULL;
    bool ok = obj && template_in(obj, file, name, &v, err);
    if (ok && v) {
        *out = (Str){arena_strdup(a, json_string_value(v), json_string_length(v), err),
                     json_string_length(v)};
        ok = out->ptr != NULL;
    }
    json_decref(obj);
    return ok;
}

bool checkpoint_chat_template(const Checkpoint *ck, Arena *a, const char *name, Str *out,
                              Error *err)
{
    *out = (Str){0};
    if (ck->is_gguf) {
        const char *key = name ? arena_printf(a, err, "tokenizer.chat_template.%s", name)
                               : "tokenizer.chat_template";
        return key && gguf_str_or(&ck->gguf, key, (Str){0}, out, err);
    }
    if (!name && !checkpoint_side_file(ck, a, "chat_template.jinja", out, err))
        return false;
    return out->ptr ||
           (template_from_json(ck, a, "tokenizer_config.json", name, out, err) &&
            (out->ptr || template_from_json(ck, a, "chat_template.json", name, out, err)));
}

/* ---- tensors ---- */

const Tensor *checkpoint_find(const Checkpoint *ck, const char *name)
{
    return tensor_map_find(&ck->map, str_from(name));
}

bool checkpoint_has(const Checkpoint *ck, const char *name)
{
    return checkpoint_find(ck, name) != NULL;
}

int64_t checkpoint_n_tensors(const Checkpoint *ck)
{
    return ck->n_tensors;
}

const Tensor *checkpoint_tensor(const Checkpoint *ck, int64_t i)
{
    return &ck->tensors[i];
}

uint64_t checkpoint_bytes(const Checkpoint *ck)
{
    return ck->bytes;
}

int checkpoint_n_files(const Checkpoint *ck)
{
    return ck->is_gguf ? ck->gguf.n_files : ck->set.n_files;
}

const char *checkpoint_file(const Checkpoint *ck, int file)
{
    return (ck->is_gguf ? ck->gguf.paths : ck->set.paths)[file];
}

bool checkpoint_broken(const Checkpoint *ck)
{
    const FileMap *maps = ck->is_gguf ? ck->gguf.maps : ck->set.maps;
    for (int i = 0; i < checkpoint_n_files(ck); i++)
        if (file_map_broken(&maps[i]))
            return true;
    return false;
}

/* ---- rows ---- */

typedef struct ShapeText {
    char s[80];
} ShapeText;

static ShapeText shape_text(const Tensor *t)
{
    ShapeText out = {"["};
    for (int i = 0; i < t->n_dims; i++) {
        const size_t at = strlen(out.s);
        (void)snprintf(out.s + at, sizeof out.s - at, "%s%" PRId64, i ? ", " : "", t->dims[i]);
    }
    const size_t at = strlen(out.s);
    (void)snprintf(out.s + at, sizeof out.s - at, "]");
    return out;
}

/* "<stem><suffix>"; NULL when there is none. */
static const Tensor *find_part(const Checkpoint *ck, const char *stem, const char *suffix)
{
    char name[STEM_MAX + 16];
    const int n = snprintf(name, sizeof name, "%s%s", stem, suffix);
    return n < (int)sizeof name ? checkpoint_find(ck, name) : NULL;
}

static int64_t last_dim(const Tensor *t)
{
    return t->n_dims ? t->dims[t->n_dims - 1] : 1;
}

/* All dimensions but the last. */
static int64_t n_rows(const Tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

static bool wrong_shape(const Checkpoint *ck, const Tensor *t, const char *wanted, int64_t n,
                        int64_t k, Error *err)
{
    return err_set(err, ERR_FORMAT,
                   "%.90s: tensor \"%.60s\" is %s, wanted %" PRId64 " rows of %" PRId64 "%s",
                   checkpoint_file(ck, t->file), t->name.ptr, shape_text(t).s, n, k, wanted);
}

static bool unsupported_type(const Checkpoint *ck, const Tensor *t, Error *err)
{
    return err_set(err, ERR_UNSUPPORTED, "%.100s: tensor \"%.60s\" is %s, which cannot be used",
                   checkpoint_file(ck, t->file), t->name.ptr, tensor_dtype(t->dtype)->name);
}

static bool plain_rows(const Checkpoint *ck, const Tensor *t, int64_t n, int64_t k, RowView *out,
                       Error *err)
{
    const DTypeInfo *d = tensor_dtype(t->dtype);
    if (d->format == FMT_COUNT)
        return unsupported_type(ck, t, err);
    if (last_dim(t) != k || n_rows(t) != n)
        return wrong_shape(ck, t, "", n, k, err);
    *out = (RowView){.data = t->data,
                     .row_bytes = format_row_bytes(d->format, k),
                     .n = n,
                     .k = (int)k,
                     .group = d->block,
                     .format = d->format};
    return true;
}

/* MLX's microscaling formats, which have byte scales and no biases. Without a mode it is mxfp4, the
 * first there was. FMT_COUNT: none of them. */
static FormatId micro_format(const Tensor *scales, int bits, int64_t group, Str mode)
{
    static const struct {
        const char *mode;
        int bits, group;
        FormatId format;
    } known[] = {
        {"mxfp4", 4, 32, FMT_MXFP4P}, {"mxfp8", 8, 32, FMT_MXFP8P}, {"nvfp4", 4, 16, FMT_NVFP4P}};
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (scales->dtype == DT_U8 && bits == known[i].bits && group == known[i].group &&
            (mode.len == 0 ? known[i].format == FMT_MXFP4P : str_is(mode, known[i].mode)))
            return known[i].format;
    return FMT_COUNT;
}

/* MLX: codes in `w`, scales and biases beside it. */
static bool packed_rows(const Checkpoint *ck, const char *stem, const Tensor *w,
                        const Tensor *scales, int64_t n, int64_t k, RowView *out, Error *err)
{
    const Tensor *biases = find_part(ck, stem, ".biases");
    if (w->dtype != DT_U32 && w->dtype != DT_U8)
        return err_set(err, ERR_FORMAT, "%.100s: tensor \"%.60s\" is %s beside scales, wanted U32",
                       checkpoint_file(ck, w->file), w->name.ptr, tensor_dtype(w->dtype)->name);
    const int64_t row_bytes = last_dim(w) * tensor_dtype(w->dtype)->block_bytes;
    const int64_t groups = last_dim(scales);
    if (n_rows(w) != n || row_bytes > k || row_bytes * 8 % k != 0)
        return wrong_shape(ck, w, " packed", n, k, err);
    const int bits = (int)(row_bytes * 8 / k);
    if (n_rows(scales) != n || groups < 1 || k % groups != 0)
        return wrong_shape(ck, scales, " in groups", n, k, err);
    const int64_t group = k / groups;

    const ConfigQuant said = config_quant(ck->config, stem);
    *out = (RowView){.data = w->data,
                     .scales = scales->data,
                     .row_bytes = row_bytes,
                     .n = n,
                     .k = (int)k,
                     .group = (int)group};
    if (!biases) {
        if (str_is(said.mode, "affine") && scales->dtype != DT_U8)
            return err_set(err, ERR_FORMAT, "%.100s: tensor \"%.60s.biases\" is missing", ck->doc,
                           stem);
        const FormatId micro = micro_format(scales, bits, group, said.mode);
        if (micro == FMT_COUNT)
            return err_set(err, ERR_UNSUPPORTED,
                           "%.90s: \"%.60s\" is quantised as %.*s, %d bits in groups of %" PRId64,
                           ck->doc, stem, said.mode.len ? (int)said.mode.len : 7,
                           said.mode.len ? said.mode.ptr : "unknown", bits, group);
        out->format = micro;
        out->scale_format = FMT_F32;
        out->scale_row_bytes = groups;
        return true;
    }
    static const FormatId affine[9] = {FMT_COUNT,   FMT_AFFINE1, FMT_AFFINE2,
                                       FMT_AFFINE3, FMT_AFFINE4, FMT_AFFINE5,
                                       FMT_AFFINE6, FMT_COUNT,   FMT_AFFINE8};
    if (affine[bits] == FMT_COUNT)
        return err_set(err, ERR_UNSUPPORTED,
                       "%.90s: \"%.60s\" is affine with %d bits, wanted 1 to 6 or 8", ck->doc, stem,
                       bits);
    if (group != 32 && group != 64 && group != 128)
        return err_set(err, ERR_UNSUPPORTED,
                       "%.90s: \"%.60s\" is in groups of %" PRId64 ", wanted 32, 64 or 128",
                       ck->doc, stem, group);
    const FormatId scale_format = tensor_dtype(scales->dtype)->format;
    if (scale_format != FMT_F32 && scale_format != FMT_F16 && scale_format != FMT_BF16)
        return unsupported_type(ck, scales, err);
    if (biases->dtype != scales->dtype)
        return err_set(err, ERR_FORMAT, "%.100s: tensor \"%.60s\" is %s, its scales are %s",
                       checkpoint_file(ck, biases->file), biases->name.ptr,
                       tensor_dtype(biases->dtype)->name, tensor_dtype(scales->dtype)->name);
    if (n_rows(biases) != n || last_dim(biases) != groups)
        return wrong_shape(ck, biases, " in groups", n, k, err);
    out->format = affine[bits];
    out->scale_format = scale_format;
    out->scale_row_bytes = groups * tensor_dtype(scales->dtype)->block_bytes;
    out->biases = biases->data;
    return true;
}

/* false without an error when there are no tensors of that stem. */
static bool rows_of(const Checkpoint *ck, CheckpointSpace *space, const char *stem, int64_t n,
                    int64_t k, RowView *out, bool *found, Error *err)
{
    const Tensor *w = find_part(ck, stem, ".weight");
    const bool is_quant = !ck->is_gguf && quant_has(ck, stem);
    *found = w || is_quant;
    if (!*found)
        return false;
    if (n < 0 || k < 1 || k > INT_MAX / 8)
        return err_set(err, ERR_FORMAT, "%.100s: \"%.60s\" as %" PRId64 " rows of %" PRId64,
                       ck->doc, stem, n, k);
    if (is_quant)
        return quant_rows(ck, space, stem, n, k, out, err);
    const Tensor *scales = find_part(ck, stem, ".scales");
    return scales ? packed_rows(ck, stem, w, scales, n, k, out, err)
                  : plain_rows(ck, w, n, k, out, err);
}

static bool missing_tensor(const Checkpoint *ck, const char *stem, const char *suffix, Error *err)
{
    return err_set(err, ERR_FORMAT, "%.120s: tensor \"%.80s%s\" is missing", ck->path, stem,
                   suffix);
}

bool checkpoint_rows(const Checkpoint *ck, const char *stem, int64_t n, int64_t k, RowView *out,
                     Error *err)
{
    return checkpoint_rows_derived(ck, NULL, stem, n, k, out, err);
}

bool checkpoint_rows_derived(const Checkpoint *ck, CheckpointSpace *space, const char *stem,
                             int64_t n, int64_t k, RowView *out, Error *err)
{
    bool found;
    return rows_of(ck, space, stem, n, k, out, &found, err) ||
           (!found && missing_tensor(ck, stem, ".weight", err));
}

/* Rows of expert e in a stack. */
static bool stacked_rows(const Checkpoint *ck, CheckpointSpace *space, const char *stem, int e,
                         int n_experts, int64_t n, int64_t k, RowView *out, bool *found, Error *err)
{
    int64_t all;
    *found = true;
    if (__builtin_mul_overflow(n, (int64_t)n_experts, &all))
        return err_set(err, ERR_FORMAT, "%.100s: \"%.60s\" as %d experts of %" PRId64 " rows",
                       ck->doc, stem, n_experts, n);
    RowView stack;
    if (!ck->is_gguf && quant_has(ck, stem))
        return err_set(err, ERR_UNSUPPORTED,
                       "%.100s: \"%.60s\": stacked experts are read as plain numbers or MLX only",
                       ck->doc, stem);
    if (!rows_of(ck, space, stem, all, k, &stack, found, err))
        return false;
    const Tensor *w = find_part(ck, stem, ".weight");
    if (w->n_dims != 3 || w->dims[0] != n_experts)
        return err_set(err, ERR_FORMAT,
                       "%.90s: tensor \"%.60s\" is %s, wanted a stack of %d [%" PRId64 ", %" PRId64
                       "]",
                       checkpoint_file(ck, w->file), w->name.ptr, shape_text(w).s, n_experts, n, k);
    *out = rowview_slice(&stack, n * e, n);
    return true;
}

bool checkpoint_expert_rows(const Checkpoint *ck, const char *stem, int e, int n_experts, int64_t n,
                            int64_t k, RowView *out, Error *err)
{
    return checkpoint_expert_rows_derived(ck, NULL, stem, e, n_experts, n, k, out, err);
}

bool checkpoint_expert_rows_derived(const Checkpoint *ck, CheckpointSpace *space, const char *stem,
                                    int e, int n_experts, int64_t n, int64_t k, RowView *out,
                                    Error *err)
{
    static const char marker[] = ".experts.";
    char other[STEM_MAX];
    bool found;
    if (stacked_rows(ck, space, stem, e, n_experts, n, k, out, &found, err))
        return true;
    const char *at = strstr(stem, marker);
    if (found || !at || strlen(stem) > sizeof other - 20)
        return !found && missing_tensor(ck, stem, ".weight", err);
    const int moe = (int)(at - stem);
    const char *proj = at + sizeof marker - 1;
    (void)snprintf(other, sizeof other, "%.*s.switch_mlp.%s", moe, stem, proj);
    if (stacked_rows(ck, space, other, e, n_experts, n, k, out, &found, err))
        return true;
    if (found)
        return false;
    (void)snprintf(other, sizeof other, "%.*s.experts.%d.%s", moe, stem, e, proj);
    return checkpoint_rows_derived(ck, space, other, n, k, out, err);
}

bool checkpoint_vector(const Checkpoint *ck, const char *name, int64_t n, float *out, Error *err)
{
    const Tensor *t = checkpoint_find(ck, name);
    if (!t)
        return missing_tensor(ck, name, "", err);
    const DTypeInfo *d = tensor_dtype(t->dtype);
    if (d->format == FMT_COUNT)
        return unsupported_type(ck, t, err);
    if (tensor_elements(t) != n)
        return err_set(err, ERR_FORMAT, "%.100s: tensor \"%.60s\" is %s, wanted %" PRId64 " values",
                       checkpoint_file(ck, t->file), t->name.ptr, shape_text(t).s, n);
    const int64_t k = last_dim(t);
    if (n == 0)
        return true;
    if (k > INT_MAX)
        return unsupported_type(ck, t, err);
    const RowView v = {.data = t->data,
                       .row_bytes = format_row_bytes(d->format, k),
                       .n = n / k,
                       .k = (int)k,
                       .group = d->block,
                       .format = d->format};
    for (int64_t r = 0; r < v.n; r++)
        format_dequant_row(&v, r, out + r * k);
    return true;
}

/* ---- groups ---- */

static const char *const group_names[] = {"embedding", "attention", "mlp",  "experts",
                                          "norms",     "head",      "other"};
enum { G_EMBEDDING, G_ATTENTION, G_MLP, G_EXPERTS, G_NORMS, G_HEAD, G_OTHER, GROUPS_MAX = 256 };

static int group_of(const char *name)
{
    if (strstr(name, "lm_head"))
        return G_HEAD;
    if (strstr(name, "embed"))
        return G_EMBEDDING;
    if (strstr(name, ".experts.") || strstr(name, ".switch_mlp."))
        return G_EXPERTS;
    if (strstr(name, "norm"))
        return G_NORMS;
    if (strstr(name, "attn"))
        return G_ATTENTION;
    return strstr(name, "mlp") ? G_MLP : G_OTHER;
}

/* A packed weight's label. The shapes give bits * group; the configuration says which. */
static const char *packed_label(const Checkpoint *ck, Arena *a, const char *stem, const Tensor *w,
                                const Tensor *scales, int *group, Error *err)
{
    const ConfigQuant said = config_quant(ck->config, stem);
    const int64_t groups = last_dim(scales);
    *group = said.group;
    if (groups < 1 || said.group < 1)
        return "packed";
    const int64_t bits =
        last_dim(w) * tensor_dtype(w->dtype)->block_bytes * 8 / groups / said.group;
    return arena_printf(a, err, "%.*s %" PRId64 "-bit", (int)said.mode.len, said.mode.ptr, bits);
}

static bool add_group(CheckpointGroup *list, int *n, const CheckpointGroup *g, const char *doc,
                      Error *err)
{
    for (int i = 0; i < *n; i++) {
        if (list[i].name == g->name && list[i].group_size == g->group_size &&
            strcmp(list[i].format, g->format) == 0) {
            list[i].bytes += g->bytes;
            list[i].n_tensors++;
            return true;
        }
    }
    if (*n == GROUPS_MAX)
        return err_set(err, ERR_UNSUPPORTED, "%s: more than %d kinds of tensors", doc, GROUPS_MAX);
    list[(*n)++] = *g;
    return true;
}

static int group_rank(const CheckpointGroup *g)
{
    int i = 0;
    while (group_names[i] != g->name)
        i++;
    return i;
}

static int by_group(const void *a, const void *b)
{
    const CheckpointGroup *x = a;
    const CheckpointGroup *y = b;
    if (x->name != y->name)
        return group_rank(x) - group_rank(y);
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

bool checkpoint_groups(const Checkpoint *ck, Arena *a, CheckpointGroup **out, int *n, Error *err)
{
    CheckpointGroup *list = ARENA_ARRAY(a, GROUPS_MAX, CheckpointGroup, err);
    if (!list)
        return false;
    *n = 0;
    for (int64_t i = 0; i < ck->n_tensors; i++) {
        const Tensor *t = &ck->tensors[i];
        const DTypeInfo *d = tensor_dtype(t->dtype);
        CheckpointGroup g = {.name = group_names[group_of(t->name.ptr)],
                             .format = d->name,
                             .group_size = d->block > 1 ? d->block : 0,
                             .bytes = t->bytes,
                             .n_tensors = 1};
        char stem[STEM_MAX];
        const char *dot = strrchr(t->name.ptr, '.');
        const int len = dot && dot - t->name.ptr < STEM_MAX ? (int)(dot - t->name.ptr) : 0;
        (void)snprintf(stem, sizeof stem, "%.*s", len, t->name.ptr);
        const bool is_weight = dot && strcmp(dot, ".weight") == 0;
        const bool is_plane = dot && (strcmp(dot, ".scales") == 0 || strcmp(dot, ".biases") == 0);
        if (is_plane && find_part(ck, stem, ".weight"))
            continue; /* counted with its weight */
        const Tensor *scales = is_weight ? find_part(ck, stem, ".scales") : NULL;
        if (scales) {
            const Tensor *biases = find_part(ck, stem, ".biases");
            g.bytes += scales->bytes + (biases ? biases->bytes : 0);
            g.format = packed_label(ck, a, stem, t, scales, &g.group_size, err);
        }
        if (!g.format || !add_group(list, n, &g, ck->doc, err))
            return false;
    }
    qsort(list, (size_t)*n, sizeof *list, by_group);
    *out = list;
    return true;
}
