# mere chat: lines of a pipe, commands, the prefix cache, limits; then on a terminal: editing, history, Ctrl-C.
. "$SOURCE/tests/cli/lib.sh"
model=$(tiny llama)

# talk CODE ARGS...: chat with what stdin brings
talk() {
    want=$1
    shift
    "$MERE" chat "$model" -t1 -c 512 "$@" >"$out" 2>"$err"
    code=$?
    [ "$code" = "$want" ] || { fail "mere chat $*: exit code $code, wanted $want"; show; }
}
# numbers NAME: of the last /stats, the numbers of its line
numbers() { sed -n "s/^  $1 *//p" "$err" | tail -n 1 | tr -cs '0-9.\n' ' '; }

# Each turn has its answer; the second one finds the first in the cache; the log says what was said.
printf 'hello\n/stats\nand more\n/stats\n/save %s/log.json\n' "$tmp" | talk 0 -n 8 --system 'be brief'
[ -s "$out" ] || fail "no answer came"
set -- $(sed -n 's/^  prompt *//p' "$err" | head -n 1 | tr -cs '0-9' ' ')
first=$1
same "cached tokens of the first turn" "$2" 0
set -- $(numbers prompt)
[ "$2" -ge "$((first - 1))" ] || fail "the second turn took $2 tokens from the cache, the first had $first"
[ "$(($1 - $2))" -lt "$1" ] || fail "the second turn read everything again"
same "the answer's tokens" "$(numbers answer | cut -d' ' -f1)" 8
says 'cut at 8 tokens' "$err"
"$TOOLS/json_get" 0.role 0.content 1.content 2.role 3.content 4.role <"$tmp/log.json" | paste -sd'|' >"$tmp/said"
same "the saved messages" "$(cat "$tmp/said")" 'system|be brief|hello|assistant|and more|assistant'
same "number of messages" "$("$TOOLS/json_get" '#' <"$tmp/log.json")" 5

# A loaded conversation goes on the same way: greedy answers are those of one sitting.
printf 'hello\nand more\n' | talk 0 -n 8 -q
[ ! -s "$err" ] || { fail "--quiet writes to stderr"; show; }
cp "$out" "$tmp/whole"
printf 'hello\n/save %s/half.json\n' "$tmp" | talk 0 -n 8 -q
cp "$out" "$tmp/half"
printf '/load %s/half.json\nand more\n' "$tmp" | talk 0 -n 8 -q
cat "$tmp/half" "$out" | cmp -s - "$tmp/whole" || fail "a loaded conversation answers differently"
# So does one whose second turn was taken back, and one answered again.
printf 'hello\nother\n/undo\nand more\n' | talk 0 -n 8 -q
tail -c "$(($(wc -c <"$tmp/whole") - $(wc -c <"$tmp/half")))" "$tmp/whole" >"$tmp/second"
tail -c "$(wc -c <"$tmp/second")" "$out" | cmp -s - "$tmp/second" || fail "/undo leaves something behind"
printf 'hello\n/regenerate\n' | talk 0 -n 8 -q
cat "$tmp/half" "$tmp/half" | cmp -s - "$out" || fail "/regenerate, greedy: another answer"
printf 'x\n/clear\nhello\n' | talk 0 -n 8 -q
tail -c "$(wc -c <"$tmp/half")" "$out" | cmp -s - "$tmp/half" || fail "/clear leaves something behind"

# Settings: a seed repeats an answer, n limits it, all are shown.
printf '/set temp 1.5\n/set seed 7\n/set n 6\nhello\n/clear\nhello\n/set\n' | talk 0 --deterministic
same "two answers of one seed" "$(head -c $(($(wc -c <"$out") / 2)) "$out" | od -c)" "$(tail -c $(($(wc -c <"$out") / 2)) "$out" | od -c)"
says '^  seed   7 ' "$err"
says '^  temp   1.5 ' "$err"
printf 'hello\n/stats\n' | talk 0 -n 3 --temp 1.5 --seed 7 --top-k 5 --top-p 0.9 --min-p 0.01
same "-n" "$(numbers answer | cut -d' ' -f1)" 3

