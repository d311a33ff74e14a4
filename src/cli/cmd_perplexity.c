/* exp of the mean of -ln p(token | the tokens before it in its window), natural logarithms, over
 * the scored tokens of a text.
 *
 * Whole windows (the default, and llama.cpp's definition): the text's tokens are cut into windows
 * of C = --ctx tokens; what is left at the end is not scored. Of a window the tokens C/2 + 1 to C -
 * 1 (from 0) are scored, C - 1 - C/2 of them: those with half a window or more before them.
 *
 * --stride S: window w holds the tokens w S to w S + C - 1. Each token but the text's first is
 * scored once, in the first window that holds it: with at least C - S tokens before it from the
 * second window on.
 *
 * In both, where the tokenizer puts a BOS before texts, the first token of every window is replaced
 * by it; that token is never scored.
 *
 * The error is that of a mean of independent values: PPL sqrt((mean x^2 - mean^2) / (n - 1)).
 * Logits are looked at as the engine makes them and not kept. */
#include "base/clock.h"
#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/interrupt.h"

#include <math.h>
#include <unistd.h>

enum { CTX_DEFAULT = 512, CTX_MIN = 4, BAR = 24 };

typedef struct Perplexity {
    Cli *c;
    Arena arena;
    int32_t *ids; /* of the text */
    int64_t n_ids;
    int32_t *window; /* [ctx] */
    int ctx;
    int64_t stride; /* distance of windows */
    bool sliding;   /* --stride */
    int bos;        /* -1: windows keep their first token */
    int64_t n_windows, done;
    int64_t n_scored, n_rows;
    double sum, sum2; /* of -ln p, and of its squares */
    double start_ms, ms;
    bool has_line;
    bool interrupted;
} Perplexity;

static bool from_mere(const MereError *merr, Error *err)
{
    return err_set(err, (ErrCode)merr->code, "%s", merr->msg);
}

/* ---- the text ---- */

static bool tokenize(Perplexity *p, Str text, Error *err)
{
    const MereStr in = {text.ptr, text.len};
    MereInfo info = {.size = sizeof info};
    MereError merr = {0};
    mere_model_info(p->c->model, &info);
    if (!mere_tokenize(p->c->model, in, MERE_TOK_SPECIAL, NULL, 0, &p->n_ids, &merr))
        return from_mere(&merr, err);
    p->ids = ARENA_ARRAY(&p->arena, p->n_ids > 0 ? p->n_ids : 1, int32_t, err);
    p->window = ARENA_ARRAY(&p->arena, p->ctx, int32_t, err);
    if (!p->ids || !p->window)
        return false;
    if (!mere_tokenize(p->c->model, in, MERE_TOK_SPECIAL, p->ids, p->n_ids, &p->n_ids, &merr))
        return from_mere(&merr, err);
    p->bos = p->n_ids > 0 && info.bos_id >= 0 && p->ids[0] == info.bos_id ? info.bos_id : -1;
    return true;
}

static bool count_windows(Perplexity *p, Error *err)
{
    const Options *o = &p->c->o;
    p->sliding = o->has_stride;
    p->stride = p->sliding ? o->stride : p->ctx;
    if (p->sliding) {
        const int64_t rest = p->n_ids > p->ctx ? p->n_ids - p->ctx : 0;
        p->n_windows = p->n_ids < 2 ? 0 : 1 + (rest + p->stride - 1) / p->stride;
    } else {
        p->n_windows = p->n_ids / p->ctx;
    }
    if (p->n_windows == 0)
        return err_set(
            err, ERR_USAGE,
            "the text has %lld tokens, a window %d: take a longer text or a smaller --ctx",
            (long long)p->n_ids, p->ctx);
    if (o->has_chunks && o->chunks < p->n_windows)
        p->n_windows = o->chunks;
    return true;
}

/* ---- scoring ---- */

/* -ln of the token's share of exp(logits). */
static double surprise(const float *logits, int n, int32_t token)
{
    float most = logits[0];
    for (int i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)expf(logits[i] - most);
    return log(sum) + (double)most - (double)logits[token];
}

