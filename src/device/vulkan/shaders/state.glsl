// state.glsl: where a sequence's recurrent state lies: slot * floats + offset, past 2^32 bytes.
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

OF1 state_at(OF1 base, int slot, uint floats, uint offset)
{
    return OF1(uint64_t(base) + (uint64_t(uint(slot)) * floats + offset) * 4);
}
