/* Texts to ids by the batch, and the time that it takes, for tools/compare_tokenizers.py.
 *   tokenizer_batch FILE [--load N] [--add-special] [--parse-special] [--decode]
 * Standard input has texts, each a length (32 bits, this machine's order) and its bytes; standard
 * output gets the ids of each, a count and 32-bit ids; with --decode the input has ids and the
 * output bytes. --load opens the file N times first. Times go to standard error: CPU time of this
 * thread, for loads the best and the median. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FILE_MAX = 1 << 30, LOADS_MAX = 1000 };

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "tokenizer_batch: %s\n", what);
    exit(2);
}

static bool open_file(Arena *a, const char *path, Str text, Tokenizer **t, Error *err)
{
    const Str name = str_from(path);
    const Str none = {0};
    if (str_ends(name, "tekken.json"))
        return tokenizer_tekken_open(a, path, text, t, err);
    if (str_ends(name, ".json"))
        return tokenizer_json_open(a, path, text, none, t, err);
    if (str_ends(name, "vocab.txt"))
        return tokenizer_wordpiece_open(a, path, text, none, t, err);
    if (str_ends(name, ".model") && text.len > 0 && text.ptr[0] == '\n')
        return tokenizer_spm_open(a, path, text, none, t, err);
    return tokenizer_tiktoken_open(a, path, text, none, t, err);
}

typedef struct Opened {
    Arena arena;
    Gguf gguf;
    Tokenizer *t;
} Opened;

static void open_once(Opened *o, const char *path, Str text)
{
    Error err = {0};
    *o = (Opened){0};
    arena_init(&o->arena, "tokenizer");
    const bool ok = str_ends(str_from(path), ".gguf")
                        ? gguf_open(&o->arena, path, &o->gguf, &err) &&
                              load_gguf_tokenizer(&o->gguf, &o->arena, &o->t, &err)
                        : open_file(&o->arena, path, text, &o->t, &err);
    if (!ok || !o->t)
        die(ok ? "no tokenizer" : err.msg);
}

static void close_once(Opened *o)
{
    tokenizer_close(o->t);
    gguf_close(&o->gguf);
    arena_free(&o->arena);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_loads(const char *path, Str text, int n)
{
    static double ms[LOADS_MAX];
    size_t held = 0;
    size_t told = 0;
    for (int i = 0; i < n; i++) {
        Opened o;
        const size_t before = mem_in_use();
        const double start = cpu_ms();
        open_once(&o, path, text);
        ms[i] = cpu_ms() - start;
        held = mem_in_use() - before;
        told = tokenizer_bytes(o.t);
        close_once(&o);
    }
    qsort(ms, (size_t)n, sizeof *ms, by_size);
    fprintf(stderr, "load: %.1f ms, median %.1f ms of %d; %zu bytes held, %zu counted\n", ms[0],
            ms[n / 2], n, held, told);
}

typedef struct Run {
    const Tokenizer *t;
    unsigned flags;
    bool decode;
    double ms;
    size_t bytes;
} Run;

static void encode_one(Run *r, Arena *a, Str text)
{
    Error err = {0};
    TokenIds ids;
    const double start = cpu_ms();
    if (!tokenizer_encode(a, r->t, text, r->flags, &ids, &err))
        die(err.msg);
    r->ms += cpu_ms() - start;
    r->bytes += text.len;
    const uint32_t n = (uint32_t)ids.n;
    fwrite(&n, sizeof n, 1, stdout);
    fwrite(ids.ids, sizeof *ids.ids, n, stdout);
}

static void decode_one(Run *r, const int32_t *ids, uint32_t n)
{
    Error err = {0};
    StrBuf out;
    strbuf_init(&out, FILE_MAX);
    const double start = cpu_ms();
    if (!tokenizer_decode(r->t, ids, n, r->flags & TOKENIZER_SKIP_SPECIAL, &out, &err))
        die(err.msg);
    r->ms += cpu_ms() - start;
    r->bytes += out.len;
    const uint32_t len = (uint32_t)out.len;
    fwrite(&len, sizeof len, 1, stdout);
    fwrite(strbuf_str(&out).ptr, 1, len, stdout);
    strbuf_free(&out);
}

static void run_all(Run *r)
{
    char *buf = NULL;
    size_t cap = 0;
    uint32_t n;
    while (fread(&n, sizeof n, 1, stdin) == 1) {
        const size_t bytes = r->decode ? (size_t)n * sizeof(int32_t) : n;
        if (bytes >= cap) {
            cap = bytes * 2 + 4096;
            free(buf);
            buf = malloc(cap);
        }
        if (!buf || fread(buf, 1, bytes, stdin) != bytes)
            die("the input is cut short");
        if (r->decode) {
            decode_one(r, (const int32_t *)(const void *)buf, n);
        } else {
            Arena a;
            arena_init(&a, "text");
            encode_one(r, &a, (Str){buf, n});
            arena_free(&a);
        }
    }
    free(buf);
}

int main(int argc, char **argv)
{
    Arena a;
    Error err = {0};
    Str text = {0};
    int64_t loads = 0;
    Run run = {0};
    if (argc < 2)
        die("which file?");
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--load") == 0 && i + 1 < argc) {
            if (!str_to_int(str_from(argv[++i]), 1, LOADS_MAX, &loads))
                die("--load: not a number of loads");
        } else if (strcmp(argv[i], "--add-special") == 0)
            run.flags |= TOKENIZER_ADD_SPECIAL;
        else if (strcmp(argv[i], "--parse-special") == 0)
            run.flags |= TOKENIZER_PARSE_SPECIAL;
        else if (strcmp(argv[i], "--decode") == 0)
            run.decode = true;
        else
            die("unknown option");
    }
    json_setup();
    arena_init(&a, "file");
    if (!str_ends(str_from(argv[1]), ".gguf") && !file_read(&a, argv[1], FILE_MAX, &text, &err))
        die(err.msg);
    if (loads > 0)
        time_loads(argv[1], text, (int)loads);
    Opened o;
    open_once(&o, argv[1], text);
    run.t = o.t;
    run_all(&run);
    fprintf(stderr, "%s\n%.2f MB in %.0f ms: %.2f MB/s\n", tokenizer_describe(o.t),
            (double)run.bytes * 1e-6, run.ms, run.ms > 0 ? (double)run.bytes * 1e-3 / run.ms : 0.0);
    close_once(&o);
    arena_free(&a);
    return 0;
}
