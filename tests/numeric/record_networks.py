#!/usr/bin/env python3
"""tests/numeric/record_networks.py - PyTorch's runs of the two image networks, written down

    bench-venv/bin/python tests/numeric/record_networks.py first             seconds
    bench-venv/bin/python tests/numeric/record_networks.py epoch [SEED...]   five seeds: minutes
    bench-venv/bin/python tests/numeric/record_networks.py full [SEED...]    20 epochs of ConvBlock

Each adds its keys to fixtures/lenet.json and fixtures/convblock.json:

    torch, batch, sgd, mean, std    what ran
    first       {"seed", "rows", "init_sha256", "lr", "losses": [100], "spread": [100]}: the first 100
                steps on the first `rows` rows of the training set (limit: rows), in the order of
                NETWORK_order.bin (uint32), from torch_init.py NETWORK SEED, whose SHA-256 must be
                init_sha256. "spread" is how far, up to each step, PyTorch is from these losses
                itself when it runs with two threads, without oneDNN, in float64, or from weights
                that are one rounding away
    gentle      ConvBlock only: the same at a learning rate of 0.0001
    epoch       [{"seed", "accuracy", "test_loss"}, ...] after one epoch over all rows
    full        [{"seed", "accuracy": [20], "test_loss": [20]}, ...] after each epoch

LeNet's spread stays below 1e-6. ConvBlock's reaches 1e-4 within ten steps and 1e-3 within forty:
thousands of background pixels share one value of each channel, so that when rounding moves one
of these across zero, relu switches all of them. A comparison over its 100 steps has to allow for
that; at the gentle rate PyTorch agrees with itself to 1e-5, and so must we to 1e-4.
"""
import hashlib
import json
import os
import sys
import tempfile

import numpy as np
import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HERE = os.path.join(ROOT, "tests", "numeric", "fixtures")
sys.path[:0] = [os.path.join(ROOT, "bench", "peers"), os.path.join(ROOT, "tests", "numeric")]
import nets         # noqa: E402
import torch_init   # noqa: E402

FIRST_SEED, FIRST_STEPS, SEEDS = 1, 100, (1, 2, 3, 4, 5)


def recorded(name):
    path = os.path.join(HERE, name + ".json")
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def add_run(name, key, run):
    runs = [r for r in recorded(name).get(key, []) if r["seed"] != run["seed"]]
    record(name, key, sorted(runs + [run], key=lambda r: r["seed"]))


def record(name, key, value):
    path = os.path.join(HERE, name + ".json")
    cfg = nets.NETWORKS[name]
    doc = recorded(name)
    doc.update({"torch": torch.__version__.split("+")[0], "batch": cfg["batch"], "sgd": cfg["sgd"],
                "mean": cfg["mean"], "std": cfg["std"], key: value})
    with open(path, "w") as f:
        json.dump(doc, f, indent=1)
        f.write("\n")


def steps(net, cfg, x, y, order):
    """Trains on the rows of `order`; yields each step's loss."""
    optimizer = torch.optim.SGD(net.parameters(), **cfg["sgd"])
    return steps_with(optimizer, net, cfg, x, y, order)


def steps_with(optimizer, net, cfg, x, y, order):
    net.train()
    for at in range(0, len(order), cfg["batch"]):
        rows = order[at:at + cfg["batch"]]
        optimizer.zero_grad()
        loss = cfg["loss"](net(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        yield loss.item()


@torch.no_grad()
def evaluate(net, cfg, x, y):
    net.eval()
    hits = loss = 0.0
    for at in range(0, len(x), 500):
        out = net(x[at:at + 500])
        loss += cfg["loss"](out, y[at:at + 500], reduction="sum").item()
        hits += (out.argmax(1) == y[at:at + 500]).sum().item()
    return hits / len(x), loss / len(x)


def nudge(net):
    """Every weight by about one rounding."""
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + 6e-8 * torch.randn_like(p))


def spread(make, cfg, x, y, order, losses):
    """The running maximum of how far PyTorch's own variants are from `losses`."""
    variants = []

    def add(net, x):
        variants.append(list(steps(net, cfg, x, y, order)))

    torch.set_num_threads(2)
    add(make(), x)
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    add(make(), x)
    torch.backends.mkldnn.enabled = True
    add(make().double(), x.double())
    for _ in range(3):
        net = make()
        nudge(net)
        add(net, x)
    far = np.abs(np.array(variants) - np.array(losses)).max(0)
    return [float("%.2g" % v) for v in np.maximum.accumulate(far)]


def first(name, key, sgd):
    cfg = dict(nets.NETWORKS[name], sgd=sgd)
    rows = FIRST_STEPS * cfg["batch"]
    x, y = nets.fashion("train", cfg["mean"], cfg["std"])
    x, y = x[:rows], y[:rows]
    torch.manual_seed(FIRST_SEED)
    start = cfg["net"]().state_dict()
    init, _ = torch_init.initial(name, FIRST_SEED)
    for tensor, shape, values in init:
        if not np.array_equal(np.array(values, np.float32).reshape(shape), start[tensor].numpy()):
            sys.exit(f"{name}: torch_init.py no longer makes PyTorch's {tensor}")
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as f:
        torch_init.write(f.name, init)
        sha = hashlib.sha256(open(f.name, "rb").read()).hexdigest()
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(FIRST_SEED))
    order.numpy().astype("<u4").tofile(os.path.join(HERE, name + "_order.bin"))

    def make():
        net = cfg["net"]()
        net.load_state_dict(start)
        return net

    losses = list(steps(make(), cfg, x, y, order))
    far = spread(make, cfg, x, y, order, losses)
    record(name, key, {"seed": FIRST_SEED, "rows": rows, "init_sha256": sha, "lr": sgd["lr"],
                       "losses": [float("%.9g" % v) for v in losses], "spread": far})
    print(name, key, "losses", losses[0], "...", losses[-1], "spread", far[9::10])


def epochs(name, seed, count):
    cfg = nets.NETWORKS[name]
    x, y = nets.fashion("train", cfg["mean"], cfg["std"])
    xt, yt = nets.fashion("t10k", cfg["mean"], cfg["std"])
    torch.manual_seed(seed)
    net = cfg["net"]()
    optimizer = torch.optim.SGD(net.parameters(), **cfg["sgd"])
    accuracy, test_loss = [], []
    for _ in range(count):
        for _ in steps_with(optimizer, net, cfg, x, y, torch.randperm(len(x))):
            pass
        a, t = evaluate(net, cfg, xt, yt)
        accuracy.append(round(a, 6))
        test_loss.append(round(t, 6))
        print(name, "seed", seed, "accuracy", a, "test loss", t, flush=True)
    return accuracy, test_loss


def main(what, args):
    if what == "first":
        for name in nets.NETWORKS:
            first(name, "first", nets.NETWORKS[name]["sgd"])
        first("convblock", "gentle", dict(nets.NETWORKS["convblock"]["sgd"], lr=0.0001))
    elif what == "epoch":
        for name in nets.NETWORKS:
            for seed in [int(s) for s in args] or SEEDS:
                a, t = epochs(name, seed, 1)
                add_run(name, "epoch", {"seed": seed, "accuracy": a[0], "test_loss": t[0]})
    elif what == "full":
        for seed in [int(s) for s in args] or [1]:
            a, t = epochs("convblock", seed, 20)
            add_run("convblock", "full", {"seed": seed, "accuracy": a, "test_loss": t})
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    main(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:])
