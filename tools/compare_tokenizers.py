#!/usr/bin/env python3
"""Token ids by mere and by Hugging Face's `tokenizers`, text against text.

    compare_tokenizers.py DRIVER strings -n 100000 FILE...    random Unicode strings through real tokenizer.json files
    compare_tokenizers.py DRIVER characters                   every character through every normaliser, splitter and class
    compare_tokenizers.py DRIVER parts -n 2000                tokenizer.json files of random parts, 40 random strings each
    compare_tokenizers.py DRIVER speed FILE...                MB/s on 10 MB of mixed text, one core, in turns

DRIVER is the program tokenizer_batch (ninja tokenizer_batch). Differences are printed; exit 1 when there is one.
"""
import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


# ---- both sides ----

def mere(driver, path, texts, *flags):
    """Ids of each text, and what the driver says on standard error."""
    data = b"".join(struct.pack("=I", len(t)) + t for t in (t.encode() for t in texts))
    run = subprocess.run([driver, path, *flags], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.decode(errors="replace").strip())
    out, at, ids = run.stdout, 0, []
    for _ in texts:
        n, = struct.unpack_from("=I", out, at)
        ids.append(list(struct.unpack_from(f"={n}i", out, at + 4)))
        at += 4 + 4 * n
    return ids, run.stderr.decode()


def reference(path):
    t = tokenizers.Tokenizer.from_file(path)
    t.no_padding()
    t.no_truncation()
    return t


def library(path, texts):
    return [e.ids for e in reference(path).encode_batch_fast(texts, add_special_tokens=False)]


def compare(driver, path, name, texts, shown=5):
    got, _ = mere(driver, path, texts, "--parse-special")
    want = library(path, texts)
    bad = [(t, g, w) for t, g, w in zip(texts, got, want) if g != w]
    for t, g, w in bad[:shown]:
        print(f"{name}: {t!r} {' '.join(f'{ord(c):04X}' for c in t[:12])}\n  mere       {g[:40]}\n  tokenizers {w[:40]}")
    return len(bad)


# ---- texts ----

WORDS = ("the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but not what all "
         "were we when your can said there use an each which she do how their if will up other about out many then them these so some "
         "don't I'll we've they're it's I'D HE'LL CAN'T naïve café Straße ISTANBUL İstanbul Übermensch ŽLUŤOUČKÝ kůň Привет мир Ελληνικά "
         "κόσμος שלום مرحبا नमस्ते สวัสดี 你好 世界 こんにちは カタカナ 안녕하세요 xin_chào int main(void){return 0;} #include <stdio.h> "
         "https://example.org/a?b=c&d=%20 3.14159 1234567 0x7FFF 1e-9 ½ Ⅷ ٣٤ ²³ “quoted” — … ﬁ ﷺ ① ㍿").split(" ")
EMOJI = ["\U0001F600", "\U0001F469\u200D\U0001F4BB", "\U0001F1E9\U0001F1EA", "\u2764\uFE0F", "\U0001F44D\U0001F3FD", "1\uFE0F\u20E3"]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00A0", "\u3000", "\u2003", "\u0085", "\u2028", "\u200B", "\u180E", "\uFEFF",
          "\u2581", "\x0b", "\x1c"]
# Ranges that random characters come from; the last is everything.
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1100, 0x11FF),
          (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x10000, 0x10FFF),
          (0x11000, 0x16FFF), (0x1B000, 0x1BCFF), (0x1D000, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x323AF), (0, 0x1F),
          (0, 0x10FFFF)]


def character(rng, span):
    while True:
        c = rng.randint(*span)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(rng, specials=(), most=24):
    out = []
    for _ in range(rng.randint(0, most)):
        kind = rng.random()
        if kind < 0.25:
            out.append(rng.choice(WORDS))
        elif kind < 0.45:
            out.append(rng.choice(SPACES))
        elif kind < 0.7:
            span = rng.choice(RANGES)
            out.append("".join(character(rng, span) for _ in range(rng.randint(1, 6))))
        elif kind < 0.85:
            out.append(character(rng, RANGES[-1]))
        elif kind < 0.9:
            out.append(rng.choice("'.,;:!?-_()[]{}<>/\\|@#$%^&*+=~`\"0123456789") * rng.randint(1, 5))
        elif kind < 0.94:
            out.append(rng.choice(EMOJI))
        elif kind < 0.97 and specials:
            out.append(rng.choice(specials))
        else:
            out.append(character(rng, rng.choice(RANGES)) * rng.randint(1, 40))
    return "".join(out)


