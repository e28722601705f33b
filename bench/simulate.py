#!/usr/bin/env python3
"""bench/simulate.py [--net convblock|large] [--workers 8,64,...] [--measure] - scale, on paper

Plays the protocol of a job of many workers and prints where its time goes: a step (compute, gathers
for batch norm, reduce by segments, all segments to all, update), a worker that is killed, one that
joins, and the coordinator's load. Twice: `mesh` is the protocol as it is built (every worker linked
to every other), carried on beyond the limits that it has today; `tree` is what docs/design/scale.md
proposes (shared memory inside a host, pairwise exchange between hosts along the tree over the
shards, a speaker for each host towards the coordinator).

A step is played message by message in the order in which they are sent; a worker sends to the next
one first, so that no two send to the same. The coordinator's part is a queue of events. Workers
differ by --jitter; a worker has a core and its part of the host's network link. Weak scaling: each
worker has --shards-each shards of --samples samples, so the batch grows with the workers.

--measure takes what can be taken here: a step by build/muster (MUSTER), loopback, memory, poll.
"""
import argparse
import heapq
import math
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Parameters; seconds of a core for a sample and for an update; gathers of a step (three for a batch
# norm, one for the loss), their bytes for a shard. convblock: measured (--measure does it again).
# large: the size of ResNet-50, 25.6 M parameters and 12 GFLOP a sample, at 70 GFLOP/s a core.
NETS = {
    "convblock": dict(floats=1_624_704, sample=158e-6, update=0.65e-3, gathers=10, row=200),
    "large": dict(floats=25_600_000, sample=0.17, update=10e-3, gathers=160, row=2700),
}
# What is built today; beyond them the rows of `mesh` are a projection.
SHARDS_MAX, MESH_MAX, GATHER_BYTES, CHUNK = 8, 64, 65536, 65536


class Cost:
    """Everything that is assumed about machines; seconds and bytes."""

    def __init__(self, args):
        net = NETS[args.net]
        self.bytes = 4 * net["floats"]
        self.sample, self.update = net["sample"], net["update"]
        self.gathers, self.row = net["gathers"], net["row"]
        self.samples, self.shards_each = args.samples, args.shards_each
        self.per_host = args.per_host
        self.net = args.gbits * 1e9 / 8          # of a host
        self.latency = args.latency_us * 1e-6
        self.message = args.message_us * 1e-6    # of a core, to send one or to take one
        self.memory = args.memory_gbs * 1e9      # a core reads another's region
        self.post = 1e-6                         # a word seen by another core
        self.jitter = args.jitter
        self.beat = args.beat_ms * 1e-3
        self.control = args.control_us * 1e-6    # the coordinator takes or makes a message
        self.poll = args.poll_us * 1e-6          # for each connection, each time it wakes
        self.store = args.store_ms * 1e-3        # roster.json
        self.entry = 150                         # bytes of a worker in a roster message
        self.start = args.start_ms * 1e-3        # a process, its spec and its data
        self.mtbf = args.mtbf_days * 86400


# ---------------------------------------------------------------------- a step

def compute(c, n, rng, shards=None):
    """When each worker is done with its own samples."""
    shards = c.shards_each if shards is None else shards
    return shards * c.samples * c.sample * (1 + c.jitter * np.abs(rng.standard_normal(n)))


def exchange(c, t, size):
    """All to all, `size` bytes to each: worker i sends to i + 1, i + 2, ... Returns when each
    worker has everything. By TCP that is a message for each 64 KiB and one that says they are all;
    inside a host nothing is sent: a word says that the bytes can be read."""
    n, w = len(t), min(c.per_host, len(t))
    out, got = t.copy(), t.copy()
    place = np.arange(n)
    share, work = c.net / w, (1 + math.ceil(size / CHUNK)) * c.message
    for k in range(1, n):
        to = (place + k) % n
        near = place // w == to // w
        out = out + np.where(near, 0, work + size / share)
        arrives = np.empty(n)
        arrives[to] = out + np.where(near, c.post, c.latency)
        cost = np.empty(n)
        cost[to] = np.where(near, 0, work)
        got = np.maximum(got, arrives) + cost
    return np.maximum(got, out)


def mesh_step(c, n, rng, shards=None):
    """(seconds, of them gathers, of them reduce). The slowest counts."""
    t = compute(c, n, rng, shards)
    begin = t.max()
    own = c.row * c.shards_each
    t = exchange(c, t, own)                     # all wait for all, so the others are alike
    t = t + (c.gathers - 1) * exchange(c, np.zeros(n), own).max()
    gathered = t.max()
    segment = c.bytes / n
    t = exchange(c, t, segment) + c.bytes / c.memory    # n pieces of a segment are added up
    t = exchange(c, t, segment)                         # the update reads them where they are
    reduced = t.max()
    return reduced + c.update, gathered - begin, reduced - gathered


def pairs(c, t, size, hosts, levels):
    """Pairwise exchange at the given levels of the tree, `size(level)` bytes each way."""
    for level in levels:
        partner = np.arange(hosts) ^ (1 << level)
        t = np.maximum(t, t[partner]) + 2 * c.message + c.latency + size(level) / c.net
    return t


def tree_step(c, n, rng, shards=None):
    """Hosts first add up by segments in shared memory; worker j of each host then speaks for
    segment j of its host. Level k joins two complete subtrees of 2^k hosts, so the sums are those
    of the tree over the shards; each side goes on with half of what it has."""
    t = compute(c, n, rng, shards)
    begin = t.max()
    w = min(c.per_host, n)
    hosts = n // w
    t = t.reshape(hosts, w).max(axis=1)
    levels = range(max(0, hosts.bit_length() - 1))
    for _ in range(c.gathers):
        t = pairs(c, t + 2 * c.post + w * c.shards_each * c.row / c.memory, lambda k: c.row, hosts,
                  levels) + c.post
    gathered = t.max()
    t = t + c.post + c.bytes / c.memory         # w pieces of a w-th each
    t = pairs(c, t, lambda k: c.bytes / 2 ** (k + 1), hosts, levels)
    t = pairs(c, t, lambda k: c.bytes / 2 ** (k + 1), hosts, reversed(levels))
    t = t + c.post
    reduced = t.max()
    return reduced + c.update, gathered - begin, reduced - gathered


# ---------------------------------------------------------------------- the coordinator

class Queue:
    """Events by time. The coordinator is one server: what comes waits until it is free."""

    def __init__(self):
        self.events, self.number, self.now, self.free = [], 0, 0.0, 0.0

    def at(self, t, do, *args):
        self.number += 1
        heapq.heappush(self.events, (t, self.number, do, args))

    def serve(self, seconds):
        self.free = max(self.free, self.now) + seconds
        return self.free

    def run(self):
        while self.events:
            self.now, _, do, args = heapq.heappop(self.events)
            do(*args)


class Change:
    """A new generation: the list is stored and told, all answer, all are told to go on."""

    def __init__(self, c, n, tree, rng, newcomer):
        self.c, self.n, self.rng, self.newcomer, self.tree = c, n, rng, newcomer, tree
        self.q = Queue()
        hosts = n // min(c.per_host, n)
        self.heads = hosts if tree else n       # connections of the coordinator
        # All of the list to everybody, or what has changed to each speaker.
        self.list = 2 * c.entry if tree else n * c.entry
        self.answers, self.entered = 0, 0
        self.done = 0.0
        # A worker gives up a step where it would wait for others: at the next gather or the reduce.
        self.busy = compute(c, n, rng) / (c.gathers + 1)

    def take(self):
        """The coordinator takes a message; if it slept, it looks at all connections first."""
        asleep = self.q.free <= self.q.now
        return self.q.serve(self.c.control + (self.c.poll * self.heads if asleep else 0))

    def begin(self):
        self.q.serve(self.c.store)
        for h in range(self.heads):
            sent = self.q.serve(self.c.control + self.list / self.c.net)
            self.q.at(sent + self.c.latency, self.told, h)

    def told(self, h):
        c = self.c
        reads = self.list / 200e6               # JSON
        mine = range(h * c.per_host, (h + 1) * c.per_host) if self.tree else (h,)
        gives_up = max(self.busy[i % self.n] * self.rng.random() for i in mine)
        self.q.at(self.q.now + reads + gives_up + c.latency, self.ready, h)

    def ready(self, _):
        done = self.take()
        self.answers += 1
        if self.answers == self.heads:
            self.q.at(done, self.go)

    def go(self):
        for h in range(self.heads):
            self.q.at(self.q.serve(self.c.control) + self.c.latency, self.enter, h)

    def enter(self, h):
        c = self.c
        t = self.q.now
        if self.newcomer and h == self.heads - 1:
            # Calls everybody (a challenge: two round trips, side by side), then takes the state.
            links = self.n - 1 if not self.tree else c.per_host + self.heads.bit_length()
            t += 4 * c.latency + links * 4 * c.message + 2 * c.bytes / c.net
        self.done = max(self.done, t)

    def run(self):
        self.q.at(0.0, self.begin)
        self.q.run()
        return self.done


def after_kill(c, n, tree, rng, step):
    """Seconds from the death of a process to the next committed step. Its shards go to a neighbour:
    one worker has one shard more until another one joins."""
    change = Change(c, n, tree, rng, False).run()
    slower = c.samples * c.sample * (1 + c.jitter)
    return c.latency + change + step + slower


def after_join(c, n, tree, rng, step):
    """From a newcomer's first word to the first step with it; (that, with its start)."""
    change = 2 * c.latency + 2 * c.control + Change(c, n, tree, rng, True).run() + step
    return change, change + c.start


# ---------------------------------------------------------------------- the table

def row(c, n, tree):
    rng = np.random.default_rng(n)
    step, gather, reduce = (tree_step if tree else mesh_step)(c, n, rng)
    ideal = c.shards_each * c.samples * c.sample + c.update
    w = min(c.per_host, n)
    heads = n // w if tree else n
    messages = heads / c.beat
    load = min(1.0, messages * (c.control + heads * c.poll))   # at 1, it wakes for several at once
    kill = after_kill(c, n, tree, rng, step)
    join, with_start = after_join(c, n, tree, rng, step)
    lost = n / c.mtbf * (kill + join - step)    # half a step would have passed anyway, each time
    links = (w - 1) + (max(0, (n // w).bit_length() - 1) if tree else n - w)
    return dict(n=n, step=step, efficient=ideal / step, gather=gather / step, reduce=reduce / step,
                links=links, messages=messages, load=load, kill=kill, join=join, start=with_start,
                lost=lost)


def limits(c, rows, tree):
    """Where it stops being good, in words."""
    def first(test):
        return next((r["n"] for r in rows if test(r)), None)
    say = []
    at = first(lambda r: r["efficient"] < 0.5)
    r = next((r for r in rows if r["n"] == at), None)
    if at:
        what = "gathers" if r["gather"] > r["reduce"] else "the reduce"
        say.append(f"half of a step is waiting from {at} workers on, mostly for {what}")
    at = first(lambda r: r["load"] >= 0.5)
    if at:
        say.append(f"beats take half a core of the coordinator or more from {at} on")
    at = first(lambda r: r["kill"] > 0.1 + 2 * r["step"])
    if at:
        say.append(f"a change costs more than 100 ms and two steps from {at} on")
    at = first(lambda r: r["n"] * c.shards_each * c.row > GATHER_BYTES)
    if at and not tree:
        say.append(f"the rows of a gather outgrow their slot of {GATHER_BYTES} bytes from {at} on")
    at = first(lambda r: r["n"] * c.entry > 1 << 20)
    if at and not tree:
        say.append(f"the list outgrows its message of 1 MiB from {at} on")
    return say or ["no limit among these"]


def table(c, args, tree):
    print(f"\n{'tree' if tree else 'mesh'}: {args.net}, a worker has {c.shards_each} shards of "
          f"{c.samples} samples, a host {c.per_host} workers, {args.gbits:g} Gbit/s and "
          f"{args.latency_us:g} us")
    head = ("workers", "step ms", "useful %", "gather %", "reduce %", "links", "beats/s", "coord %",
            "kill ms", "join ms", "lost %")
    print("  " + " ".join(h.rjust(8) for h in head))
    rows = [row(c, n, tree) for n in args.workers]
    for r in rows:
        built = r["n"] <= MESH_MAX and r["n"] * c.shards_each <= SHARDS_MAX and not tree
        mark = " " if built else "*"
        cells = (f"{r['n']}{mark}", f"{1e3 * r['step']:.1f}", f"{100 * r['efficient']:.0f}",
                 f"{100 * r['gather']:.0f}", f"{100 * r['reduce']:.0f}", r["links"],
                 f"{r['messages']:.0f}", f"{100 * r['load']:.1f}", f"{1e3 * r['kill']:.0f}",
                 f"{1e3 * r['join']:.0f}", f"{100 * r['lost']:.2f}")
        print("  " + " ".join(str(x).rjust(8) for x in cells))
    for line in limits(c, rows, tree):
        print(f"  {line}")
    sys.stdout.flush()


# ---------------------------------------------------------------------- measuring here

def cpu_of(argv):
    p = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = status
    if status:
        sys.exit(f"simulate.py: {' '.join(argv)} failed")
    return usage.ru_utime + usage.ru_stime


def measure_step():
    """Seconds of a core for a sample and for an update, from steps of two sizes; CPU time."""
    binary = os.environ.get("MUSTER") or os.path.join(ROOT, "build", "muster")
    spec = os.path.join(ROOT, "examples", "fashion-convblock", "train.yaml")
    cost = {}
    with tempfile.TemporaryDirectory() as d:
        for batch in (8, 64):
            used = [cpu_of([binary, "train", spec, "--threads", "1", "--out", f"{d}/{batch}-{rows}",
                            "--json", "--set", "epochs=1", "--set", f"batch={batch}", "--set",
                            f"limit={rows}"]) for rows in (2560, 12800)]
            cost[batch] = (used[1] - used[0]) / (10240 / batch)
    sample = (cost[64] - cost[8]) / 56
    return sample, cost[8] - 8 * sample


def measure_link():
    """(seconds a small message costs one side, bytes a second) over loopback."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo():
        s, _ = server.accept()
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := s.recv(1 << 20):
            if len(data) <= 64:
                s.send(data)
    threading.Thread(target=echo, daemon=True).start()
    s = socket.create_connection(server.getsockname())
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(3000):
        t = time.perf_counter()
        s.send(b"x" * 64)
        s.recv(64)
        times.append(time.perf_counter() - t)
    block, sent, t = b"x" * (1 << 20), 0, time.perf_counter()
    while time.perf_counter() - t < 0.5:
        s.sendall(block)
        sent += len(block)
    rate = sent / (time.perf_counter() - t)
    s.close()
    return sorted(times)[len(times) // 2] / 4, rate


def measure_memory():
    a = np.ones(8 << 20, np.float32)
    b = np.empty_like(a)
    t = time.perf_counter()
    for _ in range(20):
        np.add(a, 1, out=b)
    return 20 * a.nbytes / (time.perf_counter() - t)


def measure_poll(n=512):
    p, held = select.poll(), []
    for _ in range(n):
        held.append(socket.socketpair())
        p.register(held[-1][0], select.POLLIN)
    held[0][1].send(b"x")
    t = time.perf_counter()
    for _ in range(200):
        p.poll(0)
    per = (time.perf_counter() - t) / 200 / n
    for a, b in held:
        a.close()
        b.close()
    return per


def measure(args):
    sample, update = measure_step()
    message, rate = measure_link()
    args.message_us, args.memory_gbs = message * 1e6, measure_memory() / 1e9
    args.poll_us = measure_poll() * 1e6
    NETS["convblock"].update(sample=sample, update=update)
    print(f"measured: {1e6 * sample:.0f} us a sample, {1e3 * update:.2f} ms an update (convblock, "
          f"one core),\n          {args.message_us:.1f} us a message, loopback "
          f"{rate * 8 / 1e9:.0f} Gbit/s,\n"
          f"          {args.memory_gbs:.1f} GB/s added up from memory, {args.poll_us:.3f} us a "
          f"connection in poll")


def main():
    p = argparse.ArgumentParser(description="Plays muster's protocol for many workers.")
    p.add_argument("--net", choices=[*NETS, "both"], default="both")
    p.add_argument("--workers", default="8,16,32,64,128,256,512,1024,2048,4096")
    p.add_argument("--way", choices=["mesh", "tree", "both"], default="both")
    p.add_argument("--measure", action="store_true")
    for name, default, what in (
            ("samples", 8, "samples of a shard"), ("shards-each", 1, "shards of a worker"),
            ("per-host", 8, "workers of a host")):
        p.add_argument(f"--{name}", type=int, default=default, help=f"{what} ({default})")
    for name, default, what in (
            ("gbits", 25, "network link of a host"), ("latency-us", 25, "one way"),
            ("message-us", 7, "of a core, to send or take a message"),
            ("memory-gbs", 8, "GB/s a core adds up from another's memory"),
            ("jitter", 0.03, "standard deviation of a worker's compute time"),
            ("beat-ms", 100, "between two beats of a worker"),
            ("control-us", 30, "of the coordinator, a message with JSON"),
            ("poll-us", 0.07, "of the coordinator, a connection each time it wakes"),
            ("store-ms", 2, "to write the roster to disk"),
            ("start-ms", 400, "of a newcomer: process, spec, data"),
            ("mtbf-days", 30, "of one worker, for the column lost %%")):
        p.add_argument(f"--{name}", type=float, default=default, help=f"{what} ({default})")
    args = p.parse_args()
    args.workers = [int(n) for n in args.workers.split(",")]
    if any(n < 2 or n & (n - 1) for n in args.workers) or args.per_host & (args.per_host - 1):
        sys.exit("simulate.py: workers and workers a host must be powers of two")
    if args.measure:
        measure(args)
    for net in NETS if args.net == "both" else [args.net]:
        args.net = net
        for tree in (False, True):
            if args.way in ("both", "tree" if tree else "mesh"):
                table(Cost(args), args, tree)
    print("\n*: beyond what is built today (8 shards, 64 workers)")


if __name__ == "__main__":
    main()
