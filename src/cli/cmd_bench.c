#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/interrupt.h"

#include <inttypes.h>
#include <sched.h>

enum { PP_DEFAULT = 512, TG_DEFAULT = 128, REPS_DEFAULT = 3 };

static int thread_count(const Cli *c)
{
    cpu_set_t set;
    if (c->mere.threads > 0)
        return c->mere.threads;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* null: not known. */
static void add_known(StrBuf *b, double v)
{
    if (v > 0)
        jsonout_f64(b, v);
    else
        strbuf_add_cstr(b, "null");
}

static void add_json(StrBuf *b, const Cli *c, const MereBench *q, const MereBenchResult *r)
{
    const MereStr device = mere_engine_device(c->engine);
    strbuf_add_cstr(b, "{\"schema_version\":1,\"model\":");
    jsonout_str(b, str_from(c->o.model));
    strbuf_add_cstr(b, ",\"prefill_tok_s\":");
    jsonout_f64(b, r->prefill_tok_s);
    strbuf_add_cstr(b, ",\"decode_tok_s\":");
    jsonout_f64(b, r->decode_tok_s);
    strbuf_add_cstr(b, ",\"spread\":{\"prefill\":");
    jsonout_f64(b, r->prefill_spread);
    strbuf_add_cstr(b, ",\"decode\":");
    jsonout_f64(b, r->decode_spread);
    strbuf_printf(b, "},\"bytes_per_token\":%" PRIu64 ",\"read_gb_s\":", r->bytes_per_token);
    add_known(b, r->read_gb_s);
    strbuf_add_cstr(b, ",\"bandwidth_share\":");
    add_known(b, r->bandwidth_share);
    strbuf_printf(b,
                  ",\"numerics\":\"%s\",\"prompt\":%d,\"gen\":%d,\"depth\":%d,\"rows\":%d,"
                  "\"reps\":%d,\"threads\":%d,\"device\":",
                  cli_numerics(c), q->prompt, q->gen, q->depth, q->rows, q->reps, thread_count(c));
    jsonout_str(b, (Str){device.ptr, device.len});
    const MereStr id = mere_engine_device_id(c->engine);
    strbuf_printf(b, ",\"device_id\":\"%.*s\"", (int)id.len, id.ptr);
    cli_add_memory(c, b);
    strbuf_add_cstr(b, "}\n");
}

int cmd_bench(Cli *c)
{
    const Options *o = &c->o;
    const MereBench q = {.prompt = o->has_pp ? (int32_t)o->pp : PP_DEFAULT,
                         .gen = o->has_tg ? (int32_t)o->tg : TG_DEFAULT,
                         .depth = (int32_t)o->depth,
                         .reps = o->has_reps ? (int32_t)o->reps : REPS_DEFAULT,
                         .rows = o->has_rows ? (int32_t)o->rows : 1};
    Error err;
    if (q.prompt == 0 && q.gen == 0) {
        err_set(&err, ERR_USAGE, "--pp 0 and --tg 0 leave nothing to measure");
        return cli_fail(c, &err);
    }
    /* Prefill and decode are measured apart, both behind `depth`. */
    if (!o->has_ctx) {
        c->o.ctx = q.depth + (q.prompt > q.gen ? q.prompt : q.gen) + 1;
        c->o.has_ctx = true;
    }
    c->o.slots = q.rows;
    c->o.has_slots = true;
    int rc;
    cli_catch_interrupts(c);
    if (!cli_open_model(c, &rc))
        return rc;
    interrupt_remove(); /* a measurement is not worth keeping half */
    MereBenchResult r = {0};
    MereError merr = {0};
    if (!mere_bench(c->model, &q, &r, &merr))
        return cli_fail_mere(c, &merr);
    const MereStr device = mere_engine_device(c->engine);
    if (!o->json)
        printf("%.*s, %s\n", (int)device.len, device.ptr, cli_numerics(c));
    if (!o->json && q.prompt > 0)
        printf("prefill %6d tokens at depth %d: %10.1f tok/s  spread %.1f %%\n", q.prompt, q.depth,
               r.prefill_tok_s, r.prefill_spread * 100);
    if (!o->json && q.gen > 0) {
        printf("decode  %6d tokens at depth %d: %10.1f tok/s  spread %.1f %%, %d row%s", q.gen,
               q.depth, r.decode_tok_s, r.decode_spread * 100, q.rows, q.rows == 1 ? "" : "s");
        if (r.read_gb_s > 0)
            printf(", %.0f %% of %.1f GB/s", r.bandwidth_share * 100, r.read_gb_s);
        putchar('\n');
    }
    char memory[CLI_MEMORY];
    if (!o->json)
        printf("memory  %s\n", cli_memory(c, memory));
    StrBuf b;
    strbuf_init(&b, 1 << 16);
    add_json(&b, c, &q, &r);
    return cli_put(c, &b);
}
