#!/bin/sh
# Compiles one CUDA file, or takes the result from the cache that all build directories share. Used by cmake/gpu.cmake.
#   nvcc-cached.sh CACHE NVCC SOURCE OUT INCLUDE_DIR FLAGS...
# Writes OUT and OUT.d (a depfile). The key is a hash of the compiler's version, the flags, and the bytes of SOURCE and of every file
# it can include by "name" from its own folder or INCLUDE_DIR. Entries come by rename, so builds may share CACHE while they run;
# those unused for 30 days go. CACHE "" or one that cannot be written: every call compiles.
set -eu
cache=$1 nvcc=$2 source=$3 out=$4 include=$5
shift 5

# The closure of #include "name", in order of discovery. What neither folder has belongs to another compiler (gpu_compat.h).
files=$(awk -v here="$(dirname "$source")" -v there="$include" '
function place(name,    line) {
    if ((getline line < (here "/" name)) >= 0) { close(here "/" name); return here "/" name }
    if ((getline line < (there "/" name)) >= 0) { close(there "/" name); return there "/" name }
    return ""
}
function walk(path,    line, n, i, found, name) {
    if (path in seen) return
    seen[path] = 1; print path
    while ((getline line < path) > 0)
        if (line ~ /^[ \t]*#[ \t]*include[ \t]*"/) { name = line; sub(/^[^"]*"/, "", name); sub(/".*/, "", name); found[++n] = place(name) }
    close(path)
    for (i = 1; i <= n; i++) if (found[i] != "") walk(found[i])
}
BEGIN { walk(ARGV[1]) }' "$source")
{ printf '%s:' "$out"; printf ' \\\n  %s' $files; printf '\n'; } >"$out.d"

compile() { "$nvcc" "$@" -I "$include" -o "$to" "$source"; }
if [ -z "$cache" ] || ! mkdir -p "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
    to=$out
    compile "$@"
    exit
fi
key=$({ "$nvcc" --version; printf '%s\n' "$@"; sha256sum $files | sed 's| .*/| |'; } | sha256sum | cut -c 1-64)
entry=$cache/$key.fatbin
if [ ! -s "$entry" ] && command -v flock >/dev/null; then # another build at the same file: wait for its result
    exec 9>"$cache/$key.lock"
    flock 9
fi
if [ ! -s "$entry" ]; then
    to=$(mktemp "$cache/new.XXXXXXXX")
    trap 'rm -f "$to"' EXIT
    compile "$@"
    chmod 644 "$to"
    mv "$to" "$entry"
    rm -f "$cache/$key.lock"
    find "$cache" -type f -mtime +30 -exec rm -f {} + 2>/dev/null || true
fi
touch "$entry"
cp "$entry" "$out.new"
mv "$out.new" "$out"
