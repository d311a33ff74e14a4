#!/usr/bin/env python3
"""mere against llama.cpp on the same files in the same run: prefill and decode, medians, ratios.

    bench/compare_llama.py --mere build/release/mere --llama-bench PATH/llama-bench -m A.gguf [-m B.gguf=OTHER ...]
    bench/compare_llama.py --device cuda:0 --other 1 ...

B.gguf=OTHER runs mere on OTHER (say, the same shapes in MLX's format). With a GPU --device llama.cpp gets -ngl 99 -fa 1, and what
other processes do to the CPUs hardly counts.

The two programs take turns, so that both see the same neighbours; a round during which other processes used more than
--other of the CPUs is measured again, up to --tries times in all, and the quietest --runs rounds count. Writes what it
prints to bench/results/<date>-<name>.txt, with the machine and the command. Exit code 1 when a ratio is under --want.
Standard library only.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

HZ = os.sysconf("SC_CLK_TCK")
CPUS = len(os.sched_getaffinity(0))


def machine_busy():
    """Seconds all CPUs have spent on anything but idling, since boot."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / HZ


def raise_priority(nice):
    """For preexec_fn. Niceness counts only inside the scheduler's autogroup of a session, so that is set too."""
    def apply():
        os.setsid()
        os.nice(nice)
        try:
            with open("/proc/self/autogroup", "w") as f:
                f.write(str(nice))
        except OSError:
            pass
    return apply if nice else None


def run(command, nice):
    """Returns (stdout, share of the CPUs that others used meanwhile)."""
    busy, start, own = machine_busy(), time.monotonic(), os.times()
    p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       preexec_fn=raise_priority(nice))
    if p.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {p.returncode}\n{p.stderr[-2000:]}")
    wall, after = time.monotonic() - start, os.times()
    used = after.children_user + after.children_system - own.children_user - own.children_system
    return p.stdout, max(0.0, machine_busy() - busy - used) / (wall * CPUS)


def run_llama(a, model):
    where = ["-t", str(a.threads)] if a.device == "cpu" else ["-ngl", "99", "-fa", "1"]
    out, other = run([a.llama_bench, "-m", model.partition("=")[0], "-p", str(a.prompt), "-n", str(a.gen), *where, "-r", str(a.reps),
                      "-d", str(a.depth), "-o", "json"], a.nice)
    rows = json.loads(out)
    return {"prefill": next(r["avg_ts"] for r in rows if r["n_prompt"]),
            "decode": next(r["avg_ts"] for r in rows if r["n_gen"]), "other": other}


def run_mere(a, model):
    where = ["--threads", str(a.threads)] if a.device == "cpu" else []
    out, other = run([a.mere, "bench", model.rpartition("=")[2], "--device", a.device, "--pp", str(a.prompt), "--tg", str(a.gen), *where,
                      "--depth", str(a.depth), "--reps", str(a.reps), "--quiet"], a.nice)
    row = json.loads(out.strip().splitlines()[-1])
    return {"prefill": row["prefill_tok_s"], "decode": row["decode_tok_s"], "read": row.get("read_gb_s", 0.0),
            "numerics": row["numerics"], "other": other}


def measure(a, model):
    """Rounds of one run each, the order changing from round to round; the quietest a.runs of them."""
    rounds = []
    while len(rounds) < a.tries:
        order = [("llama", run_llama), ("mere", run_mere)]
        if len(rounds) % 2:
            order.reverse()
        rounds.append({name: f(a, model) for name, f in order})
        if sum(noise(r) <= a.other for r in rounds) >= a.runs:
            break
    return sorted(rounds, key=noise)[:a.runs]


def noise(r):
    return max(r["llama"]["other"], r["mere"]["other"])


def cpu_model():
    with open("/proc/cpuinfo") as f:
        facts = dict(line.split(":", 1) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    facts = {k.strip(): v.strip() for k, v in facts.items()}
    flags = [x for x in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if x in facts.get("flags", "").split()]
    return f"{facts.get('model name', 'unknown')} (family {facts.get('cpu family')}, model {facts.get('model')}; {' '.join(flags)})"


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--mere", default="build/release/mere")
    ap.add_argument("--llama-bench", required=True)
    ap.add_argument("-m", "--model", action="append", required=True)
    ap.add_argument("-p", "--prompt", type=int, default=512)
    ap.add_argument("-n", "--gen", type=int, default=128)
    ap.add_argument("-t", "--threads", type=int, default=2)
    ap.add_argument("--device", default="cpu", help="of mere; llama.cpp uses the one it was built for")
    ap.add_argument("--depth", type=int, default=0, help="tokens in the cache before")
    ap.add_argument("--reps", type=int, default=1, help="repetitions inside a round")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--tries", type=int, default=9)
    ap.add_argument("--other", type=float, default=0.05, help="share of the CPUs others may use in a round that counts")
    ap.add_argument("--nice", type=int, default=0, help="-15 (root) on a shared machine")
    ap.add_argument("--want", type=float, default=1.0, help="least ratio of every row")
    ap.add_argument("--name", default="cpu", help="of the file in bench/results")
    a = ap.parse_args()

    lines = []

    def say(text=""):
        print(text, flush=True)
        lines.append(text)

    # Paths of this machine stay out of the record: base names only.
    words = [os.path.basename(w) if "/" in w else w for w in sys.argv]
    version = run([a.mere, "version"], 0)[0].strip().splitlines()[0]
    say(f"# {datetime.date.today()}  {' '.join(words)}")
    say(f"# {cpu_model()}, {CPUS} CPUs, load {os.getloadavg()[0]:.1f}; {version}")
    say(f"# medians of {a.runs} rounds of {a.reps}, " + (f"{a.threads} threads" if a.device == "cpu" else f"device {a.device}")
        + (f", depth {a.depth}" if a.depth else ""))
    say(f"{'model':24} {'test':6} {'llama.cpp':>10} {'mere':>10} {'ratio':>6}   {'min..max of mere':20} {'others':>6}")
    worst, reads = None, []
    for model in a.model:
        rounds = measure(a, model)
        reads += [r["mere"]["read"] for r in rounds if r["mere"]["read"]]
        for key, test in (("prefill", f"pp{a.prompt}"), ("decode", f"tg{a.gen}")):
            theirs = statistics.median(r["llama"][key] for r in rounds)
            ours = statistics.median(r["mere"][key] for r in rounds)
            span = [r["mere"][key] for r in rounds]
            ratio = ours / theirs
            worst = ratio if worst is None else min(worst, ratio)
            say(f"{os.path.basename(model.rpartition('=')[2]):24} {test:6} {theirs:10.1f} {ours:10.1f} {ratio:5.2f}x   "
                f"{f'{min(span):.1f}..{max(span):.1f}':20} {max(noise(r) for r in rounds):6.1%}")
    say(f"# numerics {rounds[0]['mere']['numerics']}; lowest ratio {worst:.2f}x, wanted {a.want:.2f}x"
        + (f"; memory reads {statistics.median(reads):.1f} GB/s" if reads else ""))

    results = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
    os.makedirs(results, exist_ok=True)
    path = os.path.join(results, f"{datetime.date.today()}-{a.name}.txt")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    return worst < a.want


if __name__ == "__main__":
    sys.exit(main())
