"""Helpers for jobs of many workers: start one, look at it, join it, speak its protocol."""
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

TOKEN = "a token of the tests, long enough"
KINDS = ("CHALLENGE HELLO WELCOME REFUSED ROSTER READY GO BEAT RESULTS EVENT STATE POST ASK STATUS "
         "BYE").split()

# A job that is short, and whose steps are slow enough for things to happen meanwhile.
LENET = ["epochs=4", "limit=240", "data.test.limit=60", "batch=8"]


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent():
    """For the child of a test (preexec_fn): it is killed when the tests are, by a timeout or by hand."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)        # under nohup it would be ignored


def held(pace, until):
    """The environment of workers that make so many steps a second at most until there is that file."""
    return {"MUSTER_TORTURE": f"{pace},{until}"}


def wait_for(what, seconds=120, why="it did not come"):
    """What it returns once that is true; the only way a test waits. It asks often at first, and always
    once more at the end: a busy machine may give it no turn for seconds."""
    end, pause, last = time.monotonic() + seconds, 0.01, False
    while not (value := what()):
        assert not last, why() if callable(why) else why
        time.sleep(pause)
        pause, last = min(pause * 1.2, 0.05), time.monotonic() > end
    return value


def free_port():
    """One that nobody is given who asks for any: it is still free when it is used."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(min(10000, first // 2), first)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


SLEEPS = 10_000_000 + 10 * os.getpid()      # nobody else on this machine sleeps so long


def sleeping(seconds):
    """How many processes do, wherever they are."""
    return len(subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True).stdout.split())


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
                         preexec_fn=die_with_parent, env={**os.environ, **(env or {})}, **kw)

    def end(self, seconds=240):
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
    """muster train --workers; `pace` holds it to so many steps a second, until lift()."""

    def __init__(self, muster, spec, out, workers, *words, changes=(), pace=0, until=None, env=None,
                 **kw):
        self.out, self.muster, self.hands = Path(out), muster, []
        self.until = Path(until or f"{out}.lifted-{os.urandom(4).hex()}")
        self.pace = held(pace, self.until) if pace else {}
        env = {"MUSTER_TOKEN": TOKEN, **self.pace, **(env or {})}
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

    def wait_event(self, event, count=1):
        return wait_for(lambda: self.history(event)[count - 1:], why=self.story)[0]

    def wait_children(self, n):
        wait_for(lambda: len(self.children()) == n, why=self.story)

    def wait_team(self, n):
        """Until a list of n workers has done a step: that step."""
        def done():
            lines = self.history()
            of = [h["generation"] for h in lines if h["event"] == "go" and len(h["workers"]) == n]
            return [h["step"] for h in lines if h["event"] == "step" and h["generation"] in of]
        return wait_for(done, why=self.story)[0]

    def status(self):
        done = self.muster("top", self.out, "--once", "--json")
        return json.loads(done.stdout)

    def wait_step(self, step):
        self.address()
        wait_for(lambda: self.status()["step"] >= step, why=self.story)

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
                       env={"MUSTER_TOKEN": TOKEN, **self.pace, **(env or {})}, **kw)
        self.hands.append(hand)
        return hand

    def lift(self):
        """What was to happen on the way has happened: now as fast as it can."""
        self.until.touch()

    def digest(self, seconds=300):
        """Of the model, when the job has ended well; nothing holds it any more."""
        self.lift()
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
        self.socket = socket.create_connection((host, int(port)), timeout=60)
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
        if kind == "REFUSED":
            raise PermissionError(theirs.decode())
        assert kind == "CHALLENGE" and len(theirs) == 32
        own = os.urandom(32)
        self.send("CHALLENGE", own + hmac.digest(self.token.encode(), b"muster caller" + theirs + own,
                                                 hashlib.sha256))
        kind, proof = self.receive()
        if kind == "REFUSED":
            raise PermissionError(proof.decode())
        assert proof == hmac.digest(self.token.encode(), b"muster listener" + theirs + own,
                                    hashlib.sha256)

    def closed(self, seconds=60):
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


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def stop_and_go(pid, seconds):
    with stopped(pid):
        time.sleep(seconds)


class Hosts:
    """Machines 1..n as network namespaces that veth pairs join to a bridge, all inside a namespace of
    its own: nothing of it is left on this machine. `on(i)` are the words before a command there."""

    def __init__(self, n):
        self.n, self.proxies = n, []
        setup = ["mount -t tmpfs none /run", "mkdir /run/netns", "ip link add br0 type bridge",
                 "ip link set br0 up"]
        for i in range(1, n + 1):
            setup += [f"ip netns add h{i}", f"ip link add v{i} type veth peer name eth0 netns h{i}",
                      f"ip link set v{i} master br0 up", f"ip -n h{i} link set lo up",
                      f"ip -n h{i} addr add {self.address(i)}/24 dev eth0",
                      f"ip -n h{i} link set eth0 up"]
        script = " && ".join([*setup, "echo ready", "exec sleep 100000"])
        mine = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self.world = subprocess.Popen(["unshare", *mine, "--net", "--mount", "sh", "-c", script],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.world.stdout.readline() != "ready\n":
            raise OSError(self.world.communicate()[1].strip())
        self.into = ["nsenter", "--preserve-credentials", *(["--user"] if mine else []), "--net",
                     "--mount", "--target", str(self.world.pid)]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for process in (*self.proxies, self.world):
            process.kill()
            process.communicate()

    def address(self, i):
        return f"10.77.0.{i}"

    def on(self, i):
        return [*self.into, "ip", "netns", "exec", f"h{i}"]

    def do(self, *words, **kw):
        subprocess.run([*self.into, *words], check=True, capture_output=True, text=True, **kw)

    def rules(self, i, text):
        done = subprocess.run([*self.on(i), "nft", "-f", "-"], input=text, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{text}\n{done.stdout}"

    def drop(self, i, what, name="drops"):
        """Packets that come to host i and are `what` in the words of nftables."""
        self.rules(i, f"table inet {name} {{\n chain in {{\n type filter hook input priority 0;\n"
                      f" {what} counter drop\n }}\n}}\n")

    def lose(self, i, percent):
        """Of the packets that come in."""
        self.drop(i, f"iifname eth0 numgen random mod 100 < {percent}", "loss")

    def lost(self, i):
        """How many packets were."""
        text = subprocess.run([*self.on(i), "nft", "-j", "list", "chain", "inet", "loss", "in"],
                              check=True, capture_output=True, text=True).stdout
        return json.loads(text)["nftables"][-1]["rule"]["expr"][-2]["counter"]["packets"]

    def delay(self, i, ms):
        """Everything over the connections that host i makes, in both directions."""
        self.rules(i, "table ip delay {\n chain out {\n type nat hook output priority -100;\n"
                      f" ip daddr 10.77.0.0/24 ip daddr != {self.address(i)} meta l4proto tcp "
                      "meta mark != 7 redirect to :9999\n }\n}\n")
        self.proxies.append(subprocess.Popen(
            [*self.on(i), sys.executable, Path(__file__).parent / "programs/delay.py", "9999",
             str(ms)], stdout=subprocess.PIPE, text=True))
        assert self.proxies[-1].stdout.readline() == "ready\n"

    def cut(self, i):
        self.do("ip", "link", "set", f"v{i}", "down")

    def heal(self, i):
        self.do("ip", "link", "set", f"v{i}", "up")
