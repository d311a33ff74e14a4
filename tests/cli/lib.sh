# What the scripts of this folder share. Each starts with: . "$SOURCE/tests/cli/lib.sh"
# $tmp is a fresh folder of the script's own, removed at the end; $out and $err hold what the last call wrote.
set -u
name=$(basename "$0" .sh)
mkdir -p "$TEST_TMP"
tmp=$(mktemp -d "$TEST_TMP/$name.XXXXXX")
out=$tmp/out
err=$tmp/err
bad=0
started=
MERE_HOME=$tmp/home
HF_HOME=$tmp/hf
export MERE_HOME HF_HOME
unset MERE_HOST MERE_DEVICE NO_COLOR HF_HUB_CACHE

finish() {
    for pid in $started; do kill -KILL "$pid" 2>/dev/null; done
    rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

fail() {
    printf '%s: %s\n' "$name" "$*"
    bad=1
}

show() {
    sed 's/^/  stdout: /' "$out" | head -n 12
    sed 's/^/  stderr: /' "$err" | head -n 12
}

# mere CODE ARGS...: runs the program with an empty stdin; its exit code must be CODE
mere() {
    want=$1
    shift
    "$MERE" "$@" >"$out" 2>"$err" </dev/null
    code=$?
    [ "$code" = "$want" ] && return 0
    fail "mere $*: exit code $code, wanted $want"
    show
    return 1
}

# refuses CODE TEXT ARGS...: fails with CODE, says TEXT (an extended regular expression) on stderr, nothing on stdout
refuses() {
    want=$1
    text=$2
    shift 2
    mere "$want" "$@" || return 1
    [ ! -s "$out" ] || { fail "mere $*: wrote to stdout"; show; }
    grep -qE -- "$text" "$err" || { fail "mere $*: stderr does not say \"$text\""; show; }
    grep -q '^mere: ' "$err" || { fail "mere $*: stderr does not begin with \"mere: \""; show; }
}

# same WHAT FOUND WANTED
same() {
    [ "$2" = "$3" ] || fail "$1: found \"$2\", wanted \"$3\""
}

# says TEXT [FILE]: stdout (or FILE) has a line that matches
says() {
    grep -qE -- "$1" "${2:-$out}" || { fail "nothing matches \"$1\""; show; }
}

# json PATH...: values of the JSON on the last call's stdout, one a line
json() {
    "$TOOLS/json_get" "$@" <"$out" || fail "JSON lacks one of: $*"
}

tiny() { # tiny NAME: makes the model, prints its folder
    "$TOOLS/make_tiny" "$tmp" "$1" || exit 1
}

# within PEAK PLANNED: within 5 % or 32 MB of the plan
within() {
    awk -v peak="$1" -v plan="$2" 'BEGIN {
        d = peak - plan; d = d < 0 ? -d : d
        exit !(d <= 32e6 || d <= 0.05 * plan)
    }' || fail "peak of $1 bytes, planned $2: apart by more than 5 % and 32 MB"
}

# wait_for SECONDS COMMAND...: until the command is true
wait_for() {
    left=$(($1 * 20))
    shift
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.05
    done
}

# serve ARGS...: starts a server on a free port; $pid and $port tell where
serve() {
    rm -f "$out" "$err"
    "$MERE" serve "$@" --port 0 >"$out" 2>"$err" </dev/null &
    pid=$!
    started="$started $pid"
    wait_for 60 grep -qs 'http://' "$out" || { fail "mere serve $*: does not start"; show; return 1; }
    port=$(sed -n 's|.*http://[^ ]*:\([0-9][0-9]*\).*|\1|p' "$out" | head -n 1)
}

# ended PID CODE: the process ends by itself with the code
ended() {
    wait_for 60 gone "$1" || { fail "process $1 goes on"; kill -KILL "$1"; }
    wait "$1"
    same "exit code of process $1" $? "$2"
}
gone() {
    ! kill -0 "$1" 2>/dev/null || [ "$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)" = Z ]
}

# worker PID: the process that mere serve started
worker() { sed 's/ .*//' "/proc/$1/task/$1/children" 2>/dev/null; }

# Bytes of a process' mapping of a file by kind: mapped PID FILE Rss
mapped() {
    awk -v file="$2" -v kind="$3:" '
        /^[0-9a-f]+-[0-9a-f]+ / { mine = index($0, file) > 0 }
        mine && $1 == kind { kb += $2 }
        END { print kb * 1024 }' "/proc/$1/smaps"
}

skip() {
    printf '%s: skipped: %s\n' "$name" "$*"
    exit 77
}
