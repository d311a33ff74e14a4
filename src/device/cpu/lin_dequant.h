/* lin_dequant.h: weight rows to f32, bit for bit as format_dequant_row gives them. Nothing outside
 * a row is read: it may end where the file does. Private to lin*.c. */
#ifndef MERE_DEVICE_CPU_LIN_DEQUANT_H
#define MERE_DEVICE_CPU_LIN_DEQUANT_H

#include "base/format.h"

/* out[kc] = elements [k0, k0 + kc) of a row, then zeros up to a multiple of 16. k0 is a multiple
 * of 256; kc too, unless it reaches the end of the row. */
typedef void (*LinDequant)(const RowView *w, int64_t row, int k0, int kc, float *out);
void lin_dequant_avx2(const RowView *w, int64_t row, int k0, int kc, float *out);
void lin_dequant_avx512(const RowView *w, int64_t row, int k0, int kc, float *out);

#endif
