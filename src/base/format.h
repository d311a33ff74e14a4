/* format.h: every weight format in one table (formats.def), and a view of rows stored in one of
 * them.
 *
 * Views are byte pointers: published files are unaligned (MLX shards start at odd offsets, GGUF
 * blocks are 18, 20, 34 bytes), so nothing here may be cast to a wider type; kernels use
 * memcpy-style loads. A view never owns. */
#ifndef MERE_BASE_FORMAT_H
#define MERE_BASE_FORMAT_H

#include "base/err.h"

typedef enum FormatKind { FMT_PLAIN, FMT_BLOCK, FMT_PLANE } FormatKind;

typedef enum FormatId {
#define FORMAT(id, name, block, bytes, bits, kind) id,
#include "base/formats.def"
#undef FORMAT
    FMT_COUNT
} FormatId;

typedef struct FormatInfo {
    const char *name;
    int block; /* elements of a block (BLOCK, or PLANE with a fixed group), 1 for PLAIN, 0: group of
                  the tensor */
    int block_bytes; /* 0 for PLANE */
    int bits;        /* of one code */
    FormatKind kind;
} FormatInfo;

const FormatInfo *format_info(FormatId id);

/* Rows [n][k] in one format. */
typedef struct RowView {
    const uint8_t *data;   /* row r at data + r * row_bytes */
    const uint8_t *scales; /* PLANE only: row r at scales + r * scale_row_bytes, k / group entries
                              of scale_format (e8m0 bytes for MXFP4P). FP8: any group, the last
                              may be short; scale_row_bytes 0 is one row of scales for all */
    const uint8_t *biases; /* affine only; rows as scales */
    int64_t row_bytes;
    int64_t scale_row_bytes;
    int64_t n;
    int k;
    int group; /* elements that share a scale: PLANE 32, 64, 128; BLOCK and PLAIN: the table's block
                */
    FormatId format;
    FormatId scale_format; /* FMT_F32, FMT_F16 or FMT_BF16; affine, FP8 and NF4 */
    float factor;          /* NVFP4S: of every scale */
    bool factor_divides;   /* scales are divided by it */
    /* [k] or NULL: element i of a row is of column columns[i], a permutation. Products alone know
     * it: they take the activations in this order. */
    const int32_t *columns;
} RowView;

/* Bytes of one row of k elements in `data`. -1 when k is no multiple of the block. */
int64_t format_row_bytes(FormatId id, int64_t k);
/* Bytes that multiplying by this view reads: codes, scales and biases of all its rows. */
int64_t rowview_bytes(const RowView *v);
/* Rows [from, from + n) of v. */
RowView rowview_slice(const RowView *v, int64_t from, int64_t n);

/* The 16 values of NF4's codes. */
const float *format_nf4_values(void);

/* out[k] f32 = row r of v, in the order of its elements. The definition of each format: scalar, one
 * rounding per operation as in the source named in formats.def, so golden/quant is met bit for bit.
 * 0 <= r < v->n. */
void format_dequant_row(const RowView *v, int64_t r, float *out);
/* Elements [from, from + n) of it; both multiples of the format's block. */
void format_dequant_part(const RowView *v, int64_t r, int from, int n, float *out);

#endif
