/* mere.h: the C interface of libmere.
 *
 * One engine per process usually: it owns the devices, the memory ledger and the thread team. A
 * model is a checkpoint loaded for serving: weights (mapped), KV pool, tokenizer, template; it is
 * reference-counted. Requests are submitted to a model and run by the engine's own thread; what
 * they produce comes back as events, in order per request, from one queue per engine that has a
 * file descriptor.
 *
 * Any thread may call any function, except that mere_next and the event it returned belong to one
 * thread at a time. There are no callbacks from engine threads. Strings are pointer and length,
 * UTF-8. Structs that callers fill begin with `size` = sizeof(the struct) (set by the
 * *_INIT macros), so that later versions can add fields at the end. The library never prints and
 * never exits.
 *
 *     MereError err;
 *     MereEngine *engine;  MereModel *model;
 *     MereOptions opt = MERE_OPTIONS_INIT;
 *     if (!mere_engine_open(&opt, &engine, &err)) ...
 *     if (!mere_model_open(engine, MERE_STR("model.gguf"), &opt, &model, &err)) ...
 *     MereRequest req = MERE_REQUEST_INIT;
 *     req.prompt = MERE_STR("Once upon a time");
 *     req.max_tokens = 64;
 *     uint64_t id;
 *     if (!mere_submit(model, &req, &id, &err)) ...
 *     MereEvent ev;
 *     while (mere_next(engine, &ev, -1) && ev.type != MERE_EVENT_END)
 *         fwrite(ev.text.ptr, 1, ev.text.len, stdout);
 */
#ifndef MERE_H
#define MERE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MereEngine MereEngine;
typedef struct MereModel MereModel;

/* code: one of MERE_ERR_*; msg names the thing, the value found and the value wanted. */
typedef struct MereError {
    int32_t code;
    char msg[240];
} MereError;

enum {
    MERE_OK = 0,
    MERE_ERR_FAILED,
    MERE_ERR_USAGE,
    MERE_ERR_FORMAT,
    MERE_ERR_UNSUPPORTED,
    MERE_ERR_NOT_FOUND,
    MERE_ERR_IO,
    MERE_ERR_FIT,
    MERE_ERR_NOMEM,
    MERE_ERR_FULL,
    MERE_ERR_TOO_LONG,
    MERE_ERR_REQUEST,
    MERE_ERR_DEVICE,
    MERE_ERR_LOST,
    MERE_ERR_CANCELLED
};

int mere_err_exit_code(int32_t code); /* of the command line: interfaces in docs/cli.md */
int mere_err_http_status(int32_t code);
const char *mere_err_name(int32_t code);
const char *mere_version(void); /* "0.1.0" */

typedef struct MereStr {
    const char *ptr;
    size_t len;
} MereStr;
#define MERE_STR(literal) ((MereStr){(literal), sizeof(literal) - 1})

typedef enum MereNumerics { MERE_FAST, MERE_EXACT } MereNumerics;
typedef enum MereKv {
    MERE_KV_AUTO,
    MERE_KV_F16,
    MERE_KV_F32
} MereKv; /* auto: f16 for fast, f32 for exact */

/* Options of the engine (device, threads, level, numerics, deterministic) and of a model (the
 * rest). Zero means default everywhere. */
