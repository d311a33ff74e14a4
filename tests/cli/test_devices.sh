# mere devices, plans of devices with memory of their own, and loads that take long, on the engine of tests/serve/fake_mere.c.
. "$(dirname "$0")/check.sh"

expect 0 devices
has "$tmp/out" 'cuda:0     Fake GPU (auto)'
has "$tmp/out" 'same chip cuda:0'
has "$tmp/out" '8.00 GB, 7.00 GB free, its own'
has "$tmp/out" 'pipe (software'
has "$tmp/out" 'hip        no driver'
has "$tmp/out" 'more of ^[[31mit'
expect 0 devices --json
for path in schema_version devices.0.id devices.1.same_as devices.0.total_bytes devices.2.software backends.1.note; do
    "$JSON_GET" $path <"$tmp/out" >/dev/null || fail "mere devices --json lacks $path"
done
expect 0 plan fake-n-gpu
has "$tmp/out" 'memory          device         host'
has "$tmp/out" 'total         105.1 MB      10.0 MB'
has "$tmp/out" 'repack         90.0 MB of the files, 90.1 MB on the device'
expect 0 plan fake-n-gpu --json
[ "$("$JSON_GET" device_bytes <"$tmp/out")" = 105100000 ] || fail "device_bytes of the plan"
[ "$("$JSON_GET" host_terms.reserve <"$tmp/out")" = 8000000 ] || fail "host_terms of the plan"
[ "$("$JSON_GET" placed_bytes.repack <"$tmp/out")" = 90100000 ] || fail "placed_bytes of the plan"

# Ctrl-C while weights are on their way: no half of an answer, 130.
for command in "run fake-n-slow -p a" "serve fake-n-slow --port 0" "serve fake-n-slow --port 0 --no-supervisor" "bench fake-n-slow"; do
    # shellcheck disable=SC2086
    "$MERE" $command >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep 1
    kill -INT $pid
    sleep 1
    kill -0 $pid 2>/dev/null && fail "mere $command: goes on after Ctrl-C"
    wait $pid
    rc=$?
    [ $rc = 130 ] || fail "mere $command: exit code $rc after Ctrl-C, wanted 130"
    grep -q 'loading \[' "$tmp/err" && fail "mere $command: a bar where there is no terminal"
done
# On a terminal a bar, after a second.
if command -v script >/dev/null; then
    timeout -s INT 3 script -qec "'$MERE' run fake-n-slow -p a" /dev/null >"$tmp/out" 2>&1 </dev/null
    has "$tmp/out" 'loading [#'
    has "$tmp/out" 'of 4.20 GB'
    has "$tmp/out" 'GB/s'
    has "$tmp/out" 's left'
fi
finish
