/* textre.h: the regular expressions that cut text into pieces: PCRE2 with its JIT, behind the
 * dialects that tokenizer files are written in.
 *
 * A TextRe never changes once compiled: any thread. TextReWork is one encode's matching memory and
 * its budget: PCRE2's own limit starts anew at each character, which lets a hostile expression take
 * n times that long, so a match starts with a small limit and a longer try is paid from the work's
 * budget, which grows with the text. */
#ifndef MERE_TEXT_TEXTRE_H
#define MERE_TEXT_TEXTRE_H

#include "base/str.h"

typedef enum TextReDialect {
    TEXTRE_ONIG, /* Hugging Face: Oniguruma's Ruby syntax. X{2,3}+ repeats X{2,3}; $ is any line's
                    end; classes may have && and nested classes */
    TEXTRE_RUST, /* tiktoken: fancy-regex. X{2,3}+ is possessive; $ is the text's end */
    TEXTRE_LITERAL, /* the pattern is plain text */
} TextReDialect;

enum { TEXTRE_PATTERN_MAX = 16384 /* bytes */ };

typedef struct TextRe {
    void *code;   /* pcre2_code */
    size_t bytes; /* held by the compiled form */
    bool literal;
} TextRe;

typedef struct TextReWork {
    void *match;   /* pcre2_match_data */
    void *context; /* pcre2_match_context */
    int64_t budget;
} TextReWork;

/* The pattern as PCRE2 wants it. ERR_UNSUPPORTED: a construct without an equivalent. */
MUST_CHECK bool textre_translate(const char *doc, Str pattern, TextReDialect dialect, StrBuf *out,
                                 Error *err);
/* ERR_FORMAT: it does not compile, with PCRE2's reason. */
MUST_CHECK bool textre_compile(TextRe *re, const char *doc, Str pattern, TextReDialect dialect,
                               Error *err);
void textre_free(TextRe *re);

/* text_bytes: of all the text that will be matched with this work. */
MUST_CHECK bool textre_work_init(TextReWork *w, size_t text_bytes, Error *err);
void textre_work_free(TextReWork *w);
/* The first match at or after `from` in valid UTF-8: *found, and then its byte range. ERR_FORMAT:
 * the expression needs too many steps or too much memory on this text. */
MUST_CHECK bool textre_next(const TextRe *re, TextReWork *w, Str text, size_t from, bool *found,
                            size_t *start, size_t *end, Error *err);

#endif
