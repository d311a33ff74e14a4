# What the plan says is what is taken; two processes on one file share its pages.
. "$SOURCE/tests/cli/lib.sh"
[ "$SANITIZE" = '' ] || skip "a sanitizer takes memory of its own"
for family in llama qwen3_moe qwen3_next; do
    model=$(tiny $family)
    for how in '' '--numerics exact' '-c 64' '--threads 1'; do
        # shellcheck disable=SC2086
        mere 0 run "$model" --raw -p 'hello world' -n 30 --ignore-eos --json $how
        within "$(json memory.peak_bytes)" "$(json memory.planned_bytes)"
        printf '%s %s: peak %s of %s planned\n' $family "$how" "$(json memory.peak_bytes)" "$(json memory.planned_bytes)"
    done
done

model=$(tiny llama)
serve "$model" -t1
one=$(worker "$pid")
port_one=$port
serve "$model" -t1
two=$(worker "$pid")
for p in $port_one $port; do
    "$TOOLS/http_call" "$p" /v1/completions '{"prompt":"hello","max_tokens":5}' >/dev/null || fail "a completion fails"
done
for pid in $one $two; do
    rss=$(mapped "$pid" model.safetensors Rss)
    private=$(($(mapped "$pid" model.safetensors Private_Clean) + $(mapped "$pid" model.safetensors Private_Dirty)))
    [ "$rss" -gt 100000 ] || fail "process $pid has $rss bytes of the file in memory"
    same "bytes of the file that process $pid has alone" "$private" 0
done
exit $bad
