#include "device/cpu/lin_levels.h"

const LinKernel *lin_select(unsigned isa, FormatId format, int group, LinClass cls, int rows)
{
    (void)isa;
    (void)format;
    (void)group;
    (void)cls;
    (void)rows;
    return &lin_ref;
}
