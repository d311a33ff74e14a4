#!/bin/sh
# Runs every fuzzer of a fuzz build. usage: scripts/fuzz.sh BUILD [SECONDS each] [JOBS]
# Seeds: tests/fuzz/seeds/<name>/. New inputs stay in BUILD/corpus/<name>/, crashing ones in BUILD/crashes/<name>-*.
# Exit 1 when a fuzzer found something; the input to repeat it with is named.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/fuzz} seconds=${2:-60} jobs=${3:-2}
mkdir -p "$build/crashes"
export build seconds
found=$(find "$build" -maxdepth 4 -type f -name 'fuzz_*' -perm -u+x | sort)
[ -n "$found" ] || { echo "fuzz: no fuzzers in $build" >&2; exit 2; }
printf '%s\n' "$found" | xargs -P "$jobs" -n 1 sh -c '
    name=${1##*/fuzz_}
    corpus=$build/corpus/$name seeds=tests/fuzz/seeds/$name log=$build/fuzz_$name.log
    mkdir -p "$corpus"
    [ -d "$seeds" ] || seeds=
    # A single input may take 10 s and 1 GiB: more is a finding too.
    if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=1024 -max_len=65536 \
        -artifact_prefix="$build/crashes/$name-" -print_final_stats=1 "$corpus" $seeds >"$log" 2>&1; then
        awk -v n="$name" "/number_of_executed_units/ { u = \$2 } END { print \"fuzz \" n \": \" u \" inputs, nothing found\" }" "$log"
    else
        echo "fuzz $name: FAILED"; tail -n 60 "$log"; touch "$build/crashes/.$name"; exit 1
    fi
' sh
