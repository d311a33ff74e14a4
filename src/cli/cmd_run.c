#include "base/clock.h"
#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/fetch.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/term.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { ANSWER_MAX = 256 << 20, TOKEN_MAX = 256, BIAS_MAX = OPTIONS_LIST_MAX };

typedef struct Run {
    Cli *c;
    Arena arena;
    MereInfo info;
    MereStr prompt; /* as the model sees it */
    bool rendered;  /* by the chat template */
    MereStr stops[OPTIONS_LIST_MAX];
    MereBias bias[BIAS_MAX];
    bool visible;               /* stdout is a terminal */
    StrBuf text, ids, logprobs; /* for --json: the answer, and the insides of two lists */
    char last;                  /* last byte printed */
    MereEvent end;
} Run;

/* ---- the prompt ---- */

/* Of what no --seed was given for: odd, and exact in every reader of JSON (53 bits). */
static uint64_t clock_seed(void)
{
    return (clock_ns() * 0x9e3779b97f4a7c15U >> 12) | 1;
}

static void add_message(StrBuf *b, const char *role, Str content)
{
    strbuf_printf(b, "%s{\"role\":\"%s\",\"content\":", b->len > 1 ? "," : "", role);
    jsonout_str(b, content);
    strbuf_add_cstr(b, "}");
}

static bool render(Run *r, MereStr messages, Error *err)
{
    size_t cap = messages.len + 16384;
    for (int round = 0; round < 2; round++) {
        char *text = arena_take(&r->arena, cap, 1, err);
        if (!text)
            return false;
        MereError merr = {0};
        const MereStr none = {"", 0};
        size_t n;
        if (!mere_chat_render(r->c->model, messages, none, none, text, cap, &n, &merr))
            return err_set(err, (ErrCode)merr.code, "%s", merr.msg);
        if (n <= cap) {
            r->prompt = (MereStr){text, n};
            r->rendered = true;
            return true;
        }
        cap = n;
    }
    return err_set(err, ERR_FAILED, "the chat template's text changed its length");
}

static bool prepare_prompt(Run *r, Str text, Error *err)
{
    const Options *o = &r->c->o;
    if (!o->raw && !o->has_prompt && text.len > 0 && text.ptr[text.len - 1] == '\n')
        text.len--; /* files and pipes end in one that nobody means */
    r->prompt = (MereStr){text.ptr, text.len};
    if (o->raw || !r->info.has_chat_template) {
        if (o->has_system)
            return err_set(err, ERR_USAGE, "--system: %s",
                           o->raw ? "there is no system message with --raw"
                                  : "the model has no chat template");
        if (!o->raw)
            cli_note(r->c, "the model has no chat template: the prompt goes in as it is");
        return true;
    }
    StrBuf b;
    strbuf_init(&b, (size_t)INPUT_MAX * 8);
    strbuf_add_cstr(&b, "[");
    if (o->has_system)
        add_message(&b, "system", str_from(o->system));
    add_message(&b, "user", text);
    strbuf_add_cstr(&b, "]");
    const bool ok = strbuf_check(&b, "messages", err) && render(r, (MereStr){b.ptr, b.len}, err);
    strbuf_free(&b);
    return ok;
}

/* ---- the request ---- */

static bool set_request(Run *r, MereRequest *req, Error *err)
{
    const Options *o = &r->c->o;
    *req = (MereRequest)MERE_REQUEST_INIT;
    req->prompt = r->prompt;
    req->parse_special = r->rendered;
    req->max_tokens = (int32_t)o->n;
    req->ignore_eos = o->ignore_eos;
    for (int i = 0; i < o->stop.n; i++)
        r->stops[i] = cli_str(o->stop.items[i]);
    req->stops = r->stops;
    req->n_stops = o->stop.n;
    for (int i = 0; i < o->logit_bias.n; i++) {
        const char *item = o->logit_bias.items[i];
        const size_t len = strcspn(item, ":");
        int64_t id;
        double add;
        if (item[len] != ':' || !str_to_int((Str){item, len}, 0, INT32_MAX, &id) ||
            !str_to_double(str_from(item + len + 1), &add))
            return err_set(err, ERR_USAGE, "--logit-bias: \"%.60s\" is no ID:VALUE", item);
        r->bias[i] = (MereBias){(int32_t)id, (float)add};
    }
    if (o->has_logprobs && !o->json)
        return err_set(err, ERR_USAGE, "--logprobs: only with --json");
    req->sampling = (MereSampling){.temperature = (float)o->temp,
                                   .top_k = (int32_t)o->top_k,
                                   .top_p = (float)o->top_p,
                                   .min_p = (float)o->min_p,
                                   .repeat_penalty = (float)o->repeat_penalty,
                                   .presence_penalty = (float)o->presence_penalty,
                                   .frequency_penalty = (float)o->frequency_penalty,
                                   .seed = o->seed > 0 ? (uint64_t)o->seed : clock_seed(),
                                   .bias = r->bias,
                                   .n_bias = o->logit_bias.n,
                                   .logprobs = o->has_logprobs ? (int32_t)o->logprobs : -1};
    return true;
}

