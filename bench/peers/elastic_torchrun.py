"""bench/peers/elastic_torchrun.py [--alone N] [--kill N] [--join N] [--loss N] - beside elastic.py

Four agents (`torchrun --nnodes=1:4 --nproc-per-node=1`) stand for four nodes; each has one worker
with one thread (elastic_worker.py). Timed, each with a limit, since now and then a group hangs:

  alone  SIGKILL to one of the four workers of a single agent (`--standalone --nproc-per-node=4`);
         until the first finished step of the group that follows
  kill   the same with four agents
  join   a fourth agent starts beside three; until the first step of a group of four
  loss   SIGKILL to an agent and its worker; until the first step of the three that remain

In its favour: agents do not share the store of the round before (with the default, gloo finds the
addresses of dead workers there and the group does not come back), and they wait LAST_CALL seconds
for more nodes instead of 30 (a loss is timed with the default). Last, one JSON line: lists of
seconds, null for a hang.
"""
import argparse
import gzip
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
NODES = 4
LIMIT = float(os.environ.get("PEER_LIMIT", 90))        # seconds until a group counts as hung
LAST_CALL = 2


def rows(prefix):
    """The training rows as arrays that a worker maps."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    data = os.environ.get("MUSTER_DATA") or os.path.join(cache, "muster", "data")
    for kind, name, offset in (("x", "images-idx3", 16), ("y", "labels-idx1", 8)):
        with gzip.open(os.path.join(data, "fashion-mnist", f"train-{name}-ubyte.gz")) as f:
            a = np.frombuffer(f.read(), np.uint8, offset=offset)
        a = a.reshape(-1, 1, 28, 28) if kind == "x" else a.astype(np.int64)
        np.save(f"{prefix}-{kind}.npy", a)


class Group:
    """Agents of one job, and what their workers wrote to the log."""

    def __init__(self, folder, last_call):
        self.folder, self.log = folder, os.path.join(folder, "log")
        self.agents, self.last_call = [], last_call
        open(self.log, "w").close()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]

    def start(self, n=1):
        for _ in range(n):
            conf = f"is_host={'false' if self.agents else 'true'}"
            if self.last_call:
                conf += f",last_call_timeout={self.last_call}"
            self.agent(f"--nnodes=1:{NODES}", "--nproc-per-node=1", "--rdzv-backend=c10d",
                       "--rdzv-id=elastic", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                       f"--rdzv-conf={conf}")

    def agent(self, *options):
        self.agents.append(subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, "--max-restarts=1000",
             os.path.join(HERE, "elastic_worker.py"), self.log, os.path.join(self.folder, "rows")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(os.path.join(self.folder, "stderr"), "a"), start_new_session=True,
            env=dict(os.environ, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")))

    def lines(self, what, after):
        with open(self.log) as f:
            for line in f:
                t, w, world, pid, parent = line.split()
                if w == what and float(t) > after:
                    yield float(t), int(world), int(pid), int(parent)

    def step(self, after, worlds, limit=LIMIT):
        """The first finished step after a time of a group of a size in `worlds`; None: a hang."""
        end = time.time() + limit
        while time.time() < end:
            for t, world, *_ in self.lines("step", after):
                if world in worlds:
                    return t
            time.sleep(0.02)
        return None

    def all_step(self, after, world):
        """Waits until all workers of a group of `world` have finished a step, and a moment more."""
        end = time.time() + LIMIT
        while time.time() < end:
            if len({pid for _, w, pid, _ in self.lines("step", after) if w == world}) >= world:
                time.sleep(0.5 + random.random())
                return True
            time.sleep(0.05)
        return False

    def workers_of(self, agent):
        """The pids of an agent's newest workers, each in a session of its own."""
        return [pid for _, _, pid, parent in self.lines("up", 0)
                if parent == agent.pid and os.path.exists(f"/proc/{pid}")]

    def remove(self, agent, with_signal):
        workers = self.workers_of(agent)
        self.agents.remove(agent)
        agent.send_signal(with_signal)
        if with_signal == signal.SIGKILL:
            kill(*workers)
        try:
            agent.wait(40)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        kill(*workers)

    def close(self):
        for a in list(reversed(self.agents)):
            self.remove(a, signal.SIGKILL)


def kill(*pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def kills(folder, n, alone=False):
    group, out = Group(folder, LAST_CALL), []
    try:
        begin = time.time()
        if alone:
            group.agent("--standalone", f"--nproc-per-node={NODES}")
        else:
            group.start(NODES)
        while len(out) < n:
            if not group.all_step(begin, NODES):
                out.append(None)
                break                   # it does not come back: the next kill would say nothing
            begin = time.time()
            kill(random.choice(group.workers_of(group.agents[-1])))
            t = group.step(begin, range(1, NODES + 1))
            out.append(t - begin if t else None)
    finally:
        group.close()
    return out


def alone(folder, n):
    return kills(folder, n, True)


def joins(folder, n):
    group, out = Group(folder, LAST_CALL), []
    try:
        begin = time.time()
        group.start(NODES - 1)
        while len(out) < n:
            if not group.all_step(begin, NODES - 1):
                out.append(None)
                break
            begin = time.time()
            group.start()
            t = group.step(begin, (NODES,))
            out.append(t - begin if t else None)
            if t and len(out) < n:
                group.all_step(begin, NODES)
                begin = time.time()
                group.remove(group.agents[-1], signal.SIGTERM)
    finally:
        group.close()
    return out


def losses(folder, n):
    out = []
    for _ in range(n):
        group = Group(folder, None)
        try:
            begin = time.time()
            group.start(NODES)
            if not group.all_step(begin, NODES):
                out.append(None)
                continue
            begin = time.time()
            group.remove(group.agents[-1], signal.SIGKILL)
            t = group.step(begin, range(1, NODES))
            out.append(t - begin if t else None)
        finally:
            group.close()
    return out


def main():
    ways = {"alone": alone, "kill": kills, "join": joins, "loss": losses}
    p = argparse.ArgumentParser()
    for name in ways:
        p.add_argument(f"--{name}", type=int, default=0)
    args = vars(p.parse_args())
    folder = tempfile.mkdtemp(prefix="elastic-")
    try:
        rows(os.path.join(folder, "rows"))
        print(json.dumps({name: way(folder, args[name]) if args[name] else []
                          for name, way in ways.items()}), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