# Lines of a message: \ at the end, a block, two slashes.
printf 'a\\\nb\n/save %s/a.json\n"""\nc\n\nd"""\n//e\n/save %s/b.json\n' "$tmp" "$tmp" | talk 0 -n 1 -q
same "a continued line" "$("$TOOLS/json_get" 0.content <"$tmp/a.json")" 'a
b'
same "a block" "$("$TOOLS/json_get" 2.content <"$tmp/b.json")" 'c

d'
same "two slashes" "$("$TOOLS/json_get" 4.content <"$tmp/b.json")" '/e'
printf '/system be brief\n/system\n/system ""\n/system\n/help\n' | talk 0
says '^be brief' "$err"
says 'no system message' "$err"
says '^  /regenerate' "$err"
printf '/exit\nhello\n' | talk 0
[ ! -s "$out" ] || fail "something is answered after /exit"
printf '/bye\nhello\n' | talk 0
[ ! -s "$out" ] || fail "something is answered after /bye"

# In a pipe a mistake ends the program with its code; nothing is cut without a word.
printf '/nonsense\nhello\n' | talk 2
says 'unknown command "/nonsense"' "$err"
[ ! -s "$out" ] || fail "it goes on after a mistake"
printf '/set top_p 2\n' | talk 2
says 'top_p: "2" is no number from 0 to 1' "$err"
printf '/set warmth 2\n' | talk 2
printf '/undo\n' | talk 2
printf '/regenerate\n' | talk 2
printf '/load %s/none\n' "$tmp" | talk 3
printf '{"role":"user"}' >"$tmp/bad.json"
printf '/load %s/bad.json\n' "$tmp" | talk 3
says 'wanted an array of messages' "$err"
printf '[{"role":"tool","content":"x"}]' >"$tmp/bad.json"
printf '/load %s/bad.json\n' "$tmp" | talk 3
says 'has the role "tool"' "$err"
printf '"""\nno end\n' | talk 2
{ head -c 2000 /dev/zero | tr '\0' 'q'; echo; } | talk 1
says 'the context holds 512: the message was not sent. /clear begins anew' "$err"
printf 'hello\n' | talk 0 --think off
says 'no switch for thinking' "$err"
printf 'hello\n/set n 0\n' | talk 2 --think much
says 'think: "much"' "$err"

cd "$tmp" || exit 1
# On a terminal. The history outlives the program and is its owner's alone.
play() { # play CODE ARGS...: the script is on stdin
    want=$1
    shift
    cat >"$tmp/script"
    TERM=xterm "$TOOLS/pty_play" "$tmp/script" "$MERE" chat "$model" -t1 -c 512 "$@" >"$out" 2>"$err"
    code=$?
    [ "$code" = "$want" ] || { fail "a terminal, $*: exit code $code, wanted $want"; show; }
}
play 0 -n 4 --color never <<'STEPS'
wait >
send hallo\x7f\x7f\x7f\x7fello caf\xc3\xa9\r
wait cut at 4 tokens
wait >
send /save talk.json\r
wait 2 messages
wait >
send \x04
STEPS
same "the edited line" "$("$TOOLS/json_get" 0.content <talk.json)" 'hello café'
same "mode of the history" "$(stat -c %a "$MERE_HOME/chat_history")" 600
play 0 -n 4 --color never <<'STEPS'
wait >
send \x1b[A\x1b[A\r
wait cut at 4 tokens
wait >
send /nonsense\r
wait unknown command
wait >
send /exit\r
STEPS
says 'hello caf' # the line before the last, from the history
play 130 --color never <<'STEPS'
wait >
send dropped\x03
wait Ctrl-C again leaves
wait >
send \x03
STEPS
exit $bad
