# mere run on a tiny model: streams, prompts from everywhere, JSON, sampling, limits.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)

# Text on stdout; figures are one line on stderr.
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos
cp "$out" "$tmp/text"
[ -s "$out" ] || fail "no text came"
same "lines of figures" "$(grep -c 'first token .* ms.*prefill.*tok/s.*decode.*tok/s.*planned' "$err")" 1
same "lines about the context" "$(grep -c 'context' "$err")" 1
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos -q
[ ! -s "$err" ] || { fail "--quiet writes to stderr"; show; }
cmp -s "$out" "$tmp/text" || fail "a second run gives other text"
mere 0 run -m "$model" -t1 --raw --prompt='hello world' -n20 --ignore-eos -c 256 -q
cmp -s "$out" "$tmp/text" || fail "the same in other spelling gives other text"

# The prompt from a file and from standard input.
printf 'hello world' >"$tmp/prompt"
mere 0 run "$model" -t1 --raw -f "$tmp/prompt" -n 20 --ignore-eos -q
cmp -s "$out" "$tmp/text" || fail "--file gives other text"
"$MERE" run "$model" -t1 --raw -n 20 --ignore-eos -q <"$tmp/prompt" >"$out" 2>"$err" || fail "standard input: exit code $?"
cmp -s "$out" "$tmp/text" || fail "standard input gives other text"
"$MERE" run "$model" -t1 --raw -f - -n 20 --ignore-eos -q <"$tmp/prompt" >"$out" 2>"$err" || fail "-f -: exit code $?"
cmp -s "$out" "$tmp/text" || fail "-f - gives other text"

# JSON: every name of the interface, and the same answer.
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json
json schema_version model finish_reason usage.prompt_tokens usage.cached_tokens usage.completion_tokens usage.drafted \
    usage.accepted timings.load_ms timings.ttft_ms timings.prefill_tok_s timings.decode_tok_s memory.planned_bytes \
    memory.peak_bytes memory.mapped_bytes numerics logprobs >/dev/null
same finish_reason "$(json finish_reason)" length
same completion_tokens "$(json usage.completion_tokens)" 20
same "number of ids" "$(json token_ids.#)" 20
same numerics "$(json numerics)" fast
same logprobs "$(json logprobs)" null
ids=$(json token_ids)
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --logprobs 2 --numerics exact
same numerics "$(json numerics)" exact
same "number of logprobs" "$(json logprobs.#)" 20
same "alternatives" "$(json logprobs.0.top.#)" 2
same "greedy takes the likeliest" "$(json logprobs.0.top.0.token_id)" "$(json token_ids.0)"
same "its logprob" "$(json logprobs.0.logprob)" "$(json logprobs.0.top.0.logprob)"
says '"token_ids":'

# The seed that was taken gives the same again.
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --temp 1.5
first=$(json token_ids)
seed=$(json seed)
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --temp 1.5 --seed "$seed"
same "ids of the seed that was told" "$(json token_ids)" "$first"

# Greedy by default, so that a seed changes nothing; with a temperature the seed decides.
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --seed 5
same "greedy ids" "$(json token_ids)" "$ids"
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --temp 1.5 --seed 5 --top-k 100 --top-p 0.95 --min-p 0.001
first=$(json token_ids)
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --temp 1.5 --seed 5 --top-k 100 --top-p 0.95 --min-p 0.001
same "ids of one seed" "$(json token_ids)" "$first"
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --ignore-eos --json --temp 1.5 --seed 6 --top-k 100 --top-p 0.95 --min-p 0.001
[ "$(json token_ids)" != "$first" ] || fail "two seeds give the same 20 tokens"

# Forced tokens: a bias of 1000 on "a" (byte tokens have their byte as id), a stop string, an end token.
mere 0 run "$model" -t1 --raw -p x -n 5 --logit-bias 97:1000 -q
same "five times a" "$(cat "$out")" aaaaa
mere 0 run "$model" -t1 --raw -p x -n 50 --logit-bias 97:1000 --stop zz --stop aaa --json
same finish_reason "$(json finish_reason)" stop
same "text before the stop string" "$(json text)" ''
mere 0 run "$model" -t1 --raw -p x -n 50 --logit-bias 310:1000 --json
same "an end token ends: finish_reason" "$(json finish_reason)" stop
mere 0 run "$model" -t1 --raw -p x -n 50 --logit-bias 310:1000 --json --ignore-eos
same "--ignore-eos: completion_tokens" "$(json usage.completion_tokens)" 50
mere 0 run "$model" -t1 --raw -p x -n 5 --logit-bias 97:1000 --logit-bias 98:1000 --frequency-penalty 50 --presence-penalty 50 -q
same "penalties take turns" "$(tr -d '\n' <"$out" | fold -w1 | sort -u | tr -d '\n')" ab

# Control bytes: as they are in a pipe, visible on a terminal.
mere 0 run "$model" -t1 --raw -p x -n 3 --logit-bias 27:1000 -q
same "three escapes in a pipe" "$(tr -cd '\033' <"$out" | wc -c)" 3
if command -v script >/dev/null; then
    script -qec "'$MERE' run '$model' -t1 --raw -p x -n 3 --logit-bias 27:1000 -q" /dev/null >"$out" 2>"$err" </dev/null
    same "escapes on a terminal" "$(tr -cd '\033' <"$out" | wc -c)" 0
    says '\^\[\^\[\^\['
fi

# The chat template: the tokens around the turns are in the prompt, and --system adds a turn.
mere 0 run "$model" -t1 -p hello -n 1 --json
chat=$(json usage.prompt_tokens)
mere 0 run "$model" -t1 --raw -p hello -n 1 --json
raw=$(json usage.prompt_tokens)
mere 0 run "$model" -t1 -p hello --system 'be brief' -n 1 --json
system=$(json usage.prompt_tokens)
[ "$chat" -gt "$raw" ] && [ "$system" -gt "$chat" ] || fail "prompt tokens: raw $raw, chat $chat, with a system message $system"
refuses 2 '--system' run "$model" -t1 --raw --system x -p hello

# Limits: clear refusals, and nothing is cut without a word.
refuses 1 'context holds 16' run "$model" -t1 --raw -p 'a long prompt that is longer than the context' -c 16
refuses 2 'ctx is 1000000' run "$model" -t1 --raw -p x -c 1000000
refuses 2 'prompt is empty' run "$model" -t1 --raw -p ''
refuses 2 'token|vocabulary' run "$model" -t1 --raw -p x --logit-bias 99999:1
mere 0 run "$model" -t1 --raw -p x -c 32 --ignore-eos
says 'context of 32 tokens is full' "$err"

# A full disk is an error, not silence.
if [ -e /dev/full ]; then
    "$MERE" run "$model" -t1 --raw -p x -n 3 -q >/dev/full 2>"$err" </dev/null
    same "exit code with a full disk" $? 1
    says 'standard output' "$err"
fi
exit $bad
