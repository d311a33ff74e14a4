#include "cli/cli.h"

#include "base/clock.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/term.h"

#include <inttypes.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

enum { SERVE_SLOTS = 4 };

/* ---- messages ---- */

static void message(const Cli *c, const char *colour, const char *text)
{
    fprintf(stderr, "%smere:%s ", c->has_colour ? colour : "", c->has_colour ? "\033[0m" : "");
    term_write(stderr, str_from(text), true);
    fputc('\n', stderr);
}

int cli_fail(const Cli *c, const Error *err)
{
    message(c, "\033[1;31m", err->msg);
    return err_exit_code(err->code);
}

int cli_fail_mere(const Cli *c, const MereError *err)
{
    message(c, "\033[1;31m", err->msg);
    return mere_err_exit_code(err->code);
}

void cli_note(const Cli *c, const char *fmt, ...)
{
    if (c->o.quiet)
        return;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    message(c, "\033[2m", text);
}

int cli_flush(const Cli *c)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    Error err;
    err_set(&err, ERR_FAILED, "cannot write to standard output: %s", strerror(errno));
    return cli_fail(c, &err);
}

int cli_put(const Cli *c, StrBuf *b)
{
    Error err;
    const bool ok = strbuf_check(b, "output", &err);
    if (ok)
        (void)fwrite(b->ptr, 1, b->len, stdout); /* cli_flush tells */
    strbuf_free(b);
    return ok ? cli_flush(c) : cli_fail(c, &err);
}

/* ---- options ---- */

/* By name alone: whether there is such a device is the engine's to say. */
static bool is_device(const char *name)
{
    static const char *const known[] = {"auto", "cpu", "cuda", "vulkan"};
    const size_t len = strcspn(name, ":");
    int64_t n;
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strlen(known[i]) == len && strncmp(name, known[i], len) == 0)
            return !name[len] || (i >= 1 && str_to_int(str_from(name + len + 1), 0, INT32_MAX, &n));
    return false;
}

static bool set_device(Cli *c, Error *err)
{
    const char *env = getenv("MERE_DEVICE");
    const char *device = c->o.has_device ? c->o.device : env && *env ? env : "auto";
    const char *from = c->o.has_device ? "--device" : "MERE_DEVICE";
    if (!is_device(device))
        return err_set(err, ERR_USAGE,
                       "%s: \"%.40s\" is no device; auto, cpu, cuda:N and vulkan:N are", from,
                       device);
    c->is_auto = strcmp(device, "auto") == 0;
    c->mere.device = cli_str(device);
    return true;
}

bool cli_options(Cli *c, Error *err)
{
    const Options *o = &c->o;
    c->mere = (MereOptions)MERE_OPTIONS_INIT;
    MereOptions *m = &c->mere;
    if (!set_device(c, err))
        return false;
    if (o->has_kv) {
        if (strcmp(o->kv, "f16") != 0 && strcmp(o->kv, "f32") != 0)
            return err_set(err, ERR_DEVICE,
                           "--kv %s is not supported yet by any device; f16 and f32 are", o->kv);
        m->kv = strcmp(o->kv, "f16") == 0 ? MERE_KV_F16 : MERE_KV_F32;
    }
    m->threads = (int32_t)o->threads;
    if (o->has_cpu_level)
        m->cpu_level = cli_str(o->cpu_level);
    m->numerics = o->has_numerics && strcmp(o->numerics, "exact") == 0 ? MERE_EXACT : MERE_FAST;
    m->deterministic = o->deterministic;
    m->ctx = (int32_t)o->ctx;
    m->slots = o->has_slots ? (int32_t)o->slots : o->command == CMD_SERVE ? SERVE_SLOTS : 0;
    return true;
}

bool cli_open_engine(Cli *c, int *exit_code)
{
    Error err;
    MereError merr = {0};
    if (!cli_options(c, &err)) {
        *exit_code = cli_fail(c, &err);
        return false;
    }
    const double start = clock_ms();
    if (!mere_engine_open(&c->mere, &c->engine, &merr)) {
        *exit_code = cli_fail_mere(c, &merr);
        return false;
    }
    c->load_ms = clock_ms() - start;
    return true;
}

/* Nothing is ever cut silently: a context that nobody asked for is said. */
static void note_context(const Cli *c)
{
    MereInfo info = {.size = sizeof info};
    mere_model_info(c->model, &info);
    if (c->o.has_ctx)
        return;
    if (info.ctx < info.max_ctx)
        cli_note(c, "context %d tokens, of the model's %d: what memory allows (mere plan tells)",
                 info.ctx, info.max_ctx);
    else
        cli_note(c, "context %d tokens, all the model has", info.ctx);
}

