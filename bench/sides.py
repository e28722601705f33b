"""bench/sides.py - what every benchmark here needs: muster's binary, the peers' Python, a table

A table says what, muster, peer, ratio, goal and whether it was met; it never fails a run.

BENCH_QUICK (bench/run --quick): every line of muster's side is run, on little data and once, and no
peer is; the figures mean nothing. It shows that a benchmark still works: what goes wrong then ends it
with an exit code.
"""
import atexit
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.path.join(ROOT, "bench", "peers")
MUSTER = os.environ.get("MUSTER") or os.path.join(ROOT, "build", "muster")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "muster")
DATA = os.environ.get("MUSTER_DATA") or os.path.join(CACHE, "data")
PYTHON = os.path.join(CACHE, "bench-venv", "bin", "python")
BUILD = os.environ.get("BENCH_BUILD") or os.path.join(CACHE, "bench-build")
THREADS = 2
QUICK = bool(os.environ.get("BENCH_QUICK"))
QUICK_ROWS = 256                # of a training run
if QUICK:                       # what the benchmarks take from the environment
    for name, value in (("ROUNDS", 1), ("SECONDS", 0.1), ("BENCH_SECONDS", 0.1), ("EVENTS", 1),
                        ("PEER_EVENTS", 0), ("SHORT", 3), ("STEPS", 5), ("MANY", 30), ("LIMIT", 64),
                        ("STREAM_GB", 0.002)):
        os.environ.setdefault(name, str(value))
wrong = []

os.environ.setdefault("MUSTER_DATA", DATA)
if hasattr(os, "sched_setaffinity"):    # both sides on the same two cores, however many there are
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
median = statistics.median


def problem(text):
    """Told in place of a figure; a quick run fails by it."""
    print(text)
    wrong.append(text)


def end_quick():
    if QUICK and wrong:
        sys.stdout.flush()
        os._exit(1)


atexit.register(end_quick)


def left_out(label):
    """Whether a peer is not to be run; said."""
    if QUICK:
        print(f"  {label}: left out (quick)", file=sys.stderr)
    return QUICK


def example(name):
    return os.path.join(ROOT, "examples", name, "train.yaml")


class Peer:
    """A process that waits to be timed (peers/serve.py)."""

    def __init__(self, label, *argv):
        self.label, self.rates, self.process = label, [], None
        if left_out(label):
            return
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [PYTHON, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env=dict(os.environ, OMP_NUM_THREADS=str(THREADS), JAX_PLATFORMS="cpu"))
        if self.process.stdout.readline() != "ready\n":
            self.log.seek(0)
            said = self.log.read().strip().splitlines() or ["nothing"]
            print(f"  {label}: did not start: {said[-1]}", file=sys.stderr)
            self.process = None

    def run(self, seconds):
        if self.process:
            self.process.stdin.write(f"{seconds}\n")
            self.process.stdin.flush()
            self.rates.append(float(self.process.stdout.readline()))

    def rate(self):
        return median(self.rates) if self.rates else 0.0

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


def muster(*args, quiet=True):
    """Runs the binary; (seconds of wall clock, peak bytes, standard output)."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        p = subprocess.Popen([MUSTER, *args], stdout=out, stderr=err)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        out.seek(0)
        err.seek(0)
        if p.returncode != 0:
            raise RuntimeError(f"muster {' '.join(args)}: {err.read().strip() or p.returncode}")
        return seconds, usage.ru_maxrss * 1024, out.read()


def muster_train(spec, *args):
    """A training run: {"wall": seconds, "peak": bytes, "rate": samples a second, "run": run.json}."""
    if QUICK:
        tested = ("--set", "data.test.limit=64") if "fashion" in spec else ()
        args = ("--set", f"limit={QUICK_ROWS}", *tested, *args)
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "run")
        wall, peak, text = muster("train", spec, "--threads", str(THREADS), "--out", out, "--json",
                                  *args)
        with open(os.path.join(out, "run.json")) as f:
            run = json.load(f)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    rates = [line["samples_per_s"] for line in lines if line.get("samples_per_s")]
    rate = run.get("samples_per_s") or (rates[-1] if rates else 0.0)
    return {"wall": wall, "peak": peak, "rate": rate, "run": run}


def table(title, rows):
    """rows: (what, muster, peer, ratio, goal, met or None), all text but the last."""
    head = ("what", "muster", "peer", "ratio", "goal", "met?")
    rows = [(*r[:5], {True: "yes", False: "no", None: ""}[r[5]]) for r in rows]
    width = [max(len(str(r[i])) for r in [head, *rows]) for i in range(6)]
    print(f"\n{title}")
    for r in [head, *rows]:
        print("  " + "  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w)
                               for i, (c, w) in enumerate(zip(r, width))).rstrip())
    sys.stdout.flush()


def build(source, *flags):
    """Compiles a C program of bench/ into the cache; its path."""
    os.makedirs(BUILD, exist_ok=True)
    out = os.path.join(BUILD, os.path.splitext(os.path.basename(source))[0])
    subprocess.run(["cc", "-std=gnu17", "-O2", "-Wall", "-Wextra",
                    os.path.join(ROOT, "bench", source), "-o", out, *flags], check=True)
    return out


def built(target):
    """A C program of bench/meson.build, made up to date in the build that the binary comes from."""
    folder = os.path.dirname(os.path.abspath(MUSTER))
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        raise RuntimeError(f"{MUSTER} does not lie in a build directory, so {target} cannot be built "
                           "beside it (make build, then MUSTER=build/muster)")
    subprocess.run(["ninja", "-C", folder, "--quiet", f"bench/{target}"], check=True,
                   stdout=sys.stderr)
    return os.path.join(folder, "bench", target)


def sgemm_rate(seconds=2):
    """GFLOP/s of OpenBLAS on the cores in use; 0 in a quick run."""
    if left_out("OpenBLAS"):
        return 0.0
    include = [f"-I{d}" for d in ("/usr/include/x86_64-linux-gnu/openblas-pthread",
                                  "/usr/include/openblas-pthread") if os.path.isdir(d)]
    program = build("sgemm.c", *include, "-lopenblas")
    done = subprocess.run([program, str(THREADS), str(seconds)], capture_output=True, text=True,
                          check=True)
    return float(done.stdout)
