# Prints C source as FILE:LINE:code with comments and the contents of string and character literals removed.
FNR == 1 { in_comment = 0 }
{
    line = $0; out = ""
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1); two = substr(line, i, 2)
        if (in_comment) { if (two == "*/") { in_comment = 0; i++ } continue }
        if (two == "/*") { in_comment = 1; i++; out = out " "; continue }
        if (two == "//") break
        if (c == "\"" || c == "'") {
            out = out c
            for (i++; i <= length(line); i++) {
                d = substr(line, i, 1)
                if (d == "\\") { i++; continue }
                if (d == c) break
            }
            out = out c
            continue
        }
        out = out c
    }
    print FILENAME ":" FNR ":" out
}
