#!/usr/bin/env python3
"""tests/numeric/torch_init.py - PyTorch's own initial weights, without PyTorch

    torch_init.py lenet|convblock SEED OUT.safetensors [ORDER.bin]

Writes, bit for bit, what `torch.manual_seed(SEED); Net()` makes of the two image networks
(bench/peers/nets.py), so that tests can start from the weights a recorded PyTorch run started from
without 7 MB of them in the tree. record_networks.py puts the SHA-256 of PyTorch's real file beside
the recorded losses, and a test compares. Standard library only.

PyTorch draws from one MT19937 seeded by init_genrand. A weight of nn.Linear or nn.Conv2d is
uniform in [-b, b), b = 1 / sqrt(fan-in), its bias after it likewise; a draw is the low 24 bits of
one output, scaled by a fused multiply-add in float32. Norms start at 1 and 0 and draw nothing.
ORDER.bin gets the torch.randperm(60000) that comes next, as uint32: the order of the first epoch.
"""
import json
import math
import random
import struct
import sys
from array import array

# name, kind, shape of the weight
LENET = [
    ("conv1", "uniform", (6, 1, 5, 5)),
    ("conv2", "uniform", (16, 6, 5, 5)),
    ("fc1", "uniform", (120, 256)),
    ("fc2", "uniform", (84, 120)),
    ("fc3", "uniform", (10, 84)),
]
CONVBLOCK = [
    ("conv1.conv", "uniform", (16, 1, 3, 3)),
    ("conv1.bn", "norm", (16,)),
    ("conv2.conv", "uniform", (32, 16, 3, 3)),
    ("conv2.bn", "norm", (32,)),
    ("conv3.conv", "uniform", (64, 32, 1, 1)),
    ("conv3.bn", "norm", (64,)),
    ("fc1", "uniform", (512, 64 * 7 * 7)),
    ("fc2", "uniform", (10, 512)),
]
NETWORKS = {"lenet": LENET, "convblock": CONVBLOCK}


def mt19937(seed):
    """random.seed hashes its argument; the state is therefore filled in as init_genrand does."""
    state = [seed & 0xffffffff]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xffffffff)
    r = random.Random()
    r.setstate((3, tuple(state) + (624,), None))
    return r


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def uniform(r, count, bound):
    """x * (to - from) + from as one fused operation: in Python's float both steps are exact here,
    and `array` rounds once."""
    low = f32(-bound)
    width = f32(f32(bound) - low)
    scale = width * 2.0 ** -24
    return array("f", [(r.getrandbits(32) & 0xffffff) * scale + low for _ in range(count)])


def initial(network, seed):
    """[(name, shape, array of float)] in the order of a state dict, and the generator after it."""
    r = mt19937(seed)
    result = []
    for name, kind, shape in NETWORKS[network]:
        if kind == "norm":
            for suffix, value in (("weight", 1), ("bias", 0), ("running_mean", 0),
                                  ("running_var", 1)):
                result.append((f"{name}.{suffix}", shape, array("f", [value]) * shape[0]))
            continue
        fan_in = math.prod(shape[1:])
        # kaiming_uniform_(a = sqrt(5)) for the weight: the same bound, computed another way.
        bound = math.sqrt(3.0) * (math.sqrt(2.0 / (1 + math.sqrt(5) ** 2)) / math.sqrt(fan_in))
        result.append((name + ".weight", shape, uniform(r, math.prod(shape), bound)))
        result.append((name + ".bias", shape[:1], uniform(r, shape[0], 1 / math.sqrt(fan_in))))
    return result, r


def permutation(r, n):
    """torch.randperm: Fisher-Yates from the front, one output an element."""
    p = array("I", range(n))
    for i in range(n - 1):
        z = i + r.getrandbits(32) % (n - i)
        p[i], p[z] = p[z], p[i]
    return p


def write(path, tensors):
    """safetensors: length of the header, a JSON header, then the bytes."""
    header, at = {}, 0
    for name, shape, values in tensors:
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in tensors:
            if sys.byteorder == "big":
                values.byteswap()
            f.write(values.tobytes())


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in NETWORKS:
        sys.exit("usage: torch_init.py lenet|convblock SEED OUT.safetensors [ORDER.bin]")
    tensors, generator = initial(sys.argv[1], int(sys.argv[2]))
    write(sys.argv[3], tensors)
    if len(sys.argv) == 5:
        order = permutation(generator, 60000)
        if sys.byteorder == "big":
            order.byteswap()
        with open(sys.argv[4], "wb") as f:
            f.write(order.tobytes())
