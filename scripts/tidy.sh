#!/bin/sh
# clang-tidy over C files of src/. usage: scripts/tidy.sh BUILD [all|changed] [JOBS] [SECONDS]
#   changed: files that differ from the last commit, or that the last commit touched. SECONDS: stop starting new files then
#   (0: no limit); what was left out is said. Exit 1 when there is a finding.
set -eu
cd "$(dirname "$0")/.."
build=$1 which=${2:-changed} jobs=${3:-2} limit=${4:-0}
tool=$(command -v clang-tidy-14 || command -v clang-tidy) || { echo "clang-tidy is not installed" >&2; exit 2; }
case $which in
all) files=$(find src -name '*.c' | sort) ;;
*) files=$({ git diff --name-only HEAD; git diff --name-only HEAD~1 HEAD; } 2>/dev/null | sort -u | grep '^src/.*\.c$' |
    while read -r f; do [ -f "$f" ] && echo "$f"; done) || true ;;
esac
[ -n "$files" ] || { echo "tidy: no files"; exit 0; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
end=0
[ "$limit" -eq 0 ] || end=$(($(date +%s) + limit))
export tool build out end
printf '%s\n' "$files" | xargs -P "$jobs" -n 1 sh -c '
    log=$out/$(printf %s "$1" | tr / _)
    if [ "$end" -ne 0 ] && [ "$(date +%s)" -ge "$end" ]; then echo "$1" >"$log.left"; exit 0; fi
    case $1 in src/base/err.c) before= ;; *) before="--extra-arg-before=-include$PWD/scripts/tidy_err.h" ;; esac
    "$tool" --quiet --warnings-as-errors="*" -p "$build" $before "$1" >"$log" 2>"$log.err" || { echo "$1" >"$log.bad"; grep -v "warnings generated" "$log.err" >>"$log" || true; }
' sh
n=$(printf '%s\n' "$files" | wc -l)
left=$(find "$out" -name '*.left' | wc -l)
bad=$(find "$out" -name '*.bad' | wc -l)
for f in "$out"/*.bad; do [ -e "$f" ] && cat "${f%.bad}"; done
[ "$left" -eq 0 ] || { echo "tidy: not looked at within $limit s:"; cat "$out"/*.left; }
echo "tidy: $((n - left)) files looked at, $bad with findings"
[ "$bad" -eq 0 ]
