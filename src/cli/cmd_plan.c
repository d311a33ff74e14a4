#include "base/jsonout.h"
#include "cli/cli.h"

#include <inttypes.h>

static int print_json(const Cli *c, const MerePlan *p)
{
    StrBuf b;
    strbuf_init(&b, 1 << 16);
    strbuf_printf(&b, "{\"schema_version\":1,\"fits\":%s,\"device\":", p->fits ? "true" : "false");
    jsonout_str(&b, str_from(p->device));
    strbuf_printf(&b, ",\"ctx\":%d,\"slots\":%d,\"kv\":\"%s\",\"terms\":{", p->ctx, p->slots,
                  cli_kv_name(p->kv));
    for (int i = 0; i < MERE_TERM_COUNT; i++)
        strbuf_printf(&b, "%s\"%s\":%" PRIu64, i ? "," : "", mere_term_name((MereTerm)i),
                      p->terms[i]);
    strbuf_add_cstr(&b, "},\"placements\":{");
    for (int i = 0; i < MERE_PLACE_COUNT; i++)
        strbuf_printf(&b, "%s\"%s\":%" PRIu64, i ? "," : "", mere_place_name((MerePlace)i),
                      p->placements[i]);
    strbuf_printf(&b, "},\"own_memory\":%s,\"host_terms\":{", p->own_memory ? "true" : "false");
    for (int i = 0; i < MERE_TERM_COUNT; i++)
        strbuf_printf(&b, "%s\"%s\":%" PRIu64, i ? "," : "", mere_term_name((MereTerm)i),
                      p->host_terms[i]);
    strbuf_add_cstr(&b, "},\"placed_bytes\":{");
    for (int i = 0; i < MERE_PLACE_COUNT; i++)
        strbuf_printf(&b, "%s\"%s\":%" PRIu64, i ? "," : "", mere_place_name((MerePlace)i),
                      p->placed_bytes[i]);
    strbuf_printf(&b,
                  "},\"host_bytes\":%" PRIu64 ",\"host_limit_bytes\":%" PRIu64
                  ",\"device_bytes\":%" PRIu64 ",\"device_limit_bytes\":%" PRIu64,
                  p->host_bytes, p->host_limit_bytes, p->device_bytes, p->device_limit_bytes);
    strbuf_printf(&b,
                  ",\"total_bytes\":%" PRIu64 ",\"limit_bytes\":%" PRIu64
                  ",\"bytes_per_token\":%" PRIu64 ",\"text_bytes\":%" PRIu64 ",\"nearest\":",
                  p->total_bytes, p->limit_bytes, p->bytes_per_token, p->text_bytes);
    if (p->fits || p->nearest_ctx == 0)
        strbuf_add_cstr(&b, "null}\n");
    else
        strbuf_printf(&b, "{\"ctx\":%d,\"slots\":%d,\"kv\":\"%s\"}}\n", p->nearest_ctx,
                      p->nearest_slots, cli_kv_name(p->nearest_kv));
    return cli_put(c, &b);
}

static void row(const char *name, uint64_t left, uint64_t right, bool two)
{
    char bytes[2][24];
    if (left == 0 && right == 0)
        return;
    printf("  %-9s %12s", name, left > 0 || !two ? cli_bytes(left, bytes[0]) : "");
    if (two && right > 0)
        printf(" %12s", cli_bytes(right, bytes[1]));
    putchar('\n');
}

/* One sum, or the device's beside the host's where each has its limit. */
static void print_terms(const MerePlan *p)
{
    const bool two = p->own_memory || p->device_limit_bytes > 0;
    char bytes[24];
    printf(two ? "memory          device         host\n" : "memory of the process\n");
    for (int i = 0; i < MERE_TERM_COUNT; i++)
        row(mere_term_name((MereTerm)i), two ? p->terms[i] - p->host_terms[i] : p->terms[i],
            p->host_terms[i], two);
    row("total", two ? p->device_bytes : p->total_bytes, p->host_bytes, two);
    row("limit", two ? p->device_limit_bytes : p->limit_bytes, p->host_limit_bytes, two);
    printf("  Of runtime the tokenizer and the chat template take up to %s.\n",
           cli_bytes(p->text_bytes, bytes));
    if (two && !p->own_memory)
        printf("  The device takes its part from the host's memory: together %s.\n",
               cli_bytes(p->total_bytes, bytes));
    putchar('\n');
}

static void print_table(const MerePlan *p)
{
    char bytes[24];
    char placed[24];
    printf("device      %s\n", p->device);
    printf("for         %d sequence%s of %d tokens, KV cache %s\n\n", p->slots,
           p->slots == 1 ? "" : "s", p->ctx, cli_kv_name(p->kv));
    print_terms(p);
    printf("weights by placement\n");
    for (int i = 0; i < MERE_PLACE_COUNT; i++) {
        if (p->placements[i] == 0)
            continue;
        printf("  %-9s %12s", mere_place_name((MerePlace)i), cli_bytes(p->placements[i], bytes));
        if (p->placed_bytes[i] > 0)
            printf(" of the files, %s on the device", cli_bytes(p->placed_bytes[i], placed));
        putchar('\n');
    }
    printf("  a decoded token reads %s\n\n", cli_bytes(p->bytes_per_token, bytes));
    if (p->fits)
        printf("It fits.\n");
    else if (p->nearest_ctx > 0)
        printf("It does not fit. This would: --ctx %d --slots %d --kv %s\n", p->nearest_ctx,
               p->nearest_slots, cli_kv_name(p->nearest_kv));
    else
        printf("It does not fit, with no context at all.\n");
}

int cmd_plan(Cli *c)
{
    int rc;
    if (!cli_open_engine(c, &rc))
        return rc;
    MerePlan plan = {.size = sizeof plan};
    MereError merr = {0};
    if (!mere_plan(c->engine, cli_str(c->o.model), &c->mere, &plan, &merr))
        return cli_fail_mere(c, &merr);
    if (c->o.json) {
        rc = print_json(c, &plan);
    } else {
        print_table(&plan);
        rc = cli_flush(c);
    }
    return rc ? rc : plan.fits ? 0 : mere_err_exit_code(MERE_ERR_FIT);
}
