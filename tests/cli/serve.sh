# mere serve from the command line: starts, tells where, answers, ends. The server itself: tests/serve.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)
export MERE_KEY=secret

serve "$model" -t1 --slots 2 --api-key secret
"$TOOLS/http_call" "$port" /health >"$out" || fail "/health fails"
json status >/dev/null
"$TOOLS/http_call" "$port" /v1/completions '{"prompt":"hello world","max_tokens":20,"temperature":0}' >"$out" || fail "a completion fails"
served=$(json choices.0.text)
MERE_KEY=wrong "$TOOLS/http_call" "$port" /v1/models >/dev/null 2>&1 && fail "a wrong key is taken"
refuses 1 "$port" serve "$model" -t1 --port "$port"
kill -TERM "$pid"
ended "$pid" 0
mere 0 run "$model" -t1 --raw -p 'hello world' -n 20 --json
same "text served and text of mere run" "$served" "$(json text)"

rm -f "$out"
MERE_HOST=127.0.0.1:0 "$MERE" serve "$model" -t1 >"$out" 2>"$err" </dev/null &
pid=$!
started="$started $pid"
wait_for 60 grep -qs 'http://127.0.0.1:' "$out" || { fail "MERE_HOST=127.0.0.1:0: does not start"; show; }
grep -q ':8080' "$out" && fail "the port of MERE_HOST is not taken"
kill -TERM "$pid"
ended "$pid" 0
refuses 1 'no.such.host' serve "$model" -t1 --host no.such.host.invalid --port 0
refuses 2 '--api-key: the key is empty' serve "$model" -t1 --api-key ''
exit $bad
