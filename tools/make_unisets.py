#!/usr/bin/env python3
"""Writes src/text/unisets_tables.c: what the installed `tokenizers` takes each character for. Its parts have Unicode data of
different years, so each set is asked of the part that uses it.

    make_unisets.py > src/text/unisets_tables.c       needs tokenizers, regex and unicodedata2, and a Python with Unicode 14
"""
import bisect
import sys
import unicodedata

import regex
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, ALL))
CATEGORIES = "Cc Cf Co Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
SCRIPTS = {n: regex.compile(r"\p{Script=%s}" % n) for n in
           "Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic Hebrew Thai Devanagari Bopomofo".split()}


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def pieces(step, n):
    return {c for c in ALL if len(step.pre_tokenize_str(f"a{chr(c)}b")) == n}


def dropped(step):
    return {c for c in ALL if step.normalize_str(chr(c)) == ""}


def inert():
    """Characters that some Unicode moves or takes apart, and the library does not."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    out = set()
    for c in ALL:
        probe = f"a\u0315{chr(c)}\u0334"
        for data in (unicodedata, unicodedata2):
            moved = data.normalize("NFD", probe) != probe and nfd.normalize_str(probe) == probe
            apart = data.normalize("NFKD", chr(c)) != chr(c) and nfkd.normalize_str(chr(c)) == chr(c)
            if moved or apart:
                out.add(c)
    return out


def regex_categories():
    out = {}
    for name in CATEGORIES:
        keep = bytearray(len(ALL))
        for _, (a, b) in pre_tokenizers.Split(Regex(r"\p{%s}+" % name), "removed").pre_tokenize_str(TEXT):
            keep[a:b] = b"\1" * (b - a)
        out.update((c, name) for c, k in zip(ALL, keep) if not k)
    return out


def script(c):
    return next((n for n, e in SCRIPTS.items() if e.match(chr(c))), "")


def alike():
    """first, last, older: the last is of the same category, script and length in UTF-8."""
    new = regex_categories()
    older = {}
    for c in ALL:
        name = unicodedata.category(chr(c))
        if name != "Cn" and name == new.get(c):
            older.setdefault((name, len(chr(c).encode()), script(c)), []).append(c)
    out, last = [], None
    for c in ALL:
        name = new.get(c, "Cn")
        if name == unicodedata.category(chr(c)) or name == "Cn":
            continue
        key = name, len(chr(c).encode()), script(c)
        near = older.get(key) or older[key[:2] + ("",)]
        if out and out[-1][1] == c - 1 and key == last:
            out[-1][1] = c
        else:
            out.append([c, c, near[max(bisect.bisect(near, c) - 1, 0)]])
        last = key
    return out


def lower():
    step = normalizers.Lowercase()
    out = []
    for c in ALL:
        to = step.normalize_str(chr(c))
        if len(to) > 1 or to == unicodedata.normalize("NFC", chr(c)).lower() or to == chr(c).lower():
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] + c - out[-1][0] == ord(to):
            out[-1][1] = c
        else:
            out.append([c, c, ord(to)])
    return out


def table(kind, name, rows):
    print(f"\nstatic const {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        first, last, *to = (f"0x{v:X}" for v in row)
        cell = f" {{{{{first}, {last}}}, {to[0]}}}," if to else f" {{{first}, {last}}},"
        if len(line) + len(cell) > 100:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};")


def main():
    print("/* Written by tools/make_unisets.py. */\n#include \"text/unisets.h\"\n\n/* clang-format off */")
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    sets = [("punctuation", pieces(pre_tokenizers.Punctuation("isolated"), 3)),
            ("numeric", pieces(pre_tokenizers.Digits(True), 3)),
            ("mark", dropped(normalizers.StripAccents())),
            ("accent", dropped(accents)),
            ("control", dropped(bert) - {0, 0xFFFD}),
            ("inert", inert())]
    for name, chars in sets:
        table("UniRange", name, ranges(chars))
    table("UniMapped", "alike", alike())
    table("UniMapped", "lower", lower())
    print("\nconst UniTable unisets_tables[UNISETS_N] = {")
    for name, _ in sets:
        print(f"    [UNISETS_{name.upper()}] = {{{name}, COUNT_OF({name})}},")
    print("};")
    for name in ["alike", "lower"]:
        print(f"const UniMap unisets_map_{name} = {{{name}, COUNT_OF({name})}};")
    print("/* clang-format on */")


if unicodedata.unidata_version != "14.0.0":
    sys.exit("needs a Python whose unicodedata is that of Unicode 14")
main()
