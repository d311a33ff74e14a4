#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static struct {
    LogSink *sink;
    void *ctx;
    LogLevel max_level;
} log_state;

void log_set_sink(LogSink *sink, void *ctx, LogLevel max_level)
{
    log_state.sink = sink;
    log_state.ctx = ctx;
    log_state.max_level = max_level;
}

void log_msg(LogLevel level, const char *fmt, ...)
{
    if (!log_state.sink || level > log_state.max_level)
        return;
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    log_state.sink(log_state.ctx, level, msg);
}
