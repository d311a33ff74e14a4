#!/bin/sh
# Installs the Debian packages that a job needs and that are missing; silent when there is nothing to do.
#   scripts/install-deps.sh build test demo ci
# As root they are installed with apt-get. Otherwise the one line to run is printed, and the exit code is 1.
# What each is for: docs/dependencies.md.
set -eu

build="gcc libc6-dev make cmake ninja-build pkg-config
    libjansson-dev libevent-dev libpcre2-dev libutf8proc-dev libxxhash-dev libssl-dev libcurl4-openssl-dev libedit-dev
    libvulkan-dev glslc"
test="libcmocka-dev binutils g++ mesa-vulkan-drivers vulkan-validationlayers"
demo="python3-pip ca-certificates curl"
ci="clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev git"

command -v dpkg-query >/dev/null || {
    echo "install-deps: not a Debian system; docs/dependencies.md says what the build needs" >&2
    exit 0
}

wanted=
for set in "$@"; do
    case $set in
    build) wanted="$wanted $build" ;;
    test) wanted="$wanted $test" ;;
    demo) wanted="$wanted $demo" ;;
    ci) wanted="$wanted $ci" ;;
    *) echo "usage: install-deps.sh [build] [test] [demo] [ci]" >&2; exit 2 ;;
    esac
done

# A package that another one provides (pkgconf for pkg-config) counts as there.
there=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' | awk '
    $1 == "installed" { gsub(/\([^)]*\)|,/, " "); for (i = 2; i <= NF; i++) print $i }')
missing=
for package in $wanted; do
    printf '%s\n' "$there" | grep -qxF "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "mere needs packages that are not installed. Run this, then try again:" >&2
    echo "    sudo apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi
echo "installing:$missing" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null || {
    cat "$log" >&2
    echo "install-deps: apt-get could not install:$missing" >&2
    exit 1
}
