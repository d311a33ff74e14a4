# pull, list, show, rm and the question of run, against a hub on this machine; models of other programs in place.
. "$SOURCE/tests/cli/lib.sh"
HOME=$tmp/user
no_proxy='*'
export HOME no_proxy
unset HF_TOKEN HF_TOKEN_PATH MERE_OFFLINE HF_HUB_OFFLINE OLLAMA_MODELS XDG_DATA_HOME http_proxy https_proxy all_proxy

repo=$tmp/repo
mkdir -p "$repo" "$HOME"
printf '{"model_type":"llama"}' >"$repo/config.json"
printf '{}' >"$repo/tokenizer.json"
printf 'read me' >"$repo/README.md"
head -c 3000000 /dev/urandom >"$repo/model.safetensors"

serve_hub() { # serve_hub [bytes a second]: sets HF_ENDPOINT and $hub
    rm -f "$tmp/port"
    "$TOOLS/hub_server" me/tiny "$repo" ${1:-} >"$tmp/port" 2>"$tmp/hub.err" &
    hub=$!
    started="$started $hub"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        [ -s "$tmp/port" ] && break
        sleep 0.2
    done
    HF_ENDPOINT=http://127.0.0.1:$(cat "$tmp/port")
    export HF_ENDPOINT
}
store=$MERE_HOME/models/me/tiny
damaged() { # no file in the store differs from the hub's
    for file in "$store"/*; do
        case $file in *.part | *'*') continue ;; esac
        cmp -s "$file" "$repo/${file##*/}" || fail "$file is damaged"
    done
}

