# Sourced by the tests: runs the program and checks what came. Every breach is printed; the test ends with `finish`.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() { echo "FAIL: $*"; bad=1; }
finish() { exit $bad; }

# expect CODE ARG...: runs mere, stdin from $tmp/in if there is one, and checks the exit code. Output is in $tmp/out and $tmp/err.
expect() {
    want=$1
    shift
    if [ -f "$tmp/in" ]; then "$MERE" "$@" >"$tmp/out" 2>"$tmp/err" <"$tmp/in"; else "$MERE" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; fi
    got=$?
    [ "$got" = "$want" ] || { fail "mere $*: exit code $got, wanted $want"; sed 's/^/  /' "$tmp/err"; }
}
# refuse CODE TEXT ARG...: as expect; nothing on stdout, one line with TEXT on stderr.
refuse() {
    code=$1
    text=$2
    shift 2
    expect "$code" "$@"
    [ ! -s "$tmp/out" ] || fail "mere $*: wrote to stdout: $(head -n 3 "$tmp/out")"
    grep -qF -- "$text" "$tmp/err" || fail "mere $*: stderr lacks \"$text\": $(cat "$tmp/err")"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "mere $*: stderr has $(wc -l <"$tmp/err") lines, wanted 1"
}
# has FILE TEXT
has() { grep -qF -- "$2" "$1" || fail "$(basename "$1") lacks \"$2\": $(head -c 400 "$1")"; }
# json PATH VALUE: of $tmp/out
json() {
    value=$("$JSON_GET" "$1" <"$tmp/out") || { fail "no JSON, or nothing at $1: $(head -c 300 "$tmp/out")"; return; }
    [ "$value" = "$2" ] || fail "$1 is $value, wanted $2"
}
