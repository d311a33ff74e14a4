#include "support/mlx_twin.h"

#include "base/num.h"
#include "weights/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

enum { GROUP = 32, NAME_MAX_BYTES = 256 };

typedef struct Twin {
    const Checkpoint *ck;
    const char *doc;
    Arena *a;
    bool interleaved; /* rows of q_proj and k_proj are in pairs */
    int n_heads, n_kv_heads;
} Twin;

typedef struct Planes {
    uint8_t *codes;
    uint8_t *scales; /* f16, little-endian as in the file */
    uint8_t *biases;
} Planes;

static int bits_of(const Tensor *t)
{
    return t->dtype == DT_Q4_1 ? 4 : 8;
}

static bool is_vector(const Tensor *t)
{
    return t->n_dims == 1;
}

/* Heads whose rows are permuted; 0: this tensor's rows are in order. */
static int paired_heads(const Twin *w, Str name)
{
    if (!w->interleaved)
        return 0;
    if (str_ends(name, ".q_proj.weight") || str_ends(name, ".q_proj.bias"))
        return w->n_heads;
    if (str_ends(name, ".k_proj.weight") || str_ends(name, ".k_proj.bias"))
        return w->n_kv_heads;
    return 0;
}

static bool check_tensor(const Twin *w, const Tensor *t, Error *err)
{
    const int heads = paired_heads(w, t->name);
    const bool matrix = t->n_dims == 2 && (t->dtype == DT_Q4_1 || t->dtype == DT_Q8_0) &&
                        str_ends(t->name, ".weight") && t->name.len < NAME_MAX_BYTES;
    if (!matrix && !(is_vector(t) && t->dtype == DT_F32 && heads == 0))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tensor %.*s is %s with %d dimensions, wanted a matrix of Q4_1 or Q8_0 "
                       "or a vector of F32",
                       w->doc, (int)t->name.len, t->name.ptr, tensor_dtype(t->dtype)->name,
                       t->n_dims);
    if (heads > 0 && t->dims[0] % ((int64_t)2 * heads) != 0)
        return err_set(err, ERR_FORMAT, "%s: tensor %.*s has %lld rows, wanted pairs of %d heads",
                       w->doc, (int)t->name.len, t->name.ptr, (long long)t->dims[0], heads);
    return true;
}

/* The row of the file that is row r of the twin: within a head, halves from pairs. */
static int64_t source_row(int64_t r, int64_t n, int heads)
{
    if (heads == 0)
        return r;
    const int64_t dim = n / heads;
    const int64_t in_head = r % dim;
    const int64_t half = in_head / (dim / 2);
    const int64_t i = in_head % (dim / 2);
    return r - in_head + 2 * i + half;
}

/* d f16, m f16, 16 bytes with element i low and i + 16 high; out: elements 2i low and 2i + 1 high.
 */
static void split_q4_1(const uint8_t *block, uint8_t *codes, uint8_t *scale, uint8_t *bias)
{
    uint8_t q[GROUP];
    memcpy(scale, block, 2);
    memcpy(bias, block + 2, 2);
    for (int i = 0; i < 16; i++) {
        q[i] = block[4 + i] & 15U;
        q[i + 16] = block[4 + i] >> 4;
    }
    for (int i = 0; i < 16; i++)
        codes[i] = (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
}

/* False when -128 d is no f16. */
static bool split_q8_0(const uint8_t *block, uint8_t *codes, uint8_t *scale, uint8_t *bias)
{
    uint16_t d;
    memcpy(&d, block, sizeof d);
    const float want = -128.0F * num_from_f16(d);
    const uint16_t b = num_to_f16(want);
    memcpy(scale, &d, sizeof d);
    memcpy(bias, &b, sizeof b);
    for (int i = 0; i < GROUP; i++)
        codes[i] = block[2 + i] ^ 0x80U;
    return num_bits(num_from_f16(b)) == num_bits(want) && (b & 0x7c00U) != 0x7c00U;
}

static bool split(const Twin *w, const Tensor *t, Planes *p, Error *err)
{
    const int64_t n = t->dims[0];
    const int64_t groups = t->dims[1] / GROUP;
    const int64_t code_bytes = GROUP * bits_of(t) / 8;
    const int64_t block_bytes = tensor_dtype(t->dtype)->block_bytes;
    const int heads = paired_heads(w, t->name);
    p->codes = ARENA_ARRAY(w->a, n * groups * code_bytes, uint8_t, err);
    p->scales = p->codes ? ARENA_ARRAY(w->a, n * groups * 2, uint8_t, err) : NULL;
    p->biases = p->scales ? ARENA_ARRAY(w->a, n * groups * 2, uint8_t, err) : NULL;
    if (!p->biases)
        return false;
    for (int64_t r = 0; r < n; r++) {
        const uint8_t *row = t->data + source_row(r, n, heads) * groups * block_bytes;
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t *block = row + g * block_bytes;
            const int64_t at = r * groups + g;
            if (t->dtype == DT_Q4_1)
                split_q4_1(block, p->codes + at * code_bytes, p->scales + at * 2,
                           p->biases + at * 2);
            else if (!split_q8_0(block, p->codes + at * code_bytes, p->scales + at * 2,
                                 p->biases + at * 2))
                return err_set(err, ERR_UNSUPPORTED,
                               "%s: tensor %.*s, row %lld: -128 times a scale is no f16", w->doc,
                               (int)t->name.len, t->name.ptr, (long long)r);
        }
    }
    return true;
}

