# Ctrl-C: what there is stays, exit code 130. The model's context is made long, so that its answer takes minutes.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 100000/' "$model/config.json" >"$tmp/config.json"
cp "$tmp/config.json" "$model/config.json"

start() { # start ARGS...: in the background, until the first text is there
    rm -f "$out" "$err"
    "$MERE" "$@" >"$out" 2>"$err" </dev/null &
    pid=$!
    started="$started $pid"
}

start run "$model" --raw -p hello --ignore-eos --numerics exact --threads 1
wait_for 60 test -s "$out" || fail "no text came"
kill -INT $pid
ended $pid 130
[ -s "$out" ] || fail "the text is gone"

# JSON is whole also then.
start run "$model" --raw -p hello --ignore-eos --numerics exact --threads 1 --json
wait_for 60 grep -qs context "$err" || fail "does not start" # said when the model is there
kill -INT $pid
ended $pid 130
same finish_reason "$(json finish_reason)" cancelled
same "ids and usage agree" "$(json token_ids.#)" "$(json usage.completion_tokens)"

# mere logits leaves no half file.
ids=$(awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%s%d", i ? "," : "", i % 300 }')
start logits "$model" --ids "$ids" --out "$tmp/l.safetensors" --numerics exact --threads 1
wait_for 60 test -e "$tmp/l.safetensors.part" || fail "mere logits does not start"
kill -INT $pid
ended $pid 130
same "files of mere logits" "$(find "$tmp" -name 'l.safetensors*' | wc -l)" 0

serve "$model" -t1 -c 1024
kill -INT "$pid"
ended "$pid" 130
exit $bad
