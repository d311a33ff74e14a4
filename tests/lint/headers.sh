#!/bin/sh
# Each header compiles alone: as C, and those of CUDA kernels as C++ on the emulator. usage: CXX=... headers.sh CC [flags]
# Structs that the host fills for a kernel (*_params.h) are C. Without CXX the kernels' headers are left out, as their tests are.
set -eu
cc=$1
shift
# Kernel headers use vector types: the widest set, since nothing is run.
case $(uname -m) in x86_64) isa="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni" ;; *) isa= ;; esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
for header in include/mere.h $(find src -name '*.h' | sort); do
    case $header in
    */kernels/*_params.h) ;;
    src/device/cuda/kernels/*)
        [ -n "${CXX:-}" ] || continue
        printf '#include "%s"\n' "${header##*/}" >"$tmp/h.cpp"
        "$CXX" -std=c++17 -DMERE_EMU -Itests -Isrc/device/gpu -Isrc/device/cuda/kernels -Wall -Wextra -Wno-unused-function -Wno-unused-variable -Werror \
            -fsyntax-only "$tmp/h.cpp" >"$tmp/log" 2>&1 || { echo "$header does not compile alone"; head -n 6 "$tmp/log"; bad=1; }
        continue ;;
    esac
    # *_simd.h and simd_math.h are bodies written over the vector type of the simd_<level>.h that comes first
    case $header in */*_simd.h | */simd_math.h) before='#include "device/cpu/simd_avx512.h"' ;; *) before= ;; esac
    printf '%s\n#include "%s"\nextern int header_test;\n' "$before" "$(echo "$header" | sed 's|^src/||; s|^include/||')" >"$tmp/h.c"
    "$cc" -std=c17 -D_GNU_SOURCE -DMERE_VERSION='"0"' -Isrc -Iinclude "$@" $isa -Wall -Wextra -Wpedantic -Wno-unused-function -Wno-unused-variable -Werror \
        -fsyntax-only "$tmp/h.c" >"$tmp/log" 2>&1 || { echo "$header does not compile alone"; head -n 6 "$tmp/log"; bad=1; }
done
exit $bad
