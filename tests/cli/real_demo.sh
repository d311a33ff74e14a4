# The demo model: an answer, the plan, shared pages, Ctrl-C, a cut file.
store=${MERE_HOME:-${HOME:?}/.local/share/mere}/models
. "$SOURCE/tests/cli/lib.sh"
model=$store/SmolLM2-135M-Instruct-Q4_1.gguf
[ -f "$model" ] || skip "no demo model"

mere 0 run "$model" -p 'What is the capital of France? Answer in one word.' -n 20 --json
json text | grep -q Paris || { fail "the answer has no Paris"; show; }
[ -n "$SANITIZE" ] || within "$(json memory.peak_bytes)" "$(json memory.planned_bytes)"
printf 'peak %s of %s planned\n' "$(json memory.peak_bytes)" "$(json memory.planned_bytes)"
mere 0 run "$model" -p 'Write a long story about the sea.' -n 200 -c 2048 --json
[ -n "$SANITIZE" ] || within "$(json memory.peak_bytes)" "$(json memory.planned_bytes)"
printf 'peak %s of %s planned\n' "$(json memory.peak_bytes)" "$(json memory.planned_bytes)"
same "the model's own end" "$(json finish_reason | grep -cE 'stop|length')" 1

# By its name in the store.
MERE_HOME=${store%/models} mere 0 info SmolLM2-135M-Instruct-Q4_1 --json
same container "$(json container)" gguf
same family "$(json family)" llama

# Two processes while they answer: the weights are shared, what each has alone is far below their size.
for i in 1 2; do
    "$MERE" run "$model" --raw -p 'Once upon a time' -c 4096 --ignore-eos >"$tmp/out$i" 2>/dev/null </dev/null &
    started="$started $!"
done
# shellcheck disable=SC2086
set -- $started
for i in 1 2; do wait_for 60 test -s "$tmp/out$i" || fail "process $i says nothing"; done
size=$(wc -c <"$model")
for pid in "$@"; do
    rss=$(mapped "$pid" "$model" Rss)
    private=$(($(mapped "$pid" "$model" Private_Clean) + $(mapped "$pid" "$model" Private_Dirty)))
    anon=$(awk '/^RssAnon:/ { print $2 * 1024 }' "/proc/$pid/status")
    printf 'process %s: %s bytes of the file in memory, %s of them alone; %s anonymous\n' "$pid" "$rss" "$private" "$anon"
    [ "$rss" -gt $((size / 2)) ] || fail "process $pid has only $rss of $size bytes of the file in memory"
    [ "$private" -lt $((size / 50)) ] || fail "process $pid has $private bytes of the file alone"
done
kill -INT "$1"
ended "$1" 130
kill -INT "$2"
ended "$2" 130

head -c $((size / 2)) "$model" >"$tmp/half.gguf"
refuses 3 half.gguf run "$tmp/half.gguf" -p hello
rm "$tmp/half.gguf"
exit $bad
