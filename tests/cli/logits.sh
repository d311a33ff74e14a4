# mere logits against the recorded references of every tiny family.
. "$SOURCE/tests/cli/lib.sh"

for family in llama llama_tied_rope3 llama_yarn mistral qwen3 qwen3_moe qwen3_next; do
    model=$(tiny $family)
    golden=$SOURCE/tests/data/tiny/$family
    ids=$("$TOOLS/json_get" prefill_ids decode_ids <"$golden/golden.json" | tr -d '[]' | paste -sd,)
    rm -f "$tmp/o.safetensors"
    mere 0 logits "$model" -t1 --ids "$ids" --out "$tmp/o.safetensors" --numerics exact
    [ ! -s "$out" ] || fail "mere logits writes to stdout"
    "$TOOLS/compare_logits" "$tmp/o.safetensors" "$golden/golden.safetensors" 1e-4 >"$tmp/diff" || fail "$family differs"
    printf '%s: largest difference %s\n' $family "$(cat "$tmp/diff")"
done

# The header is padded, so that the numbers are aligned.
same "bytes before the data, modulo 8" "$(($(wc -c <"$tmp/o.safetensors") % 8))" 0
refuses 2 'vocabulary has 320' logits "$model" -t1 --ids 1,320 --out "$tmp/x"
refuses 3 "$tmp/none/x" logits "$model" -t1 --ids 1,2 --out "$tmp/none/x"
[ ! -e "$tmp/x" ] || fail "a failed mere logits left a file"
printf 'old' >"$tmp/kept"
refuses 2 'vocabulary' logits "$model" -t1 --ids 999 --out "$tmp/kept"
same "a failed mere logits leaves the old file" "$(cat "$tmp/kept")" old
same "files left over" "$(find "$tmp" -name '*.part*' -o -name '*.tmp*' | wc -l)" 0
exit $bad
