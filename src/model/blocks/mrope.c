#include "model/blocks/mrope.h"

enum { PATCHES_MAX = 1 << 24, AXES = 3 };

int mrope_n_patches(const MropeGrid *g)
{
    if (g->frames < 1 || g->rows < 1 || g->cols < 1 || g->merge < 1 || g->rows % g->merge != 0 ||
        g->cols % g->merge != 0 || g->rows > PATCHES_MAX / g->cols ||
        g->frames > PATCHES_MAX / (g->rows * g->cols))
        return 0;
    return g->frames * g->rows * g->cols;
}

void mrope_patches(const MropeGrid *g, int32_t *out)
{
    for (int f = 0; f < g->frames; f++)
        for (int r = 0; r < g->rows; r += g->merge)
            for (int c = 0; c < g->cols; c += g->merge)
                for (int i = 0; i < g->merge * g->merge; i++) {
                    *out++ = r + i / g->merge;
                    *out++ = c + i % g->merge;
                }
}

static void put(int32_t *row, int t, int h, int w)
{
    row[0] = t;
    row[1] = h;
    row[2] = w;
}

/* Rows of one image from position `at`; returns the position after them. */
static int32_t put_image(const MropeGrid *g, int32_t at, int32_t *out)
{
    const int rows = g->rows / g->merge;
    const int cols = g->cols / g->merge;
    for (int f = 0; f < g->frames; f++)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++, out += AXES)
                put(out, at + f, at + r, at + c);
    return at + (int32_t)i64_max(g->frames, i64_max(rows, cols));
}

bool mrope_positions(const int32_t *tokens, int n, int32_t image_token, const MropeGrid *grids,
                     int n_grids, int32_t *out, int32_t *next, Error *err)
{
    int32_t at = 0;
    int used = 0;
    for (int i = 0; i < n;) {
        if (tokens[i] != image_token) {
            put(out + (int64_t)AXES * i++, at, at, at);
            at++;
            continue;
        }
        const MropeGrid *g = used < n_grids ? &grids[used] : NULL;
        const int rows = g ? mrope_n_patches(g) / (g->merge * g->merge) : 0;
        int run = 0;
        while (run < rows && i + run < n && tokens[i + run] == image_token)
            run++;
        if (rows == 0 || run < rows)
            return err_set(err, ERR_REQUEST,
                           "image %d: %d placeholder tokens from token %d, its grid has %d", used,
                           run, i, rows);
        at = put_image(g, at, out + (int64_t)AXES * i);
        i += rows;
        used++;
    }
    if (used < n_grids)
        return err_set(err, ERR_REQUEST, "%d images, placeholder tokens for %d", n_grids, used);
    *next = at;
    return true;
}

bool mrope_sections(Model *m, const json_t *config, RopeDesc *rope, Error *err)
{
    const json_t *params = json_object_get(config, "rope_parameters");
    if (!json_is_object(params))
        params = json_object_get(config, "rope_scaling");
    const json_t *list = json_object_get(params, "mrope_section");
    const int n = rope->rot_dim / 2;
    if (!json_is_array(list) || json_array_size(list) != AXES)
        return err_set(err, ERR_FORMAT, "%s: \"mrope_section\" is no list of three numbers",
                       m->doc);
    uint8_t *axis = ARENA_ARRAY(m->arena, n, uint8_t, err);
    if (!axis)
        return false;
    int at = 0;
    for (int i = 0; i < AXES; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        const json_int_t share = json_integer_value(item);
        if (!json_is_integer(item) || share < 0 || share > n - at)
            return err_set(err, ERR_FORMAT,
                           "%s: \"mrope_section\"[%d] is no share of %d frequencies", m->doc, i, n);
        for (int end = at + (int)share; at < end; at++)
            axis[at] = (uint8_t)i;
    }
    if (at != n)
        return err_set(err, ERR_FORMAT, "%s: \"mrope_section\" has %d frequencies, wanted %d",
                       m->doc, at, n);
    m->derived_bytes += n;
    rope->axis = axis;
    return true;
}
