# mere serve as two processes: a lost device and a crash end the requests that run, and soon another worker answers.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)

ask() { # ask TOKENS: one completion; its text is on stdout
    "$TOOLS/http_call" "$port" /v1/completions \
        "{\"prompt\":\"hello\",\"max_tokens\":$1,\"temperature\":0,\"ignore_eos\":true}"
}
text_of() { "$TOOLS/json_get" choices.0.text <"$1"; }
answers() { ask 2 >"$tmp/answer" 2>/dev/null; }
worker_is_not() { w=$(worker "$pid"); [ -n "$w" ] && [ "$w" != "$1" ]; }

# Each worker loses its device at its 10th step.
MERE_FAULT=cpu:10
ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_segv=0 # a crash is a crash there too
export MERE_FAULT ASAN_OPTIONS
serve "$model" -t1
first=$(worker "$pid")
[ -n "$first" ] || fail "mere serve has no worker"
ask 2 >"$tmp/before" 2>&1 || fail "no answer before the loss"
"$TOOLS/http_call" "$port" /v1/completions '{"prompt":"hello","max_tokens":100,"temperature":0,"ignore_eos":true,"stream":true}' \
    >"$tmp/stream" 2>&1 &
client=$!
wait_for 5 gone $client || fail "the client of a stream hangs"
grep -qE 'device_lost|"error"' "$tmp/stream" || fail "the stream ends without an error: $(cat "$tmp/stream")"
# Not at once with the stream: what a worker has not read yet when it ends gets no answer.
if ask 60 >"$tmp/lost" 2>&1; then fail "a request on a lost device was answered: $(cat "$tmp/lost")"; fi
grep -q device_lost "$tmp/lost" || fail "the error is not that of a lost device: $(cat "$tmp/lost")"
wait_for 5 answers || fail "no answer within 5 s after the loss"
same "text before and after the loss" "$(text_of "$tmp/answer")" "$(text_of "$tmp/before")"
worker_is_not "$first" || fail "the worker is still the first"
grep -q 'lost its device; starting another' "$err" || { fail "the loss is not told"; show; }
grep -q 'serving again' "$err" || fail "the second worker is not told"

# A crash.
second=$(worker "$pid")
kill -SEGV "$second"
wait_for 5 worker_is_not "$second" || fail "no worker after a crash"
wait_for 10 answers || fail "no answer after a crash"
grep -qE 'ended by signal 11' "$err" || { fail "the crash is not told"; show; }

# SIGTERM goes through and ends both.
third=$(worker "$pid")
kill -TERM "$pid"
ended "$pid" 0
wait_for 5 gone "$third" || fail "the worker outlives its supervisor"

# The supervisor is killed: the worker ends by itself.
serve "$model" -t1
orphan=$(worker "$pid")
kill -KILL "$pid"
wait_for 20 gone "$orphan" || fail "the worker outlives a killed supervisor"

# Lost at once, again and again: it gives up, with the device's exit code. Each request costs one worker.
MERE_FAULT=cpu:1
serve "$model" -t1
for _ in 1 2 3 4 5 6; do ask 2 >/dev/null 2>&1; done
ended "$pid" 70
grep -q 'giving up' "$err" || { fail "giving up is not told"; show; }

# Alone it ends with the device.
serve "$model" -t1 --no-supervisor
[ -z "$(worker "$pid")" ] || fail "--no-supervisor has a second process"
ask 2 >/dev/null 2>&1
ended "$pid" 70

# A model that does not load is no reason to start again.
unset MERE_FAULT
refuses 3 'no-such-model' serve "$tmp/no-such-model" --port 0
MERE_FAULT=cpu:3 mere 70 run "$model" --raw -p hello -n 9 --ignore-eos -t1
MERE_FAULT=cpu:x refuses 2 'MERE_FAULT=cpu:x: wanted cpu:N' run "$model" --raw -p hello
exit $bad
