/* The panel block in AMX tiles: 2 x 2 tiles of 16 x 16 sums, so that each of the four tile loads of
 * a step feeds two products. Tiles 0..3 sums, 4 and 5 activations, 6 and 7 weights.
 *
 * The instructions are spelled out, as the compilers' intrinsics are not told that loads read
 * memory: gcc 12 drops stores to the configuration before it is loaded. */
#include "device/cpu/lin_panel.h"

enum { TILE = 16, ROWS = 2 * TILE };

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_LOAD(t, p, stride)                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(stride) : "memory")
#define TILE_STORE(t, p, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(stride) : "memory")
#define TILE_DOT(c, a, b)                                                                          \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* Layout of the 64 bytes that LDTILECFG reads. */
typedef struct TileConfig {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Activation tiles of r0 and r1 rows (0 counts as one: a tile must have rows). */
static void configure(int r0, int r1)
{
    const uint8_t n0 = (uint8_t)r0;
    const uint8_t n1 = (uint8_t)(r1 ? r1 : 1);
    const TileConfig c = {.palette = 1,
                          .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                          .rows = {n0, n0, n1, n1, n0, n1, TILE, TILE}};
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
}

static void multiply_tiles(const PanelBlock *b)
{
    const int64_t sums = COLS * 4;
    const int64_t row = b->row_bytes;
    const int64_t tile_row = 64;
    const bool two = b->n_rows > TILE;
    const float *from = b->from;
    float *to = b->to;
    if (b->first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, from, sums);
        TILE_LOAD(1, from + TILE, sums);
        if (two) {
            TILE_LOAD(2, from + TILE * COLS, sums);
            TILE_LOAD(3, from + TILE * COLS + TILE, sums);
        }
    }
    const uint8_t *x = b->x;
    const uint8_t *w0 = b->w0;
    const uint8_t *w1 = b->w1;
    if (two) {
        for (int t = 0; t < b->n_tiles; t++, x += 64, w0 += TILE_BYTES, w1 += TILE_BYTES) {
            TILE_LOAD(6, w0, tile_row);
            TILE_LOAD(4, x, row);
            TILE_DOT(0, 4, 6);
            TILE_LOAD(7, w1, tile_row);
            TILE_DOT(1, 4, 7);
            TILE_LOAD(5, x + TILE * row, row);
            TILE_DOT(2, 5, 6);
            TILE_DOT(3, 5, 7);
        }
        TILE_STORE(2, to + TILE * COLS, sums);
        TILE_STORE(3, to + TILE * COLS + TILE, sums);
    } else {
        for (int t = 0; t < b->n_tiles; t++, x += 64, w0 += TILE_BYTES, w1 += TILE_BYTES) {
            TILE_LOAD(4, x, row);
            TILE_LOAD(6, w0, tile_row);
            TILE_DOT(0, 4, 6);
            TILE_LOAD(7, w1, tile_row);
            TILE_DOT(1, 4, 7);
        }
    }
    TILE_STORE(0, to, sums);
    TILE_STORE(1, to + TILE, sums);
}

static void multiply(const PanelBlock *b)
{
    if (b->n_rows == ROWS) {
        multiply_tiles(b);
        return;
    }
    const int r0 = b->n_rows < TILE ? b->n_rows : TILE;
    configure(r0, b->n_rows - r0);
    multiply_tiles(b);
    configure(TILE, TILE);
}

static void amx_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                    const LinOut *out, uint8_t *work)
{
    configure(TILE, TILE);
    panel_run(w, j0, j1, x, rows, out, work, ROWS, multiply);
    __asm__ volatile("tilerelease" ::: "memory"); /* the state is 8 KiB at every thread switch */
}

static const LinKernel panel = {
    .name = "amx panel",
    .layout = &lin_layout_bf16,
    .max_rows = 0,
    .tile_rows = COLS,
    .invariant = true,
    .run = amx_run,
    .work_bytes = panel_work_bytes,
};

const LinKernel *lin_bf16_amx(void)
{
    return &panel;
}
