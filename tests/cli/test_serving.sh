# mere serve as a process: the line it prints, ports, signals. What it answers: tests/serve.
. "$(dirname "$0")/check.sh"

# start ARG...: in the background; sets pid and port.
start() {
    rm -f "$tmp/out" "$tmp/err" # what the last one wrote must not be read as this one's
    : >"$tmp/out"
    "$MERE" serve "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    port=
    for i in $(seq 100); do
        port=$(sed -n 's|.* at http://.*:\([0-9]*\)$|\1|p' "$tmp/out")
        [ -n "$port" ] && return
        sleep 0.05
    done
    fail "mere serve $*: no line: $(cat "$tmp/out" "$tmp/err")"
}
# stop SIGNAL CODE
stop() {
    kill -"$1" $pid
    wait $pid
    rc=$?
    [ $rc = "$2" ] || fail "after SIG$1: exit code $rc, wanted $2"
}

start fake --port 0
has "$tmp/out" "serving fake on cpu: 2 threads, fake, 4 slots of 512 tokens, at http://127.0.0.1:$port"
refuse 1 "port $port: the port is in use" serve fake --port "$port"
if command -v curl >/dev/null; then
    curl -s "http://127.0.0.1:$port/v1/completions" -d '{"prompt":"a"}' >"$tmp/answer"
    "$JSON_GET" choices.0.text <"$tmp/answer" >/dev/null || fail "no answer: $(cat "$tmp/answer")"
fi
stop TERM 0
start fake.gguf --port 0 --slots 2 --api-key k
has "$tmp/out" "serving fake on"
has "$tmp/out" "2 slots"
stop INT 130
MERE_HOST=http://localhost:0/ start fake
has "$tmp/out" "http://localhost:"
stop TERM 0
MERE_HOST=wonders:x refuse 2 'MERE_HOST: "wonders:x" is no HOST or HOST:PORT' serve fake
refuse 1 'host host.invalid' serve fake --host host.invalid
refuse 2 '--port: "65536" is no integer from 0 to 65535' serve fake --port 65536
refuse 3 'header of 9 bytes' serve fake-broken --port 0
finish
