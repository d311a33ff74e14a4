/* load.h: a checkpoint made ready to serve: the struct behind MereModel, and the steps from a name
 * to it. Opening reads headers first and plans (load_headers, also all that `mere plan` does), then
 * takes what the plan says. After load_open nothing changes but the scheduler's state. */
#ifndef MERE_ENGINE_LOAD_H
#define MERE_ENGINE_LOAD_H

#include "engine/engine.h"
#include "engine/ledger.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* From headers alone. */
typedef struct LoadHeaders {
    Arena arena;
    const char *path;
    Checkpoint *ck;
    Model *model;
    const GraphPlan *graph;
    Ledger ledger;
} LoadHeaders;

/* `engine` NULL: up to the model, without graph and plan (mere_info_read). On failure nothing stays
 * open. Errors are those of hub_resolve, checkpoint_open, model_open, model_build, the device's
 * `supports`, ledger_make. */
MUST_CHECK bool load_headers(MereEngine *engine, MereStr name, const MereOptions *opt,
                             LoadHeaders *out, Error *err);
void load_headers_free(LoadHeaders *h);

/* *out is NULL when the checkpoint has no tokenizer. Close it before the arena is freed. */
MUST_CHECK bool load_tokenizer(const Checkpoint *ck, Arena *a, Tokenizer **out, Error *err);
MUST_CHECK bool load_gguf_tokenizer(const Gguf *g, Arena *a, Tokenizer **out, Error *err);
/* ERR_NOT_FOUND for a checkpoint without one, with the names that were looked for. Returns false.
 */
bool load_no_tokenizer(const char *path, Error *err);

struct MereModel {
    EngineModel attached; /* first: the engine's thread knows the model by it */
    atomic_int refs;
    MereEngine *engine;
    LoadHeaders h;
    Tokenizer *tokenizer; /* NULL: ids only */
    Chat *chat;           /* NULL: chat_error says why */
    Error chat_error;
    KvPool *pool; /* engine's thread only */
    DeviceWeights *weights;
    Program *program;
    RequestLimits limits;
    MereInfo info;
};

MUST_CHECK bool load_open(MereEngine *e, MereStr name, const MereOptions *opt, MereModel **out,
                          Error *err);
void load_close(MereModel *m);

#endif
