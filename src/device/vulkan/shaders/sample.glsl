// sample.glsl: what argmax.comp leaves for sample.comp: of each row and block the largest logit, its
// first place, and whether a logit is NaN or +infinity.
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Best { uvec4 v[]; };
