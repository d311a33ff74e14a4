/* err.h: the one error type. A function that can fail returns bool, takes `Error *err` last and is
 * MUST_CHECK. A message names the file, tensor or field, the value found and the value wanted. */
#ifndef MERE_BASE_ERR_H
#define MERE_BASE_ERR_H

#include "base/attr.h"

typedef enum ErrCode {
#define ERR(code, name, exit_code, http) code,
#include "base/err.def"
#undef ERR
    ERR_COUNT
} ErrCode;

typedef struct Error {
    ErrCode code;
    char msg[240];
} Error;

/* Fills `err` (may be NULL) and returns false, so that `return err_set(...)` reads well. The
 * message is cut at 239 bytes, on a UTF-8 border. */
bool err_set(Error *err, ErrCode code, const char *fmt, ...) PRINTF(3, 4);
/* Puts "prefix: " before the message that `err` holds. Returns false. */
bool err_wrap(Error *err, const char *fmt, ...) PRINTF(2, 3);
/* Allocation of `bytes` for `what` failed. Returns false. */
bool err_nomem(Error *err, const char *what, size_t bytes);

const char *err_name(ErrCode code);
int err_exit_code(ErrCode code);
int err_http_status(ErrCode code);

#endif
