/* model_rope.c: rotary frequencies from a configuration. Formulas: families.md ROPE.scal, which are
 * those of transformers' modeling_rope_utils (default, linear, llama3, yarn). Computed in f64 and
 * rounded once to f32; the reference computes in f32, which differs by an ulp. */
#include "model/model.h"

#include <math.h>

static const double two_pi = 6.28318530717958647692;

typedef struct Scaling {
    const json_t *params; /* the scaling object, or the configuration itself when there is none */
    const char *doc;
    double theta;
    int rot_dim;
    int max_ctx; /* max_position_embeddings, or 0 */
} Scaling;

static bool out_of_range(const Scaling *s, const char *key, double v, const char *wanted,
                         Error *err)
{
    return err_set(err, ERR_FORMAT, "%s: \"%s\" is %g, wanted %s", s->doc, key, v, wanted);
}

/* A finite number above 0. */
static bool get_positive(const Scaling *s, const char *key, double missing, double *out, Error *err)
{
    if (!json_get_f64_or(s->params, s->doc, key, missing, out, err))
        return false;
    if (!isfinite(*out) || *out <= 0)
        return out_of_range(s, key, *out, "more than 0", err);
    return true;
}

static bool get_factor(const Scaling *s, double *out, Error *err)
{
    if (!json_get_f64(s->params, s->doc, "factor", out, err))
        return false;
    if (!isfinite(*out) || *out < 1)
        return out_of_range(s, "factor", *out, "1 or more", err);
    return true;
}

static bool linear(const Scaling *s, double *freq, Error *err)
{
    double factor;
    if (!get_factor(s, &factor, err))
        return false;
    for (int i = 0; i < s->rot_dim / 2; i++)
        freq[i] /= factor;
    return true;
}

/* Long wavelengths are stretched by `factor`, short ones kept, a smooth blend between. */
static bool llama3(const Scaling *s, double *freq, Error *err)
{
    double factor, low, high, original;
    if (!get_factor(s, &factor, err) || !get_positive(s, "low_freq_factor", 1, &low, err) ||
        !get_positive(s, "high_freq_factor", 4, &high, err) ||
        !get_positive(s, "original_max_position_embeddings", 8192, &original, err))
        return false;
    if (high <= low)
        return out_of_range(s, "high_freq_factor", high, "more than low_freq_factor", err);
    for (int i = 0; i < s->rot_dim / 2; i++) {
        const double wavelength = two_pi / freq[i];
        if (wavelength > original / low) {
            freq[i] /= factor;
        } else if (wavelength >= original / high) {
            const double smooth = (original / wavelength - low) / (high - low);
            freq[i] *= (1 - smooth) / factor + smooth;
        }
    }
    return true;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The (fractional) dimension whose frequency turns `rotations` times in the original context. */
static double yarn_dim(const Scaling *s, double rotations, double original)
{
    return s->rot_dim * log(original / (rotations * two_pi)) / (2 * log(s->theta));
}

/* Dimensions that turn often are kept, those that turn less than once are stretched, with a linear
 * ramp between; `scale` makes up for the flatter softmax. */
static bool yarn(const Scaling *s, double *freq, float *scale, Error *err)
{
    double factor, fast, slow, original, mscale, mscale_all, attention;
    bool truncate;
    const double missing = s->max_ctx > 0 ? s->max_ctx : 4096;
    if (!get_factor(s, &factor, err) || !get_positive(s, "beta_fast", 32, &fast, err) ||
        !get_positive(s, "beta_slow", 1, &slow, err) ||
        !get_positive(s, "original_max_position_embeddings", missing, &original, err) ||
        !json_get_f64_or(s->params, s->doc, "mscale", 0, &mscale, err) ||
        !json_get_f64_or(s->params, s->doc, "mscale_all_dim", 0, &mscale_all, err) ||
        !json_get_bool_or(s->params, s->doc, "truncate", true, &truncate, err))
        return false;
    if (s->theta <= 1)
        return out_of_range(s, "rope_theta", s->theta, "more than 1 for yarn", err);
    const bool both = mscale > 0 && mscale_all > 0;
    const double derived = both ? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
                                : yarn_mscale(factor, 1);
    if (!get_positive(s, "attention_factor", derived, &attention, err))
        return false;
    double low = yarn_dim(s, fast, original);
    double high = yarn_dim(s, slow, original);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, s->rot_dim - 1);
    if (high == low)
        high += 0.001; /* no division by zero; the step then lies between two dimensions */
    for (int i = 0; i < s->rot_dim / 2; i++) {
        const double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        freq[i] = freq[i] / factor * ramp + freq[i] * (1 - ramp);
    }
    *scale = (float)attention;
    return true;
}

