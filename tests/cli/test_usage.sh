# Help, and every way to use the command line wrongly.
. "$(dirname "$0")/check.sh"

expect 0
has "$tmp/out" "usage: mere COMMAND"
has "$tmp/out" "mere run SmolLM2"
cp "$tmp/out" "$tmp/overview"
for how in help --help -h; do
    expect 0 $how
    cmp -s "$tmp/out" "$tmp/overview" || fail "mere $how differs from mere"
done
for command in $(sed -n 's/^  \([a-z]*\) .*/\1/p' "$tmp/overview" | grep -v '^mere$'); do
    expect 0 "$command" --help
    [ -s "$tmp/err" ] && fail "$command --help writes to stderr"
    [ "$command" = help ] || has "$tmp/out" "usage: mere $command"
    cp "$tmp/out" "$tmp/help"
    expect 0 help "$command"
    cmp -s "$tmp/out" "$tmp/help" || fail "mere help $command differs from mere $command --help"
done
expect 0 --version
has "$tmp/out" "mere "
expect 0 run --wonders --help

refuse 2 'unknown command "rum" (did you mean run?)' rum
refuse 2 'unknown command "wonders"' wonders
refuse 2 'unknown command "hlep"' help hlep
refuse 2 'comes before a command' --json run
refuse 2 'wants a MODEL' run
refuse 2 'wants a MODEL' plan --json
refuse 2 'did you mean --temp?' run fake -p a --tmep 1
refuse 2 'did you mean --prompt?' run fake --pro a
refuse 2 'unknown option -x' run fake -p a -x
refuse 2 '--n: "n" is no integer' run fake -p a -nn
refuse 2 'unknown option -vq' run fake -p a -vq
refuse 2 'mere plan has no option --prompt' plan fake --prompt a
refuse 2 '--prompt wants TEXT' run fake --prompt
refuse 2 '--raw takes no value' run fake -p a --raw=1
refuse 2 'unexpected argument "b"' run fake b
refuse 2 'unexpected argument "b"' version b
refuse 2 '--n: "0" is no integer from 1' run fake -p a -n 0
refuse 2 '--n: "4x" is no integer' run fake -p a -n 4x
refuse 2 '--n: "" is no integer' run fake -p a --n=
refuse 2 '--top-p: "1.5" is no number from 0 to 1' run fake -p a --top-p 1.5
refuse 2 '--temp: "nan" is no number' run fake -p a --temp nan
refuse 2 '--kv: "f15" is none of f16|f32|q8|q4 (did you mean f16?)' run fake -p a --kv f15
refuse 2 '--numerics: "quick" is none of fast|exact' run fake -p a --numerics quick
refuse 2 '--device: "gpu" is no device' run fake -p a --device gpu
refuse 2 'logit-bias: "5" is no ID:VALUE' run fake -p a --logit-bias 5
refuse 2 'logit-bias: "x:1" is no ID:VALUE' run fake -p a --logit-bias x:1
refuse 2 '--logprobs: only with --json' run fake -p a --logprobs 2
refuse 2 '--prompt and --file exclude each other' run fake -p a -f b
refuse 2 '--system: there is no system message with --raw' run fake -p a --raw --system b -q
refuse 2 'mere logits wants --ids' logits fake
refuse 2 'nothing to measure' bench fake --pp 0 --tg 0

refuse 5 'there is no such device here; there are: cpu' run fake -p a --device cuda:0
refuse 5 'there is no such device' plan fake --device=vulkan:1
refuse 5 '--kv q8 is not supported yet by any device' run fake -p a --kv q8
MERE_DEVICE=cuda:0 refuse 5 'there is no such device here' run fake -p a
MERE_DEVICE=wonders refuse 2 'MERE_DEVICE: "wonders" is no device' run fake -p a
MERE_DEVICE=wonders expect 0 run fake -p a --device cpu

# many values of a list option
set --
for i in 1 2 3 4 5 6 7 8; do set -- "$@" --stop a --stop b --stop c --stop d --stop e --stop f --stop g --stop h; done
expect 0 run fake -p a "$@"
refuse 2 '--stop: given more than 64 times' run fake -p a "$@" --stop i
finish
