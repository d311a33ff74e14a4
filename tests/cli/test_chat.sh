# mere chat where the engine is told what to do: Ctrl-C in an answer, failures, limits of thinking.
. "$(dirname "$0")/check.sh"
MERE_HOME=$tmp/home
export MERE_HOME
cd "$tmp" || exit 1

# play CODE ARGS...: on a terminal; the script is on stdin
play() {
    want=$1
    shift
    cat >"$tmp/script"
    TERM=xterm "$TOOLS/pty_play" "$tmp/script" "$MERE" chat "$@" >"$tmp/out" 2>"$tmp/err"
    got=$?
    [ "$got" = "$want" ] || { fail "chat $*: exit code $got, wanted $want"; cat "$tmp/out" "$tmp/err"; }
}
# Ctrl-C stops the answer, not the program, as often as it takes; what came stays.
play 0 fake --color never <<'STEPS'
wait >
send @slow @long\r
wait x
send \x03
wait stopped; what came stays
wait >
send /regenerate\r
wait x
send \x03
wait stopped; what came stays
wait >
send /save said.json\r
wait 2 messages
wait >
send /undo\r
wait >
send /save undone.json\r
wait 0 messages
wait >
send /exit\r
STEPS
"$JSON_GET" 1.role <said.json | grep -qx assistant || fail "a stopped answer is not kept"
# Before anything came: the message is taken back.
play 0 fake --color never <<'STEPS'
wait >
send @stall\r
wait @stall\r\x0a
send \x03
wait stopped before anything came
wait >
send /save none.json\r
wait 0 messages
wait >
send /exit\r
STEPS
play 130 fake --color never <<'STEPS'
wait >
send @slow @long\r
wait x
send \x03
wait stopped
wait >
send \x03
wait again leaves
send \x03
STEPS

# A failure is said and the message taken back; only a lost device ends a sitting.
play 0 fake --color never <<'STEPS'
wait >
send @error\r
wait mere: fake: failed
wait >
send /save after.json\r
wait 0 messages
wait >
send /exit\r
STEPS
play 70 fake --color never <<'STEPS'
wait >
send @lost\r
wait device_lost
STEPS
printf '@error\nhello\n' >"$tmp/in"
expect 1 chat fake
has "$tmp/err" "fake: failed"
printf '@lost\n' >"$tmp/in"
expect 70 chat fake
printf 'hello\n' >"$tmp/in"
refuse 3 'no chat template' chat fake-notemplate -q
printf '@refuse\n' >"$tmp/in"
expect 2 chat fake
has "$tmp/err" "roles must alternate"

# Thinking: a number of tokens is a limit, after which the answer goes on; -n holds for both together.
printf '@long\n/stats\n' >"$tmp/in"
expect 0 chat fake --think 3 -n 10
has "$tmp/err" "answer    10 tokens"
has "$tmp/err" "cut at 10 tokens"
# Until the context is full, which is said.
printf '@long\n/stats\n' >"$tmp/in"
expect 0 chat fake
has "$tmp/err" "the context of 512 tokens is full; /clear begins anew"
has "$tmp/err" "context   512 of 512 tokens"

# Ctrl-C with no terminal ends the program.
printf '@slow @long\nhello\n' >"$tmp/in"
rm -f "$tmp/out"
"$MERE" chat fake -q <"$tmp/in" >"$tmp/out" 2>"$tmp/err" &
pid=$!
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ -s "$tmp/out" ] && break; sleep 0.1; done
kill -INT $pid
wait $pid
rc=$?
[ $rc = 130 ] || { fail "Ctrl-C in a pipe: exit code $rc"; cat "$tmp/err"; }
# Before anything came too.
printf '@stall\n' >"$tmp/in"
rm -f "$tmp/err"
"$MERE" chat fake <"$tmp/in" >"$tmp/out" 2>"$tmp/err" &
pid=$!
until grep -qs 'context 512' "$tmp/err"; do sleep 0.1; done
kill -INT $pid
wait $pid
rc=$?
[ $rc = 130 ] || { fail "Ctrl-C in a pipe before the answer: exit code $rc"; cat "$tmp/err"; }

# Colour: the prompt's ends before what is typed; none in a pipe.
play 0 fake --color always -q <<'STEPS'
wait >
send /exit\r
STEPS
grep -q "$(printf '\033\[1;32m>\033\[0m ')" "$tmp/out" || fail "no coloured prompt: $(od -c "$tmp/out" | head -n 3)"
printf 'hello\n' >"$tmp/in"
expect 0 chat fake --color always -q
[ "$(tr -cd '\033' <"$tmp/out" | wc -c)" = 0 ] || fail "colour on stdout that is no terminal"
finish