static bool take_row(Perplexity *p, const MereEvent *ev, int n, int first, Error *err)
{
    p->n_rows++;
    const int row = ev->index;
    if (row < first || row + 1 >= n)
        return true;
    const int32_t token = p->window[row + 1];
    if (token >= ev->n_logits)
        return err_set(err, ERR_FAILED, "token %d of the text has no logit: there are %d", token,
                       ev->n_logits);
    const double x = surprise(ev->logits, ev->n_logits, token);
    if (!isfinite(x))
        return err_set(err, ERR_FAILED, "window %lld, row %d: the logits are not finite",
                       (long long)p->done, row);
    p->sum += x;
    p->sum2 += x * x;
    p->n_scored++;
    return true;
}

/* Rows first to n - 2 foretell the scored tokens first + 1 to n - 1. */
static bool score_window(Perplexity *p, int n, int first, Error *err)
{
    Cli *c = p->c;
    MereRequest req = MERE_REQUEST_INIT;
    req.ids = p->window;
    req.n_ids = n;
    req.echo_logits = true;
    uint64_t id;
    MereError merr = {0};
    if (!mere_submit(c->model, &req, &id, &merr))
        return from_mere(&merr, err);
    bool ok = true; /* after a failure the request still runs to its END */
    const int64_t rows_before = p->n_rows;
    MereEvent ev;
    do {
        if (!cli_next(c, id, &ev, err))
            return false;
        if (ok && ev.type == MERE_EVENT_LOGITS && !take_row(p, &ev, n, first, err)) {
            ok = false;
            mere_cancel(c->engine, id);
        }
    } while (ev.type != MERE_EVENT_END);
    if (!ok)
        return false;
    if (ev.finish == MERE_FINISH_ERROR)
        return from_mere(&ev.error, err);
    if (ev.finish == MERE_FINISH_CANCELLED) {
        p->interrupted = true;
        return true;
    }
    return p->n_rows - rows_before == n ||
           err_set(err, ERR_FAILED, "%lld rows of logits came, wanted %d",
                   (long long)(p->n_rows - rows_before), n);
}

static double value(const Perplexity *p)
{
    return exp(p->sum / (double)p->n_scored);
}

static double std_error(const Perplexity *p)
{
    const double n = (double)p->n_scored;
    const double mean = p->sum / n;
    const double variance = p->sum2 / n - mean * mean;
    return n > 1 && variance > 0 ? value(p) * sqrt(variance / (n - 1)) : 0;
}

static double tok_s(const Perplexity *p)
{
    return p->ms > 0 ? (double)p->n_rows * 1e3 / p->ms : 0;
}

static void show_progress(Perplexity *p)
{
    if (p->c->o.quiet || !isatty(STDERR_FILENO))
        return;
    char bar[BAR + 1];
    const int full = (int)(p->done * BAR / p->n_windows);
    memset(bar, '-', BAR);
    memset(bar, '#', (size_t)full);
    bar[BAR] = '\0';
    fprintf(stderr, "\r\033[K[%s] window %lld of %lld", bar, (long long)p->done,
            (long long)p->n_windows);
    if (p->n_scored > 0)
        fprintf(stderr, "  perplexity %.4f +- %.4f  %.0f tok/s  %.0f s left", value(p),
                std_error(p), tok_s(p),
                p->ms * 1e-3 / (double)p->done * (double)(p->n_windows - p->done));
    (void)fflush(stderr);
    p->has_line = true;
}

static void end_progress(Perplexity *p)
{
    if (p->has_line)
        fputs("\r\033[K", stderr);
    (void)fflush(stderr);
    p->has_line = false;
}

static bool score(Perplexity *p, Error *err)
{
    p->start_ms = clock_ms();
    bool ok = true;
    int64_t end = 1; /* tokens before this one are scored, or are the first */
    for (p->done = 0; ok && p->done < p->n_windows; p->done++) {
        show_progress(p);
        const int64_t at = p->done * p->stride;
        const int n = (int)i64_min(p->ctx, p->n_ids - at);
        memcpy(p->window, p->ids + at, (size_t)n * sizeof *p->window);
        if (p->bos >= 0)
            p->window[0] = p->bos;
        const int first = p->sliding ? (int)(end - at) - 1 : p->ctx / 2;
        ok = score_window(p, n, first, err);
        p->ms = clock_ms() - p->start_ms;
        end = at + n;
        if (p->interrupted)
            break;
    }
    end_progress(p);
    return ok;
}