def added(path):
    """Added tokens to put into texts. Not those that match whole words only: where one does not match, the library's own
    algorithm may still make it out of plain text, which mere never does."""
    with open(path, encoding="utf-8") as f:
        return [t["content"] for t in json.load(f).get("added_tokens") or [] if not t["single_word"]]


def strings(args):
    bad = 0
    for path in args.files:
        rng = random.Random(args.seed)
        specials = added(path)
        texts = [random_text(rng, specials) for _ in range(args.n)]
        size = sum(len(t.encode()) for t in texts)
        n = sum(compare(args.driver, path, os.path.basename(os.path.dirname(path)), texts[i:i + 20000]) for i in range(0, args.n, 20000))
        print(f"{path}: {n} of {args.n} strings differ ({size / 1e6:.1f} MB)", flush=True)
        bad += n
    return bad


# ---- files made here ----

def alphabet():
    """GPT-2's byte alphabet, byte 0 first."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = iter(range(0x100, 0x200))
    return [chr(b) if b in shown else chr(next(extra)) for b in range(256)]


BYTES = {"type": "BPE", "vocab": {c: i for i, c in enumerate(alphabet())}, "merges": []}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def write(path, **parts):
    parts.setdefault("normalizer", None)
    parts.setdefault("pre_tokenizer", BYTE_LEVEL)
    parts.setdefault("decoder", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
    parts.setdefault("model", BYTES)
    order = ["version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"]
    parts = {"version": "1.0", "added_tokens": [], **parts}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({k: parts.get(k) for k in order}, f)


def split(regex, behavior="Removed", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def character_files():
    bert = {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    for kind in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]:
        yield kind, {"normalizer": {"type": kind}}
    yield "Strip", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}
    for key in ["clean_text", "handle_chinese_chars", "strip_accents", "lowercase"]:
        yield "BertNormalizer." + key, {"normalizer": {**bert, key: True}}
    # Each piece gets one token, whatever it is, so that the pieces' number and order of kinds show.
    words = {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
             "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3}}
    for step in [{"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Whitespace"},
                 {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "UnicodeScripts"}]:
        yield step["type"], {"pre_tokenizer": step, "model": words, "decoder": None}
    for name in ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk",
                 "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "L", "M", "N", "P", "S", "Z", "Han", "Hiragana", "Katakana", "Hangul", "Latin", "Greek",
                 "Cyrillic", "Arabic", "Hebrew", "Thai", "Devanagari"]:
        yield f"\\p{{{name}}}", {"pre_tokenizer": sequence(split(f"\\p{{{name}}}+"), BYTE_LEVEL)}
    for regex in ["\\s+", "\\S+", "\\w+", "\\W+", "\\d+", "\\D+", "\\h+", "[[:punct:]]+", "[[:alpha:]]+", "[[:alnum:]]+", "[[:space:]]+",
                  "[[:upper:]]+", "[[:lower:]]+", "[[:digit:]]+", "[^\\s\\p{L}\\p{N}]+", "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", ".+", "(?i:k)", "(?i:s)"]:
        yield regex, {"pre_tokenizer": sequence(split(regex), BYTE_LEVEL)}


def characters(args):
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for name, parts in character_files():
            if args.only and args.only not in name:
                continue
            write(path, **parts)
            alone = [f"a{chr(c)}b" for c in CHARACTERS]
            if "model" not in parts and "normalizer" not in parts:
                alone = ["".join(map(chr, CHARACTERS[i:i + 64])) for i in range(0, len(CHARACTERS), 64)]
            try:
                n = compare(args.driver, path, name, alone, args.shown)
            except RuntimeError as e:
                print(f"{name}: {e}")
                continue
            print(f"{name}: {n} differ", flush=True)
            bad += n
    return bad


# ---- random files ----

LETTERS = list("abcdefgh ABé́중文1２٣'.,!-\n_")


def trained(rng, kind, symbols, byte_level):
    """A small model over these symbols: tokens are joined at random."""
    mark = "\u2581"
    symbols = sorted(set(symbols) | (set() if byte_level else {mark}))
    if kind == "WordPiece":
        vocab = ["[UNK]"] + [c for c in symbols if c != " "]
        vocab += sorted({"##" + c for c in symbols if rng.random() < 0.8} |
                        {"".join(rng.choices(symbols, k=rng.randint(2, 4))) for _ in range(40)} |
                        {"##" + "".join(rng.choices(symbols, k=rng.randint(2, 3))) for _ in range(40)})
        vocab = [t for t in vocab if " " not in t and "\n" not in t]
        return {"type": kind, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": rng.choice([3, 10, 100]), "vocab": {t: i for i, t in enumerate(dict.fromkeys(vocab))}}
    if kind == "Unigram":
        tokens = ["<unk>", *(c for c in symbols if c == mark or rng.random() < 0.9)]
        tokens += {"".join(rng.choices(symbols, k=rng.randint(2, 4))) for _ in range(80)}
        tokens = list(dict.fromkeys(t for t in tokens if " " not in t))
        fallback = rng.random() < 0.3
        tokens += [f"<0x{b:02X}>" for b in range(256)] if fallback else []
        return {"type": kind, "unk_id": 0, "byte_fallback": fallback, "vocab": [[t, -rng.uniform(1, 12)] for t in tokens]}
    end = rng.choice([None, None, "</w>"])
    tokens = ["<unk>", *(c for c in symbols if c != " " and rng.random() < 0.95)]
    if end:
        tokens += [c + end for c in symbols if c != " " and rng.random() < 0.95]
    merges = []
    for _ in range(rng.randint(0, 200)):
        left, right = rng.choice(tokens[1:] or [""]), rng.choice(tokens[1:] or [""])
        if not left or end and left.endswith(end) or len(left + right) > 12 or left + right in tokens:
            continue
        tokens.append(left + right)
        merges.append(f"{left} {right}" if rng.random() < 2 else [left, right])
    fallback = not end and not byte_level and rng.random() < 0.3
    tokens += [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    return {"type": "BPE", "dropout": None, "unk_token": rng.choice([None, "<unk>"]), "continuing_subword_prefix": None, "end_of_word_suffix": end,
            "fuse_unk": rng.random() < 0.5, "byte_fallback": fallback, "ignore_merges": not end and rng.random() < 0.2,
            "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}


def normalizer(rng):
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    steps = [{"type": k} for k in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]]
    steps += [{"type": "Strip", "strip_left": True, "strip_right": rng.random() < 0.5}, {"type": "Prepend", "prepend": "\u2581"}, mark,
              {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "ba"},
              {"type": "BertNormalizer", "clean_text": rng.random() < 0.5, "handle_chinese_chars": rng.random() < 0.5,
               "strip_accents": rng.choice([None, True, False]), "lowercase": rng.random() < 0.5}]
    chosen = rng.sample(steps, rng.choice([0, 0, 1, 1, 2, 3]))
    return {"type": "Sequence", "normalizers": chosen} if len(chosen) != 1 else chosen[0]


def pre_tokenizer(rng, byte_level):
    behavior = rng.choice(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    steps = [{"type": "Digits", "individual_digits": rng.random() < 0.5}, {"type": "Punctuation", "behavior": behavior}, {"type": "Whitespace"},
             {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "CharDelimiterSplit", "delimiter": "a"},
             {"type": "FixedLength", "length": rng.randint(1, 4)}]
    steps += [{"type": "Split", "pattern": p, "behavior": behavior, "invert": rng.random() < 0.3}
              for p in ({"Regex": "\\w+|\\s"}, {"Regex": "[a-c]+"}, {"String": "a"}, {"Regex": "\\p{L}+\\s?"})]
    if not byte_level:
        steps.append({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": rng.choice(["always", "first", "never"]),
                      "split": rng.random() < 0.7})
    chosen = rng.sample(steps, rng.choice([0, 1, 1, 2, 3]))
    if byte_level:
        chosen.append({"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": rng.random() < 0.5})
    return sequence(*chosen) if len(chosen) != 1 else chosen[0]


def random_file(rng, path):
    kind = rng.choice(["BPE", "BPE", "BPE", "Unigram", "WordPiece"])
    byte_level = kind == "BPE" and rng.random() < 0.5
    letters = alphabet() if byte_level else LETTERS
    if byte_level:
        letters = [letters[b] for b in "".join(LETTERS).encode()]
    tokens = [{"content": c, "single_word": rng.random() < 0.3, "lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3,
               "normalized": rng.random() < 0.5, "special": False} for c in rng.sample(["<t>", "ABC", "xyz", "é!"], rng.randint(0, 3))]
    model = trained(rng, kind, letters, byte_level)
    known = [v[0] for v in model["vocab"]] if kind == "Unigram" else model["vocab"]
    tokens = [t for t in tokens if t["content"] not in known]
    for i, t in enumerate(tokens):
        t["id"] = len(model["vocab"]) + i
    write(path, normalizer=normalizer(rng), pre_tokenizer=pre_tokenizer(rng, byte_level), model=model, added_tokens=tokens,
          decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True} if byte_level else None)
    return tokens


def parts(args):
    bad = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for i in range(args.n):
            rng = random.Random(args.seed * 1000000 + i)
            specials = [t["content"] for t in random_file(rng, path)]
            texts = ["".join(rng.choices(LETTERS + [" ", "  ", *specials], k=rng.randint(0, 30))) for _ in range(30)]
            texts += [random_text(rng, specials, 8) for _ in range(10)]
            try:
                n = compare(args.driver, path, f"file {i}", texts, 1)
            except RuntimeError as e:
                refused += 1
                if "not supported" not in str(e):
                    print(f"file {i}: {e}")
                continue
            bad += n > 0
            if n and args.keep:
                os.replace(path, os.path.join(args.keep, f"{i}.json"))
    print(f"{bad} of {args.n} files differ, {refused} refused")
    return bad


# ---- speed ----

def mixed(rng, size):
    """Prose, code and several scripts: what is here, in texts of 8 KB."""
    out, total = [], 0
    folder = os.path.join(HERE, "..")
    sources = []
    for name in ["README.md", "docs/architecture.md", "src/text/tokenizer.c", "src/engine/api.c", "tests/data/tokenizers/strings.json"]:
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            sources.append(json.dumps(json.load(f), ensure_ascii=False) if name.endswith(".json") else f.read())
    while total < size:
        source = rng.choice(sources)
        at = rng.randrange(max(1, len(source) - 4000))
        text = source[at:at + 6000] + " ".join(rng.choice(WORDS) for _ in range(300))
        out.append(text)
        total += len(text.encode())
    return out


def speed(args):
    """Ratio of CPU times, in turns; mere's own loop and the library's, each on one thread."""
    for path in args.files:
        rng = random.Random(args.seed)
        texts = mixed(rng, args.size * 1000000)
        size = sum(len(t.encode()) for t in texts) / 1e6
        other = reference(path)
        ratios, ours, theirs = [], [], []
        for _ in range(args.n):
            got, said = mere(args.driver, path, texts, "--parse-special")
            ours.append(float(said.rsplit("in ", 1)[1].split(" ms")[0]) / 1e3)
            start = time.process_time()
            want = [other.encode(t, add_special_tokens=False).ids for t in texts]
            theirs.append(time.process_time() - start)
            ratios.append(theirs[-1] / ours[-1])
            if got != want:
                print(f"{path}: the ids differ")
                return 1
        print(f"{path}: {size:.1f} MB, {args.n} turns: mere {size / statistics.median(ours):.1f} MB/s, tokenizers "
              f"{size / statistics.median(theirs):.2f} MB/s, ratio {statistics.median(ratios):.1f} (lowest {min(ratios):.1f})", flush=True)
    return 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("driver")
    p.add_argument("mode", choices=["strings", "characters", "parts", "speed"])
    p.add_argument("files", nargs="*")
    p.add_argument("-n", type=int, default=0, help="strings (100000), files (2000) or turns (5)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--size", type=int, default=10, help="MB of text for speed")
    p.add_argument("--only", help="characters: only the parts with this in their name")
    p.add_argument("--shown", type=int, default=5, help="differences to print of each")
    p.add_argument("--keep", help="parts: folder for the files that differ")
    args = p.parse_intermixed_args()
    args.n = args.n or {"strings": 100000, "parts": 2000, "speed": 5}.get(args.mode, 0)
    sys.exit(1 if {"strings": strings, "characters": characters, "parts": parts, "speed": speed}[args.mode](args) else 0)


if __name__ == "__main__":
    main()