# Interrupted, twice, then to the end; what was there is not fetched again.
serve_hub 1000000
for _ in 1 2; do
    "$MERE" pull me/tiny >"$out" 2>"$err" </dev/null &
    pull=$!
    before=$(cat "$store"/*.part 2>/dev/null | wc -c)
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        [ "$(cat "$store"/*.part 2>/dev/null | wc -c)" -gt $((before + 200000)) ] && break
        sleep 0.1
    done
    kill -INT "$pull"
    wait "$pull"
    same 'exit code of an interrupted pull' "$?" 130
    damaged
    [ ! -e "$store/model.safetensors" ] || fail 'an unfinished file has its name'
    says interrupted "$err"
done
refuses 3 'has not ended; mere pull' show me/tiny
mere 0 list
says 'me/tiny .*unfinished .*store'
kill "$hub"
serve_hub
mere 0 pull me/tiny --json
same name "$(json name)" me/tiny
same size "$(json size_bytes)" "$(cat "$repo"/[a-z]* | wc -c)"
[ "$(json fetched_bytes)" -lt 2800000 ] || fail "fetched $(json fetched_bytes) bytes, of which 400000 were there"
damaged
[ ! -e "$store/README.md" ] || fail 'a file that no model needs was taken'
[ "$(ls "$store" | wc -l)" = 3 ] || fail "the store holds $(ls "$store")"

# Two at once.
rm -rf "$MERE_HOME"
"$MERE" pull me/tiny -q >/dev/null 2>"$tmp/err2" </dev/null &
second=$!
mere 0 pull me/tiny
wait "$second" || fail "the second pull: $(cat "$tmp/err2")"
damaged

# A bundle, and another machine without a network.
mere 0 pull me/tiny --bundle "$tmp/b.tar"
tar -tf "$tmp/b.tar" >"$out" || fail 'tar does not read the bundle'
says '^me/tiny/model.safetensors$'
mkdir "$tmp/other"
MERE_HOME=$tmp/other HF_ENDPOINT=http://127.0.0.1:1 MERE_OFFLINE=1 mere 0 pull "$tmp/b.tar"
cmp -s "$tmp/other/models/me/tiny/model.safetensors" "$repo/model.safetensors" || fail 'the bundle lost something'
MERE_HOME=$tmp/other mere 0 pull --from-bundle "$tmp/b.tar"
head -c 1000000 "$tmp/b.tar" >"$tmp/cut.tar"
MERE_HOME=$tmp/third refuses 3 'ends too soon' pull "$tmp/cut.tar"
[ -z "$(find "$tmp/third" -name '*.safetensors*' 2>/dev/null)" ] || fail 'a cut bundle left files'

# What cannot be.
refuses 3 'no such model' pull me/nothing
refuses 2 'no model name' pull nothing
refuses 2 'wants a MODEL' pull
refuses 2 'stands alone' pull me/tiny --from-bundle x.tar
MERE_OFFLINE=1 refuses 1 'MERE_OFFLINE is set' pull me/tiny
HF_ENDPOINT=ftp://x refuses 2 'HF_ENDPOINT' pull me/tiny
refuses 3 'nobody/nothing: not here.*mere pull' show nobody/nothing
(ulimit -f 1000; MERE_HOME=$tmp/full refuses 4 'disk is full' pull me/tiny; exit $bad) || bad=1
[ ! -e "$tmp/full/models/me/tiny/model.safetensors" ] || fail 'a file that did not fit has its name'

# Models of other programs.
mkdir -p "$HF_HOME/hub/models--a--cached/refs" "$HF_HOME/hub/models--a--cached/snapshots/abc" "$HOME/.lmstudio/models/b/studio" \
    "$HOME/.ollama/models/manifests/registry.ollama.ai/library/llama" "$HOME/.ollama/models/blobs"
printf abc >"$HF_HOME/hub/models--a--cached/refs/main"
cp "$repo"/*.json "$repo/model.safetensors" "$HF_HOME/hub/models--a--cached/snapshots/abc"
printf 'GGUF' >"$HOME/.lmstudio/models/b/studio/s-Q4_K_M.gguf"
hex=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
printf 'GGUF' >"$HOME/.ollama/models/blobs/sha256-$hex"
printf '{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:%s","size":4}]}' $hex \
    >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/llama/3b"
mere 0 list
says '^me/tiny +[0-9.]+ MB +safetensors .*store$'
says '^a/cached .*Hugging Face cache$'
says '^b/studio .*GGUF Q4_K_M .*LM Studio$'
says '^llama:3b .*Ollama$'
mere 0 list --json
same names "$(json models.0.name models.1.name models.2.name models.3.name | tr '\n' ' ')" 'me/tiny a/cached b/studio llama:3b '
mere 0 show llama:3b --json
same path "$(json path)" "$HOME/.ollama/models/blobs/sha256-$hex"
same origin "$(json origin)" Ollama
for model in a/cached b/studio llama:3b; do
    refuses 2 'not in the store.*left alone' rm "$model" -y
done
[ -e "$HOME/.ollama/models/blobs/sha256-$hex" ] || fail 'rm deleted what is not the store'\''s'

# rm asks, or is told.
refuses 2 'without a terminal say --yes' rm me/tiny
[ -e "$store/model.safetensors" ] || fail 'deleted without being asked'
refuses 2 'no model name' rm ../x -y
refuses 3 '' rm me/none -y
mere 0 rm me/tiny -y
[ ! -e "$MERE_HOME/models/me" ] || fail "rm left $(find "$MERE_HOME/models/me")"

# run of a name that is not there: without a terminal an error, with one a question.
if command -v script >/dev/null; then
    printf 'n\n' | script -qec "'$MERE' run me/tiny -p hello" /dev/null >"$out" 2>&1
    says 'me/tiny is not here. Pull it'
    [ ! -e "$store" ] || fail 'pulled although the answer was no'
    printf 'y\n' | script -qec "'$MERE' run me/tiny -p hello" /dev/null >"$out" 2>&1
    damaged
    [ -e "$store/model.safetensors" ] || fail 'yes did not pull'
    printf 'n\n' | script -qec "'$MERE' rm me/tiny" /dev/null >"$out" 2>&1
    [ -e "$store/model.safetensors" ] || fail 'rm deleted although the answer was no'
fi
exit $bad
