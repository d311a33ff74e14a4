#include "device/op.h"

const char *op_name(OpKind kind)
{
    static const char *const names[OP_COUNT] = {
        [OP_NONE] = "none",
#define OP(kind, name, inputs, what) [kind] = name,
#include "device/ops.def"
#undef OP
    };
    return (unsigned)kind < OP_COUNT ? names[kind] : "unknown";
}
