# From a preprocessed kernel file, the C++ file that the emulator compiles: the source in a namespace of its own and
# a function that tells the emulator its kernels. -v file=NAME -v path=SOURCE
{ text = text " " $0 }
END {
    print "#include \"gpu_compat.h\"\n#include \"gpu_words.h\"\nnamespace emu_" file "\n{\n#include \"" path "\"\n}"
    print "extern \"C\" void emu_kernels_" file "()\n{"
    gsub(/[ \t]+/, " ", text)
    while (match(text, /static EmuKernel *<[^;{}]*> *[A-Za-z_0-9]+ ?\([^*]/)) {
        head = substr(text, RSTART, RLENGTH - 2)
        text = substr(text, RSTART + RLENGTH)
        name = head
        sub(/ $/, "", name)
        sub(/.*[> ]/, "", name)
        bounds = head
        sub(/^static EmuKernel *< */, "", bounds)
        sub(/ *> *[A-Za-z_0-9]+ ?$/, "", bounds)
        print "    { using namespace emu_" file "; emu_register_kernel(\"" name "\", emu_first<" bounds ">, emu_" file "::" name "); }"
    }
    print "}"
}
