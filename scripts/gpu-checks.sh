#!/bin/sh
# The tests of device code on a GPU that is here, which CI has not.
# usage: scripts/gpu-checks.sh BUILD [-o LOGS] [-s] [-t SECONDS] [DEVICE ...]
#   BUILD: a build directory with its tests; DEVICE: as `mere devices` names them (default: all that are no CPU).
#   -o: where each program's output goes (default BUILD/gpu-checks). -t: limit for each program (default 600).
#   -s: on CUDA also compute-sanitizer's memcheck over the tests of operations, products and sampling, where it is installed.
# A line for each program: device, program, its summary, seconds. Exit 1 when one failed.
set -eu
build=$1
shift
logs=$build/gpu-checks limit=600 sanitize=
while getopts o:st: o; do
    case $o in
    o) logs=$OPTARG ;;
    s) sanitize=1 ;;
    t) limit=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- $("$build/mere" devices --json | grep -oE '"id": *"(cuda|vulkan):[0-9]+"' | grep -oE '(cuda|vulkan):[0-9]+')
[ $# -gt 0 ] || { echo "gpu-checks: no GPU here; see $build/mere devices" >&2; exit 1; }
mkdir -p "$logs"
failed=0
check() { # check DEVICE NAME COMMAND...
    device=$1 name=$2
    shift 2
    log=$logs/$(printf %s "$device-$name" | tr ': ' '__').txt
    began=$(date +%s)
    rc=0
    MERE_TEST_DEVICE=$device timeout "$limit" "$@" >"$log" 2>&1 || rc=$?
    case $rc in
    0) said=$(grep -hE '^on |^\[  PASSED|^tokens |^[0-9]+ tokens of|ERROR SUMMARY' "$log" | tr '\n' ' ') ;;
    77) said="skipped" ;;
    124) said="FAILED: more than $limit s" failed=1 ;;
    *) said="FAILED ($rc): $(grep -hE 'ERROR|LINE|Error|error' "$log" | head -n 3 | tr '\n' ' ')" failed=1 ;;
    esac
    printf '%-9s %-28s %s (%d s)\n' "$device" "$name" "$said" $(($(date +%s) - began))
}
for device in "$@"; do
    for program in device device_again device_ops device_lin tiny smollm2; do
        check "$device" "test_$program" "$build/tests/test_$program"
    done
    model=$(scripts/fetch-demo-model.sh) && check "$device" kl "$build/tests/kl" "$model" --device "$device" --max-mean 0.01
    case $device in cuda:*)
        [ -n "$sanitize" ] || continue
        sanitizer=$(command -v compute-sanitizer) || { echo "gpu-checks: compute-sanitizer is not installed" >&2; exit 1; }
        # That a module lacks a kernel of a name is an answer, no error: api-errors would count it.
        for program in "device test_sampling" device_ops device_lin; do
            # shellcheck disable=SC2086 # a program and its one test
            check "$device" "memcheck test_$program" "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$build/tests"/test_$program
        done
        ;;
    esac
done
exit "$failed"