/* ---- events ---- */

static void add_logprob(Run *r, const MereEvent *ev)
{
    StrBuf *b = &r->logprobs;
    char bytes[TOKEN_MAX];
    size_t n = 0;
    MereError ignored;
    if (!mere_detokenize(r->c->model, &ev->token, 1, bytes, sizeof bytes, &n, &ignored))
        n = 0;
    strbuf_printf(b, "%s{\"token_id\":%d,\"token\":", b->len ? "," : "", ev->token);
    jsonout_str(b, (Str){bytes, n < sizeof bytes ? n : sizeof bytes});
    strbuf_add_cstr(b, ",\"logprob\":");
    jsonout_f32(b, ev->logprob);
    strbuf_add_cstr(b, ",\"top\":[");
    for (int i = 0; i < ev->n_top; i++) {
        strbuf_printf(b, "%s{\"token_id\":%d,\"token\":", i ? "," : "", ev->top[i].id);
        jsonout_str(b, (Str){ev->top[i].bytes.ptr, ev->top[i].bytes.len});
        strbuf_add_cstr(b, ",\"logprob\":");
        jsonout_f32(b, ev->top[i].logprob);
        strbuf_add_cstr(b, "}");
    }
    strbuf_add_cstr(b, "]}");
}

/* False: stdout cannot be written. */
static bool take(Run *r, const MereEvent *ev)
{
    const Str text = {ev->text.ptr ? ev->text.ptr : "", ev->text.len};
    if (r->c->o.json) {
        strbuf_add(&r->text, text.ptr, text.len);
        if (ev->type == MERE_EVENT_TOKEN) {
            strbuf_printf(&r->ids, "%s%d", r->ids.len ? "," : "", ev->token);
            if (r->c->o.has_logprobs)
                add_logprob(r, ev);
        }
        return true;
    }
    if (text.len == 0)
        return true;
    r->last = text.ptr[text.len - 1];
    return term_write(stdout, text, r->visible) && fflush(stdout) == 0;
}

/* Until the END event, which also comes after Ctrl-C and after a failed write. */
static bool follow(Run *r, uint64_t id, Error *err)
{
    bool ok = true;
    MereEvent ev;
    do {
        if (!cli_next(r->c, id, &ev, err))
            return false;
        if (ok && !take(r, &ev)) {
            ok = err_set(err, ERR_FAILED, "cannot write to standard output: %s", strerror(errno));
            mere_cancel(r->c->engine, id);
        }
    } while (ev.type != MERE_EVENT_END);
    r->end = ev;
    return ok;
}

/* ---- what is said at the end ---- */

static void print_figures(const Run *r)
{
    const MereUsage *u = &r->end.usage;
    char memory[CLI_MEMORY];
    cli_note(r->c,
             "load %.0f ms, first token %.0f ms, prefill %d tokens %.1f tok/s, decode %d tokens "
             "%.1f tok/s, memory %s",
             r->c->load_ms, u->ttft_ms, u->prompt_tokens - u->cached_tokens,
             cli_rate(u->prompt_tokens - u->cached_tokens, u->prefill_ms), u->completion_tokens,
             cli_rate(u->completion_tokens - 1, u->decode_ms), cli_memory(r->c, memory));
    if (r->end.finish == MERE_FINISH_LENGTH && !r->c->o.has_n)
        cli_note(r->c, "the context of %d tokens is full", r->info.ctx);
}

