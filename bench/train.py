#!/usr/bin/env python3
"""bench/train.py [lenet] [convblock] - training speed beside PyTorch and JAX

Both networks with two threads on the same two cores, in one run: every side is warm before the
first timing, rounds alternate between the sides, medians are shown. muster's figure is what
`muster train` reports for an epoch of the example's spec; "whole process" is 60,000 samples over the
wall clock of that process, reading, testing and saving included. ROUNDS and SECONDS may be set in
the environment.
"""
import os
import sys

import sides
from sides import median

ROUNDS = int(os.environ.get("ROUNDS", 5))
SECONDS = float(os.environ.get("SECONDS", 2))

GOALS = {"lenet": ("fashion-lenet", 4, 40.0), "convblock": ("fashion-convblock", 64, 2.7)}
# A direct convolution's operations in a training step, a sample: two for each multiply-add of
# forward, input gradient and weight gradient; the first layer has no input gradient.
MACS = {
    "lenet": (6 * 24 * 24 * 25, 16 * 8 * 8 * 6 * 25, 256 * 120, 120 * 84, 84 * 10),
    "convblock": (16 * 14 * 14 * 9, 32 * 14 * 14 * 16 * 9, 64 * 14 * 14 * 32, 3136 * 512, 512 * 10),
}


def flops(network):
    first, *rest = MACS[network]
    return 2 * (2 * first + 3 * sum(rest))


def start_peers(network):
    torch = os.path.join(sides.PEERS, "torch_train.py")
    return [sides.Peer("PyTorch eager", torch, network, "eager"),
            sides.Peer("torch.compile", torch, network, "compile"),
            sides.Peer("torch.compile, one graph", torch, network, "one-graph"),
            sides.Peer("JAX, scanned", os.path.join(sides.PEERS, "jax_train.py"), network)]


def bench(network):
    example, batch, goal = GOALS[network]
    print(f"{network}: starting the peers (compiling takes a minute or two)", file=sys.stderr)
    peers = start_peers(network)
    runs, gemm, failed = [], [], None
    for _ in range(ROUNDS):
        try:
            runs.append(sides.muster_train(sides.example(example), "--set", "epochs=1"))
        except (OSError, RuntimeError, KeyError) as e:
            failed = e
        for p in peers:
            p.run(SECONDS)
        gemm.append(sides.sgemm_rate(0.5))
    for p in peers:
        p.close()
    ours = median([r["rate"] for r in runs]) if runs else 0.0
    sgemm = median(gemm)
    best = max(p.rate() for p in peers)

    def share(rate):
        return f"{100 * rate * flops(network) / 1e9 / sgemm:.0f} % of sgemm" if sgemm else ""

    rows = []
    for p in peers:
        rate = p.rate()
        rows.append((f"beside {p.label}, {share(rate)}", f"{ours:,.0f}", f"{rate:,.0f}",
                     f"{ours / rate:.2f}" if rate else "-", "", None))
    rows.append(("beside the best of them", f"{ours:,.0f}", f"{best:,.0f}",
                 f"{ours / best:.2f}" if best else "-", f">= {goal:g}",
                 ours >= goal * best if runs else None))
    rate = ours * flops(network) / 1e9
    rows.append(("GFLOP/s beside OpenBLAS sgemm", f"{rate:.0f}", f"{sgemm:.0f}",
                 f"{rate / sgemm:.2f}" if sgemm else "-", ">= 1" if network == "convblock" else "",
                 rate >= sgemm if runs and network == "convblock" else None))
    if runs:
        whole = median([60000 / r["wall"] for r in runs])
        rows.append(("whole process, test and save included", f"{whole:,.0f}", "", "", "", None))
    sides.table(f"{example}: training, samples/s, batch {batch}, {sides.THREADS} threads, "
                f"median of {ROUNDS}", rows)
    if failed:
        sides.problem(f"  muster: {failed}")


if __name__ == "__main__":
    for name in sys.argv[1:] or list(GOALS):
        bench(name)
