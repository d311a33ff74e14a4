#!/bin/sh
# A layer includes only the layers below it (docs/architecture.md). The table is the diagram.
set -eu
find src -name '*.[ch]' -o -name '*.cu' -o -name '*.def' | sort | xargs awk '
BEGIN {
    may["base"] = "base"
    may["device"] = "device base"
    may["graph"] = "graph device base"   # of device only op.h: the vocabulary of operations
    may["weights"] = "weights base"
    may["text"] = "text base"
    may["media"] = "media base"
    may["model"] = "model graph weights base"
    may["engine"] = "engine model graph weights text media device base"
    may["serve"] = "serve base"
    may["cli"] = "cli serve weights base" # of serve only serve.h, of weights only the store
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split(FILENAME, from, "/"); layer = from[2]
    path = $0; sub(/^[^"]*"/, "", path); sub(/".*/, "", path)
    if (path == "mere.h") {
        if (layer != "cli" && layer != "serve" && layer != "engine") breach(path, "mere.h belongs to cli, serve and engine")
        next
    }
    if (FILENAME ~ /^src\/device\/cuda\/kernels\//) { kernel(path); next }
    if (split(path, to, "/") < 2) { breach(path, "write the folder too: \"layer/file.h\""); next }
    if (!(layer in may)) { breach(path, "unknown layer " layer); next }
    if (index(" " may[layer] " ", " " to[1] " ") == 0) breach(path, layer " may include: " may[layer])
    if (layer == "graph" && to[1] == "device" && path != "device/op.h") breach(path, "graph knows operations (device/op.h), not devices")
    if (layer == "cli" && to[1] == "serve" && path != "serve/serve.h") breach(path, "cli starts the server through serve/serve.h")
    if (layer == "cli" && to[1] == "weights" && path !~ /^weights\/(hub|store|pull|bundle)\.h$/) breach(path, "of weights/, cli knows only the store")
    if (system("test -f src/" path) != 0) breach(path, "no such file below src/")
}
# What only one file may see, so that it can be replaced there.
/^[ \t]*#[ \t]*include[ \t]*<event2\// { if (FILENAME !~ /^src\/serve\//) breach($2, "libevent belongs to serve/") }
/^[ \t]*#[ \t]*include[ \t]*<curl\// { if (FILENAME != "src/weights/pull_http.c") breach($2, "libcurl belongs to pull_http.c") }
/^[ \t]*#[ \t]*include[ \t]*<histedit/ { if (FILENAME != "src/cli/lineedit.c") breach($2, "libedit belongs to lineedit.c") }
/^[ \t]*#[ \t]*include[ \t]*<jansson/ { if (FILENAME !~ /^src\/base\//) breach($2, "use base/json.h") }
# Kernels know nothing of the host: files of their own folder and of device/gpu, by bare name, as compilers of device code are run.
function kernel(path) {
    if (path == "emu/gpu_emu.h" && FILENAME ~ /\/gpu_compat\.h$/) return
    if (path ~ /\//) breach(path, "kernels include files of their folder and of device/gpu, by name alone")
    else if (system("test -f src/device/cuda/kernels/" path " || test -f src/device/gpu/" path)) breach(path, "in neither kernels/ nor device/gpu/")
}
function breach(path, why) { printf "%s:%d: includes %s: %s\n", FILENAME, FNR, path, why; bad++ }
END { exit bad > 0 }'
