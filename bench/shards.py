#!/usr/bin/env python3
"""bench/shards.py - what "same bits" costs: shards: 8 beside shards: 1, same binary

Rounds alternate, and the order within a round too. LeNet's batch of 4 has at most 4 shards. One
thread: convolutions are split by shard, so that shards: 1 would leave a second one idle.
"""
import os

import sides
from sides import median

ROUNDS = int(os.environ.get("ROUNDS", 5))
GOAL = 0.95


def rate(example, shards):
    return sides.muster_train(sides.example(example), "--set", "epochs=1", "--set",
                              f"shards={shards}", "--threads", "1")["rate"]


def main():
    rows = []
    for example, many in (("fashion-lenet", 4), ("fashion-convblock", 8)):
        got = {1: [], many: []}
        try:
            for i in range(ROUNDS):
                for shards in (1, many) if i % 2 else (many, 1):
                    got[shards].append(rate(example, shards))
        except (OSError, RuntimeError, KeyError) as e:
            sides.problem(f"{example}: {e}")
            continue
        one, eight = median(got[1]), median(got[many])
        rows.append((f"{example}, shards: {many} beside shards: 1", f"{eight:,.0f}", f"{one:,.0f}",
                     f"{eight / one:.3f}", f">= {GOAL}", eight >= GOAL * one))
    sides.table(f"same bits: training, samples/s, 1 thread, median of {ROUNDS}", rows)


if __name__ == "__main__":
    main()
