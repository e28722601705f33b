#!/usr/bin/env python3
"""bench/elastic.py [recovery] [speed] [bytes] [overlap] [tls] - many workers, beside torchrun and DDP

recovery: fashion-lenet, batch 4, four workers. SIGKILL to a worker until the next committed step;
a newcomer until the first step with it, counted from its first word to the coordinator and from
`muster resize` (its process, its reading of the data included). EVENTS (50) of each; then torchrun,
elastic 1:4, on the same network, batch and cores, PEER_EVENTS (5) of each.
speed: two workers with one thread each, beside one process with two threads and beside PyTorch DDP
with two workers, plain and through torch.compile; medians of ROUNDS (5), in turn.
bytes: what a worker sends in a step beside 2 (n - 1) / n of the gradient, the least an all-reduce
needs.
overlap: a step of two workers that read by TCP, when roots are sent during the backward pass and
when all of them wait for its end; medians of ROUNDS, in turn. The system paces each link
(SO_MAX_PACING_RATE, by MUSTER_LINK_RATE). Clipping by norm keeps all of ConvBlock's gradient in the
reduce; without it most is a wide layer's, which is split.
tls: two workers that read by TCP as fast as this machine lets them, with --tls beside without it;
medians of ROUNDS, in turn.
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import sides
from sides import median

EVENTS = int(os.environ.get("EVENTS", 50))
PEER_EVENTS = int(os.environ.get("PEER_EVENTS", 5))
ROUNDS = int(os.environ.get("ROUNDS", 5))
SECONDS = float(os.environ.get("SECONDS", 2))
LIMIT = 30                      # seconds until something counts as hung
WORKERS = 2 if sides.QUICK else 4
GOAL = 0.1


class Job:
    """A running job, seen through its roster.jsonl."""

    def __init__(self, folder, *args):
        self.run = os.path.join(folder, "run")
        self.log = open(os.path.join(folder, "log"), "w+")
        self.process = subprocess.Popen([sides.MUSTER, "train", *args, "--out", self.run],
                                        stdout=self.log, stderr=self.log)
        self.file, self.part, self.events = None, "", []

    def read(self):
        """What has been written since; all of it stays in `events`."""
        if not self.file:
            path = os.path.join(self.run, "roster.jsonl")
            if not os.path.exists(path):
                return
            self.file = open(path)
        self.part += self.file.read()
        *lines, self.part = self.part.split("\n")
        self.events += [json.loads(line) for line in lines]

    def wait(self, found, what):
        """Until found(events) is not None; that."""
        end = time.time() + LIMIT
        while time.time() < end:
            self.read()
            got = found(self.events)
            if got is not None:
                return got
            if self.process.poll() is not None:
                break
            time.sleep(0.001)
        self.log.seek(0)
        said = self.log.read().strip().splitlines()[-1:] or ["it said nothing"]
        raise RuntimeError(f"{what} did not come ({said[0]})")

    def step_after(self, t, worker=None):
        """When a generation (one with `worker` in it) committed its first step after t."""
        def found(events):
            there = set()
            for e in events:
                if e["event"] == "go" and (worker is None or worker in e["workers"]):
                    there.add(e["generation"])
                if e["event"] == "step" and e["t"] > t and e["generation"] in there:
                    return e["t"]
            return None
        return self.wait(found, "the next step")

    def alive(self):
        """{id: pid} of those who have joined and not gone."""
        now = {}
        for e in self.events:
            if e["event"] in ("join", "back"):
                now[e["id"]] = e["pid"]
            elif e["event"] in ("lost", "leave"):
                now.pop(e["id"], None)
        return now

    def settle(self, n):
        """Until n workers have made a step together, and a moment more."""
        def found(events):
            last = [e for e in events if e["event"] in ("join", "lost", "leave", "go", "step")][-2:]
            return (len(self.alive()) == n and [e["event"] for e in last] == ["go", "step"]
                    and len(last[0]["workers"]) == n) or None
        self.wait(found, f"a step of {n} workers")
        time.sleep(random.uniform(0.05, 0.25))

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def kills(job, n):
    out = []
    for _ in range(n):
        job.settle(WORKERS)
        pid = random.choice(list(job.alive().values()))
        t = time.time()
        os.kill(pid, signal.SIGKILL)
        out.append(job.step_after(t) - t)
    return out


def joins(job, n):
    """(from the first word, from resize)"""
    word, whole = [], []
    for _ in range(n):
        job.settle(WORKERS)
        sides.muster("resize", job.run, str(WORKERS - 1))
        job.settle(WORKERS - 1)
        before = set(job.alive())
        t = time.time()
        sides.muster("resize", job.run, str(WORKERS))
        new = job.wait(lambda _: next(iter(set(job.alive()) - before), None), "a newcomer")
        joined = next(e["t"] for e in job.events if e["event"] == "join" and e["id"] == new)
        step = job.step_after(joined, new)
        word.append(step - joined)
        whole.append(step - t)
    return word, whole


def times(seconds):
    """"median / worst" in ms or s."""
    got = [s for s in seconds if s is not None]
    if not got:
        return "-"
    hung = len(seconds) - len(got)
    unit, scale = ("ms", 1e3) if max(got) < 1 else ("s", 1)
    digits = 0 if unit == "ms" else 1
    text = f"{scale * median(got):.{digits}f} / {scale * max(got):.{digits}f} {unit}"
    return text + (f", {hung} hung" if hung else "")


def peer_times():
    n = str(PEER_EVENTS)
    if n == "0" or sides.left_out("torchrun"):
        return {}
    done = subprocess.run([sides.PYTHON, os.path.join(sides.PEERS, "elastic_torchrun.py"),
                           "--alone", n, "--kill", n, "--join", n, "--loss", "1"],
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def recovery():
    killed, word, whole, failed = [], [], [], None
    with tempfile.TemporaryDirectory() as d:
        job = Job(d, sides.example("fashion-lenet"), "--workers", f"1..{WORKERS}", "--threads", "1",
                  "--set", "epochs=100000")
        try:
            killed = kills(job, EVENTS)
            word, whole = joins(job, EVENTS)
        except (OSError, RuntimeError, KeyError) as e:
            failed = e
        job.close()
    peer = peer_times()

    def line(what, ours, theirs, goal=None):
        got = [s for s in theirs if s is not None]
        ratio = f"{median(got) / median(ours):.0f} x" if ours and got else "-"
        return (what, times(ours), times(theirs), ratio, f"<= {1e3 * goal:.0f} ms" if goal else "",
                (max(ours) <= goal) if goal and ours else None)
    sides.table(
        f"fashion-lenet, batch 4, {WORKERS} workers on {sides.THREADS} cores: median / worst of "
        f"{EVENTS}; torchrun's of {PEER_EVENTS}",
        [line("kill -9 to the next step; torchrun: one agent", killed, peer.get("alone", []), GOAL),
         line("the same; torchrun: an agent each", killed, peer.get("kill", [])),
         line("the same; torchrun: its agent too", killed, peer.get("loss", [])),
         line("a newcomer's first word to the first step with it", word, [], GOAL),
         line("resize to the first step with the newcomer", whole, peer.get("join", []))])
    if failed:
        sides.problem(f"  muster: {failed}")


def speed():
    rows = []
    for network, example, batch, goal in (("convblock", "fashion-convblock", 64, 0.9),
                                          ("lenet", "fashion-lenet", 4, None))[:1 + (not sides.QUICK)]:
        peers = [sides.Peer(f"DDP {how}", os.path.join(sides.PEERS, "elastic_ddp.py"), network, how,
                            "2") for how in ("eager", "compile")]
        one, two, failed = [], [], None
        for _ in range(ROUNDS):
            try:
                one.append(sides.muster_train(sides.example(example), "--set", "epochs=1")["rate"])
                two.append(sides.muster_train(sides.example(example), "--set", "epochs=1",
                                              "--workers", "2", "--threads", "1")["rate"])
            except (OSError, RuntimeError, KeyError) as e:
                failed = e
            for p in peers:
                p.run(SECONDS)
        for p in peers:
            p.close()
        ours, alone = (median(two) if two else 0.0), (median(one) if one else 0.0)
        rows.append((f"{example}, batch {batch}: beside one process, {sides.THREADS} threads",
                     f"{ours:,.0f}", f"{alone:,.0f}", f"{ours / alone:.2f}" if alone else "-",
                     f">= {goal}" if goal else "", ours >= goal * alone if goal and two else None))
        best = max(p.rate() for p in peers)
        for p in peers:
            rate = p.rate()
            rows.append((f"{example}, batch {batch}: beside {p.label}, gloo, 2 workers",
                         f"{ours:,.0f}", f"{rate:,.0f}", f"{ours / rate:.1f}" if rate else "-",
                         ">= 3" if rate == best else "",
                         ours >= 3 * rate if two and rate and rate == best else None))
        if failed:
            sides.problem(f"{example}: {failed}")
    sides.table(f"2 workers with a thread each: training, samples/s, median of {ROUNDS}", rows)


# Trained parameters: convolutions and linear layers with bias, batch norms with two a channel.
PARAMETERS = {
    "fashion-lenet": 6 * 26 + 16 * 151 + 120 * 257 + 84 * 121 + 10 * 85,
    "fashion-convblock": 16 * (10 + 2) + 32 * (145 + 2) + 64 * (33 + 2) + 512 * 3137 + 10 * 513,
}


def sent(example, workers):
    """Bytes that a worker sends in a step, the mean over the workers."""
    with tempfile.TemporaryDirectory() as d:
        job = Job(d, sides.example(example), "--workers", str(workers), "--threads", "1", "--set",
                  "epochs=100000")
        try:
            job.settle(workers)
            for _ in range(20):         # until each has told of some steps in a beat
                time.sleep(0.3)
                now = json.loads(sides.muster("top", job.run, "--once", "--json")[2])
                got = [w["bytes_per_step"] for w in now["workers"]]
                if len(got) == workers and min(got) > 0:
                    return sum(got) / workers
            raise RuntimeError("no worker told how much it sends")
        finally:
            job.close()


def bytes_a_step():
    rows = []
    for example, sizes in ((("fashion-lenet", (2,)),) if sides.QUICK else
                           (("fashion-convblock", (2, 3, 4, 8)), ("fashion-lenet", (2, 4)))):
        for n in sizes:
            bound = 2 * (n - 1) / n * 4 * PARAMETERS[example]
            try:
                got = sent(example, n)
            except (OSError, RuntimeError, KeyError, ValueError) as e:
                sides.problem(f"{example}, {n} workers: {e}")
                continue
            rows.append((f"{example}, {n} workers", f"{got:,.0f}", f"{bound:,.0f}",
                         f"{got / bound:.3f}", "", None))
    sides.table("bytes a worker sends in a step, gathers included, beside 2 (n - 1) / n of the "
                "gradient", rows)


def step_ms(batch, rate, late, *changes):
    """Of a run of some seconds on links of `rate` MB/s."""
    os.environ["MUSTER_LINK_RATE"] = str(rate * 10 ** 6)
    if late:
        os.environ["MUSTER_LINK_LATE"] = "1"
    try:
        run = sides.muster_train(
            sides.example("fashion-convblock"), "--workers", "2", "--threads", "1",
            *(w for c in (f"batch={batch}", f"limit={OVERLAP_STEPS * batch}", "epochs=1",
                          "data.test.limit=100", *changes) for w in ("--set", c)))
        return 1e3 * batch / run["rate"]
    finally:
        os.environ.pop("MUSTER_LINK_RATE")
        os.environ.pop("MUSTER_LINK_LATE", None)


OVERLAP_STEPS = 4 if sides.QUICK else 40


def overlap():
    rows = []
    for batch, rate, clip in (((64, 500, True),) if sides.QUICK else
                              ((64, 50, True), (64, 125, True), (64, 500, True), (256, 125, True),
                               (256, 500, True), (64, 125, False))):
        changes = ["clip.norm=1"] if clip else []
        early, late = [], []
        try:
            for _ in range(ROUNDS):
                late.append(step_ms(batch, rate, True, *changes))
                early.append(step_ms(batch, rate, False, *changes))
        except (OSError, RuntimeError, KeyError, ZeroDivisionError) as e:
            sides.problem(f"batch {batch}, {rate} MB/s: {e}")
            continue
        rows.append((f"batch {batch}, {rate} MB/s, {'clipped' if clip else 'a wide layer split'}",
                     f"{median(early):.1f}", f"{median(late):.1f}",
                     f"{median(late) / median(early):.2f}", "", None))
    sides.table(f"fashion-convblock, 2 workers by TCP: ms a step, median of {ROUNDS}, beside the "
                "same when nothing is sent before the backward pass is over", rows)


def rate_by_tcp(example, rows, *words):
    """Samples a second of two workers that read by TCP."""
    os.environ["MUSTER_LINK_RATE"] = str(10 ** 12)      # more than there is
    try:
        return sides.muster_train(sides.example(example), "--workers", "2", "--threads", "1", "--set",
                                  "epochs=1", "--set", f"limit={rows}", *words)["rate"]
    finally:
        os.environ.pop("MUSTER_LINK_RATE")


def tls():
    rows = []
    for example, batch, limit in ((("fashion-lenet", 4, 400),) if sides.QUICK else
                                  (("fashion-convblock", 64, 12800), ("fashion-lenet", 4, 16000))):
        plain, secret = [], []
        try:
            for _ in range(ROUNDS):
                plain.append(rate_by_tcp(example, limit))
                secret.append(rate_by_tcp(example, limit, "--tls"))
        except (OSError, RuntimeError, KeyError) as e:
            sides.problem(f"{example}: {e}")
            continue
        rows.append((f"{example}, batch {batch}", f"{median(secret):,.0f}", f"{median(plain):,.0f}",
                     f"{median(secret) / median(plain):.2f}", "", None))
    sides.table(f"2 workers by TCP inside one machine: samples/s, median of {ROUNDS}, with --tls beside "
                "without", rows)


def main(names):
    parts = {"recovery": recovery, "speed": speed, "bytes": bytes_a_step, "overlap": overlap,
             "tls": tls}
    for name in names:
        if name not in parts:
            sys.exit(f"bench/elastic.py: there is no part \"{name}\" "
                     f"(there are: {' '.join(parts)})")
    for name in names or parts:
        parts[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
