#!/usr/bin/env python3
"""Makes taxi_train_small.csv and taxi_eval_small.csv out of the trips in Chicago.

usage: make-data.py FOLDER [CHICAGO_CSV]

No header; the columns are those of trainer/metadata.py. Every fifth trip is held out.
"""
import csv
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from trainer.metadata import HEADER  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
DATA = Path(os.environ.get("MUSTER_DATA") or CACHE / "muster/data")


def number(text):
    return float(text or 0)


def main(folder, source=DATA / "chicago_taxi.csv"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(source, newline="") as trips, \
            open(folder / "taxi_train_small.csv", "w", newline="") as train, \
            open(folder / "taxi_eval_small.csv", "w", newline="") as held_out:
        writers = [csv.writer(f, lineterminator="\n") for f in (held_out, train)]
        for i, trip in enumerate(csv.DictReader(trips)):
            trip["tip"] = int(number(trip["tips"]) > 0.2 * number(trip["fare"]))
            writers[i % 5 != 0].writerow([trip[name] for name in HEADER])


if __name__ == "__main__":
    main(*sys.argv[1:])
