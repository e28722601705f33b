#!/usr/bin/env python3
"""bench/memory.py [lenet] [stream] - peak resident memory of a training process

lenet: the fashion-lenet example, one epoch. stream: a CSV of 5 GB (the taxi trips over and over,
made in the cache and removed again) trained as a stream; what grows with the file would show.
STREAM_GB sets another size; the goal is for any.
"""
import os
import sys
import tempfile

import sides

GB = float(os.environ.get("STREAM_GB", 5))
MB = 1e6
SPEC = """\
name: taxi-stream
data:
  train: {{csv: {path}}}
  stream: true
  shuffle: 10000
  on_error: skip
  features:
    trip_miles: {{numeric: {{mean: 2.9, variance: 250}}}}
    fare: {{numeric: {{mean: 11.8, variance: 140}}}}
    trip_seconds: {{numeric: {{mean: 780, variance: 1000000}}}}
    trip_start_hour: {{identity: 24}}
    payment_type: {{vocabulary: [Cash, Credit Card]}}
  derived: {{tip: "tips > 0.2 * fare"}}
  target: tip
model: {{wide_and_deep: {{hidden: [16, 8], embedding: 4}}}}
loss: bce_with_logits
optimizer: {{sgd: {{lr: 0.01}}}}
batch: 4096
epochs: 1
"""


def lenet():
    run = sides.muster_train(sides.example("fashion-lenet"), "--set", "epochs=1")
    return ("fashion-lenet, one epoch", f"{run['peak'] / MB:.0f} MB", "", "", "<= 100 MB",
            run["peak"] <= 100 * MB)


def repeat(path, size):
    """The header once, then the taxi file's rows until `size` bytes."""
    with open(os.path.join(sides.DATA, "chicago_taxi.csv"), "rb") as f:
        header, rows = f.read().split(b"\n", 1)
    if not rows.endswith(b"\n"):
        rows += b"\n"
    block = rows * max(1, int(64 * MB / len(rows)))
    with open(path, "wb") as f:
        written = f.write(header + b"\n")
        while written < size:
            written += f.write(rows if size - written < len(block) else block)
    return written


def stream():
    with tempfile.TemporaryDirectory(dir=sides.CACHE, prefix="stream-") as d:
        path, spec = os.path.join(d, "taxi.csv"), os.path.join(d, "train.yaml")
        size = repeat(path, GB * 1e9)
        with open(spec, "w") as f:
            f.write(SPEC.format(path=path))
        run = sides.muster_train(spec)
    return (f"a CSV of {size / 1e9:.1f} GB as a stream, {size / 1e6 / run['wall']:.0f} MB/s",
            f"{run['peak'] / MB:.0f} MB", "", "", "<= 100 MB and batches",
            run["peak"] <= 100 * MB + 2 * 4096 * 64)


def main(names):
    rows = []
    for name in names:
        try:
            rows.append({"lenet": lenet, "stream": stream}[name]())
        except (OSError, RuntimeError, KeyError) as e:
            sides.problem(f"{name}: {e}")
    sides.table("peak resident memory", rows)


if __name__ == "__main__":
    main(sys.argv[1:] or ["lenet", "stream"])
