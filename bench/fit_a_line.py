#!/usr/bin/env python3
"""bench/fit_a_line.py - 100 epochs of fit-a-line, from the start of the process to its end

A test every 10 steps, one save at the end. Both peers are whole processes as well: imports are part
of what a person waits for. The stop rule is left out on every side, so that all do the same work.
"""
import os
import subprocess
import tempfile
import time

import sides
from sides import median

ROUNDS = int(os.environ.get("ROUNDS", 5))
GOAL_MS = 10


def peer(how):
    with tempfile.TemporaryDirectory() as d:
        start = time.perf_counter()
        done = subprocess.run([sides.PYTHON, os.path.join(sides.PEERS, "fit_a_line.py"), how,
                               os.path.join(sides.DATA, "boston_house_prices.csv"),
                               os.path.join(d, "model")], capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
    return seconds, [float(v) for v in done.stdout.split()]


def main():
    ours, failed, loss = [], None, None
    theirs = {"numpy": [], "torch": []}
    inside = {"numpy": [], "torch": []}
    for _ in range(ROUNDS):
        for how, times in theirs.items():
            if sides.left_out(how):
                continue
            seconds, (training, peer_loss) = peer(how)
            times.append(seconds)
            inside[how].append(training)
        for _ in range(4):              # short, so that one is easily disturbed
            with tempfile.TemporaryDirectory() as d:
                try:
                    run = sides.muster("train", sides.example("fit-a-line"), "--out",
                                       os.path.join(d, "run"), "--set", "stop=null")
                    ours.append(run[0])
                except (OSError, RuntimeError) as e:
                    failed = e
    ms = 1e3 * median(ours) if ours else 0.0
    rows = []
    for how, label in (("numpy", "numpy"), ("torch", "PyTorch")):
        if not theirs[how]:
            continue
        t = 1e3 * median(theirs[how])
        rows.append((f"beside {label} ({1e3 * median(inside[how]):.0f} ms without its start)",
                     f"{ms:.1f} ms", f"{t:.0f} ms", f"{t / ms:.0f}" if ms else "-", "", None))
    rows.append(("wall clock of the process", f"{ms:.1f} ms", "", "", f"<= {GOAL_MS} ms",
                 ms <= GOAL_MS if ours else None))
    sides.table(f"fit-a-line: 100 epochs, a test every 10 steps, one save; median of {ROUNDS}", rows)
    if failed:
        sides.problem(f"  muster: {failed}")


if __name__ == "__main__":
    main()
