#pragma once
#include "text/detok.h"
#include "text/utf8.h"

#include <stdlib.h>

/* A text through a tokenizer and back with every flag. Ids outside the vocabulary, output that is
 * no UTF-8 or a refusal without a message abort. */
static void tokenizer_use(Arena *a, const Tokenizer *t, Str text)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        TokenIds ids;
        Error err = {0};
        Detok d;
        StrBuf out;
        if (!tokenizer_encode(a, t, text, flags, &ids, &err)) {
            if (!err.msg[0])
                abort();
            continue;
        }
        detok_init(&d, t, 0);
        strbuf_init(&out, (size_t)1 << 24);
        for (int64_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= tokenizer_n_vocab(t))
                abort();
            if (!detok_add(&d, ids.ids[i], &out, &err))
                break;
        }
        if (detok_end(&d, &out, &err) && utf8_valid_prefix(strbuf_str(&out)) != out.len)
            abort();
        strbuf_free(&out);
    }
}