/* "<stem><suffix>" of a "<stem>.weight". */
static const char *part_name(const Tensor *t, const char *suffix, char out[NAME_MAX_BYTES + 8])
{
    const int stem = (int)(t->name.len - strlen(".weight"));
    (void)snprintf(out, NAME_MAX_BYTES + 8, "%.*s%s", stem, t->name.ptr, suffix);
    return out;
}

/* One entry of the header; *at moves past its bytes. */
static bool add_entry(json_t *header, const char *name, const char *dtype, json_t *shape,
                      int64_t bytes, int64_t *at)
{
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets",
                              (json_int_t)*at, (json_int_t)(*at + bytes));
    *at += bytes;
    return json_object_set_new(header, name, entry) == 0;
}

static bool add_tensor(json_t *header, const Tensor *t, int64_t *at)
{
    if (is_vector(t))
        return add_entry(header, t->name.ptr, "F32", json_pack("[I]", (json_int_t)t->dims[0]),
                         (int64_t)t->bytes, at);
    char name[NAME_MAX_BYTES + 8];
    const json_int_t n = t->dims[0];
    const json_int_t words = t->dims[1] * bits_of(t) / 32;
    const json_int_t groups = t->dims[1] / GROUP;
    return add_entry(header, part_name(t, ".weight", name), "U32", json_pack("[I,I]", n, words),
                     n * words * 4, at) &&
           add_entry(header, part_name(t, ".scales", name), "F16", json_pack("[I,I]", n, groups),
                     n * groups * 2, at) &&
           add_entry(header, part_name(t, ".biases", name), "F16", json_pack("[I,I]", n, groups),
                     n * groups * 2, at);
}

/* The header with its length before it, padded to a multiple of 8. */
static bool write_header(const Twin *w, FILE *f, Error *err)
{
    json_t *header = json_object();
    int64_t at = 0;
    bool ok = header != NULL;
    for (int64_t i = 0; i < checkpoint_n_tensors(w->ck) && ok; i++) {
        const Tensor *t = checkpoint_tensor(w->ck, i);
        if (!check_tensor(w, t, err)) {
            json_decref(header);
            return false;
        }
        ok = add_tensor(header, t, &at);
    }
    char *text = ok ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return err_nomem(err, "safetensors header", 0);
    const size_t len = strlen(text);
    const uint64_t padded = (len + 7) / 8 * 8;
    bool wrote = fwrite(&padded, sizeof padded, 1, f) == 1 && fwrite(text, 1, len, f) == len &&
                 fwrite("        ", 1, padded - len, f) == padded - len;
    json_text_free(text);
    return wrote || err_set(err, ERR_IO, "model.safetensors: %s", strerror(errno));
}

