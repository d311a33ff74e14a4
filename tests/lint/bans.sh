#!/bin/sh
# Functions that may not be called: unbounded or stateful ones anywhere, raw allocation outside base/, printing outside cli/.
set -eu
here=$(dirname "$0")
find include src bench examples tests -name '*.[ch]' 2>/dev/null | sort | xargs awk -f "$here/strip.awk" | awk '
function ban(words, why,    n, i, w) {
    n = split(words, w, " ")
    for (i = 1; i <= n; i++)
        if (match(code, "(^|[^A-Za-z0-9_.>])" w[i] "[ \t]*\\(")) { printf "%s:%s: %s: %s\n", file, line, w[i], why; bad++ }
}
{
    file = $0; sub(/:.*/, "", file)
    rest = substr($0, length(file) + 2); line = rest; sub(/:.*/, "", line)
    code = substr(rest, length(line) + 2)
    ban("strcpy strcat stpcpy sprintf vsprintf gets alloca", "has no bound; use snprintf or StrBuf")
    ban("strtok atoi atol atof", "keeps hidden state or cannot report an error; use str_to_int and friends")
    if (file !~ /^src\//) next
    if (file !~ /^src\/base\//) ban("malloc calloc realloc free strdup strndup asprintf vasprintf aligned_alloc posix_memalign", "allocate from an Arena or with mem_alloc")
    if (file !~ /^src\/cli\//) ban("printf fprintf vprintf vfprintf puts fputs putchar perror", "the library never prints; return an Error or use log_msg")
    if (file !~ /^src\/cli\//) ban("exit _exit abort", "the library never ends the process")
}
END { exit bad > 0 }'