static bool apply(const Scaling *s, Str kind, double *freq, float *scale, Error *err)
{
    /* mrope has the default's frequencies: which position turns which one is the family's matter.
     */
    if (!kind.ptr || str_is(kind, "default") || str_is(kind, "mrope"))
        return true;
    if (str_is(kind, "linear"))
        return linear(s, freq, err);
    if (str_is(kind, "llama3"))
        return llama3(s, freq, err);
    if (str_is(kind, "yarn"))
        return yarn(s, freq, scale, err);
    return err_set(err, ERR_UNSUPPORTED,
                   "%s: \"rope_type\" is \"%.40s\", known are default, linear, llama3, yarn, mrope",
                   s->doc, kind.ptr);
}

/* The object that scales, under its newer or older name; NULL for neither. */
static bool find_scaling(Model *m, const json_t *config, Scaling *s, Error *err)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    s->params = config;
    s->doc = m->doc;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const json_t *v = json_object_get(config, keys[i]);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_object(v))
            return err_set(err, ERR_FORMAT, "%s: \"%s\" is not an object", m->doc, keys[i]);
        const char *item;
        json_t *value;
        json_object_foreach ((json_t *)(uintptr_t)v, item, value)
            if (json_is_object(value))
                return err_set(err, ERR_UNSUPPORTED,
                               "%s: \"%s\" has \"%.40s\" of its own, wanted one for all layers",
                               m->doc, keys[i], item);
        s->params = v;
        s->doc = model_name(m, err, "%.200s: %s", m->doc, keys[i]);
        return s->doc != NULL;
    }
    return true;
}

/* Llama 3 as GGUF: the stretch of each frequency as a tensor instead of parameters. */
static bool divide_by_tensor(Model *m, double *freq, int n, Error *err)
{
    static const char name[] = "rope_freqs.weight";
    if (!checkpoint_has(m->ck, name))
        return true;
    Vec factors;
    if (!model_vec(m, &factors, n, err, "%s", name))
        return false;
    for (int i = 0; i < n; i++) {
        const double f = (double)factors.v[i];
        if (!isfinite(f) || f <= 0)
            return err_set(err, ERR_FORMAT, "%s: %s[%d] is %g, wanted more than 0",
                           checkpoint_path(m->ck), name, i, f);
        freq[i] /= f;
    }
    return true;
}

bool model_rope(Model *m, const json_t *config, int n_heads, int head_dim, int rot_dim,
                RopeDesc *out, Error *err)
{
    if (rot_dim < 2 || rot_dim > head_dim || rot_dim % 2 != 0)
        return err_set(err, ERR_FORMAT,
                       "%s: %d of %d dimensions of a head rotate, wanted an even "
                       "number from 2",
                       m->doc, rot_dim, head_dim);
    Scaling s = {.rot_dim = rot_dim};
    Str kind;
    bool interleaved, traditional;
    if (!find_scaling(m, config, &s, err) ||
        !json_get_str_or(s.params, s.doc, "rope_type", &kind, err))
        return false;
    if (!kind.ptr && s.params != config && !json_get_str_or(s.params, s.doc, "type", &kind, err))
        return false;
    if (!json_get_f64_or(config, m->doc, "rope_theta", 10000, &s.theta, err) ||
        !json_get_f64_or(s.params, s.doc, "rope_theta", s.theta, &s.theta, err) ||
        !json_get_int_or(config, m->doc, "max_position_embeddings", 1, INT32_MAX, 0, &s.max_ctx,
                         err) ||
        !json_get_bool_or(config, m->doc, "rope_interleaved", false, &interleaved, err) ||
        !json_get_bool_or(config, m->doc, "rope_traditional", false, &traditional, err))
        return false;
    if (!isfinite(s.theta) || s.theta <= 0)
        return out_of_range(&s, "rope_theta", s.theta, "more than 0", err);

    const int n = rot_dim / 2;
    float *inv_freq = ARENA_ARRAY(m->arena, n, float, err);
    double *freq = ARENA_ARRAY(m->arena, n, double, err);
    if (!inv_freq || !freq)
        return false;
    for (int i = 0; i < n; i++)
        freq[i] = pow(s.theta, -2.0 * i / rot_dim);
    float scale = 1;
    if (!apply(&s, kind, freq, &scale, err) || !divide_by_tensor(m, freq, n, err))
        return false;
    for (int i = 0; i < n; i++)
        inv_freq[i] = (float)freq[i];
    m->derived_bytes += n * (int64_t)sizeof *inv_freq;
    *out = (RopeDesc){.n_heads = n_heads,
                      .head_dim = head_dim,
                      .rot_dim = rot_dim,
                      .pairs = interleaved || traditional,
                      .scale = scale,
                      .inv_freq = inv_freq};
    return true;
}