/* The exit code of writing it. */
static int print_json(const Run *r)
{
    Error err;
    if (!strbuf_check(&r->text, "answer", &err) || !strbuf_check(&r->ids, "answer", &err) ||
        !strbuf_check(&r->logprobs, "answer", &err))
        return cli_fail(r->c, &err);
    const MereUsage *u = &r->end.usage;
    StrBuf b;
    strbuf_init(&b, (size_t)ANSWER_MAX * 4);
    strbuf_add_cstr(&b, "{\"schema_version\":1,\"model\":");
    jsonout_str(&b, str_from(r->c->o.model));
    strbuf_add_cstr(&b, ",\"text\":");
    jsonout_str(&b, strbuf_str(&r->text));
    strbuf_add_cstr(&b, ",\"token_ids\":[");
    strbuf_add(&b, r->ids.ptr, r->ids.len);
    strbuf_add_cstr(&b, "],\"logprobs\":");
    if (r->c->o.has_logprobs) {
        strbuf_add_cstr(&b, "[");
        strbuf_add(&b, r->logprobs.ptr, r->logprobs.len);
        strbuf_add_cstr(&b, "]");
    } else {
        strbuf_add_cstr(&b, "null");
    }
    strbuf_printf(&b,
                  ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%d,\"cached_tokens\":%d,"
                  "\"completion_tokens\":%d,\"drafted\":%d,\"accepted\":%d},\"timings\":{"
                  "\"load_ms\":",
                  mere_finish_name(r->end.finish), u->prompt_tokens, u->cached_tokens,
                  u->completion_tokens, u->drafted, u->accepted);
    jsonout_f64(&b, r->c->load_ms);
    strbuf_add_cstr(&b, ",\"ttft_ms\":");
    jsonout_f64(&b, u->ttft_ms);
    strbuf_add_cstr(&b, ",\"prefill_tok_s\":");
    jsonout_f64(&b, cli_rate(u->prompt_tokens - u->cached_tokens, u->prefill_ms));
    strbuf_add_cstr(&b, ",\"decode_tok_s\":");
    jsonout_f64(&b, cli_rate(u->completion_tokens - 1, u->decode_ms));
    strbuf_add_cstr(&b, "}");
    cli_add_memory(r->c, &b);
    strbuf_printf(&b, ",\"numerics\":\"%s\",\"seed\":%" PRIu64 "}\n", cli_numerics(r->c),
                  r->end.seed);
    return cli_put(r->c, &b);
}

static int finish(Run *r)
{
    Cli *c = r->c;
    if (!c->o.json && r->last && r->last != '\n')
        (void)fputc('\n', stdout);
    const int rc = c->o.json ? print_json(r) : cli_flush(c);
    if (r->end.finish == MERE_FINISH_ERROR)
        return cli_fail_mere(c, &r->end.error);
    if (r->end.finish == MERE_FINISH_CANCELLED)
        return interrupt_exit_code();
    if (!c->o.json)
        print_figures(r);
    return rc;
}

static int run(Run *r)
{
    Cli *c = r->c;
    Error err;
    MereError merr = {0};
    Str text;
    int rc;
    MereRequest req;
    if (!input_text(&r->arena, &c->o, &text, &err) || !set_request(r, &req, &err))
        return cli_fail(c, &err);
    if (!fetch_missing(c, &rc))
        return rc;
    cli_catch_interrupts(c);
    if (!cli_open_model(c, &rc))
        return rc;
    r->info.size = sizeof r->info;
    mere_model_info(c->model, &r->info);
    if (!prepare_prompt(r, text, &err))
        return cli_fail(c, &err);
    req.prompt = r->prompt;
    req.parse_special = r->rendered;
    uint64_t id;
    if (!mere_submit(c->model, &req, &id, &merr))
        return cli_fail_mere(c, &merr);
    if (!follow(r, id, &err))
        return cli_fail(c, &err);
    return finish(r);
}

int cmd_run(Cli *c)
{
    Run r = {.c = c, .visible = isatty(STDOUT_FILENO) != 0};
    arena_init(&r.arena, "run");
    strbuf_init(&r.text, ANSWER_MAX);
    strbuf_init(&r.ids, ANSWER_MAX);
    strbuf_init(&r.logprobs, ANSWER_MAX);
    const int rc = run(&r);
    strbuf_free(&r.text);
    strbuf_free(&r.ids);
    strbuf_free(&r.logprobs);
    arena_free(&r.arena);
    return rc;
}
