# info, plan, bench, logits, families, version.
. "$(dirname "$0")/check.sh"

expect 0 plan fake
has "$tmp/out" "It fits."
has "$tmp/out" "tokenizer and the chat template take up to 4.2 MB"
expect 0 plan fake --json --ctx 100 --slots 2
json fits true
json nearest null
json ctx 100
json slots 2
json text_bytes 4200000
for key in device limit_bytes terms.weights terms.derived terms.kv terms.state terms.scratch terms.draft terms.runtime terms.reserve \
    placements.map placements.import placements.read placements.repack placements.derive schema_version; do
    "$JSON_GET" $key <"$tmp/out" >/dev/null || fail "plan --json lacks $key"
done
expect 4 plan fake-nofit
has "$tmp/out" "--ctx 128 --slots 1 --kv f16"
expect 4 plan fake-nofit --json
json fits false
json nearest '{"ctx":128,"slots":1,"kv":"f16"}'
refuse 3 'no such model' plan wonders

expect 0 info fake
has "$tmp/out" "Q4_1"
has "$tmp/out" "placement"
expect 0 info fake --json
json family llama
json groups.0.format Q4_1
json placements.map 90000000
json eos_ids '[2]'
refuse 3 'header of 9 bytes' info fake-broken

expect 0 bench fake --pp 16 --tg 8 --rows 2 --reps 1 --depth 4 --numerics exact
tail -n 1 "$tmp/out" >"$tmp/last"
cp "$tmp/last" "$tmp/out"
for key in prefill_tok_s decode_tok_s spread bytes_per_token bandwidth_share threads device schema_version; do
    "$JSON_GET" $key <"$tmp/out" >/dev/null || fail "bench lacks $key"
done
json depth 4
json rows 2
json numerics exact

expect 0 families
expect 0 families --json
json 0.name llama
json 0.types '["llama","mistral"]'
for key in file blocks verified_by max_abs_diff; do "$JSON_GET" 0.$key <"$tmp/out" >/dev/null || fail "families lacks $key"; done
expect 0 version --json
json schema_version 1

# Logits: an 8-byte length, a JSON header and the rows.
expect 0 logits fake --ids 1,2,3 --out "$tmp/l.safetensors"
[ -s "$tmp/out" ] && fail "logits writes to stdout"
size=$(od -An -tu8 -N8 "$tmp/l.safetensors" | tr -d ' ')
[ $((size % 8)) = 0 ] || fail "the header's $size bytes are no multiple of 8"
tail -c +9 "$tmp/l.safetensors" | head -c "$size" >"$tmp/out"
json logits.dtype F32
json logits.shape '[3,300]'
json logits.data_offsets '[0,3600]'
[ "$(wc -c <"$tmp/l.safetensors")" = $((8 + size + 3600)) ] || fail "the file has $(wc -c <"$tmp/l.safetensors") bytes"
value=$(tail -c +$((9 + size + 1204)) "$tmp/l.safetensors" | od -An -tf4 -N4 | tr -d ' ')
[ "$value" = 1.001 ] || fail "row 1, column 1 is $value, wanted 1.001"
ls "$tmp" | grep -q part && fail "a .part file is left"
refuse 2 '"x" is no token id' logits fake --ids 1,x --out "$tmp/m"
refuse 2 '"" is no token id' logits fake --ids 1, --out "$tmp/m"
refuse 3 'cannot create' logits fake --ids 1 --out "$tmp/none/m"
refuse 1 '1 rows of logits came, wanted 2' logits fake --ids 299,1 --out "$tmp/m"
[ -e "$tmp/m" ] || [ -e "$tmp/m.part" ] && fail "a failed run leaves a file"
finish