static bool write_tensor(const Twin *w, const Tensor *t, FILE *f, Error *err)
{
    bool wrote;
    if (is_vector(t)) {
        wrote = fwrite(t->data, 1, t->bytes, f) == t->bytes;
    } else {
        const ArenaMark mark = arena_mark(w->a);
        Planes p;
        const size_t groups = (size_t)(t->dims[0] * (t->dims[1] / GROUP));
        const size_t code_bytes = groups * (size_t)(GROUP * bits_of(t) / 8);
        const bool ok = split(w, t, &p, err);
        wrote = ok && fwrite(p.codes, 1, code_bytes, f) == code_bytes &&
                fwrite(p.scales, 2, groups, f) == groups &&
                fwrite(p.biases, 2, groups, f) == groups;
        arena_rewind(w->a, mark);
        if (!ok)
            return false;
    }
    return wrote || err_set(err, ERR_IO, "model.safetensors: %s", strerror(errno));
}

static bool write_tensors(const Twin *w, const char *dir, Error *err)
{
    const char *path = arena_printf(w->a, err, "%s/model.safetensors", dir);
    if (!path)
        return false;
    FILE *f = fopen(path, "wb");
    if (!f)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    bool ok = write_header(w, f, err);
    for (int64_t i = 0; i < checkpoint_n_tensors(w->ck) && ok; i++)
        ok = write_tensor(w, checkpoint_tensor(w->ck, i), f, err);
    if (fclose(f) != 0 && ok)
        ok = err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    return ok;
}

/* {"group_size": 32, "bits": 4, "<stem>": {"group_size": 32, "bits": 8}, ...}; NULL: no memory. */
static json_t *make_quantization(const Twin *w)
{
    json_t *q = json_pack("{s:i, s:i}", "group_size", GROUP, "bits", 4);
    bool ok = q != NULL;
    for (int64_t i = 0; i < checkpoint_n_tensors(w->ck) && ok; i++) {
        const Tensor *t = checkpoint_tensor(w->ck, i);
        char stem[NAME_MAX_BYTES + 8];
        if (t->dtype == DT_Q8_0)
            ok = json_object_set_new(q, part_name(t, "", stem),
                                     json_pack("{s:i, s:i}", "group_size", GROUP, "bits", 8)) == 0;
    }
    if (ok)
        return q;
    json_decref(q);
    return NULL;
}

static bool write_config(const Twin *w, const char *dir, Error *err)
{
    const char *path = arena_printf(w->a, err, "%s/config.json", dir);
    if (!path)
        return false;
    json_t *config = json_deep_copy(checkpoint_config(w->ck));
    if (!config || json_object_set_new(config, "quantization", make_quantization(w)) != 0) {
        json_decref(config);
        return err_nomem(err, path, 0);
    }
    (void)json_object_del(config, "rope_interleaved"); /* there may be none */
    char *text = json_dumps(config, JSON_INDENT(1));
    json_decref(config);
    if (!text)
        return err_nomem(err, path, 0);
    FILE *f = fopen(path, "wb");
    bool wrote = f && fputs(text, f) >= 0;
    if (f && fclose(f) != 0)
        wrote = false;
    json_text_free(text);
    return wrote || err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
}

bool mlx_twin(Arena *a, const char *gguf, const char *dir, Error *err)
{
    const ArenaMark mark = arena_mark(a);
    Checkpoint *ck;
    if (!checkpoint_open(a, gguf, &ck, err)) {
        arena_rewind(a, mark);
        return false;
    }
    Twin w = {.ck = ck, .doc = checkpoint_doc(ck), .a = a};
    const json_t *config = checkpoint_config(ck);
    bool ok = json_get_bool_or(config, w.doc, "rope_interleaved", false, &w.interleaved, err) &&
              json_get_int(config, w.doc, "num_attention_heads", 1, 1 << 16, &w.n_heads, err) &&
              json_get_int(config, w.doc, "num_key_value_heads", 1, 1 << 16, &w.n_kv_heads, err);
    if (ok && mkdir(dir, 0777) != 0 && errno != EEXIST)
        ok = err_set(err, ERR_IO, "%s: %s", dir, strerror(errno));
    /* The tensors first: they are checked there. */
    ok = ok && write_tensors(&w, dir, err) && write_config(&w, dir, err);
    checkpoint_close(ck);
    arena_rewind(a, mark);
    return ok;
}
