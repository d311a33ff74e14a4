#!/bin/sh
# The prefix of a non-static symbol leads to its file. usage: symbols.sh NM ARCHIVE...
# A symbol of lin_avx512.c starts with lin_avx512, lin, or the name of a header in the same folder; a descriptor may end in the file's
# name instead (device_cpu). Device code is embedded as mere_spv_<shader>, mere_fatbin_<kernels> and their _end. prefixes.txt lists the rest: types that live in another noun's file (StrBuf in str.c), and the short g_
# of the graph builder.
set -eu
here=$(dirname "$0")
nm=$1
shift
[ $# -gt 0 ] || exit 0
{
    sed 's/#.*//; /^ *$/d; s/^/alias /' "$here/prefixes.txt"
    find src -name '*.[ch]' | sed 's|^|file |'
    for archive in "$@"; do "$nm" -g --defined-only "$archive"; done
} | awk '
$1 == "alias" { for (i = 3; i <= NF; i++) ok[$2 " " $i] = 1; next }
$1 == "file" {
    stem = $2; sub(/.*\//, "", stem); dir = $2; sub(/\/[^\/]*$/, "", dir)
    if (stem ~ /\.h$/) { sub(/\.h$/, "", stem); heads[dir] = heads[dir] " " stem }
    else { sub(/\.c$/, "", stem); folder[stem] = dir }
    next
}
/^[A-Za-z0-9_]+\.c\.o:$/ { stem = $1; sub(/\.c\.o:$/, "", stem); embedded = 0; next }
/^[A-Za-z0-9_]+\.(spv|fatbin)\.S\.o:$/ {
    stem = $1; kind = $1; sub(/\..*/, "", stem); sub(/^[^.]*\./, "", kind); sub(/\..*/, "", kind)
    stem = "mere_" kind "_" stem; embedded = 1; next
}
/:$/ { printf "%s: what member is this?\n", $1; bad++; next }
embedded && NF == 3 && $2 ~ /^[A-Z]$/ {
    if ($3 != stem && $3 != stem "_end") { printf "%s in the member of %s\n", $3, stem; bad++ }
    next
}
NF == 3 && $2 ~ /^[A-Z]$/ {
    name = $3
    if (name ~ /^(__|_GLOBAL_)/) next # the sanitizers
    if (match_prefix(name, stem) || name ~ ("_" stem "$")) next
    n = split(heads[folder[stem]], h, " ")
    for (i = 1; i <= n; i++) if (starts(name, h[i])) next
    for (part = name; part != ""; ) { if ((stem " " part) in ok) next; if (!sub(/_[^_]*$/, "", part)) break }
    printf "%s/%s.c: %s: the prefix does not lead here\n", folder[stem], stem, name; bad++
}
function starts(name, p) { return name == p || index(name, p "_") == 1 }
function match_prefix(name, s) {
    for (;;) { if (starts(name, s)) return 1; if (!sub(/_[^_]*$/, "", s)) return 0 }
}
END { exit bad > 0 }'