typedef struct MereOptions {
    size_t size;
    MereStr device;    /* "auto" (default), "cpu", "cuda:N", "vulkan:N": mere_devices lists them */
    int32_t threads;   /* 0: one per core the process may run on */
    MereStr cpu_level; /* highest instruction set: scalar avx2 avx512 avx512vnni avx512bf16 amx;
                          empty: all the machine has */
    MereNumerics numerics;
    bool deterministic;  /* same tokens at any batch and chunking */
    int32_t ctx;         /* tokens per sequence; 0: what the plan allows up to the model's own */
    int32_t slots;       /* sequences that can be live together; 0: 1 */
    int32_t queue;       /* requests that may wait; 0: 64 */
    int32_t chunk;       /* most rows of one step; 0: 512 */
    int32_t page_tokens; /* tokens per KV page, a power of two; 0: 64 */
    int32_t snapshots; /* recurrent-state snapshots kept for prefix reuse; 0: 4 where the model has
                          such state; -1: none */
    MereKv kv;
    uint64_t limit_bytes; /* memory the plan may use, of the device where it has its own, else
                             anonymous memory; 0: what is available, less a reserve */
    bool no_prefix_cache;
    /* While weights are brought to a device that keeps its own: called a few times a second on the
     * thread that is in mere_model_open. False ends the load with MERE_ERR_CANCELLED. */
    bool (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
} MereOptions;
#define MERE_OPTIONS_INIT                                                                          \
    {                                                                                              \
        .size = sizeof(MereOptions)                                                                \
    }

MereError *mere_error_clear(MereError *err);

/* ---- devices ---- */
typedef struct MereDevice {
    char id[16];        /* "cuda:0": what MereOptions.device takes */
    char name[96];      /* the driver's */
    char driver[96];    /* "580.159 (CUDA 13.0)" */
    char arch[32];      /* "sm_90" */
    char pci[16];       /* "0000:c4:00.0"; empty: none */
    char same_as[16];   /* id of a device before it that is the same chip; empty: none */
    char features[192]; /* words */
    char advice[240];   /* what would make more of it; empty: nothing */
    bool shared_memory; /* its memory is the host's */
    bool software;      /* a CPU that poses as a GPU: never chosen by "auto" */
    bool is_auto;       /* what "auto" chooses */
    uint64_t total_bytes, free_bytes; /* of memory that the engine may use */
} MereDevice;
typedef struct MereBackend {
    char name[16];  /* "cuda" */
    int32_t n;      /* devices found */
    char note[240]; /* why none was found, or what failed */
} MereBackend;
typedef struct MereDevices {
    size_t size;
    const MereDevice *devices;
    int32_t n_devices;
    const MereBackend *backends; /* that were looked for */
    int32_t n_backends;
} MereDevices;
/* Looks for devices and opens none. A driver that fails is no error: its backend's note says so. */
bool mere_devices(MereDevices **out, MereError *err);
void mere_devices_free(MereDevices *d);

/* ---- engine ---- */
bool mere_engine_open(const MereOptions *opt, MereEngine **out, MereError *err);
/* Cancels what runs; events that were not read are gone. Models should have been closed; one that
 * was not answers no more requests and still wants its mere_model_close. */
void mere_engine_close(MereEngine *e);
/* "cpu: 2 threads, avx512bf16 amx". Lives as long as the engine. */
MereStr mere_engine_device(const MereEngine *e);
/* "cpu", "cuda:0". */
MereStr mere_engine_device_id(const MereEngine *e);

/* ---- plan: reads headers only ---- */
typedef enum MereTerm {
    MERE_TERM_WEIGHTS, /* copies of weights (read, repack), the device's mostly; mapped bytes are
                          placements[MAP] */
    MERE_TERM_DERIVED, /* bytes that are in no file: f32 norms, tables */
    MERE_TERM_KV,
    MERE_TERM_STATE,
    MERE_TERM_SCRATCH,
    MERE_TERM_DRAFT,
    MERE_TERM_RUNTIME, /* tokenizer, graph, packed activations, sampler, the process itself */
    MERE_TERM_RESERVE,
    MERE_TERM_COUNT
} MereTerm;
typedef enum MerePlace {
    MERE_PLACE_MAP,
    MERE_PLACE_IMPORT,
    MERE_PLACE_READ,
    MERE_PLACE_REPACK,
    MERE_PLACE_DERIVE,
    MERE_PLACE_COUNT
} MerePlace;

typedef struct MerePlan {
    size_t size;
    bool fits;
    char device[64];
    uint64_t terms[MERE_TERM_COUNT];       /* bytes, the host's and the device's */
    uint64_t placements[MERE_PLACE_COUNT]; /* bytes of weights in their files by how they are placed
                                            */
    uint64_t total_bytes;                  /* sum of terms: the peak of memory that no file backs */
    uint64_t limit_bytes; /* of that sum: the host's limit, and the device's where it has its own
                             memory */
    int32_t ctx, slots;   /* what the plan is for */
    MereKv kv;
    int32_t nearest_ctx, nearest_slots; /* what would fit when this does not; 0: nothing does */
    MereKv nearest_kv;
    uint64_t bytes_per_token; /* weight bytes one decoded token reads */
    /* A device with memory of its own has a limit of its own: both sides must fit. One that takes
     * the host's may have one too (0: none): total_bytes must fit the host's limit, device_bytes
     * the device's. */
    bool own_memory;
    uint64_t host_terms[MERE_TERM_COUNT]; /* the host's part of `terms` */
    uint64_t host_bytes, host_limit_bytes;
    uint64_t device_bytes, device_limit_bytes;
    uint64_t placed_bytes[MERE_PLACE_COUNT]; /* that weights take on the device, by placement */
    uint64_t text_bytes; /* of the runtime term: tokenizer and chat template, at most */
} MerePlan;
const char *mere_term_name(MereTerm t);   /* "weights" ... */
const char *mere_place_name(MerePlace p); /* "map" ... */
bool mere_plan(MereEngine *e, MereStr model, const MereOptions *opt, MerePlan *plan,
               MereError *err);

/* ---- model ---- */
/* MODEL: a directory, a .gguf file, or a name found in the store or the Hugging Face cache.
 * MERE_ERR_FIT: the message says what would fit. */
bool mere_model_open(MereEngine *e, MereStr model, const MereOptions *opt, MereModel **out,
                     MereError *err);
MereModel *mere_model_ref(MereModel *m);
void mere_model_close(
    MereModel *m); /* drops a reference; the last one cancels the model's requests and frees it */

typedef struct MereGroup { /* tensors of one role in one format */
    MereStr role;   /* "embedding", "attention", "mlp", "experts", "norms", "head", "other" */
    MereStr format; /* "Q4_1", "affine 4-bit g64" ... */
    int32_t n_tensors;
    uint64_t bytes;
} MereGroup;
typedef struct MereInfo {
    size_t size;
    MereStr path, family, model_type, container; /* container: "gguf", "safetensors" */
    int32_t vocab, hidden, n_layers, max_ctx, ctx, slots;
    int64_t n_params;
    MereStr tokenizer; /* "BPE, 49152 tokens, pre smollm" */
    bool has_chat_template;
    const MereGroup *groups;
    int32_t n_groups;
    int32_t bos_id; /* -1: none */
    const int32_t *eos_ids;
    int32_t n_eos;
    double load_ms;
} MereInfo;
/* Everything borrowed from the model. */
void mere_model_info(const MereModel *m, MereInfo *info);
/* The plan the model was opened with. */
void mere_model_plan(const MereModel *m, MerePlan *plan);
/* As mere_model_info but from headers alone, without opening a device; strings live until
 * mere_info_free. */
bool mere_info_read(MereStr model, MereInfo **info, MereError *err);
void mere_info_free(MereInfo *info);
/* The tokenizer of a model without its weights or a device: for mere_tokenize, mere_detokenize,
 * mere_model_info and mere_model_close, nothing else. MERE_ERR_NOT_FOUND: there is no such model,
 * or it has no tokenizer. */
bool mere_text_open(MereStr model, MereModel **out, MereError *err);

typedef struct MereFamily {
    MereStr name, verified_by;
    const char *const *types;  /* NULL-terminated */
    const char *const *blocks; /* NULL-terminated */
    MereStr file;              /* "families/llama.c" */
    double max_abs_diff;       /* of the logits, that the golden tests allow; 0: not stated */
} MereFamily;
int32_t mere_families(const MereFamily **out);

/* ---- text ---- */
enum {
    MERE_TOK_SPECIAL = 1,
    /* add bos etc. as the tokenizer says */ MERE_TOK_PARSE =
        2 /* special tokens in the text become their ids */
};
/* Writes up to cap ids, sets *n to all there are (n > cap: call again with room). */
bool mere_tokenize(const MereModel *m, MereStr text, uint32_t flags, int32_t *ids, int64_t cap,
                   int64_t *n, MereError *err);
/* Bytes of the ids, up to cap; *n to all there are. */
bool mere_detokenize(const MereModel *m, const int32_t *ids, int64_t n_ids, char *out, size_t cap,
                     size_t *n, MereError *err);
/* messages, tools: JSON arrays; vars: JSON object of further template variables (each may be
 * empty). Adds the generation prompt. */
bool mere_chat_render(const MereModel *m, MereStr messages, MereStr tools, MereStr vars, char *out,
                      size_t cap, size_t *n, MereError *err);

/* ---- requests ---- */
typedef struct MereBias {
    int32_t id;
    float add;
} MereBias;
/* In this order: bias, penalties, temperature, top_k, top_p, min_p, draw. A draw depends on seed
 * and position alone. Logprobs are those of the model, before all of this. */
typedef struct MereSampling {
    float temperature;    /* 0 (below 1e-4): greedy */
    int32_t top_k;        /* 0: all */
    float top_p;          /* 0 or 1: all */
    float min_p;          /* 0: none */
    float repeat_penalty; /* 0 or 1: none; over the last repeat_last tokens */
    int32_t repeat_last;  /* 0: 64 */
    float presence_penalty, frequency_penalty;
    uint64_t seed; /* 0: from the clock; the end event tells it */
    const MereBias *bias;
    int32_t n_bias;
    int32_t logprobs; /* -1: none (INIT); 0..20: the token's own and that many alternatives */
} MereSampling;

typedef struct MereRequest {
    size_t size;
    /* One of: text, or ids. */
    MereStr prompt;     /* text; tokenised with MERE_TOK_SPECIAL, or with MERE_TOK_PARSE alone: */
    bool parse_special; /* set for rendered chat templates, which write bos and the like themselves
                         */
    const int32_t *ids;
    int64_t n_ids;
    int32_t max_tokens; /* 0: until the context is full */
    MereSampling sampling;
    const MereStr *stops; /* at most 16 of 1 to 256 bytes; text up to the stop is given out, the
                             stop is not */
    int32_t n_stops;
    bool ignore_eos;
    bool echo_logits; /* teacher forcing: no generation; a MERE_EVENT_LOGITS for each prompt row, in
                         order. Rows are made as they are read: few wait at a time */
    MereStr cache_salt; /* prefixes are shared only among equal salts; at most 64 bytes */
    uint64_t user;      /* comes back in every event */
} MereRequest;
#define MERE_REQUEST_INIT                                                                          \
    {                                                                                              \
        .size = sizeof(MereRequest), .sampling = {.logprobs = -1 }                                 \
    }

/* Copies what it needs. MERE_ERR_FULL: the queue is full. MERE_ERR_TOO_LONG: prompt and max_tokens
 * against the context, with both counts. */
bool mere_submit(MereModel *m, const MereRequest *req, uint64_t *id, MereError *err);
/* The request's rows are freed before the next step; its END event (finish CANCELLED) still comes.
 * Unknown ids are ignored. */
void mere_cancel(MereEngine *e, uint64_t id);

typedef enum MereEventType {
    MERE_EVENT_TOKEN = 1,
    MERE_EVENT_LOGITS,
    MERE_EVENT_END
} MereEventType;
typedef enum MereFinish {
    MERE_FINISH_NONE,
    MERE_FINISH_STOP,
    MERE_FINISH_LENGTH,
    MERE_FINISH_CANCELLED,
    MERE_FINISH_ERROR
} MereFinish;
const char *mere_finish_name(MereFinish f); /* "stop" "length" "cancelled" "error" */

typedef struct MereLogprob {
    int32_t id;
    float logprob;
    MereStr bytes;
} MereLogprob;
typedef struct MereUsage {
    int32_t prompt_tokens, cached_tokens, completion_tokens, drafted, accepted;
    double queue_ms, prefill_ms, decode_ms, ttft_ms; /* ttft: from submit to the first token */
} MereUsage;

typedef struct MereEvent {
    uint64_t request, user;
    MereEventType type;
    int32_t index;          /* TOKEN: number of the token, from 0; LOGITS: number of the row */
    int32_t token;          /* an end-of-sequence token has its event too, without text */
    float logprob;          /* of token, when asked for */
    const MereLogprob *top; /* most likely first */
    int32_t n_top;
    MereStr text; /* whole UTF-8 characters that became certain with this event (may be empty); also
                     on END: what was held */
    const float *logits; /* LOGITS: [n_logits] */
    int32_t n_logits;
    MereFinish finish; /* END */
    MereError error;   /* END with FINISH_ERROR */
    MereUsage usage;   /* END */
    uint64_t seed;     /* END: what was used */
} MereEvent;

/* Next event, waiting up to timeout_ms (-1: for ever, 0: do not wait). What it points to lives
 * until the next call. False: none came. */
bool mere_next(MereEngine *e, MereEvent *ev, int timeout_ms);
/* Readable while events wait (eventfd, level-triggered); for poll and event loops. */
int mere_fd(const MereEngine *e);

typedef struct MereStats {
    int32_t queued, live, slots, pages_used, pages_total, states_used;
    uint64_t steps, rows, requests;
    uint64_t planned_bytes, anon_bytes, peak_anon_bytes,
        mapped_bytes; /* anon: RssAnon of the process; peak: highest seen; planned: of it */
    /* Of a device that keeps books of its memory, as its driver tells; else 0. */
    uint64_t device_planned_bytes, device_bytes, device_peak_bytes;
} MereStats;
void mere_stats(MereModel *m, MereStats *s);

/* ---- measuring ---- */
typedef struct MereBench {
    int32_t prompt, gen, depth, reps, rows; /* rows: sequences decoded together */
} MereBench;
typedef struct MereBenchResult {
    double prefill_tok_s, decode_tok_s;   /* medians over reps; 0 when not asked for */
    double prefill_spread, decode_spread; /* (max - min) / median */
    uint64_t bytes_per_token;
    double read_gb_s; /* measured in the same run: what this device's threads read from memory; 0:
                         not known of this device */
    double bandwidth_share; /* decode bytes_per_token * tok_s / read_gb_s; 0: not known */
} MereBenchResult;
/* Waits while the engine's thread measures; needs the model idle: MERE_ERR_FAILED when requests are
 * live. Empties the prefix cache. */
bool mere_bench(MereModel *m, const MereBench *b, MereBenchResult *out, MereError *err);

/* ---- testing ---- */
/* The n-th allocation from now fails (1: the next; 0: off); with sticky, all later ones too. */
void mere_fail_alloc(uint64_t n, bool sticky);
uint64_t mere_alloc_count(void);

#ifdef __cplusplus
}
#endif
#endif
