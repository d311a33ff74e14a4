# mere run: where the prompt comes from, what is printed, JSON, exit codes, Ctrl-C.
. "$(dirname "$0")/check.sh"

expect 0 run fake --raw -p hello
[ -s "$tmp/out" ] || fail "no answer"
[ "$(tail -c 1 "$tmp/out" | od -An -tx1 | tr -d ' ')" = 0a ] || fail "the answer does not end in a line end"
has "$tmp/err" "load "
has "$tmp/err" "tok/s"
has "$tmp/err" "planned"
cp "$tmp/out" "$tmp/hello"
expect 0 run fake --raw -p hello -q
[ -s "$tmp/err" ] && fail "--quiet writes to stderr"
cmp -s "$tmp/out" "$tmp/hello" || fail "--quiet changes the answer"
expect 0 run --model fake --raw --prompt=hello -q
cmp -s "$tmp/out" "$tmp/hello" || fail "--model and = change the answer"
printf hello >"$tmp/in"
expect 0 run fake --raw -q
cmp -s "$tmp/out" "$tmp/hello" || fail "a prompt on stdin changes the answer"
expect 0 run fake --raw -q -f -
cmp -s "$tmp/out" "$tmp/hello" || fail "a prompt by -f - changes the answer"
expect 0 run fake --raw -q -f "$tmp/in"
cmp -s "$tmp/out" "$tmp/hello" || fail "a prompt from a file changes the answer"
rm "$tmp/in"
refuse 2 "$tmp/none" run fake -f "$tmp/none"

expect 0 run fake -p hello -q
cmp -s "$tmp/out" "$tmp/hello" && fail "the chat template is not used"
cp "$tmp/out" "$tmp/chat"
printf 'hello\n' >"$tmp/in"
expect 0 run fake -q
cmp -s "$tmp/out" "$tmp/chat" || fail "the line end of a pipe gets into a chat"
rm "$tmp/in"
expect 0 run fake-notemplate -p hello -q
cmp -s "$tmp/out" "$tmp/hello" || fail "without a template the prompt goes in as it is"

expect 0 run fake --raw -p 'tab "quote" \ back' --json --logprobs 1 -n 3 --seed 5
for key in model text token_ids logprobs finish_reason usage.prompt_tokens usage.cached_tokens usage.completion_tokens usage.drafted \
    usage.accepted timings.load_ms timings.ttft_ms timings.prefill_tok_s timings.decode_tok_s memory.planned_bytes memory.peak_bytes \
    memory.mapped_bytes numerics schema_version; do
    "$JSON_GET" $key <"$tmp/out" >/dev/null || fail "run --json lacks $key"
done
json finish_reason length
json usage.completion_tokens 3
json token_ids '[256,257,258]'
json logprobs.0.logprob -0.5
json numerics fast
json seed 5
[ -s "$tmp/err" ] && grep -vE 'context|device' "$tmp/err" && fail "run --json says more on stderr"
expect 0 run fake --raw -p a --json --numerics exact
json numerics exact
json logprobs null
json finish_reason stop

refuse 3 'no such model' run wonders -p a
refuse 3 'header of 9 bytes' run fake-broken -p a
refuse 4 'context 128 would fit' run fake-nofit -p a
expect 1 run fake -p "@error"
expect 70 run fake -p "@lost"
has "$tmp/err" device_lost
[ -s "$tmp/out" ] || fail "what came before the device was lost is not printed"
long=$(printf '%0600d' 0)
refuse 1 'context has 512' run fake --raw -p "$long" -q

# Ctrl-C: what there is, exit 130. A second one is not needed.
"$MERE" run fake --raw -p "@slow @long" -q >"$tmp/out" 2>"$tmp/err" &
pid=$!
for i in 1 2 3 4 5 6 7 8 9 10; do [ -s "$tmp/out" ] && break; sleep 0.1; done
kill -INT $pid
wait $pid
rc=$?
[ $rc = 130 ] || fail "Ctrl-C: exit code $rc"
[ -s "$tmp/out" ] || fail "Ctrl-C: nothing was printed"
"$MERE" run fake --raw -p "@stall" --json >"$tmp/out" 2>"$tmp/err" &
pid=$!
sleep 0.3
kill -INT $pid
wait $pid
rc=$?
[ $rc = 130 ] || fail "Ctrl-C with --json: exit code $rc"
json finish_reason cancelled

# A reader that has gone.
if [ -w /dev/full ]; then
    "$MERE" run fake --raw -p a >/dev/full 2>"$tmp/err"
    rc=$?
    [ $rc = 1 ] || fail "a full disk: exit code $rc"
    has "$tmp/err" "cannot write to standard output"
fi
finish
