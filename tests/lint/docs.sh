#!/bin/sh
# What the documents name exists: functions and types in code type, files, and links between documents.
set -eu
bad=0
names=$(mktemp)
trap 'rm -f "$names"' EXIT
# Every identifier of the sources, once.
find . -path ./build -prune -o '(' -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.comp' ')' -print | xargs cat | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u >"$names"
for doc in *.md docs/*.md; do
    # `sched_step`, `CpuKernels`, `src/x/y.c`: snake_case with an underscore or a known extension
    for word in $(sed '/^```/,/^```/d' "$doc" | grep -oE '`[A-Za-z0-9_./-]+`' | tr -d '`' | sort -u); do
        case $word in
        */* | *.c | *.h | *.def | *.sh | *.txt)
            case $word in
            src/* | include/* | tests/* | docs/* | scripts/* | tools/* | bench/* | cmake/* | examples/*)
                [ -e "${word%/}" ] || { echo "$doc: $word does not exist"; bad=1; } ;;
            device/*.h | model/*.h | graph/*.h | base/*.h) [ -e "src/$word" ] || { echo "$doc: src/$word does not exist"; bad=1; } ;;
            .*) ;;
            *.c | *.h | *.def) [ -n "$(find src include cmake tests -name "${word##*/}" | head -n 1)" ] || { echo "$doc: no file $word"; bad=1; } ;;
            esac ;;
        *[!a-z0-9_]* | _* | getopt_long | *_proxy) ;; # of the C library, of the environment
        ?*_?*) grep -qxF "$word" "$names" || { echo "$doc: no $word in the sources"; bad=1; } ;;
        esac
    done
    for link in $(grep -oE '\]\([^)#:]+\)' "$doc" | sed 's/^](//; s/)$//'); do
        [ -e "$(dirname "$doc")/$link" ] || { echo "$doc: link to $link leads nowhere"; bad=1; }
    done
done
# Documents that the sources send their reader to.
for doc in $(grep -rhoE '\b[a-zA-Z_-]+\.md\b' src include tests --include='*.[ch]' --include='*.def' --include='CMakeLists.txt' | sort -u); do
    [ -e "$doc" ] || [ -e "docs/$doc" ] || {
        echo "no document $doc, named in:" $(grep -rlw "$doc" src include tests --include='*.[ch]' --include='*.def'); bad=1; }
done
exit $bad
