/* lin_levels.h: what the files behind lin_select offer, one function per instruction set. Private
 * to lin*.c.
 *
 * Each returns its kernel for the case, or NULL when the level has none that is better than the
 * weaker levels'. Files are named after the set they are compiled for, so each function may be
 * called only when that set is there; the kernels they return likewise. */
#ifndef MERE_DEVICE_CPU_LIN_LEVELS_H
#define MERE_DEVICE_CPU_LIN_LEVELS_H

#include "device/cpu/lin.h"

/* f32 rows as they are, zero up to a whole number of cache lines. */
extern const LinLayout lin_layout_f32;

/* bf16 rows, for the panel kernels (lin_bf16_avx512bf16.c). */
extern const LinLayout lin_layout_bf16;

/* Scalar: any format, any class, contract tree (lin_ref.c). */
extern const LinKernel lin_ref;

/* f32 activations in the contract tree: any format, any class, the reference's bits. Never NULL. */
const LinKernel *lin_f32_avx2(FormatId format, int rows);
const LinKernel *lin_f32_avx512(FormatId format, int rows);

/* int8 activations (lin_acts.h), invariant, best for a few rows. NULL for formats that the function
 * has no kernel for: numbers, codes of 8 bits that are numbers, codebooks. */
const LinKernel *lin_i8_avx512vnni(FormatId format);
const LinKernel *lin_i8_bits_avx512vnni(FormatId format);

/* bf16 panels (lin_panel.h), any format, invariant, best for many rows. */
const LinKernel *lin_bf16_avx512bf16(void);
const LinKernel *lin_bf16_amx(void);

#endif
