# Files that are missing, cut or damaged: exit code 3, the file's name on stderr, nothing on stdout.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)

fresh() { # fresh NAME: a copy of the model to damage
    copy=$tmp/$1
    rm -rf "$copy"
    cp -r "$model" "$copy"
}
damaged() { # damaged FILE: the copy is refused, and FILE is named
    refuses 3 "$1" run "$copy" -p hello
    refuses 3 "$1" info "$copy"
}
everywhere() { # everywhere FILE: by every command that reads it
    damaged "$1"
    refuses 3 "$1" plan "$copy"
    refuses 3 "$1" logits "$copy" --ids 1,2 --out "$tmp/o"
    refuses 3 "$1" bench "$copy" --pp 4 --tg 4 --reps 1
    refuses 3 "$1" serve "$copy" --port 0
    [ ! -e "$tmp/o" ] || fail "a failed mere logits left a file"
}

refuses 3 "$tmp/none" run "$tmp/none" -p hello
refuses 3 'no-such-model' plan no-such-model
mkdir "$tmp/empty"
refuses 3 "$tmp/empty" plan "$tmp/empty"
refuses 3 "$tmp/none.gguf" run "$tmp/none.gguf" -p hello

size=$(wc -c <"$model/model.safetensors")
for keep in 0 7 8 100 $((size / 2)) $((size - 1)); do
    fresh cut
    head -c "$keep" "$model/model.safetensors" >"$copy/model.safetensors"
    damaged model.safetensors
done
fresh header
printf '\377\377\377\377\377\377\377\177{}' >"$copy/model.safetensors"
everywhere model.safetensors
for text in '' '{' '[]' '{"model_type":"llama"}' '{"model_type":7}' '{"model_type":"no_such_family"}'; do
    fresh config
    printf '%s' "$text" >"$copy/config.json"
    damaged config
done
fresh tokenizer
printf '{"model":' >"$copy/tokenizer.json"
refuses 3 tokenizer.json run "$copy" -p hello
refuses 3 tokenizer.json serve "$copy" --port 0

# GGUF: no magic, a version that is not known, counts beyond the file.
copy=$tmp/bad.gguf
for bytes in '' 'GGUX' 'GGUF' 'GGUF\011\000\000\000' 'GGUF\003\000\000\000\377\377\377\377\377\377\377\177\001\000\000\000\000\000\000\000' \
    'GGUF\003\000\000\000\000\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000\377\377\377\377\377\377\377\177'; do
    # shellcheck disable=SC2059
    printf "$bytes" >"$copy"
    damaged bad.gguf
done

# A prompt file that is not there; a damaged file is named also when it has an odd name.
refuses 2 "$tmp/prompt" run "$model" -f "$tmp/prompt"
odd="$tmp/odd $(printf '\033')[31m"
mkdir "$odd"
cp "$tmp/header/config.json" "$tmp/header/model.safetensors" "$odd/"
refuses 3 'odd \^\[\[31m' plan "$odd"
exit $bad
