# mere tokenize: ids, pieces, special tokens, back again.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)

mere 0 tokenize "$model" -p 'hello world'
[ "$(wc -l <"$out")" -gt 0 ] || fail "no tokens"
awk -F '\t' '!/^[0-9]+\t".+"$/ { exit 1 }' "$out" || { fail "a line that is no id and piece"; show; }
n=$(wc -l <"$out")
ids=$(cut -f1 "$out" | paste -sd, -)
same "pieces make the text" "$(cut -f2 "$out" | tr -d '"\n')" 'hello world'
mere 0 tokenize "$model" -p 'hello world' --ids
same "--ids" "$(cat "$out")" "$ids"
mere 0 tokenize "$model" -p 'hello world' --count
same "--count" "$(cat "$out")" "$n"
mere 0 tokenize "$model" -p 'hello world' --json
same count "$(json count)" "$n"
same token_ids "$(json token_ids)" "[$ids]"
same pieces "$(json pieces.#)" "$n"
json schema_version model >/dev/null

# The text from a file and a pipe, and back: any bytes.
printf 'caf\303\251 \n\ttab \377 "q" \\ end' >"$tmp/text"
mere 0 tokenize "$model" -f "$tmp/text" --ids
cp "$out" "$tmp/ids"
"$MERE" tokenize "$model" --ids <"$tmp/text" >"$out" 2>"$err" || fail "standard input: exit code $?"
cmp -s "$out" "$tmp/ids" || fail "a pipe gives other ids"
mere 0 tokenize "$model" --decode "$(cat "$tmp/ids")"
cmp -s "$out" "$tmp/text" || { fail "decoding gives another text"; show; }
"$MERE" tokenize "$model" --decode - <"$tmp/ids" >"$out" 2>"$err" || fail "--decode -: exit code $?"
cmp -s "$out" "$tmp/text" || fail "decoding a pipe gives another text"
mere 0 tokenize "$model" -f "$tmp/text"
says '\\n'
says '\\t'
says '\\xff'
says '\\"'
mere 0 tokenize "$model" --decode "$ids" --json
same text "$(json text)" 'hello world'

# A special token in the text is text, unless asked for; --bos adds what the tokenizer adds.
mere 0 info "$model" --json
eos=$(json eos_ids.0)
mere 0 tokenize "$model" --decode "$eos"
special=$(cat "$out")
mere 0 tokenize "$model" -p "$special" --ids --special on
same "--special on" "$(cat "$out")" "$eos"
mere 0 tokenize "$model" -p "$special" --ids
[ "$(cat "$out")" != "$eos" ] || fail "a special token is taken from the text"
mere 0 tokenize "$model" -p "$special" --ids --special off
[ "$(cat "$out")" != "$eos" ] || fail "--special off takes a special token"
mere 0 tokenize "$model" -p '' --ids
same "no text" "$(cat "$out")" ''
mere 0 tokenize "$model" -p '' --bos --count
same "--bos: tokens of no text" "$(cat "$out")" "$("$MERE" tokenize "$model" -p '' --bos --ids | tr ',' '\n' | grep -c '[0-9]')"

refuses 2 'exclude each other' tokenize "$model" -p x --ids --count
refuses 2 'decode takes no text' tokenize "$model" --decode 1 -p x
refuses 2 '"x" is no token id' tokenize "$model" --decode 1,x
refuses 2 'token 99999, the vocabulary has' tokenize "$model" --decode 99999
refuses 2 "$tmp/none" tokenize "$model" -f "$tmp/none"
refuses 3 "$tmp/none" tokenize "$tmp/none" -p x
refuses 2 'wants a MODEL' tokenize
refuses 2 'special: "yes"' tokenize "$model" -p x --special yes
exit $bad