/* ---- the result ---- */

static int print(Perplexity *p)
{
    Cli *c = p->c;
    const MereStr device = mere_engine_device(c->engine);
    MerePlan plan = {.size = sizeof plan};
    mere_model_plan(c->model, &plan);
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    if (c->o.json) {
        strbuf_add_cstr(&b, "{\"schema_version\":1,\"model\":");
        jsonout_str(&b, str_from(c->o.model));
        strbuf_add_cstr(&b, ",\"perplexity\":");
        jsonout_f64(&b, value(p));
        strbuf_add_cstr(&b, ",\"std_error\":");
        jsonout_f64(&b, std_error(p));
        strbuf_add_cstr(&b, ",\"mean_nll\":");
        jsonout_f64(&b, p->sum / (double)p->n_scored);
        strbuf_printf(&b,
                      ",\"scored_tokens\":%lld,\"text_tokens\":%lld,\"windows\":%lld,\"ctx\":%d,"
                      "\"stride\":%lld,\"bos\":%s,\"tok_s\":",
                      (long long)p->n_scored, (long long)p->n_ids, (long long)p->done, p->ctx,
                      (long long)p->stride, p->bos >= 0 ? "true" : "false");
        jsonout_f64(&b, tok_s(p));
        strbuf_printf(&b, ",\"numerics\":\"%s\",\"kv\":\"%s\",\"device\":", cli_numerics(c),
                      cli_kv_name(plan.kv));
        jsonout_str(&b, (Str){device.ptr, device.len});
        strbuf_add_cstr(&b, "}\n");
    } else {
        strbuf_printf(
            &b,
            "perplexity %.4f +- %.4f: %lld tokens scored in %lld windows of %d, every %lld; "
            "%.1f tok/s, numerics %s, kv %s, %.*s\n",
            value(p), std_error(p), (long long)p->n_scored, (long long)p->done, p->ctx,
            (long long)p->stride, tok_s(p), cli_numerics(c), cli_kv_name(plan.kv), (int)device.len,
            device.ptr);
    }
    return cli_put(c, &b);
}

static int finish(Perplexity *p)
{
    Cli *c = p->c;
    if (p->interrupted) {
        if (p->done > 0 && p->n_scored > 0)
            cli_note(c, "interrupted in window %lld of %lld; up to there perplexity %.4f +- %.4f",
                     (long long)p->done + 1, (long long)p->n_windows, value(p), std_error(p));
        return interrupt_exit_code();
    }
    const int64_t rest = p->n_ids - p->n_windows * p->stride;
    if (!p->sliding && rest > 0)
        cli_note(c, "%lld of the text's %lld tokens are in no window", (long long)rest,
                 (long long)p->n_ids);
    return print(p);
}

static bool check_options(Perplexity *p, Error *err)
{
    Options *o = &p->c->o;
    if (!o->has_file)
        return err_set(err, ERR_USAGE, "mere perplexity wants a text: -f FILE (-: standard input)");
    if (!o->has_ctx) {
        o->ctx = CTX_DEFAULT;
        o->has_ctx = true;
    }
    if (o->ctx < CTX_MIN)
        return err_set(err, ERR_USAGE, "--ctx: %lld, wanted %d or more", (long long)o->ctx,
                       CTX_MIN);
    if (o->has_stride && o->stride >= o->ctx)
        return err_set(err, ERR_USAGE, "--stride: %lld, wanted less than the window, %lld",
                       (long long)o->stride, (long long)o->ctx);
    p->ctx = (int)o->ctx;
    return true;
}

int cmd_perplexity(Cli *c)
{
    Perplexity p = {.c = c, .bos = -1};
    Error err;
    Str text;
    int rc;
    arena_init(&p.arena, "perplexity");
    if (!check_options(&p, &err) || !input_file(&p.arena, "--file", c->o.file, &text, &err)) {
        rc = cli_fail(c, &err);
    } else {
        cli_catch_interrupts(c);
        if (cli_open_model(c, &rc)) {
            const bool ok = tokenize(&p, text, &err) && count_windows(&p, &err) && score(&p, &err);
            rc = ok ? finish(&p) : cli_fail(c, &err);
        }
    }
    arena_free(&p.arena);
    return rc;
}
