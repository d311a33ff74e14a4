#!/bin/sh
# The example program answers. usage: example_generate.sh PROGRAM
set -eu
model=$("$(dirname "$0")"/../../scripts/fetch-demo-model.sh) || { echo "skipped: no demo model"; exit 77; }
out=$("$1" "$model" "The capital of France is" 8 256)
printf '%s\n' "$out"
case $out in *Paris*) ;; *) echo "no Paris in the answer"; exit 1 ;; esac
