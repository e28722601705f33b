"""Helpers for jobs of many workers: start one, look at it, join it, speak its protocol."""
import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

TOKEN = "a token of the tests, long enough"
KINDS = ("CHALLENGE HELLO WELCOME REFUSED ROSTER READY GO BEAT RESULTS EVENT STATE POST ASK STATUS "
         "BYE").split()

# A job that is short, and whose steps are slow enough for things to happen meanwhile.
LENET = ["epochs=4", "limit=240", "data.test.limit=60", "batch=8"]


def wait_for(what, seconds=60, why="it did not come"):
    end = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < end, why() if callable(why) else why
        time.sleep(0.01)
    return value


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def settings(changes):
    return [word for change in changes for word in ("--set", change)]


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class Process(subprocess.Popen):
    """A muster command whose words are kept; `inside` is put before it (ip netns exec ...)."""

    def __init__(self, muster, *words, env=None, inside=(), **kw):
        super().__init__([*inside, muster.path, *map(str, words)], text=True, errors="replace",
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env={**os.environ, **(env or {})}, **kw)

    def end(self, seconds=120):
        """Exit status and everything it said."""
        try:
            out, err = self.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.communicate()
            raise AssertionError(f"{self.args} did not end within {seconds} s:\n{out}\n{err}") from None
        self.said = out + err
        return self.returncode


class Job(Process):
    """muster train --workers; `pace` holds it to so many steps a second."""

    def __init__(self, muster, spec, out, workers, *words, changes=(), pace=0, env=None, **kw):
        self.out, self.muster, self.hands = Path(out), muster, []
        env = {"MUSTER_TOKEN": TOKEN, **(env or {})}
        if pace:
            env["MUSTER_TORTURE"] = str(pace)
        super().__init__(muster, "train", spec, "--out", out, "--workers", workers, "--quiet",
                         *settings(changes), *words, env=env, **kw)

    def __exit__(self, *exc):
        """Nobody is left, whatever the test did; those who joined by hand end with the job."""
        for hand in (self, *self.hands):
            if hand.poll() is None:
                hand.kill()
            hand.communicate()

    def address(self):
        return json.loads(wait_for(lambda: self.read("job.json"), why=self.story))["address"]

    def read(self, name):
        try:
            return (self.out / name).read_text()
        except FileNotFoundError:
            return ""

    def history(self, event=None):
        lines = [json.loads(line) for line in self.read("roster.jsonl").splitlines(keepends=True)
                 if line.endswith("\n")]
        return [line for line in lines if event in (None, line["event"])]

    def story(self):
        return self.read("roster.jsonl") + (f"\nended with {self.returncode}" if self.poll() else "")

    def wait_event(self, event, count=1, seconds=60):
        return wait_for(lambda: self.history(event)[count - 1:], seconds, self.story)[0]

    def wait_team(self, n, seconds=60):
        """Until a list of n workers has done a step: that step."""
        def done():
            lines = self.history()
            of = [h["generation"] for h in lines if h["event"] == "go" and len(h["workers"]) == n]
            return [h["step"] for h in lines if h["event"] == "step" and h["generation"] in of]
        return wait_for(done, seconds, self.story)[0]

    def status(self):
        done = self.muster("top", self.out, "--once", "--json")
        return json.loads(done.stdout)

    def wait_step(self, step, seconds=60):
        self.address()
        wait_for(lambda: self.status()["step"] >= step, seconds, self.story)

    def pids(self):
        """Of the workers on the list."""
        return [w["pid"] for w in self.status()["workers"]]

    def coordinator(self):
        return json.loads(self.read("job.json"))["pid"]

    def children(self):
        return [int(p) for p in
                Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def join(self, *words, env=None, address=None, **kw):
        hand = Process(self.muster, "worker", "--join", address or self.address(), *words,
                       env={"MUSTER_TOKEN": TOKEN, **(env or {})}, **kw)
        self.hands.append(hand)
        return hand

    def digest(self, seconds=180):
        """Of the model, when the job has ended well."""
        assert self.end(seconds) == 0, f"{self.said}\n{self.story()}"
        return digest(self.out)


def digest(out):
    return json.loads((Path(out) / "run.json").read_text())["digest"]


def chain(out):
    return json.loads((Path(out) / "run.json").read_text())["chain"]


class Alone:
    """What undisturbed runs come to, each made once: the digest of one process with one thread, and
    the chain of a job of one worker (a single process keeps none)."""

    def __init__(self, muster, folder):
        self.muster, self.folder, self.made = muster, folder, {}

    def run(self, spec, changes, *words):
        key = (str(spec), *changes, *words)
        if key not in self.made:
            out = self.folder / str(len(self.made))
            self.muster("train", spec, "--out", out, "--quiet", *words, *settings(changes))
            self.made[key] = out
        return self.made[key]

    def __call__(self, spec, changes):
        return digest(self.run(spec, changes, "--threads", "1"))

    def chain(self, spec, changes):
        return chain(self.run(spec, changes, "--workers", "1"))


class Caller:
    """Speaks the protocol of runtime/wire.h, well or as badly as a test wants."""

    def __init__(self, address, token=TOKEN, prove=True):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.token = token
        if prove:
            self.prove()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()

    def send(self, kind, body=b"", version=1, length=None, number=0, generation=0):
        kind = KINDS.index(kind) if isinstance(kind, str) else kind
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        head = struct.pack("<4sHHQQQ", b"musW", version, kind, generation, number,
                           len(body) if length is None else length)
        self.socket.sendall(head + body)

    def take(self, n):
        got = b""
        while len(got) < n:
            more = self.socket.recv(n - len(got))
            if not more:
                raise ConnectionError("closed")
            got += more
        return got

    def receive(self):
        magic, _, kind, _, _, length = struct.unpack("<4sHHQQQ", self.take(32))
        assert magic == b"musW"
        return KINDS[kind], self.take(length)

    def prove(self):
        kind, theirs = self.receive()
        assert kind == "CHALLENGE" and len(theirs) == 32
        own = os.urandom(32)
        self.send("CHALLENGE", own + hmac.digest(self.token.encode(), b"muster caller" + theirs + own,
                                                 hashlib.sha256))
        kind, proof = self.receive()
        if kind == "REFUSED":
            raise PermissionError(proof.decode())
        assert proof == hmac.digest(self.token.encode(), b"muster listener" + theirs + own,
                                    hashlib.sha256)

    def closed(self, seconds=10):
        """True when the other side closes within that time, whatever it says before."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True


def stop_and_go(pid, seconds):
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
