#include "cli/input.h"

#include "base/file.h"

#include <errno.h>
#include <unistd.h>

bool input_stdin(Arena *a, Str *out, Error *err)
{
    StrBuf b;
    strbuf_init(&b, INPUT_MAX);
    char buf[65536];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0 && !b.failed)
        strbuf_add(&b, buf, n);
    bool ok =
        !ferror(stdin) || err_set(err, ERR_IO, "standard input: cannot read: %s", strerror(errno));
    ok = ok && strbuf_check(&b, "standard input", err);
    if (ok) {
        out->ptr = arena_strdup(a, b.ptr ? b.ptr : "", b.len, err);
        out->len = b.len;
        ok = out->ptr != NULL;
    }
    strbuf_free(&b);
    return ok;
}

bool input_file(Arena *a, const char *option, const char *path, Str *out, Error *err)
{
    if (strcmp(path, "-") == 0)
        return input_stdin(a, out, err);
    if (file_read(a, path, INPUT_MAX, out, err))
        return true;
    if (err->code == ERR_NOT_FOUND || err->code == ERR_IO)
        err->code = ERR_USAGE;
    return err_wrap(err, "%s", option);
}

bool input_text(Arena *a, const Options *o, Str *out, Error *err)
{
    if (o->has_prompt && o->has_file)
        return err_set(err, ERR_USAGE, "--prompt and --file exclude each other");
    if (o->has_prompt) {
        *out = str_from(o->prompt);
        return true;
    }
    if (o->has_file)
        return input_file(a, "--file", o->file, out, err);
    if (isatty(STDIN_FILENO))
        return err_set(err, ERR_USAGE, "no text: give -p TEXT, -f FILE or text on standard input");
    return input_stdin(a, out, err);
}

bool input_ids(Arena *a, const char *option, Str text, int32_t **ids, int64_t *n, Error *err)
{
    static const char between[] = ", \t\r\n";
    int64_t count = 0;
    for (size_t i = 0; i < text.len; i++)
        count += !strchr(between, text.ptr[i]) &&
                 (i + 1 == text.len || strchr(between, text.ptr[i + 1]));
    int32_t *out = ARENA_ARRAY(a, count > 0 ? count : 1, int32_t, err);
    if (!out)
        return false;
    *n = 0;
    for (size_t at = 0; at < text.len;) {
        size_t end = at;
        while (end < text.len && !strchr(between, text.ptr[end]))
            end++;
        const Str word = {text.ptr + at, end - at};
        int64_t id;
        if (word.len > 0 && !str_to_int(word, 0, INT32_MAX, &id))
            return err_set(err, ERR_USAGE, "%s: \"%.*s\" is no token id", option,
                           (int)(word.len < 40 ? word.len : 40), word.ptr);
        if (word.len > 0)
            out[(*n)++] = (int32_t)id;
        at = end + 1;
    }
    *ids = out;
    return true;
}
