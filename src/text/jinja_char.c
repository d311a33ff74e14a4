#include "text/jinja_char.h"

#include "text/utf8.h"

#include <utf8proc.h>

typedef struct Range {
    uint32_t from, to;
} Range;

/* Lower case, and not of category Ll. */
static const Range lower_too[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},    {0x2E0, 0x2E4},
    {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},  {0x1D9B, 0x1DBF},
    {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},   {0x2170, 0x217F},  {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},  {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};

/* Upper case, and not of category Lu. */
static const Range upper_too[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

/* Of words, such as an apostrophe. */
static const Range ignorable_too[] = {
    {0x27, 0x27},     {0x2E, 0x2E},     {0x3A, 0x3A},     {0xB7, 0xB7},
    {0x387, 0x387},   {0x55F, 0x55F},   {0x5F4, 0x5F4},   {0x2018, 0x2019},
    {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
    {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A}};

/* Digits that make no decimal number: superscripts, circled ones. */
static const Range special_digits[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

/* Ideographs that stand for numbers. */
static const Range numerals[] = {
    {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382A, 0x382A},   {0x3B4D, 0x3B4D},
    {0x4E00, 0x4E00},   {0x4E03, 0x4E03},   {0x4E07, 0x4E07},   {0x4E09, 0x4E09},
    {0x4E5D, 0x4E5D},   {0x4E8C, 0x4E8C},   {0x4E94, 0x4E94},   {0x4E96, 0x4E96},
    {0x4EBF, 0x4EC0},   {0x4EDF, 0x4EDF},   {0x4EE8, 0x4EE8},   {0x4F0D, 0x4F0D},
    {0x4F70, 0x4F70},   {0x5104, 0x5104},   {0x5146, 0x5146},   {0x5169, 0x5169},
    {0x516B, 0x516B},   {0x516D, 0x516D},   {0x5341, 0x5341},   {0x5343, 0x5345},
    {0x534C, 0x534C},   {0x53C1, 0x53C4},   {0x56DB, 0x56DB},   {0x58F1, 0x58F1},
    {0x58F9, 0x58F9},   {0x5E7A, 0x5E7A},   {0x5EFE, 0x5EFF},   {0x5F0C, 0x5F0E},
    {0x5F10, 0x5F10},   {0x62FE, 0x62FE},   {0x634C, 0x634C},   {0x67D2, 0x67D2},
    {0x6F06, 0x6F06},   {0x7396, 0x7396},   {0x767E, 0x767E},   {0x8086, 0x8086},
    {0x842C, 0x842C},   {0x8CAE, 0x8CAE},   {0x8CB3, 0x8CB3},   {0x8D30, 0x8D30},
    {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964C, 0x964C},   {0x9678, 0x9678},
    {0x96F6, 0x96F6},   {0xF96B, 0xF96B},   {0xF973, 0xF973},   {0xF978, 0xF978},
    {0xF9B2, 0xF9B2},   {0xF9D1, 0xF9D1},   {0xF9D3, 0xF9D3},   {0xF9FD, 0xF9FD},
    {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200E2, 0x200E2}, {0x20121, 0x20121},
    {0x2092A, 0x2092A}, {0x20983, 0x20983}, {0x2098C, 0x2098C}, {0x2099C, 0x2099C},
    {0x20AEA, 0x20AEA}, {0x20AFD, 0x20AFD}, {0x20B19, 0x20B19}, {0x22390, 0x22390},
    {0x22998, 0x22998}, {0x23B1B, 0x23B1B}, {0x2626D, 0x2626D}, {0x2F890, 0x2F890}};

/* Letters and marks by category that no identifier may have. */
static const Range no_identifier[] = {
    {0x37A, 0x37A},   {0xE33, 0xE33},   {0xEB3, 0xEB3},   {0x2E2F, 0x2E2F}, {0xFC5E, 0xFC63},
    {0xFDFA, 0xFDFB}, {0xFE70, 0xFE70}, {0xFE72, 0xFE72}, {0xFE74, 0xFE74}, {0xFE76, 0xFE76},
    {0xFE78, 0xFE78}, {0xFE7A, 0xFE7A}, {0xFE7C, 0xFE7C}, {0xFE7E, 0xFE7E}, {0xFF9E, 0xFF9F}};

static bool in_ranges(uint32_t cp, const Range *r, size_t n)
{
    size_t low = 0;
    while (n > 0) {
        const size_t half = n / 2;
        if (r[low + half].to < cp) {
            low += half + 1;
            n -= half + 1;
        } else {
            if (r[low + half].from <= cp)
                return true;
            n = half;
        }
    }
    return false;
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool jinja_is_lower(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LL || in_ranges(cp, lower_too, COUNT_OF(lower_too));
}

bool jinja_is_upper(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LU || in_ranges(cp, upper_too, COUNT_OF(upper_too));
}

bool jinja_is_cased(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LT || jinja_is_lower(cp) || jinja_is_upper(cp);
}

bool jinja_is_case_ignorable(uint32_t cp)
{
    const utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK ||
           in_ranges(cp, ignorable_too, COUNT_OF(ignorable_too));
}

bool jinja_is_special_digit(uint32_t cp)
{
    return in_ranges(cp, special_digits, COUNT_OF(special_digits));
}

bool jinja_is_numeral(uint32_t cp)
{
    return in_ranges(cp, numerals, COUNT_OF(numerals));
}

bool jinja_is_space(uint32_t cp)
{
    return utf8_is_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

bool jinja_is_word(uint32_t cp)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

int jinja_digit(uint32_t cp)
{
    if (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_ND)
        return -1;
    if (cp >= 0x1D7CE && cp <= 0x1D7FF) /* five scripts without a gap */
        return (int)(cp - 0x1D7CE) % 10;
    int before = 0;
    while (before < 9 &&
           utf8proc_category((utf8proc_int32_t)cp - before - 1) == UTF8PROC_CATEGORY_ND)
        before++;
    return before;
}

bool jinja_is_identifier(Str s)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        const utf8proc_category_t c = category(cp);
        const bool start = cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
                           c == UTF8PROC_CATEGORY_NL || cp == 0x1885 || cp == 0x1886 ||
                           cp == 0x2118 || cp == 0x212E;
        const bool more = c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC ||
                          c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_PC || cp == 0xB7;
        if ((!start && (i == 0 || !more)) || in_ranges(cp, no_identifier, COUNT_OF(no_identifier)))
            return false;
        i += n > 0 ? (size_t)n : 1;
    }
    return s.len > 0;
}
