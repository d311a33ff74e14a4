/* completion.h: requests for text, from the parsed body to the last byte of the answer.
 *
 * Each is a Completion from completion_start until its END event came, also when its client has
 * gone: the engine's rows are free only then. The answer of a stream begins with the first event,
 * so that what fails before has a status of its own. Loop thread only. */
#ifndef MERE_SERVE_COMPLETION_H
#define MERE_SERVE_COMPLETION_H

#include "mere.h"
#include "serve/net.h"
#include "serve/openai.h"

typedef struct Completion Completion;

typedef struct CompletionSet {
    MereEngine *engine;
    MereModel *model;
    Str model_name;  /* what answers call the model */
    Str model_alias; /* another name that requests may use */
    uint64_t boot;   /* random, so that ids differ between runs */
    uint64_t n_started;
    Completion *list;
    int n;
} CompletionSet;

/* Answers r with an error object and ends it. code and param may be NULL. */
void completion_refuse(NetReq *r, int status, const char *code, const char *param,
                       const char *message);

/* Takes over r: answers it now (an error) or when the engine's events come. */
void completion_start(CompletionSet *set, NetReq *r, OpenaiKind kind);
/* Events of requests that are not in the set are ignored. */
void completion_event(CompletionSet *set, const MereEvent *ev);
void completion_cancel_all(CompletionSet *set);
/* Frees what is left; the engine must not give out events any more. */
void completion_free_all(CompletionSet *set);

#endif
