/* format_blocks.h: one block of each BLOCK format (formats.def) to f32: the definitions, scalar,
 * one rounding per operation as in the formats' own libraries. `p` has the format's block bytes at
 * any address, `y` room for its elements. */
#ifndef MERE_BASE_FORMAT_BLOCKS_H
#define MERE_BASE_FORMAT_BLOCKS_H

#include "base/format.h"

typedef void (*FormatUnpack)(const uint8_t *p, float *y);
FormatUnpack format_unpack(FormatId id); /* NULL: no BLOCK format */

extern const float
    format_e2m1[16]; /* sign, two exponent bits, one mantissa bit (OCP MX v1.0, table 5) */
extern const int8_t format_iq4[16]; /* the values of IQ4_NL and IQ4_XS codes */
float format_e4m3(uint8_t code);    /* OCP FP8 E4M3: NaN at 0x7f and 0xff */

/* format_tables.c */
extern const uint16_t format_iq2_xxs[256];
extern const uint16_t format_iq2_xs[512];
extern const uint16_t format_iq2_s[1024];
extern const uint16_t format_iq3_xxs[256];
extern const uint16_t format_iq3_s[512];
extern const uint16_t format_iq1[2048];

#endif
