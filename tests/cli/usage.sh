# Help, unknown names, bad values: exit code 2, the nearest name, nothing on stdout.
. "$SOURCE/tests/cli/lib.sh"

mere 0
says 'usage: mere COMMAND'
says 'mere run .* -p "' # an example
cp "$out" "$tmp/alone"
for how in help --help -h; do
    mere 0 "$how"
    cmp -s "$out" "$tmp/alone" || fail "mere $how differs from mere alone"
done
commands=$(sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' "$tmp/alone" | grep -vx mere)
for command in run logits info plan bench devices families version serve help pull list show rm chat tokenize perplexity; do
    printf '%s\n' "$commands" | grep -qx "$command" || fail "mere alone does not list $command"
done
for command in $commands; do
    mere 0 "$command" --help
    [ "$command" = help ] || says "^usage: mere $command"
    [ ! -s "$err" ] || fail "mere $command --help writes to stderr"
    cp "$out" "$tmp/help"
    mere 0 help "$command"
    cmp -s "$out" "$tmp/help" || fail "mere help $command differs from mere $command --help"
    widest=$(awk '{ n = length($0); if (n > most) most = n } END { print most }' "$tmp/help")
    [ "$widest" -le 132 ] || fail "mere $command --help has a line of $widest characters"
done
mere 0 run --help
for option in model prompt file ctx kv device threads cpu-level numerics deterministic temp top-k top-p min-p seed stop system \
    raw ignore-eos json repeat-penalty presence-penalty frequency-penalty logit-bias logprobs verbose quiet color; do
    says "--$option( |\$)"
done
mere 0 chat --help
for option in model ctx system think n temp top-k top-p min-p seed color; do says "--$option( |\$)"; done
mere 0 tokenize --help
for option in prompt file ids count special bos decode json; do says "--$option( |\$)"; done
mere 0 perplexity --help
for option in file ctx stride chunks json numerics; do says "--$option( |\$)"; done
mere 0 serve --help
for option in host port api-key cors slots; do says "--$option "; done
mere 0 bench --help
for option in pp tg depth reps rows; do says "--$option "; done

refuses 2 'unknown command "rum".*run' rum
refuses 2 'unknown command "zzzzzz"' zzzzzz
refuses 2 'unknown option --tepm.*--temp' run m --tepm 1
refuses 2 'unknown option --zzzzzz' run m --zzzzzz
refuses 2 'unknown option -Z' run m -Z
refuses 2 'has no option --port' run m --port 1
refuses 2 'wants a MODEL' run
refuses 2 'wants a MODEL' plan --json
refuses 2 'unexpected argument "hello"' run m hello
refuses 2 '--temp wants' run m --temp
refuses 2 '--raw takes no value' run m --raw=1
refuses 2 '--temp: "warm"' run m --temp warm
refuses 2 '--temp: "nan"' run m --temp nan
refuses 2 '--top-p: "2"' run m --top-p 2
refuses 2 '--threads: "0"' run m --threads 0
refuses 2 '--n: "1.5"|-n: "1.5"' run m -n 1.5
refuses 2 '--seed: "99999999999999999999"' run m --seed 99999999999999999999
refuses 2 '--kv: "f61".*f16' run m --kv f61
refuses 2 '--numerics: "exat".*exact' run m --numerics=exat
refuses 2 '--cpu-level: "avx3".*avx2' run m --cpu-level avx3
refuses 2 '--logit-bias: "5"' run m -p x --logit-bias 5
refuses 2 '--logprobs.*--json' run m -p x --logprobs 2
refuses 2 'exclude each other' run m -p x -f y
refuses 2 '--device: "gpu"' run m -p x --device gpu
refuses 2 '--port: "70000"' serve m --port 70000
refuses 2 '--ids' logits m
refuses 2 '--ids: "x"' logits m --ids 1,x,3 --out "$tmp/o"
refuses 2 '--ids: ""' logits m --ids 1,,3 --out "$tmp/o"
refuses 2 'nothing to measure' bench m --pp 0 --tg 0

# A device that is not there is no mistake in the command line.
refuses 5 'cuda:99.*cpu' run m -p x --device cuda:99
refuses 5 'vulkan:99.*cpu' plan m --device vulkan:99
refuses 5 'q8.*not supported yet' run m -p x --kv q8
refuses 5 'q4.*not supported yet' serve m --kv q4
MERE_DEVICE=gpu refuses 2 'MERE_DEVICE: "gpu"' plan m
MERE_DEVICE=cuda:99 refuses 5 'cuda:99' plan m
refuses 2 '--device: "cuda:x"' run m -p x --device cuda:x
refuses 2 '--device: "auto:1"' run m -p x --device auto:1
MERE_HOST='a b:c' refuses 2 'MERE_HOST' serve m

# Colour only where it is asked for; control characters of an argument are made visible.
mere 2 run m --bad
[ "$(tr -cd '\033' <"$err" | wc -c)" -eq 0 ] || fail "stderr that is no terminal has colour"
mere 3 plan "$tmp/none" --color always
[ "$(tr -cd '\033' <"$err" | wc -c)" -gt 0 ] || fail "--color always gives no colour"
mere 2 run m "$(printf -- '--\033[31m')"
[ "$(tr -cd '\033' <"$err" | wc -c)" -eq 0 ] || fail "an argument's escape sequence reached stderr"
exit $bad
