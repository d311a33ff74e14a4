#!/bin/sh
# Of every text file: no notes to self, no paths of one machine, no trailing blanks; code files stay under 1,500 lines.
set -eu
bad=0
files=$(find . \( -name build -o -type d -name '.?*' ! -name .ci -o -path ./tests/data -o -path ./tests/fuzz/seeds -o -path ./tests/lint/text.sh \) -prune -o -type f -print | sort)
say() { [ -z "$2" ] || { echo "$1:"; printf '%s\n' "$2"; bad=1; }; }
say "notes to self" "$(printf '%s\n' "$files" | xargs grep -nIE '\b(TODO|FIXME|XXX|HACK)\b' || true)"
say "paths of one machine" "$(printf '%s\n' "$files" | xargs grep -nIE '(^|[^A-Za-z0-9_.~/-])/(work|home|root|Users|mnt)/' || true)"
code=$(printf '%s\n' "$files" | grep -E '\.(c|h|def|sh|py|cmake|awk)$')
say "trailing blanks" "$(printf '%s\n' "$code" | xargs grep -nIE '[[:blank:]]+$' || true)"
say "files over 1,500 lines (tables belong in *_tables.c): which second noun hides in them?" \
    "$(printf '%s\n' "$code" | grep -v '_tables\.c$' | xargs wc -l | awk '$2 != "total" && $1 > 1500')"
exit $bad
