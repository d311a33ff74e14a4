#!/bin/sh
# clang-format over the C files, or with --check: exit 1 and name those that would change.
set -eu
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format) || { echo "clang-format is not installed" >&2; exit 2; }
find include src tests bench examples tools -name '*.[ch]' 2>/dev/null | sort |
    if [ "${1:-}" != --check ]; then
        xargs "$tool" -i
    elif ! report=$(xargs "$tool" --dry-run -Werror 2>&1); then
        echo "not as clang-format would have it (make format):"
        printf '%s\n' "$report" | sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error.*/  \1/p' | sort -u
        exit 1
    fi
