#!/usr/bin/env python3
"""bench/predict.py - one row through LeNet, in process, beside onnxruntime on the same model

muster trains a short run of fashion-lenet and exports it; both sides then answer for the same images,
one call at a time, muster through muster.h (bench/predict.c), onnxruntime through its bound inputs.
"""
import gzip
import os
import subprocess
import tempfile

import sides
from sides import median

ROUNDS = int(os.environ.get("ROUNDS", 5))
CALLS = "200" if sides.QUICK else "20000"
GOAL_US = 6


def answer(argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no answer"])[-1])
    a, b, label = done.stdout.split()
    return float(a), float(b), int(label)


def main():
    with tempfile.TemporaryDirectory() as d:
        model, onnx, images = (os.path.join(d, n) for n in ("run", "lenet.onnx", "images"))
        sides.muster("train", sides.example("fashion-lenet"), "--out", model, "--set", "epochs=1",
                     "--set", "limit=400" if sides.QUICK else "limit=4000",
                     *(("--set", "data.test.limit=64") if sides.QUICK else ()))
        sides.muster("export", model, "--format", "onnx", "-o", onnx)
        name = os.path.join(sides.DATA, "fashion-mnist", "t10k-images-idx3-ubyte.gz")
        with gzip.open(name) as f, open(images, "wb") as out:
            out.write(f.read(16 + 64 * 784))
        ours, theirs, mine = [], [], sides.built("bench-predict")
        peer = os.path.join(sides.PEERS, "onnx_predict.py")
        for _ in range(ROUNDS):
            ours.append(answer([mine, model, images, CALLS]))
            if not sides.left_out("onnxruntime"):
                theirs.append(answer([sides.PYTHON, peer, onnx, images, CALLS]))
    if not theirs:
        sides.table(f"one row through LeNet; median of {ROUNDS}", [
            ("median", f"{median([r[0] for r in ours]):.1f} us", "", "", "", None)])
        return
    us, peer_us = median([r[0] for r in ours]), median([r[0] for r in theirs])
    slow, peer_slow = median([r[1] for r in ours]), median([r[1] for r in theirs])
    rows = [("median", f"{us:.1f} us", f"{peer_us:.1f} us", f"{peer_us / us:.1f}",
             f"<= {GOAL_US} us", us <= GOAL_US),
            ("99th percentile", f"{slow:.1f} us", f"{peer_slow:.1f} us", f"{peer_slow / slow:.1f}",
             "", None)]
    sides.table(f"one row through LeNet, beside onnxruntime; median of {ROUNDS}", rows)
    if ours[0][2] != theirs[0][2]:
        print("  the two sides name different classes for the first image")


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as e:
        sides.problem(f"predict: {e}")
