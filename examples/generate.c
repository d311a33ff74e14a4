/* generate.c: the library in one page: open, ask, read events, close.
 *
 *     generate MODEL "Once upon a time" [tokens [context]]
 *
 * MODEL is a directory, a .gguf file, or a name in the store. */
#include "mere.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const MereError *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    return mere_err_exit_code(err->code);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [tokens [context]]\n", argv[0]);
        return 2;
    }
    MereError err;
    MereEngine *engine;
    MereModel *model;
    MereOptions options = MERE_OPTIONS_INIT;
    options.ctx = argc > 4 ? (int32_t)strtol(argv[4], NULL, 10) : 0;
    if (!mere_engine_open(&options, &engine, &err))
        return fail("engine", &err);
    const MereStr name = {argv[1], strlen(argv[1])};
    if (!mere_model_open(engine, name, &options, &model, &err)) {
        mere_engine_close(engine);
        return fail(argv[1], &err);
    }

    MereRequest request = MERE_REQUEST_INIT;
    request.prompt = (MereStr){argv[2], strlen(argv[2])};
    request.max_tokens = argc > 3 ? (int32_t)strtol(argv[3], NULL, 10) : 64;
    uint64_t id;
    int code = 0;
    if (!mere_submit(model, &request, &id, &err)) {
        code = fail("request", &err);
    } else {
        MereEvent event;
        while (mere_next(engine, &event, -1)) {
            fwrite(event.text.ptr, 1, event.text.len, stdout);
            fflush(stdout);
            if (event.type == MERE_EVENT_END)
                break;
        }
        printf("\n%s: %d tokens, %.1f a second\n", mere_finish_name(event.finish),
               (int)event.usage.completion_tokens,
               event.usage.completion_tokens * 1e3 / (event.usage.decode_ms + 1e-3));
        if (event.finish == MERE_FINISH_ERROR)
            code = fail("answer", &event.error);
    }
    mere_model_close(model);
    mere_engine_close(engine);
    return code;
}
