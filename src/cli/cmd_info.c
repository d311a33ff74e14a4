/* From headers alone, with the placements that this machine's device would choose. */
#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/term.h"

#include <inttypes.h>
#include <unistd.h>

static void add_str(StrBuf *b, const char *key, MereStr s)
{
    strbuf_printf(b, "\"%s\":", key);
    jsonout_str(b, (Str){s.ptr ? s.ptr : "", s.len});
}

/* plan: NULL when there is none. */
static int print_json(const Cli *c, const MereInfo *info, const MerePlan *plan)
{
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    strbuf_add_cstr(&b, "{\"schema_version\":1,");
    add_str(&b, "path", info->path);
    strbuf_add_cstr(&b, ",");
    add_str(&b, "family", info->family);
    strbuf_add_cstr(&b, ",");
    add_str(&b, "model_type", info->model_type);
    strbuf_add_cstr(&b, ",");
    add_str(&b, "container", info->container);
    strbuf_printf(
        &b, ",\"n_params\":%" PRId64 ",\"n_layers\":%d,\"hidden\":%d,\"vocab\":%d,\"max_ctx\":%d,",
        info->n_params, info->n_layers, info->hidden, info->vocab, info->max_ctx);
    add_str(&b, "tokenizer", info->tokenizer);
    strbuf_printf(
        &b, ",\"has_chat_template\":%s,\"bos_id\":", info->has_chat_template ? "true" : "false");
    if (info->bos_id >= 0)
        strbuf_printf(&b, "%d", info->bos_id);
    else
        strbuf_add_cstr(&b, "null");
    strbuf_add_cstr(&b, ",\"eos_ids\":[");
    for (int i = 0; i < info->n_eos; i++)
        strbuf_printf(&b, "%s%d", i ? "," : "", info->eos_ids[i]);
    strbuf_add_cstr(&b, "],\"groups\":[");
    for (int i = 0; i < info->n_groups; i++) {
        const MereGroup *g = &info->groups[i];
        strbuf_add_cstr(&b, i ? ",{" : "{");
        add_str(&b, "role", g->role);
        strbuf_add_cstr(&b, ",");
        add_str(&b, "format", g->format);
        strbuf_printf(&b, ",\"n_tensors\":%d,\"bytes\":%" PRIu64 "}", g->n_tensors, g->bytes);
    }
    strbuf_add_cstr(&b, "],\"placements\":");
    if (plan) {
        for (int i = 0; i < MERE_PLACE_COUNT; i++)
            strbuf_printf(&b, "%s\"%s\":%" PRIu64, i ? "," : "{", mere_place_name((MerePlace)i),
                          plan->placements[i]);
        strbuf_printf(&b, "},\"ctx\":%d}\n", plan->ctx);
    } else {
        strbuf_add_cstr(&b, "null,\"ctx\":null}\n");
    }
    return cli_put(c, &b);
}

static void line(const char *key, MereStr value)
{
    printf("%-12s ", key);
    term_write(stdout, (Str){value.ptr ? value.ptr : "", value.len}, true);
    putchar('\n');
}

static void print_table(const MereInfo *info, const MerePlan *plan)
{
    char bytes[24];
    line("path", info->path);
    line("family", info->family);
    line("model type", info->model_type);
    line("container", info->container);
    printf("%-12s %.1f M\n", "parameters", (double)info->n_params / 1e6);
    printf("%-12s %d layers, %d wide, %d tokens in the vocabulary\n", "size", info->n_layers,
           info->hidden, info->vocab);
    printf("%-12s %d tokens", "context", info->max_ctx);
    if (plan && plan->ctx < info->max_ctx)
        printf(", %d fit here", plan->ctx);
    putchar('\n');
    line("tokenizer", info->tokenizer);
    printf("%-12s %s\n", "template", info->has_chat_template ? "yes" : "none");
    printf("\n%-12s %-20s %8s %12s\n", "weights", "format", "tensors", "size");
    for (int i = 0; i < info->n_groups; i++) {
        const MereGroup *g = &info->groups[i];
        printf("%-12.*s %-20.*s %8d %12s\n", (int)g->role.len, g->role.ptr, (int)g->format.len,
               g->format.ptr, g->n_tensors, cli_bytes(g->bytes, bytes));
    }
    if (!plan)
        return;
    printf("\nplacement");
    for (int i = 0; i < MERE_PLACE_COUNT; i++)
        if (plan->placements[i] > 0)
            printf("  %s %s", mere_place_name((MerePlace)i), cli_bytes(plan->placements[i], bytes));
    putchar('\n');
}

int cmd_info(Cli *c)
{
    MereInfo *info;
    MereError merr = {0};
    if (!mere_info_read(cli_str(c->o.model), &info, &merr))
        return cli_fail_mere(c, &merr);
    int rc;
    MerePlan plan = {.size = sizeof plan};
    if (!cli_open_engine(c, &rc)) {
        mere_info_free(info);
        return rc;
    }
    const bool planned = mere_plan(c->engine, cli_str(c->o.model), &c->mere, &plan, &merr);
    if (!planned)
        cli_note(c, "no plan: %s", merr.msg);
    if (c->o.json) {
        rc = print_json(c, info, planned ? &plan : NULL);
    } else {
        print_table(info, planned ? &plan : NULL);
        rc = cli_flush(c);
    }
    mere_info_free(info);
    return rc;
}
