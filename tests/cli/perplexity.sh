# mere perplexity against the definition, worked out here from the rows that mere logits writes.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)
i=0
while [ $i -lt 30 ]; do
    echo "Line $i of a text that a small model has never seen, with some words again and again."
    i=$((i + 1))
done >"$tmp/text"

# The program's own rows of logits, window by window, and -ln p of them in double.
by_hand() { # by_hand CTX STEP: prints perplexity; STEP 0: whole windows
    "$MERE" tokenize "$model" -f "$tmp/text" --bos --ids >"$tmp/ids"
    awk -v ctx="$1" -v step="$2" 'BEGIN { FS = "," } {
        n = NF; s = step ? step : ctx; end = 1
        for (at = 0; step ? (at == 0 || end < n) : at + ctx <= n; at += s) {
            len = at + ctx <= n ? ctx : n - at
            line = ""
            for (i = 0; i < len; i++) line = line (i ? "," : "") $(at + i + 1)
            print (step ? end - at - 1 : int(ctx / 2)), line
            end = at + len
        }
    }' "$tmp/ids" >"$tmp/windows"
    : >"$tmp/scores"
    while read -r first ids; do
        "$MERE" logits "$model" -t1 --numerics exact --ids "$ids" --out "$tmp/w.safetensors" || return 1
        "$TOOLS/nll" "$tmp/w.safetensors" "$ids" "$first" >>"$tmp/scores" || return 1
    done <"$tmp/windows"
    awk '{ s += $1; n++ } END { printf "%.4f %d\n", exp(s / n), n }' "$tmp/scores"
}

check() { # check STEP ARGS...
    step=$1
    shift
    hand=$(by_hand 64 "$step")
    mere 0 perplexity "$model" -t1 --numerics exact -f "$tmp/text" --ctx 64 --json "$@"
    same "scored tokens" "$(json scored_tokens)" "${hand#* }"
    awk -v a="$(json perplexity)" -v b="${hand% *}" 'BEGIN { d = a / b - 1; exit !(d < 1e-4 && d > -1e-4) }' ||
        fail "perplexity $(json perplexity), by hand ${hand% *} ($*)"
}
check 0
same windows "$(json windows)" "$(wc -l <"$tmp/windows")"
same stride "$(json stride)" 64
check 24 --stride 24
[ "$(json scored_tokens)" = "$(($(json text_tokens) - 1))" ] || fail "--stride: not every token but the first was scored"
json schema_version model mean_nll std_error ctx bos tok_s numerics kv device >/dev/null
mere 0 perplexity "$model" -t1 -f "$tmp/text" --ctx 64 --chunks 2
says '^perplexity [0-9.]+ \+- [0-9.]+: 62 tokens scored in 2 windows of 64, every 64; .* tok/s, numerics fast, kv f16, cpu'
"$MERE" perplexity "$model" -t1 --ctx 64 --chunks 2 -f - <"$tmp/text" >"$tmp/pipe" 2>"$err" || fail "-f -: exit code $?"
same "a pipe" "$(cut -d: -f1 "$tmp/pipe")" "$(cut -d: -f1 "$out")"
mere 0 perplexity "$model" -t1 -f "$tmp/text" --ctx 64 -q
[ ! -s "$err" ] || { fail "--quiet writes to stderr"; show; }

printf 'ten bytes.' >"$tmp/short"
refuses 2 'window 512.*longer text' perplexity "$model" -f "$tmp/short" --ctx 512
refuses 2 'wants a text' perplexity "$model"
refuses 2 'wanted less than the window' perplexity "$model" -f "$tmp/text" --ctx 64 --stride 64
refuses 2 'ctx: 2, wanted 4' perplexity "$model" -f "$tmp/text" --ctx 2
refuses 2 "$tmp/none" perplexity "$model" -f "$tmp/none"
exit $bad
