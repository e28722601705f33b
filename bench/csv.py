#!/usr/bin/env python3
"""bench/csv.py - a CSV file to typed columns in MB/s, beside pandas, pyarrow and polars

The Chicago taxi file repeated to 200 MB, in the page cache, 2 threads each. Sides take turns, one
read a turn; the figure is the median. muster reads it in two ways: texts as strings, as the peers
do unless told otherwise, and as categories. Every side holds the whole table when the clock stops
and gives it back before the next read.
"""
import os
import subprocess
import sys

import sides
from sides import median

ROUNDS = int(os.environ.get("ROUNDS", 7))
BYTES = 200_000_000
GOAL = 1.0
#         area fare month..timestamp 4 coordinates miles 2 tracts payment company seconds area tips
STRINGS = "i" "d" "iiii" "dddd" "d" "ii" "tt" "i" "i" "d"
CATEGORIES = STRINGS.replace("t", "c")
PEERS = ("pandas-c", "pandas-pyarrow", "pyarrow", "pyarrow-categories", "polars",
         "polars-categories")


class Side(sides.Peer):
    """A reader that waits: one read and one figure for each line that it is sent."""

    def __init__(self, label, *argv):
        self.label, self.rates = label, []
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=dict(os.environ, POLARS_MAX_THREADS=str(sides.THREADS)))
        if self.process.stdout.readline() != "ready\n":
            print(f"  {label}: did not start", file=sys.stderr)
            self.process = None


def big_file():
    """The taxi file's rows again and again under one header; made once."""
    path = os.path.join(sides.CACHE, "bench", "taxi_200mb.csv")
    if os.path.exists(path):
        return path
    with open(os.path.join(sides.DATA, "chicago_taxi.csv"), "rb") as f:
        header, rows = f.readline(), f.read()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as out:
        out.write(header)
        for _ in range(-(-BYTES // len(rows))):
            out.write(rows)
    os.rename(path + ".part", path)
    return path


def main():
    file = os.path.join(sides.DATA, "chicago_taxi.csv") if sides.QUICK else big_file()
    mine = sides.built("bench-csv")
    peer = os.path.join(sides.PEERS, "csv_read.py")
    ours = [Side(label, mine, file, types, str(sides.THREADS))
            for label, types in (("strings", STRINGS), ("categories", CATEGORIES))]
    theirs = [Side(name, sides.PYTHON, peer, name, file) for name in PEERS
              if not sides.left_out(name)]
    for side in ours:
        side.run(0)             # the peers have read once or twice already
        side.rates.clear()
    for _ in range(ROUNDS):
        for side in ours + theirs:
            side.run(0)
    for side in ours + theirs:
        side.close()
    strings, categories = (median(side.rates) for side in ours)
    rows = []
    for side in theirs:
        rate = strings if not side.label.endswith("categories") else categories
        if side.rate():
            rows.append((side.label, f"{rate:.0f} MB/s", f"{side.rate():.0f} MB/s",
                         f"{rate / side.rate():.2f}", f"> {GOAL:.0f}", rate > GOAL * side.rate()))
    if not theirs:
        rows = [("texts as strings", f"{strings:.0f} MB/s", "", "", "", None),
                ("texts as categories", f"{categories:.0f} MB/s", "", "", "", None)]
    sides.table(f"a CSV file of {os.path.getsize(file) / 1e6:.0f} MB to typed columns, "
                f"{sides.THREADS} threads; median of {ROUNDS}", rows)


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as e:
        sides.problem(f"csv: {e}")
