#include "base/jsonout.h"
#include "cli/cli.h"

static void add_list(StrBuf *b, const char *const *items)
{
    strbuf_add_cstr(b, "[");
    for (int i = 0; items[i]; i++) {
        strbuf_add_cstr(b, i ? "," : "");
        jsonout_str(b, str_from(items[i]));
    }
    strbuf_add_cstr(b, "]");
}

static int print_json(const Cli *c, const MereFamily *list, int n)
{
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    strbuf_add_cstr(&b, "[");
    for (int i = 0; i < n; i++) {
        const MereFamily *f = &list[i];
        strbuf_add_cstr(&b, i ? ",\n {\"schema_version\":1,\"name\":"
                              : "{\"schema_version\":1,\"name\":");
        jsonout_str(&b, (Str){f->name.ptr, f->name.len});
        strbuf_add_cstr(&b, ",\"types\":");
        add_list(&b, f->types);
        strbuf_add_cstr(&b, ",\"file\":");
        jsonout_str(&b, (Str){f->file.ptr, f->file.len});
        strbuf_add_cstr(&b, ",\"blocks\":");
        add_list(&b, f->blocks);
        strbuf_add_cstr(&b, ",\"verified_by\":");
        jsonout_str(&b, (Str){f->verified_by.ptr, f->verified_by.len});
        strbuf_add_cstr(&b, ",\"max_abs_diff\":");
        if (f->max_abs_diff > 0)
            jsonout_f64(&b, f->max_abs_diff);
        else
            strbuf_add_cstr(&b, "null");
        strbuf_add_cstr(&b, "}");
    }
    strbuf_add_cstr(&b, "]\n");
    return cli_put(c, &b);
}

int cmd_families(Cli *c)
{
    const MereFamily *list;
    const int n = mere_families(&list);
    if (c->o.json)
        return print_json(c, list, n);
    printf("%-12s %-40s %s\n", "family", "model types", "verified by");
    for (int i = 0; i < n; i++) {
        const MereFamily *f = &list[i];
        char types[256] = "";
        for (int t = 0; f->types[t]; t++) {
            const size_t len = strlen(types);
            snprintf(types + len, sizeof types - len, "%s%s", t ? " " : "", f->types[t]);
        }
        printf("%-12.*s %-40s %.*s\n", (int)f->name.len, f->name.ptr, types,
               (int)f->verified_by.len, f->verified_by.ptr);
    }
    return cli_flush(c);
}
