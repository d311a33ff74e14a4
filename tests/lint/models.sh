#!/bin/sh
# Every line of models.def has its file in families/ and every file there its line; every family is golden-tested.
set -eu
def=src/model/models.def
[ -f "$def" ] || exit 0
lines=$(sed -n 's/^MODEL(\([a-z0-9_]*\)).*/\1/p' "$def" | sort)
files=$(find src/model/families -name '*.c' 2>/dev/null | sed 's|.*/||; s|\.c$||' | sort)
[ "$lines" = "$files" ] || {
    echo "models.def and families/ differ:"
    for name in $lines; do printf '%s\n' "$files" | grep -qxF "$name" || echo "  $name: a line, no file"; done
    for name in $files; do printf '%s\n' "$lines" | grep -qxF "$name" || echo "  $name: a file, no line"; done
    exit 1
}