bool cli_open_model(Cli *c, int *exit_code)
{
    if (!cli_open_engine(c, exit_code))
        return false;
    MereError merr = {0};
    Progress progress;
    progress_start(&progress, c->o.quiet);
    c->mere.progress = progress_show;
    c->mere.progress_ctx = &progress;
    const double start = clock_ms();
    const bool opened = mere_model_open(c->engine, cli_str(c->o.model), &c->mere, &c->model, &merr);
    progress_end(&progress);
    if (interrupt_pending()) {
        *exit_code = interrupt_exit_code();
        return false;
    }
    if (!opened) {
        *exit_code = cli_fail_mere(c, &merr);
        return false;
    }
    c->load_ms += clock_ms() - start;
    const MereStr device = mere_engine_device(c->engine);
    if (c->is_auto && (c->o.command == CMD_RUN ||
                       c->o.command == CMD_CHAT)) /* the others say it in their results */
        cli_note(c, "device %.*s", (int)device.len, device.ptr);
    if (c->o.command != CMD_BENCH && c->o.command != CMD_LOGITS && c->o.command != CMD_PERPLEXITY)
        note_context(c);
    return true;
}

void cli_close(Cli *c)
{
    if (c->model)
        mere_model_close(c->model);
    if (c->engine)
        mere_engine_close(c->engine);
    c->model = NULL;
    c->engine = NULL;
}

/* ---- events ---- */

void cli_catch_interrupts(Cli *c)
{
    c->interrupt_fd = interrupt_install();
}

bool cli_next(Cli *c, uint64_t request, MereEvent *ev, Error *err)
{
    for (;;) {
        if (c->interrupt_fd >= 0 && interrupt_pending()) {
            mere_cancel(c->engine, request);
            c->interrupt_fd = -1; /* told once */
        }
        while (mere_next(c->engine, ev, 0))
            if (ev->request == request)
                return true;
        struct pollfd fds[2] = {{.fd = mere_fd(c->engine), .events = POLLIN},
                                {.fd = c->interrupt_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return err_set(err, ERR_FAILED, "poll: %s", strerror(errno));
    }
}

/* ---- text ---- */

MereStr cli_str(const char *s)
{
    return (MereStr){s, strlen(s)};
}

const char *cli_kv_name(MereKv kv)
{
    switch (kv) {
    case MERE_KV_AUTO:
        break;
    case MERE_KV_F16:
        return "f16";
    case MERE_KV_F32:
        return "f32";
    }
    return "auto";
}

const char *cli_numerics(const Cli *c)
{
    return c->mere.numerics == MERE_EXACT ? "exact" : "fast";
}

const char *cli_bytes(uint64_t bytes, char out[24])
{
    if (bytes < 1000)
        snprintf(out, 24, "%u B", (unsigned)bytes);
    else if (bytes < 1000000)
        snprintf(out, 24, "%.1f kB", (double)bytes / 1e3);
    else if (bytes < 1000000000)
        snprintf(out, 24, "%.1f MB", (double)bytes / 1e6);
    else
        snprintf(out, 24, "%.2f GB", (double)bytes / 1e9);
    return out;
}

double cli_rate(int n, double ms)
{
    return n > 0 && ms > 0 ? n * 1e3 / ms : 0;
}

const char *cli_memory(const Cli *c, char out[CLI_MEMORY])
{
    MereStats st = {0};
    char peak[24], planned[24], mapped[24];
    mere_stats(c->model, &st);
    int n = snprintf(out, CLI_MEMORY, "peak %s of %s planned, %s mapped",
                     cli_bytes(st.peak_anon_bytes, peak), cli_bytes(st.planned_bytes, planned),
                     cli_bytes(st.mapped_bytes, mapped));
    if (st.device_planned_bytes > 0)
        snprintf(out + n, CLI_MEMORY - (size_t)n, ", on the device %s of %s planned",
                 cli_bytes(st.device_peak_bytes, peak),
                 cli_bytes(st.device_planned_bytes, planned));
    return out;
}

void cli_add_memory(const Cli *c, StrBuf *b)
{
    MereStats st = {0};
    mere_stats(c->model, &st);
    strbuf_printf(b,
                  ",\"memory\":{\"planned_bytes\":%" PRIu64 ",\"peak_bytes\":%" PRIu64
                  ",\"mapped_bytes\":%" PRIu64 ",\"device_planned_bytes\":%" PRIu64
                  ",\"device_peak_bytes\":%" PRIu64 "}",
                  st.planned_bytes, st.peak_anon_bytes, st.mapped_bytes, st.device_planned_bytes,
                  st.device_peak_bytes);
}
