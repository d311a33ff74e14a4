#include "cli/term.h"

bool term_write(FILE *to, Str text, bool visible)
{
    if (!visible)
        return text.len == 0 || fwrite(text.ptr, 1, text.len, to) == text.len;
    for (size_t i = 0; i < text.len; i++) {
        const unsigned char c = (unsigned char)text.ptr[i];
        const unsigned char next = i + 1 < text.len ? (unsigned char)text.ptr[i + 1] : 0;
        int rc;
        if (c == '\n' || c == '\t') {
            rc = fputc(c, to);
        } else if (c < 0x20 || c == 0x7F) {
            rc = fprintf(to, "^%c", c ^ 0x40);
        } else if (c == 0xC2 && next >= 0x80 && next <= 0x9F) { /* U+0080 to U+009F */
            rc = fprintf(to, "<%02x>", next);
            i++;
        } else {
            rc = fputc(c, to);
        }
        if (rc < 0)
            return false;
    }
    return true;
}
