// lin_tile.glsl: what the tiled products share: BM rows of y times 64 columns a workgroup of 256
// threads, which are 16 columns of threads by 16 rows; a thread has columns tx + 16 j (j < 4) and
// rows ty + 16 i (i < TM). With SILU columns j = 0, 1 are gates, j + 2 their ups.
//
// EXPERTS: tile y of a work list (moe_list.comp) instead of rows y * BM ...: rows are pairs (token,
// choice) of one expert.
layout(constant_id = 2) const uint K = 64;
layout(constant_id = 8) const uint SILU = 0;
layout(constant_id = 9) const uint FLAGS = 0;   // 1 addend, 2 bias, 8 x's rows are 16-byte aligned
layout(constant_id = 10) const uint EXPERTS = 0; // 1: x's row is the pair's token; 2: the pair
layout(constant_id = 11) const uint TOP_K = 1;
layout(push_constant) uniform P {
    W4 w; W1 s; X4 x; OF1 y; F1 add; F1 bias;
    I1 list;  // [0] tiles, from [4]: {expert, first, count, 0} each, pairs from list_pairs on
    I1 limit; // how many rows are meant
    uint n, n0, ldx, ldy, lda, m, list_pairs;
};
const uint BM = 16 * TM, BN = 64;
shared uint from_row[BM]; // of x
shared int to_row[BM];    // of y; -1: none

// False: the tile is empty, for all threads alike.
bool tile_rows(out uint first_weight_row)
{
    const uint tile = gl_WorkGroupID.y;
    first_weight_row = 0;
    if (EXPERTS != 0) {
        if (tile >= uint(list.v[0]))
            return false;
        first_weight_row = uint(list.v[4 + tile * 4]) * n;
        const uint first = uint(list.v[5 + tile * 4]), count = uint(list.v[6 + tile * 4]);
        EACH(i, BM) {
            const uint pair = uint(list.v[list_pairs + first + min(i, count - 1)]);
            from_row[i] = EXPERTS == 1 ? pair / TOP_K : pair;
            to_row[i] = i < count ? int(pair) : -1;
        }
    } else {
        const uint rows = min(m, uint(limit.v[0]));
        if (tile * BM >= rows)
            return false;
        EACH(i, BM) {
            from_row[i] = min(tile * BM + i, rows - 1);
            to_row[i] = tile * BM + i < rows ? int(tile * BM + i) : -1;
        }
    }
    barrier();
    return true;
}

// Row of W for column c of the tile, kept inside the part.
uint tile_weight_row(uint c)
{
    if (SILU != 0)
        return min(gl_WorkGroupID.x * (BN / 2) + (c & 31), n / 2 - 1) + (c >= 32 ? n / 2 : 0);
    return min(gl_WorkGroupID.x * BN + c, n - 1);
}

void tile_store(float acc[TM * 4])
{
    const uint tx = gl_LocalInvocationID.x & 15, ty = gl_LocalInvocationID.x >> 4;
    const uint cols = SILU != 0 ? n / 2 : n;
    [[unroll]] for (uint i = 0; i < TM; i++) {
        const int row = to_row[ty + 16 * i];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            const uint c = gl_WorkGroupID.x * (SILU != 0 ? BN / 2 : BN) + tx + 16 * j;
            if (row < 0 || c >= cols || (SILU != 0 && j >= 2))
                continue;
            float v = acc[i * 4 + j];
            if ((FLAGS & 2) != 0)
                v += bias.v[n0 + c];
            if (SILU != 0) {
                float up = acc[i * 4 + (j + 2) % 4];
                if ((FLAGS & 2) != 0)
                    up += bias.v[n0 + cols + c];
                v = silu(v) * up;
            }
            if ((FLAGS & 1) != 0)
                v += add.v[uint(row) * lda + n0 + c];
            y.v[uint(row) * ldy + n0 + c] = v;
        }
    }
}
