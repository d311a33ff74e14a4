/* gpu_words.h: words of the step block (gpu_step.h), for C, CUDA C and GLSL alike: only defines. */
#ifndef MERE_DEVICE_GPU_WORDS_H
#define MERE_DEVICE_GPU_WORDS_H

#define GPU_STEP_N_ROWS 0
#define GPU_STEP_N_SEGS 1
#define GPU_STEP_N_OUT 2
#define GPU_STEP_N_SAMPLES 3
#define GPU_STEP_WORDS 4  /* of the whole block */
#define GPU_STEP_TICKET 5 /* low 32 bits of the step's number */
#define GPU_STEP_MAX_KV 6 /* largest kv_len */
#define GPU_STEP_HEAD 32

/* A segment. */
#define GPU_SEG_ROW0 0
#define GPU_SEG_N_ROWS 1
#define GPU_SEG_KV_LEN 2
#define GPU_SEG_STATE_IN 3 /* -1: fresh */
#define GPU_SEG_STATE_OUT 4
#define GPU_SEG_PAGES 5 /* + group: word offset in the block of its page table */
#define GPU_SEG_WORDS 16

/* A sample; floats as bits. */
#define GPU_SAMPLE_OUT 0
#define GPU_SAMPLE_SLOT 1
#define GPU_SAMPLE_TEMPERATURE 2
#define GPU_SAMPLE_TOP_K 3
#define GPU_SAMPLE_TOP_P 4
#define GPU_SAMPLE_MIN_P 5
#define GPU_SAMPLE_RANDOM 6 /* f32, [0, 1) */
#define GPU_SAMPLE_WORDS 8

/* GpuLayout and GpuScale of gpu_weight.h as numbers. */
#define GPU_LAYOUT_F32 0
#define GPU_LAYOUT_F16 1
#define GPU_LAYOUT_BF16 2
#define GPU_LAYOUT_A4 3
#define GPU_LAYOUT_S4 4
#define GPU_LAYOUT_E4 5
#define GPU_LAYOUT_A8 6
#define GPU_LAYOUT_S8 7
#define GPU_LAYOUT_K6 8
#define GPU_SCALE_KIND_NONE 0
#define GPU_SCALE_KIND_F16 1
#define GPU_SCALE_KIND_E8M0 2
#define GPU_SCALE_KIND_F16_PAIR 3
#define GPU_SCALE_KIND_BF16_PAIR 4
#define GPU_SCALE_KIND_F32_PAIR 5
#define GPU_SCALE_KIND_K6 6

#endif
