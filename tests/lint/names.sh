#!/bin/sh
# File names are unique below src/ (a header and its .c share theirs), and tests are named after them; types do not end in _t.
set -eu
bad=0
twice=$(find src -name '*.[ch]' -o -name '*.def' | sed 's|.*/||' | sort | uniq -d)
[ -z "$twice" ] || { echo "file names that occur twice below src/:" $twice; bad=1; }
twice=$(find tests -name 'test_*.c' | sed 's|.*/||' | sort | uniq -d)
[ -z "$twice" ] || { echo "test names that occur twice:" $twice; bad=1; }
grep -nE '^\} *[A-Za-z_]+_t;|^typedef .*[ *][A-Za-z_]+_t;' -r src include && { echo "names that end in _t belong to the C library"; bad=1; }
exit $bad
