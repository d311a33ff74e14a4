# info, plan, bench, families, version: the words and the JSON.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny qwen3_moe)

mere 0 info "$model"
for text in 'family +qwen3_moe' 'context +512' 'tokenizer +' 'experts' 'placement'; do says "$text"; done
mere 0 info "$model" --json
same family "$(json family)" qwen3_moe
same container "$(json container)" safetensors
same max_ctx "$(json max_ctx)" 512
json schema_version groups.0.role groups.0.format groups.0.bytes placements.map placements.import placements.read \
    placements.repack placements.derive tokenizer n_params >/dev/null

mere 0 plan "$model"
for text in 'kv' 'scratch' 'runtime' 'reserve' 'total' 'It fits'; do says "$text"; done
mere 0 plan "$model" --json --ctx 128 --slots 3 --kv f32
same fits "$(json fits)" true
same ctx "$(json ctx)" 128
same slots "$(json slots)" 3
json schema_version device terms.weights terms.derived terms.kv terms.state terms.scratch terms.draft terms.runtime \
    terms.reserve placements.map limit_bytes nearest >/dev/null
same "sum of the terms" "$(json terms.weights terms.derived terms.kv terms.state terms.scratch terms.draft terms.runtime \
    terms.reserve | awk '{ n += $1 } END { printf "%.0f", n }')" "$(json total_bytes)"
f32=$(json terms.kv)
mere 0 plan "$model" --json --ctx 128 --slots 3 --kv f16
same "f32 takes twice what f16 takes" "$f32" $((2 * $(json terms.kv)))

# A context that no machine holds: exit code 4 and what would fit, also where loading was asked for.
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 100000000/' "$model/config.json" >"$tmp/config.json"
cp "$tmp/config.json" "$model/config.json"
mere 4 plan "$model" --ctx 100000000 --slots 4096
says 'does not fit.*--ctx [0-9]+ --slots [0-9]+ --kv'
mere 4 plan "$model" --ctx 100000000 --slots 4096 --json
same fits "$(json fits)" false
json nearest.ctx nearest.slots nearest.kv >/dev/null
# Other programs take memory meanwhile: somewhat less than what would fit a moment ago.
ctx=$(json nearest.ctx)
slots=$(json nearest.slots)
kv=$(json nearest.kv)
mere 0 plan "$model" --ctx $((ctx / 2)) --slots "$slots" --kv "$kv"
refuses 4 'would fit' serve "$model" --ctx 100000000 --slots 4096 --port 0
model=$(tiny llama)

mere 0 bench "$model" --pp 64 --tg 8 --reps 2 --rows 2 --depth 16 --threads 1
says 'prefill' && says 'decode' && says 'memory  peak'
tail -n 1 "$out" >"$tmp/last"
cp "$tmp/last" "$out"
json schema_version prefill_tok_s decode_tok_s spread bytes_per_token bandwidth_share device memory.planned_bytes >/dev/null
same "numerics depth rows threads" "$(json numerics depth rows threads | paste -sd' ')" 'fast 16 2 1'
mere 0 bench "$model" -t1 --pp 0 --tg 4 --reps 1 --json
same "prompt and gen" "$(json prompt gen | paste -sd' ')" '0 4'
refuses 2 'ctx is' bench "$model" --pp 4096

# Models of several parts are read; what generates text names the pipeline that they need.
for model in whisper t5 qwen2_vl; do
    family=$model
    model=$(tiny "$family")
    mere 0 info "$model" --json
    same family "$(json family)" "$family"
    for command in 'run -p x' plan 'bench --pp 8 --tg 1' 'serve --port 0'; do
        # shellcheck disable=SC2086 # a command with its options
        refuses 3 "$family models need the (encoder|vision)-decode.* pipeline" ${command%% *} "$model" $(printf '%s' "$command" | sed 's/^[a-z]* *//')
    done
done

mere 0 families
says '^llama .*mistral'
for family in whisper t5 qwen2_vl; do says "^$family .*transformers"; done
mere 0 families --json
json 0.name 0.types.0 0.file 0.blocks 0.verified_by 0.max_abs_diff >/dev/null
same "families as many as models.def has" "$(json '#')" "$(grep -c '^MODEL(' "$SOURCE/src/model/models.def")"
file=$(json 0.file)
[ -f "$SOURCE/src/model/$file" ] || fail "no file src/model/$file"

mere 0 version
says '^mere [0-9]+\.[0-9]+\.[0-9]+$'
version=$(cat "$out")
mere 0 --version
same --version "$(cat "$out")" "$version"
mere 0 version --json
same version "mere $(json version)" "$version"

# Every command and option has its place in the documentation.
for word in $(sed -n 's/^COMMAND([A-Z]*, *\([a-z]*\).*/mere \1/p' "$SOURCE/src/cli/commands.def" | tr ' ' '~') \
    $(grep -o '^OPT([a-z_]*, [A-Z]*, "[a-z-]*"' "$SOURCE/src/cli/options.def" | sed 's/.*"\(.*\)"/--\1/'); do
    word=$(printf '%s' "$word" | tr '~' ' ')
    grep -q -- "$word" "$SOURCE/docs/cli.md" || fail "docs/cli.md does not mention $word"
done
exit $bad
