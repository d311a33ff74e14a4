/* log.h: the one mutable global: where messages go. The library never prints; the command line and
 * the server set a sink. Any thread. */
#ifndef MERE_BASE_LOG_H
#define MERE_BASE_LOG_H

#include "base/attr.h"

typedef enum LogLevel { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } LogLevel;
typedef void LogSink(void *ctx, LogLevel level, const char *msg);

/* Call before other threads start. NULL: silence (the default). The sink may be called from any
 * thread. */
void log_set_sink(LogSink *sink, void *ctx, LogLevel max_level);
void log_msg(LogLevel level, const char *fmt, ...) PRINTF(2, 3);

#endif
