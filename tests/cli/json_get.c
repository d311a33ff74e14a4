/* json_get PATH...: reads one JSON value from stdin and prints what each path leads to, one a line:
 * strings as they are, the rest as compact JSON. "usage.prompt_tokens", "groups.0.role"; "." is the
 * whole; "list.#" is the length of an array. Exit code 1: no JSON, or a path leads nowhere. */
#include "base/json.h"

#include <stdio.h>

enum { INPUT_MAX = 64 << 20 };

static const json_t *step(const json_t *v, const char *key, size_t len)
{
    char name[64];
    int64_t index;
    if (len >= sizeof name)
        return NULL;
    memcpy(name, key, len);
    name[len] = '\0';
    if (json_is_array(v) && str_to_int(str_from(name), 0, INT32_MAX, &index))
        return json_array_get(v, (size_t)index);
    return json_object_get(v, name);
}

static bool print_path(const json_t *v, const char *path)
{
    for (const char *p = path; v && *p && strcmp(path, ".") != 0;) {
        const size_t len = strcspn(p, ".");
        if (len == 1 && *p == '#') {
            if (json_is_array(v))
                printf("%zu\n", json_array_size(v));
            return json_is_array(v);
        }
        v = step(v, p, len);
        p += len + (p[len] == '.');
    }
    if (!v)
        return false;
    if (json_is_string(v)) {
        puts(json_string_value(v));
        return true;
    }
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        puts(text);
    json_text_free(text);
    return text != NULL;
}

int main(int argc, char **argv)
{
    json_setup();
    StrBuf in;
    strbuf_init(&in, INPUT_MAX);
    char buf[65536];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0)
        (void)strbuf_add(&in, buf, n);
    Error err = {0};
    json_t *v = json_parse("stdin", strbuf_str(&in), &err);
    if (!v)
        fprintf(stderr, "json_get: %s\n", err.msg);
    bool ok = v != NULL;
    for (int i = 1; i < argc && v; i++) {
        if (print_path(v, argv[i]))
            continue;
        fprintf(stderr, "json_get: no %s\n", argv[i]);
        ok = false;
    }
    json_decref(v);
    strbuf_free(&in);
    return ok ? 0 : 1;
}
