#!/bin/sh
# Streams one answer of the demo model. usage: MERE=build/release/mere scripts/demo.sh "prompt"
set -eu
model=$("$(dirname "$0")"/fetch-demo-model.sh)
prompt=${1:-Why is the sky blue?}
printf '> %s\n' "$prompt"
exec "${MERE:-build/release/mere}" run "$model" --prompt "$prompt" -n 160 </dev/null
