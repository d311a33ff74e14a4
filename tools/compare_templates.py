#!/usr/bin/env python3
"""Chat templates rendered by mere and by Jinja2 in the setting of Hugging Face, text against text, refusal against refusal.

    compare_templates.py DRIVER golden --templates DIR --golden DIR      the recorded renderings
    compare_templates.py DRIVER conversations --templates DIR -n 20000   generated conversations, with minijinja as a witness
    compare_templates.py DRIVER programs -n 200000                       generated templates over the variables of a data file
    compare_templates.py DRIVER characters                               every assigned character: case, classes, digits, repr
    compare_templates.py FILE record                                     appends what Jinja2 gives for FILE (a JSON string a line) to the data file

DRIVER is the program template_batch (ninja template_batch). Every difference is printed, and written with --out; exit 1 when
there is one. Needs jinja2; conversations take minijinja too where it is there.
"""
import argparse
import collections
import contextlib
import datetime
import glob
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import unicodedata
import warnings

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import minijinja
except ImportError:
    minijinja = None

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "tests", "data", "text", "templates.json")
NOW = datetime.datetime(2026, 3, 14, 15, 9, 26)
TIMES = {"bos_token": "<s>", "eos_token": "</s>"}


# ---- the reference ----

class Generation(jinja2.ext.Extension):
    """{% generation %}: a call block, as transformers has it, so that variables of its body stay inside."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime)
    return env


def mini_environment():
    env = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
    env.add_filter("tojson", tojson)
    env.add_function("raise_exception", raise_exception)
    env.add_function("strftime_now", NOW.strftime)
    return env


class Plain(jinja2.compiler.CodeGenerator):
    """Leaves every expression to the render. What Jinja2 computes at load goes another way now and then: 5[1:] is an error at
    the render and undefined at load."""

    def _output_child_to_const(self, node, frame, finalize):
        if not isinstance(node, jinja2.nodes.TemplateData):
            raise jinja2.nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


def plain_environment():
    env = environment()
    env.optimized = False
    env.code_generator_class = Plain
    return env


class Slow(BaseException):
    pass


def out_of_time(_signal, _frame):
    raise Slow()


@contextlib.contextmanager
def at_most(seconds):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def refer(make):
    """("text", t), ("raise", message) or ("error", what)."""
    try:
        with at_most(3):
            text = make()
        text.encode()
        return "text", text
    except Slow:
        return "slow", ""
    except Raised as e:
        return "raise", str(e)
    except Exception as e:  # whatever the reference refuses with
        return "error", f"{type(e).__name__}: {e}"


# ---- mere ----

class Driver:
    """Batches of questions: the driver runs once for each, after the lines of `first`."""

    def __init__(self, path):
        self.path = path
        self.first = []

    def answers(self, questions):
        lines = "".join(json.dumps(x) + "\n" for x in self.first + questions)
        p = subprocess.run([self.path], input=lines.encode(), stdout=subprocess.PIPE, check=False)
        got = [json.loads(x) for x in p.stdout.splitlines()]
        silent = sum(set(x) == {"vars"} for x in self.first)
        if p.returncode or len(got) != len(self.first) + len(questions) - silent:
            at = len(got) - len(self.first) + silent
            sys.exit(f"the driver ended with {p.returncode} at {json.dumps(questions[at])[:2000] if 0 <= at < len(questions) else at}")
        return [x and next(iter(x.items())) for x in got]


def batches(n, size):
    return (range(i, min(i + size, n)) for i in range(0, n, size))


def same(want, got):
    kind, text = want
    if kind == "text":
        return got == ("text", text)
    if kind == "raise":  # a message is cut at 180 bytes
        said = got[1].split(": ", 2)[-1]
        return got[0] == "error" and (text.startswith(said) or len(text.encode()) > 120)
    return got[0] == "error"


# ---- conversations ----

WORDS = ("the weather in Zürich is 21 °C and <b>sunny</b> {{ x }} {% y %} {# z #} \"quoted\" 'single' back\\slash tab\tend 中文 😀 e\u0301 ﬁ İ ß "
         "<think> </think> <|im_start|> <|im_end|> [INST] [/INST] <tool_call> </tool_call> &amp; null true 0.1 -7 1e5 , . ! \u00a0 \u2028 "
         "<|start_header_id|> <s> </s> ### $x$ `code` a_b a-b A.B (p) [q] {r} %s %d # //").split(" ")


class Talk:
    """One conversation from a seeded generator."""

    def __init__(self, r):
        self.r = r

    def text(self):
        r = self.r
        k = r.random()
        if k < 0.07:
            return ""
        if k < 0.11:
            return r.choice([" ", "\n", "  \n\t", "\n\n"])
        if k < 0.14:
            return " ".join(r.choice(WORDS) for _ in range(r.randint(200, 800)))
        s = "".join(r.choice(WORDS) + r.choice([" ", " ", " ", "\n", "", "  "]) for _ in range(r.randint(1, 9)))
        return r.choice(["", "", "", "\n", " "]) + s if r.random() < 0.2 else s.strip()

    def value(self, depth=0):
        r = self.r
        k = r.randrange(11 if depth < 3 else 7)
        if k == 0:
            return None
        if k == 1:
            return r.random() < 0.5
        if k == 2:
            return r.choice([0, 1, -1, 7, 42, 10**6, -10**12, 2**53])
        if k == 3:
            return r.choice([0.0, -0.5, 0.1, 1e-7, 1e16, 123456.789, 3.0, 1e22, 2.5e-5])
        if k < 7:
            return self.text()
        if k < 9:
            return [self.value(depth + 1) for _ in range(r.randrange(4))]
        return self.dict(depth + 1)

    def name(self):
        return self.r.choice(["city", "unit", "days", "a", "b", "x_y", "items", "keys", "type", "name", "Größe", "with space", "query",
                              "description", "values", "content"])

    def dict(self, depth=0):
        return {self.name(): self.value(depth) for _ in range(self.r.randrange(4))}

    def schema(self, depth=0):
        r = self.r
        kind = r.choice(["string", "string", "number", "integer", "boolean", "array", "object", "null"] if depth < 2 else ["string", "integer"])
        s = {"type": [kind, "null"] if r.random() < 0.08 else kind}
        if r.random() < 0.7:
            s["description"] = self.text()[:200]
        if kind == "string" and r.random() < 0.3:
            s["enum"] = [self.name() for _ in range(r.randint(1, 3))]
        if r.random() < 0.15:
            s["default"] = self.value(2)
        if kind == "array":
            s["items"] = self.schema(depth + 1)
        if kind == "object":
            s["properties"] = {self.name(): self.schema(depth + 1) for _ in range(r.randrange(3))}
            if r.random() < 0.5:
                s["required"] = list(s["properties"])[:1]
        if r.random() < 0.06:
            s["nullable"] = True
        if r.random() < 0.04:
            s = {"anyOf": [s, {"type": "null"}]}
        return s

    def function(self):
        r = self.r
        f = {"name": r.choice(["get_weather", "add", "search", "browser.open", "ütf"])}
        if r.random() < 0.9:
            f["description"] = self.text()[:300]
        if r.random() < 0.92:
            f["parameters"] = {"type": "object", "properties": {self.name(): self.schema() for _ in range(r.randrange(4))}}
            if r.random() < 0.7:
                f["parameters"]["required"] = list(f["parameters"]["properties"])[:r.randrange(3)]
        if r.random() < 0.08:
            f["return"] = self.schema(1)
        if r.random() < 0.05:
            f["strict"] = True
        return f

    def tool(self):
        return self.function() if self.r.random() < 0.06 else {"type": "function", "function": self.function()}

    def call(self):
        r = self.r
        args = self.dict()
        f = {"name": r.choice(["get_weather", "add", "search"]), "arguments": args if r.random() < 0.6 else json.dumps(args, ensure_ascii=r.random() < 0.5)}
        if r.random() < 0.03:
            f["arguments"] = r.choice([None, "", "not json", [], 3])
        if r.random() < 0.03:
            del f["arguments"]
        c = {"type": "function", "function": f}
        if r.random() < 0.8:
            c["id"] = r.choice(["call00001", "abcdefghi", "x", "call_1234567890"])
        if r.random() < 0.04:
            c = f
        if r.random() < 0.04:
            del c["type" if "type" in c else "name"]
        return c

    def content(self, role):
        r = self.r
        k = r.random()
        if k < 0.04:
            return None
        if k < 0.17:
            parts = []
            for _ in range(r.randint(0 if r.random() < 0.1 else 1, 3)):
                kind = r.choice(["text", "text", "text", "image", "image_url", "video", "audio", "thinking", "document"]) if role != "system" or r.random() < 0.2 else "text"
                part = {"type": kind}
                if kind in ("text", "document"):
                    part["text"] = self.text()
                elif kind == "image_url":
                    part["image_url"] = {"url": "data:,"}
                elif kind == "thinking":
                    part["thinking"] = self.text()
                elif r.random() < 0.3:
                    part[kind] = "file"
                parts.append(part)
            if r.random() < 0.06:
                parts.append(self.text())
            return parts
        if k < 0.19:
            return self.value()
        return self.text()

    def message(self, role):
        r = self.r
        m = {"role": role, "content": self.content(role)}
        if role == "assistant":
            if r.random() < 0.35:
                m["tool_calls"] = [self.call() for _ in range(r.choice([0, 1, 1, 1, 2, 3]))]
                if r.random() < 0.4:
                    m["content"] = r.choice([None, ""])
                if r.random() < 0.15:
                    del m["content"]
            if r.random() < 0.25:
                m[r.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking", "thought"])] = self.text() if r.random() < 0.9 else None
            if r.random() < 0.15 and isinstance(m.get("content"), str):
                m["content"] = "<think>\n" + self.text() + "\n</think>\n\n" + m["content"]
            if r.random() < 0.03:
                m["prefix"] = True
        if role == "tool":
            if r.random() < 0.8:
                m["tool_call_id"] = r.choice(["call00001", "abcdefghi", "x"])
            if r.random() < 0.6:
                m["name"] = r.choice(["get_weather", "add"])
            if r.random() < 0.1:
                m["content"] = self.value()
        if role == "user" and r.random() < 0.04:
            m["name"] = "anna"
        return m

    def vars(self):
        r = self.r
        roles = []
        if r.random() < 0.5:
            roles.append(r.choice(["system", "system", "system", "developer"]))
        for _ in range(r.randint(1, 4)):
            roles.append("user")
            if r.random() < 0.7:
                roles.append("assistant")
                if r.random() < 0.35:
                    roles += ["tool"] * r.randint(1, 2)
                    if r.random() < 0.7:
                        roles.append("assistant")
        if r.random() < 0.12:
            r.shuffle(roles)
        if r.random() < 0.08:
            roles.insert(r.randrange(len(roles) + 1), r.choice(["system", "function", "ipython", "bogus", "tool", "", "User"]))
        if r.random() < 0.02:
            roles = []
        v = {"messages": [self.message(x) for x in roles], "add_generation_prompt": r.random() < 0.6, **TIMES}
        v["tools"] = [self.tool() for _ in range(r.randint(1, 3))] if r.random() < 0.45 else None
        if r.random() < 0.5:
            v["documents"] = None
        for key, odds, make in (
                ("enable_thinking", 0.35, lambda: r.random() < 0.5), ("thinking", 0.08, lambda: r.random() < 0.5),
                ("reasoning_effort", 0.12, lambda: r.choice(["low", "medium", "high", ""])), ("add_thoughts", 0.03, lambda: True),
                ("date_string", 0.12, lambda: "1 Jan 2026"), ("tools_in_user_message", 0.08, lambda: r.random() < 0.5),
                ("builtin_tools", 0.06, lambda: r.choice([[], ["wolfram_alpha"], ["browser", "python"], ["code_interpreter"]])),
                ("custom_tools", 0.03, lambda: [self.tool()]), ("xml_tools", 0.03, lambda: [self.tool()]), ("python_tools", 0.03, lambda: [self.tool()]),
                ("documents", 0.05, lambda: [{"title": self.text()[:50], "text": self.text()} for _ in range(r.randrange(3))]),
                ("model_identity", 0.05, self.text), ("controls", 0.03, lambda: {"length": "long"}), ("thinking_budget", 0.08, lambda: r.choice([0, 512, -1])),
                ("preserve_thinking", 0.05, lambda: r.random() < 0.5), ("clear_thinking", 0.05, lambda: r.random() < 0.5),
                ("keep_reasoning", 0.05, lambda: True), ("system_message", 0.02, self.text), ("response_format", 0.02, self.dict)):
            if r.random() < odds:
                v[key] = make()
        if r.random() < 0.03:
            v.pop(r.choice(["tools", "bos_token", "eos_token", "add_generation_prompt"]))
        return v


# ---- programs ----

class Program:
    """A template from a grammar: mostly well typed, over the variables of the data file."""

    STR = ["s", "q", "e", "ms[0].role", "ms[1].content", "m.role", "'abc'", "'a,b,,c'", "'  x y  '", "'Hello World'", "'a\\nb\\n'", "'é中😀'", "'ǆß'", "'%s-%d'",
           "'{}|{:>4}'", "''", "'12'", "'-3'", "'1.5'", "'x' 'y'", "\"it's\"", "'a-b_c (d) [e]'", "'AbC'", "'\\t'", "'<b>&\"'", "'١٢'", "'aXbXc'"]
    INT = ["n", "0", "1", "2", "3", "-1", "7", "10", "l[0]", "l|length", "true", "big", "1_000", "0x1f", "loop.index" , "ms|length", "-0"]
    FLOAT = ["f", "0.5", "1e3", "2.0", "-1.25", "fl[0]", "fl[3]", "1e-7", "3.14159", "1e16", "0.1"]
    LIST = ["l", "fl", "ms", "[1, 'a', none]", "[]", "['b', 'A', 'c', 'a']", "[[1, 2], [3, 4]]", "(1, 2)", "()", "(3,)", "range(4)", "range(5, 0, -2)",
            "d.keys()", "d.values()", "d.items()", "[true, 0, 1, 1.0]", "[none, undefined_x]", "['x', 'y', 'x']", "d.a", "[3, 1, 2]", "['é', 'z', 'a']"]
    DICT = ["d", "ms[0]", "{}", "{'a': 1}", "{'k': [1, 2], 'j': {'x': none}}", "dict(a=1, b='x')", "{1: 'one', 'two': 2}", "m", "{'items': 5, 'b': 'B'}", "d.c",
            "{'B': 1, 'a': 2, 'C': 0}"]
    ANY = ["none", "undefined_x", "d.zz", "none", "ns", "x", "ms[2].content", "true", "false"]
    STR_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "string", "replace('a', 'b')", "replace('a', 'XX', 1)", "indent", "indent(2, true)",
                   "indent(width=3, first=true, blank=true)", "center(9)", "truncate(5)", "truncate(8, true, '..', 0)", "truncate(6, leeway=1)", "reverse", "e", "safe",
                   "escape", "forceescape", "striptags", "urlencode", "default('D')", "default('D', true)", "d('D')", "wordwrap(5)", "wordwrap(4, false)", "format(1)",
                   "trim('a')", "wordwrap(6, wrapstring='|')", "replace('', '.')", "first", "last"]
    STR_METHODS = ["strip()", "lstrip()", "rstrip()", "strip('a ')", "lstrip('Hx')", "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()",
                   "replace('a', 'Z')", "replace('a', 'Z', 1)", "center(8)", "ljust(6, '*')", "rjust(6)", "zfill(5)", "expandtabs(4)", "removeprefix('a')",
                   "removesuffix('c')", "format(1, 2)", "join(['1', '2'])", "format(n, x=2)", "expandtabs()"]
    STR_INT = ["find('a')", "rfind('b')", "count('a')", "count('')", "index('a')", "find('a', 1)", "find('b', 0, 3)", "count('b', 1)", "rindex('a')", "rfind('')"]
    STR_BOOL = ["startswith('a')", "endswith('c')", "startswith(('a', 'H'))", "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()", "istitle()",
                "isdecimal()", "isnumeric()", "isascii()", "startswith('b', 1)", "isidentifier()", "isprintable()", "endswith('b', 0, 2)"]
    STR_LIST = ["split(',')", "split()", "splitlines()", "split(',', 1)", "rsplit(',', 1)", "partition(',')", "rpartition('b')", "split(none, 1)", "splitlines(true)",
                "split('b', maxsplit=1)", "rsplit()", "split(sep='a')"]
    LIST_FILTERS = ["sort", "sort(reverse=true)", "unique|list", "list", "reverse|list", "map('upper')|list", "map('string')|list", "select|list", "reject|list",
                    "select('string')|list", "reject('none')|list", "select('gt', 1)|list", "map(attribute='role')|list", "selectattr('role')|list",
                    "selectattr('role', 'equalto', 'user')|list", "rejectattr('content', 'none')|list", "batch(2)|list", "batch(2, 'x')|list", "slice(2)|list",
                    "slice(3, 'y')|list", "map('default', 'D')|list", "sort(attribute='n')", "groupby('role')", "groupby('role')|map('list')|list",
                    "map(attribute='content', default='-')|list", "map('length')|list", "sort(case_sensitive=true)", "unique(attribute='role')|list",
                    "map('replace', 'a', 'b')|list", "select('in', [1, 'a'])|list", "sort(attribute='role,n')", "map('first')|list", "map('join', '-')|list",
                    "select('even')|list", "map('int')|list", "reject('sameas', none)|list", "selectattr('n', '>', 1)|map(attribute='n')|list", "map('tojson')|list"]
    LIST_ONE = ["first", "last", "max", "min", "sum", "random|string|length", "max(attribute='n')", "min(attribute='n')", "sum(attribute='n')", "sum(start=10)"]
    LIST_STR = ["join", "join(',')", "join(', ', attribute='role')", "tojson", "string", "tojson(indent=2)", "pprint", "join(d='-')"]
    DICT_LIST = ["items()|list", "keys()|list", "values()|list", "|dictsort", "|dictsort(by='value')", "|items|list", "|dictsort(true, reverse=true)", "|list"]
    NUM_FILTERS = ["round", "round(1)", "round(2, 'floor')", "round(0, 'ceil')", "abs", "float", "int", "round(-1)", "round(method='floor')"]
    TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable", "odd",
             "even", "lower", "upper", "divisibleby(2)", "divisibleby 3", "eq(1)", "ne(2)", "gt(1)", "lt(2)", "ge 1", "le(3)", "in([1, 2, 'a'])", "sameas(true)", "sameas none",
             "escaped", "filter", "test", "equalto('a')", "greaterthan(0)", "lessthan 5", "== 3", "in 'abc'"]
    SPECS = ["", ":d", ":5", ":<5", ":>5", ":^7", ":05", ":.2f", ":,", ":x", ":e", ":s", ":*^9", ":+d", ":%", ":g", ":.3", ":_", ":#x", ":b", ":c", ":=6", ":08.3f", ":,.2f",
             "!r", "!s", "!r:>10", ":o", ":G", ":.1%", ": d", ":n", ":010,d", ":.0f"]
    PERCENT = ["%s", "%d", "%5d", "%-5s|", "%05d", "%.2f", "%x", "%r", "%e", "%g", "%+d", "%%", "%5.1f", "%c", "%i", "%o", "%X", "% d", "%.3s", "%#x", "%G", "%(a)s", "%(b)d"]

    def __init__(self, r):
        self.r = r
        self.macros = []
        self.loops = 0

    def pick(self, *options):
        return self.r.choice(options)

    def any(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.08:
            return r.choice(self.ANY + self.STR[:8] + self.INT[:6] + self.LIST[:5] + self.DICT[:3])
        return r.choice([self.str, self.str, self.int, self.num, self.list, self.dict, self.bool, self.cond, self.one])(d)

    def loose(self, typed, d):
        """Now and then a value of another type than is due."""
        return self.any(d) if self.r.random() < 0.06 else typed(d)

    def cond(self, d):
        r = self.r
        t = f"({self.any(d - 1)} if {self.bool(d - 1)}" + (f" else {self.any(d - 1)})" if r.random() < 0.8 else ")")
        return t

    def one(self, d):
        r = self.r
        k = r.randrange(5)
        a = self.loose(self.list, d - 1)
        if k == 0:
            return f"({a}|{r.choice(self.LIST_ONE)})"
        if k == 1:
            return f"({a})[{self.loose(self.int, 0)}]"
        if k == 2:
            return f"({self.loose(self.dict, d - 1)})[{self.loose(self.str, 0)}]"
        if k == 3:
            return f"({self.loose(self.dict, d - 1)}).{r.choice(['a', 'b', 'role', 'zz', 'get(' + self.str(0) + ')', 'get(1, 2)', 'items()', 'x', 'c.x', 'copy()'])}"
        return f"({self.any(d - 1)}).{r.choice(['a', 'real', 'imag', 'upper()', 'x.y', 'index(1)', 'bit_length()', 'is_integer()', 'numerator'])}"

    def str(self, d):
        r = self.r
        if d <= 0:
            return r.choice(self.STR)
        k = r.randrange(15)
        if k < 3:
            return f"({self.loose(self.str, d - 1)}|{r.choice(self.STR_FILTERS)})"
        if k < 6:
            return f"({self.loose(self.str, d - 1)}).{r.choice(self.STR_METHODS)}"
        if k == 6:
            return f"({self.loose(self.str, d - 1)} ~ {self.any(d - 1)})"
        if k == 7:
            return f"({self.loose(self.str, d - 1)} + {self.loose(self.str, d - 1)})"
        if k == 8:
            return f"({self.loose(self.list, d - 1)}|{r.choice(self.LIST_STR)})"
        if k == 9:
            return f"({self.str(d - 1)})[{self.slice()}]"
        if k == 10:
            return f"({self.any(d - 1)}|{r.choice(['string', 'tojson', 'pprint', 'upper', 'trim', 'e', 'tojson(indent=1)', 'length', 'title', 'tojson(sort_keys=true)', 'urlencode', 'tojson(ensure_ascii=true)', 'filesizeformat', 'xmlattr', 'wordcount'])})"
        if k == 11:
            return f"({self.loose(self.str, d - 1)} * {self.loose(self.int, 0)})" if r.random() < 0.3 else f"('ab' * {r.randint(-1, 4)})"
        if k == 12:
            fields = "".join(self.pick("", "a", " ") + "{" + self.pick("", "", "", "0" if r.random() < 0.5 else "x", "x") + r.choice(self.SPECS) + "}" for _ in range(r.randint(1, 2)))
            return f"'{fields}'.format({self.any(d - 1)}, {self.num(d - 1)}, x={self.any(0)})"
        if k == 13:
            f = "".join(r.choice(self.PERCENT) for _ in range(r.randint(1, 2)))
            args = self.pick(f"({self.any(d - 1)}, {self.num(d - 1)})", f"({self.num(d - 1)},)", self.any(d - 1), "{'a': " + self.any(0) + ", 'b': " + self.num(0) + "}")
            return f"('{f}' % {args})"
        return f"({self.loose(self.str, d - 1)} or {self.any(d - 1)})"

    def int(self, d):
        r = self.r
        if d <= 0:
            return r.choice(self.INT)
        k = r.randrange(9)
        if k < 3:
            return f"({self.loose(self.int, d - 1)} {r.choice(['+', '-', '*', '//', '%'])} {self.loose(self.int, d - 1)})"
        if k == 3:
            return f"({self.any(d - 1)}|{r.choice(['int', 'length', 'count', 'int(5)', 'abs', 'int(base=16)', 'wordcount', 'int(default=-1)', 'round|int'])})"
        if k == 4:
            return f"({self.loose(self.str, d - 1)}).{r.choice(self.STR_INT)}"
        if k == 5:
            return f"({self.loose(self.list, d - 1)}).{r.choice(['count(1)', 'index(1)', 'count(none)'])}"
        if k == 6:
            return f"{r.choice(['-', '+', '- -'])}{self.loose(self.int, d - 1)}"
        if k == 7:
            return f"({self.pick('2', '3', 'n', '-2', '0')} ** {self.pick('0', '1', '2', '5', '-1', '0.5', 'n')})"
        return f"({self.loose(self.num, d - 1)}|round|int)"

    def num(self, d):
        r = self.r
        if d <= 0:
            return r.choice(self.FLOAT + self.INT)
        k = r.randrange(5)
        if k == 0:
            return f"({self.loose(self.num, d - 1)} {r.choice(['+', '-', '*', '/', '//', '%', '**' if r.random() < 0.1 else '+'])} {self.loose(self.num, d - 1)})"
        if k == 1:
            return f"({self.loose(self.num, d - 1)}|{r.choice(self.NUM_FILTERS)})"
        if k == 2:
            return f"({self.any(d - 1)}|float)" if r.random() < 0.5 else f"({self.str(d - 1)}|float(2.5))"
        return self.int(d)

    def bool(self, d):
        r = self.r
        if d <= 0:
            return self.pick("true", "false", "t", "n > 2", "s", "l", "e", "none", "undefined_x", "'a' in s", "n is odd", "d")
        k = r.randrange(10)
        if k < 2:
            return f"({self.any(d - 1)} is {r.choice(['', '', 'not '])}{r.choice(self.TESTS)})"
        if k == 2:
            a = self.pick(self.num, self.str, self.any)
            return f"({a(d - 1)} {r.choice(['==', '!=', '<', '>', '<=', '>='])} {a(d - 1)})"
        if k == 3:
            return f"({self.any(d - 1)} {self.pick('in', 'not in')} {self.pick(self.list, self.str, self.dict, self.any)(d - 1)})"
        if k == 4:
            return f"({self.bool(d - 1)} {self.pick('and', 'or')} {self.bool(d - 1)})"
        if k == 5:
            return f"(not {self.bool(d - 1)})"
        if k == 6:
            return f"({self.loose(self.str, d - 1)}).{r.choice(self.STR_BOOL)}"
        if k == 7:
            return f"({self.num(d - 1)} {r.choice(['<', '==', '<='])} {self.num(d - 1)} {r.choice(['<', '!=', '>'])} {self.num(d - 1)})"
        if k == 8:
            return f"{self.any(d - 1)} is {r.choice(self.TESTS)} {self.pick('and', 'or')} {self.bool(d - 1)}"
        return self.any(d - 1)

    def slice(self):
        r = self.r
        part = lambda: r.choice(["", "", "0", "1", "2", "-1", "-2", "5", "100", "-100", "none"])
        return part() + ":" + part() + (":" + r.choice(["", "1", "2", "-1", "-2", "3"]) if r.random() < 0.4 else "")

    def list(self, d):
        r = self.r
        if d <= 0:
            return r.choice(self.LIST)
        k = r.randrange(9)
        if k < 3:
            return f"({self.loose(self.list, d - 1)}|{r.choice(self.LIST_FILTERS)})"
        if k == 3:
            return f"({self.loose(self.str, d - 1)}).{r.choice(self.STR_LIST)}"
        if k == 4:
            m = r.choice(self.DICT_LIST)
            return f"({self.loose(self.dict, d - 1)}{'' if m[0] == '|' else '.'}{m})"
        if k == 5:
            return f"({self.list(d - 1)})[{self.slice()}]"
        if k == 6:
            return f"({self.loose(self.list, d - 1)} + {self.loose(self.list, d - 1)})"
        if k == 7:
            return "[" + ", ".join(self.any(d - 1) for _ in range(r.randrange(4))) + "]"
        return f"({self.loose(self.str, d - 1)}|list)" if r.random() < 0.5 else f"({self.list(d - 1)} * {r.randint(0, 3)})"

    def dict(self, d):
        r = self.r
        if d <= 0:
            return r.choice(self.DICT)
        k = r.randrange(4)
        if k == 0:
            return "{" + ", ".join(f"{self.pick(self.str, self.int)(0)}: {self.any(d - 1)}" for _ in range(r.randrange(3))) + "}"
        if k == 1:
            return f"dict({self.pick(self.dict, self.dict, self.any)(d - 1)}, z={self.any(d - 1)})"
        if k == 2:
            return f"({self.list(d - 1)}|first)"
        return r.choice(self.DICT)

    # statements

    def tag(self, inside):
        r = self.r
        return "{%" + r.choice(["", "", "", "-", "+"]) + self.pick(" ", " ", "") + inside + r.choice([" ", " ", ""]) + r.choice(["", "", "", "-", "+"]) + "%}"

    def text(self):
        return self.r.choice(["", "", " ", "\n", "\n  ", "a", "x\n", "  \n", " b ", "\n\n", "\t", "é", "{", "}}", "\r\n", "{# c #}", "{#- c -#}", "  {# c #}\n", "{##}", "\n {#+ c +#}\n"])

    def body(self, d):
        return "".join(self.text() + self.statement(d) for _ in range(self.r.randint(1, 3))) + self.text()

    def arg(self):
        return self.any(1)

    def statement(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.4:
            return "{{" + r.choice(["", "", "-"]) + " " + self.any(2) + " " + r.choice(["", "", "-"]) + "}}"
        k = r.randrange(17)
        t = self.tag
        if k == 0:
            s = t("if " + self.bool(2)) + self.body(d - 1)
            if r.random() < 0.3:
                s += t("elif " + self.bool(1)) + self.body(d - 1)
            if r.random() < 0.5:
                s += t("else") + self.body(d - 1)
            return s + t("endif")
        if k in (1, 2, 3):
            head = self.pick("x in ", "x in ", "m in ", "k, x in ") + self.list(1)
            if head.startswith("k"):
                head = "k, x in " + self.pick(self.dict(0) + ".items()", "d|dictsort", "ms|groupby('role')", "[[1, 2], [3, 4]]", "l|batch(2)", "d|items")
            if r.random() < 0.2:
                head += " if " + self.pick("x", "x != 1", "loop is undefined", self.bool(1))
            self.loops += 1
            b = self.body(d - 1)
            b += r.choice(["", "{{ loop.index }}", "{{ loop.first }}{{ loop.last }}", "{{ loop.revindex0 }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}",
                           "{{ loop.changed(x) }}", "{{ loop.length }}", "{{ loop.depth }}", "{% if loop.index > 1 %}{% break %}{% endif %}", "{% if x %}{% continue %}{% endif %}z",
                           "{{ loop }}", "{% set x = 9 %}", "{{ x }}", "{{ x }}", "{{ loop.previtem is defined }}", "{% set ns.a = x %}", "{{ loop.nextitem.a }}", "{{ loop|length }}"])
            self.loops -= 1
            s = t("for " + head) + b
            if r.random() < 0.2:
                s += t("else") + self.body(d - 1)
            return s + t("endfor")
        if k == 4:
            return t(f"set {self.pick('x', 'y', 'x, y', 'ns.a', 'ns.b', 's', 'n', 'e', 'd, x', 'l')} = {self.any(2)}") + self.pick("{{ x }}", "{{ y }}", "{{ ns.a }}", "", "{{ s }}")
        if k == 5:
            return t("set x" + self.pick("", "", " | upper", "|trim|length")) + self.body(d - 1) + t("endset") + "{{ x }}"
        if k == 6:
            name = f"m{len(self.macros)}"
            params = self.pick("", "a", "a, b=1", "a, b='x', c=none", "a=n, b=a")
            b = self.body(d - 1) + self.pick("{{ a }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller else '-' }}", "{{ b }}", "{{ caller(1) }}", "")
            self.macros.append(name)
            return t(f"macro {name}({params})") + b + t("endmacro")
        if k in (7, 8) and self.macros:
            m = r.choice(self.macros)
            a = self.pick("", self.arg(), f"{self.arg()}, {self.arg()}", f"b={self.arg()}", f"a={self.arg()}, zz=1", f"*{self.list(0)}", "**{'a': 2}", f"{self.arg()}, c={self.arg()}")
            return self.pick("{{ " + m + "(" + a + ") }}", t("call" + self.pick("", "(u)", "(u=1)") + " " + m + "(" + a + ")") + self.body(d - 1) + self.pick("{{ u }}", "") + t("endcall"),
                             "{{ " + m + self.pick(".name", ".arguments", ".caller", ".catch_kwargs", ".catch_varargs", "|string") + " }}")
        if k == 9:
            return t("with " + self.pick(f"x = {self.any(1)}", f"x = {self.any(1)}, y = x", "")) + self.body(d - 1) + "{{ x }}{{ y }}" + t("endwith")
        if k == 10:
            return t("filter " + r.choice(["upper", "trim", "replace('a', 'b')", "title|trim", "indent(2)", "length", "escape", "wordwrap(3)", "center(9)|upper"])) + self.body(d - 1) + t("endfilter")
        if k == 11:
            return self.tag("raw") + self.text() + "{{ x }}" + self.text() + self.tag("endraw")
        if k == 12:
            return "{% set ns = namespace(" + self.pick("", "a=1", "d", "a=[], b='x'") + ") %}{{ ns.a }}" + self.pick("{{ ns }}", "", "{% set ns.a = " + self.any(1) + " %}{{ ns.a }}")
        if k == 13:
            return t("for x in " + self.pick("[1, [2, 3]]", "[[1], [2, [3]]]", "ms", "'ab'") + " recursive") + self.pick("{{ x }}", "") + self.pick(
                "{{ loop(x) if x is iterable and x is not string and x is not mapping }}", "{{ loop.depth }}", "{{ loop.depth0 }}{{ loop(x) if x is sequence and x is not string and x is not mapping else x }}") + t("endfor")
        if k == 14:
            return t("generation") + self.body(d - 1) + t("endgeneration")
        if k == 15:
            return self.pick(t(f"block b{r.randrange(10**6)}" + self.pick("", " scoped")) + self.body(d - 1) + t("endblock"), t("print " + self.any(2)),
                             "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}", "{% set j = joiner('+') %}{{ j() }}a{{ j() }}b{{ j() }}",
                             t("autoescape false") + self.body(d - 1) + t("endautoescape"), t("do 1"), t("include 'x'"), t("import 'x' as y"),
                             t("if false") + t("include 'x'") + t("endif"), t("if false") + "{{ 1|nope }}{{ 1 is nope }}" + t("endif"), "{{ strftime_now('%Y-%m-%d %b %H') }}",
                             "{{ raise_exception(" + self.str(1) + ") }}", "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ s.__class__ }}", "{{ dict(l) }}")
        if self.loops and r.random() < 0.3:
            return t(self.pick("break", "continue"))
        return t("if " + self.bool(1)) + self.text() + t("endif")

    def template(self):
        r = self.r
        if r.random() < 0.55:
            return "{{ " + self.any(r.randint(1, 4)) + " }}"
        if r.random() < 0.06:  # a broken one
            s = self.body(2)
            at = r.randrange(len(s) + 1)
            return s[:at] + r.choice(["", "{", "%}", "}}", "{{", "'", "(", "|", ".", " ", "-", "{%", "not "]) + s[at + r.randrange(3):]
        return self.body(r.randint(1, 3))


# ---- runs ----

ADDRESS = re.compile(r" at 0x[0-9a-f]+|&lt;built-in| AT 0X|<function|<bound|<built-in|<class|<method", re.I)


def wavers(make, want):
    """Whether a text is another one when objects lie elsewhere."""
    kept = [bytes(n) for n in range(0, 512, 16) for _ in range(64)]
    return refer(make) != want and bool(kept)


def load_templates(folder):
    found = sorted(glob.glob(os.path.join(folder, "**", "*.jinja"), recursive=True))
    if not found:
        sys.exit(f"no *.jinja in {folder}")
    return {os.path.basename(f): open(f, encoding="utf-8").read() for f in found}


def run_golden(a, driver):
    sources = load_templates(a.templates)
    cases = json.load(open(os.path.join(a.golden, "cases.json")))["cases"]
    wanted = json.load(open(os.path.join(a.golden, "rendered.json")))
    texts = refusals = bad = 0
    for name, want in wanted.items():
        if hashlib.sha256(sources[name].encode()).hexdigest() != want["sha256"]:
            sys.exit(f"{name} is another template than the recorded one")
        driver.first = [{"name": name, "source": sources[name]}]
        opened, *answers = driver.answers([{"name": name, "vars": {"tools": None, **TIMES, **v}} for v in cases.values()])
        for case, got in zip(cases, answers):
            got = opened or got
            w = want.get("rendered", {}).get(case, {})
            ok = got == ("text", w) if isinstance(w, str) else got[0] == "error"
            texts += isinstance(w, str)
            refusals += not isinstance(w, str)
            if not ok:
                bad += 1
                print(f"{name} {case}\n  want {w!r}\n  got  {got!r}")
    print(f"{len(wanted)} templates, {len(cases)} conversations: {texts} texts, {refusals} refusals, {bad} differ")
    return bad


def run_conversations(a, driver):
    sources = load_templates(a.templates)
    names = list(sources)
    env = environment()
    mini = mini_environment() if minijinja else None
    templates = {name: env.from_string(source) for name, source in sources.items()}
    driver.first = [{"name": name, "source": source} for name, source in sources.items()]
    if mini:
        for name, source in sources.items():
            with contextlib.suppress(Exception):  # what it does not know, it does not witness
                mini.add_template(name, source)
    r = random.Random(a.seed)
    counts = collections.Counter()
    per_mini = collections.Counter()
    found = []
    for batch in batches(a.n, 1000):
        asked = [(names[i % len(names)], Talk(r).vars()) for i in batch]
        answers = driver.answers([{"name": name, "vars": v} for name, v in asked])
        for (name, v), got in zip(asked, answers[len(names):]):
            want = refer(lambda n=name, v=v: templates[n].render(**json.loads(json.dumps(v))))
            counts[want[0]] += 1
            if not same(want, got):
                counts["differ"] += 1
                found.append({"name": name, "vars": v, "want": want, "got": got})
                if counts["differ"] <= a.show:
                    print(f"{name}\n  vars {json.dumps(v, ensure_ascii=False)[:1500]}\n{differing(want, got)}")
            if mini:
                w = refer(lambda n=name, v=v: mini.render_template(n, **json.loads(json.dumps(v))))
                agree = w[1] == want[1] if w[0] == want[0] == "text" else (w[0] == "text") == (want[0] == "text")
                counts["minijinja agrees" if agree else "minijinja differs from jinja2"] += 1
                if not agree:
                    per_mini[name] += 1
    print(f"{a.n} conversations, {len(names)} templates, seed {a.seed}: " + ", ".join(f"{v} {k}" for k, v in sorted(counts.items())))
    if per_mini:
        print("minijinja differs from jinja2 (jinja2 counts):", ", ".join(f"{k} {v}" for k, v in per_mini.most_common(a.show)))
    return found


def differing(want, got):
    a, b = want[1], got[1]
    if want[0] == "text" and got[0] == "text":
        i = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        a, b = f"...{a[max(0, i - 60):i + 60]}", f"...{b[max(0, i - 60):i + 60]}"
    return f"  want {want[0]} {a[:400]!r}\n  got  {got[0]} {b[:400]!r}"


def run_programs(a, driver):
    data = json.load(open(DATA))
    driver.first = [{"vars": data["vars"]}]
    text = json.dumps(data["vars"])
    env, plain = environment(), plain_environment()
    counts = collections.Counter()
    found = []
    seen = set()
    for batch in batches(a.n, 4000):
        sources = [Program(random.Random(a.seed * 10**7 + i)).template() for i in batch]
        sources = [x for x in dict.fromkeys(sources) if x not in seen]
        seen.update(sources)
        for source, got in zip(sources, driver.answers([{"source": x} for x in sources])):
            want = refer(lambda s=source: env.from_string(s).render(**json.loads(text)))
            counts[want[0]] += 1
            if want[0] == "slow" or same(want, got):
                continue
            if want[0] == "text" and ADDRESS.search(want[1]) or "random" in source or wavers(lambda s=source: env.from_string(s).render(**json.loads(text)), want):
                counts["addresses and chance, not compared"] += 1
            elif got[0] == "error" and ("64 bits" in got[1] or "complex numbers" in got[1]):
                counts["whole numbers beyond 64 bits and complex ones, refused"] += 1
            elif same(refer(lambda s=source: plain.from_string(s).render(**json.loads(text))), got):
                counts["as Jinja2 at the render, not at load"] += 1
            else:
                counts["differ"] += 1
                found.append({"source": source, "want": want, "got": got})
                if counts["differ"] <= a.show:
                    print(f"{source!r}\n{differing(want, got)}")
        if a.progress:
            print(len(seen), dict(counts), flush=True)
    print(f"{len(seen)} programs, seed {a.seed}: " + ", ".join(f"{v} {k}" for k, v in sorted(counts.items())))
    return found


def run_characters(a, driver):
    """Characters that this Python knows, by the methods of str."""
    methods = ["upper", "lower", "title", "capitalize", "swapcase", "casefold", "isalnum", "isalpha", "isdecimal", "isdigit", "isnumeric",
               "isspace", "isupper", "islower", "istitle", "isprintable", "isidentifier"]
    chars = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    source = "{% for c in chars %}{{ c." + "() }}|||{{ c.".join(methods) + "() }}|||{{ [c] }}|||{{ c|int(-1) }}|||{{ c|wordcount }}\n\n\n{% endfor %}"
    driver.first = [{"name": "t", "source": source}]
    found = []
    template = environment().from_string(source)
    parts = [chars[i:i + 2000] for i in range(0, len(chars), 2000)]
    for part, got in zip(parts, driver.answers([{"name": "t", "vars": {"chars": x}} for x in parts])[1:]):
        want = template.render(chars=part)
        if got == ("text", want):
            continue
        for c, w, g in zip(part, want.split("\n\n\n"), got[1].split("\n\n\n")):
            if w != g:
                found.append({"char": c, "want": w, "got": g})
                if len(found) <= a.show:
                    print(f"U+{ord(c):04X}\n  want {w!r}\n  got  {g!r}")
    print(f"{len(chars)} characters of Unicode {unicodedata.unidata_version}: {len(found)} differ")
    return found


def run_record(path):
    data = json.load(open(DATA, encoding="utf-8"))
    text = json.dumps(data["vars"])
    known = {c[0] for c in data["cases"]}
    env = environment()
    for line in open(path, encoding="utf-8"):
        source = json.loads(line)
        kind, got = refer(lambda s=source: env.from_string(s).render(**json.loads(text)))
        if source not in known:
            data["cases"].append([source, got] if kind == "text" else [source, None, got])
    with open(DATA, "w", encoding="utf-8") as f:
        f.write(json.dumps(data, ensure_ascii=False, indent=0) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("driver")
    p.add_argument("what", choices=["golden", "conversations", "programs", "characters", "record"])
    p.add_argument("--templates")
    p.add_argument("--golden")
    p.add_argument("-n", type=int, default=1000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=20)
    p.add_argument("--progress", action="store_true")
    p.add_argument("--out", help="file for the differences, one JSON object a line")
    a = p.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    warnings.simplefilter("ignore")
    if a.what == "record":
        run_record(a.driver)
        return
    driver = Driver(a.driver)
    if a.what == "golden":
        sys.exit(1 if run_golden(a, driver) else 0)
    found = {"conversations": run_conversations, "programs": run_programs, "characters": run_characters}[a.what](a, driver)
    if a.out:
        with open(a.out, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(x, ensure_ascii=False) + "\n" for x in found)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
