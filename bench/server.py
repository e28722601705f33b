#!/usr/bin/env python3
"""bench/server.py [submits] [latency] [jobs] - the server beside Slurm on this machine

submits: durable submits a second (SQLite, synchronous=FULL: the answer comes after the sync) by one client
and by eight over connections that stay open, and by commands (`muster submit`) beside `sbatch`, which has
no other way. The machine is taken by another job meanwhile, on both sides: what is submitted waits.
latency: from before the submit to the first word of the user's program, which prints the time; muster's in
its sandbox. Beside sbatch and srun.
jobs: short jobs a second, from the first submit to the end of the last.
Slurm is Debian's slurmctld and slurmd with munge, started here, tuned to start jobs at once; without them
(apt-get install slurm-wlm) or without root muster stands alone. Slurm writes its state to disk some time
after it has answered.
"""
import http.client
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import sides
from sides import median

SECONDS = float(os.environ.get("SECONDS", 3))
ROUNDS = int(os.environ.get("ROUNDS", 40))
SHORT = int(os.environ.get("SHORT", 200))
STAMP = ["/bin/date", "+%s.%N"]


def wait_for(what, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        got = what()
        if got:
            return got
        time.sleep(0.002)
    raise RuntimeError("waited too long")


def rate_of(work, clients):
    """Calls a second of work(number of client, count), by so many processes for SECONDS."""
    def run(i, out):
        call, n, end = work(i), 0, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            call(n)
            n += 1
        out.put(n)
    out = multiprocessing.Queue()
    all_of = [multiprocessing.Process(target=run, args=(i, out)) for i in range(clients)]
    for p in all_of:
        p.start()
    total = sum(out.get() for _ in all_of)
    for p in all_of:
        p.join()
    return total / SECONDS


class Muster:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "data")
        self.log = open(os.path.join(folder, "serve.log"), "w")
        self.process = subprocess.Popen([sides.MUSTER, "serve", "--data-dir", self.folder, "--port",
                                         "0"], stdout=self.log, stderr=self.log)
        wait_for(lambda: os.path.exists(os.path.join(self.folder, "server.json")))
        with open(os.path.join(self.folder, "server.json")) as f:
            self.address = json.load(f)["address"]
        with open(os.path.join(self.folder, "token")) as f:
            self.token = f.read().strip()
        self.env = {**os.environ, "MUSTER_SERVER": self.address, "MUSTER_TOKEN": self.token}
        self.host = self.address.split("//")[1]
        self.spec = os.path.join(folder, "job.yaml")
        with open(self.spec, "w") as f:
            f.write("name: x\ncommand: [\"true\"]\nresources: {cpu: 0.1}\n")

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return [int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS")][0]

    def connect(self):
        conn = http.client.HTTPConnection(self.host, timeout=60)
        conn.connect()
        conn.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return conn

    def call(self, conn, method, path, body=None):
        conn.request(method, path, body=json.dumps(body) if body else None,
                     headers={"Authorization": f"Bearer {self.token}",
                              "Content-Type": "application/json"})
        answer = conn.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text)

    def submitter(self, _):
        """Few words of Python a request: what is measured is the server."""
        sock = socket.create_connection(self.host.split(":"))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"spec": {"name": "x", "kind": "command", "command": ["true"],
                                    "resources": {"cpu": 0.1}}}).encode()
        request = (f"POST /api/jobs HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer "
                   f"{self.token}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
                   "\r\n\r\n").encode() + body

        def call(_):
            sock.sendall(request)
            got = sock.recv(65536)
            while not got.endswith(b"}"):
                got += sock.recv(65536)
            if not got.startswith(b"HTTP/1.1 201"):
                raise RuntimeError(got[:300])
        return call

    def command(self, _):
        return lambda n: subprocess.run([sides.MUSTER, "submit", self.spec], env=self.env,
                                        check=True, stdout=subprocess.DEVNULL)

    def state(self, conn, name):
        return self.call(conn, "GET", f"/api/jobs/default/{name}")["state"]

    def submit(self, conn, command, cpu):
        return self.call(conn, "POST", "/api/jobs", {"spec": {
            "name": "x", "kind": "command", "command": command, "resources": {"cpu": cpu}}})["name"]

    def block(self):
        conn = self.connect()
        self.blocker = self.submit(conn, ["sleep", "1000"], sides.THREADS)
        wait_for(lambda: self.state(conn, self.blocker) == "running")

    def latency(self):
        conn, out = self.connect(), []
        for _ in range(ROUNDS):
            begin = time.time()
            name = self.submit(conn, STAMP, 0.1)
            wait_for(lambda: self.state(conn, name) == "succeeded")
            lines = self.call(conn, "GET", f"/api/jobs/default/{name}/logs")["lines"]
            out.append(float([x["text"] for x in lines if x["stream"] == "o"][0]) - begin)
        return out

    def short_jobs(self):
        conn, begin = self.connect(), time.time()
        for _ in range(SHORT):
            self.submit(conn, ["true"], 0.1)
        wait_for(lambda: not self.call(conn, "GET", "/api/jobs?state=active&limit=1")["jobs"], 120)
        return SHORT / (time.time() - begin)

    def close(self):
        conn = self.connect()
        for job in self.call(conn, "GET", "/api/jobs?state=running")["jobs"]:
            self.call(conn, "POST", f"/api/jobs/default/{job['name']}/cancel")
            wait_for(lambda: self.state(conn, job["name"]) == "cancelled")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


SLURM_CONF = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={slurmd_port}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MaxJobCount=500000
MinJobAge=2
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Slurm:
    """Raises where it cannot run."""

    def __init__(self, folder):
        for program in ("slurmctld", "slurmd", "sbatch", "srun", "munged", "mungekey"):
            if not shutil.which(program):
                raise RuntimeError(f"there is no {program} (apt-get install slurm-wlm)")
        if os.getuid() != 0:
            raise RuntimeError("slurmd wants root")
        self.folder, self.parts = folder, []
        os.chmod(folder, 0o755)
        conf = os.path.join(folder, "slurm.conf")
        with open(conf, "w") as f:
            f.write(SLURM_CONF.format(folder=folder, host=socket.gethostname().split(".")[0],
                                      port=free_port(), slurmd_port=free_port(),
                                      cpus=len(os.sched_getaffinity(0))))
        for name in ("spool", "state"):
            os.mkdir(os.path.join(folder, name))
        with open(os.path.join(folder, "job.sh"), "w") as f:
            f.write("#!/bin/sh\ntrue\n")
        self.env = {**os.environ, "SLURM_CONF": conf}
        key = os.path.join(folder, "munge.key")
        subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True)
        self.start("munged", "--foreground", "--force", f"--key-file={key}",
                   f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
                   f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        wait_for(lambda: os.path.exists(f"{folder}/munge.socket"))
        self.start("slurmctld", "-D", "-c")
        self.start("slurmd", "-D", "-c", "-N", socket.gethostname().split(".")[0])
        try:
            wait_for(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t", check=False), 30)
        except RuntimeError:
            self.close()
            raise RuntimeError("slurmd did not come up") from None

    def start(self, *argv):
        log = open(os.path.join(self.folder, argv[0] + ".out"), "w")
        self.parts.append(subprocess.Popen(argv, env=self.env, stdout=log, stderr=log))

    def run(self, *argv, check=True):
        return subprocess.run(argv, env=self.env, text=True, capture_output=True, check=check,
                              cwd=self.folder).stdout

    def command(self, _):
        return lambda n: subprocess.run(["sbatch", "-o", "/dev/null", "job.sh"], env=self.env,
                                        check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def block(self):
        name = self.run("sbatch", "--parsable", "--exclusive", "-o", "/dev/null", "--wrap",
                        "sleep 1000").strip()
        wait_for(lambda: self.run("squeue", "-h", "-j", name, "-o", "%t").strip() == "R")

    def clear(self):
        self.run("scancel", "--user=root", "--state=running", check=False)
        wait_for(lambda: not self.run("squeue", "-h", "-t", "R,CG", check=False).strip())

    def latency(self, command, rounds):
        out = []
        for i in range(rounds):
            path = os.path.join(self.folder, f"out.{command}.{i}")
            time.sleep(random.random())         # it looks at its queue once a second
            begin = time.time()
            if command == "srun":
                text = self.run("srun", "-n1", *STAMP)
            else:
                self.run("sbatch", "-o", path, "--wrap", "exec " + " ".join(STAMP))
                text = wait_for(lambda: os.path.exists(path) and open(path).read(), 30)
            out.append(float(text.split()[0]) - begin)
            wait_for(lambda: not self.run("squeue", "-h").strip())
        return out

    def short_jobs(self, n):
        begin = time.time()
        call = self.command(0)
        for i in range(n):
            call(i)
        wait_for(lambda: not self.run("squeue", "-h").strip(), 120)
        return n / (time.time() - begin)

    def close(self):
        try:
            self.clear()
        except (RuntimeError, OSError):
            pass                                # it never came up
        for p in reversed(self.parts):
            p.terminate()
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


def with_slurm(folder, measure):
    """What measure(slurm) gives; None where there is no Slurm."""
    if sides.left_out("Slurm"):
        return None
    try:
        slurm = Slurm(folder)
    except (RuntimeError, OSError, subprocess.SubprocessError) as e:
        print(f"  Slurm: {e}", file=sys.stderr)
        return None
    try:
        return measure(slurm)
    finally:
        slurm.close()


def row(what, ours, theirs, unit, goal="", met=None, less=False):
    """A row of the table; ratio: how many times better."""
    ratio = (theirs / ours if less else ours / theirs) if theirs else None
    form = (lambda x: f"{x * 1000:.1f} ms") if unit == "ms" else (lambda x: f"{x:,.0f} {unit}")
    return (what, form(ours), form(theirs) if theirs else "-", f"{ratio:.1f}x" if ratio else "-",
            goal, met)


def submits():
    with tempfile.TemporaryDirectory() as d:
        m = Muster(d)
        idle = m.memory()
        m.block()
        http_1, http_8 = rate_of(m.submitter, 1), rate_of(m.submitter, 8)
        cli_1, cli_4 = rate_of(m.command, 1), rate_of(m.command, 4)
        m.close()

    def measure(slurm):
        slurm.block()
        return rate_of(slurm.command, 1), rate_of(slurm.command, 4)
    with tempfile.TemporaryDirectory() as d:
        peer = with_slurm(d, measure) or (None, None)
    sides.table("durable submits a second, beside Slurm's sbatch", [
        row("HTTP, 1 client (sbatch, 1)", http_1, peer[0], "/s", ">= 2,000/s", http_1 >= 2000),
        row("HTTP, 8 clients (sbatch, 4)", http_8, peer[1], "/s", ">= 2,000/s", http_8 >= 2000),
        row("muster submit, 1 (sbatch, 1)", cli_1, peer[0], "/s"),
        row("muster submit, 4 (sbatch, 4)", cli_4, peer[1], "/s"),
        ("idle memory of the server", f"{idle / 1e6:.1f} MB", "-", "-", "<= 20 MB", idle <= 20e6)])


def latency():
    with tempfile.TemporaryDirectory() as d:
        m = Muster(d)
        m.latency()
        ours = m.latency()
        m.close()
    with tempfile.TemporaryDirectory() as d:
        peer = with_slurm(d, lambda s: (s.latency("sbatch", ROUNDS // 4),
                                        s.latency("srun", ROUNDS // 2))) or ([], [])
    best = median(ours)
    sides.table("from submit to the user's program, median", [
        row("sandbox included (sbatch)", best, peer[0] and median(peer[0]), "ms", "<= 5 ms",
            best <= 0.005, less=True),
        row("sandbox included (srun)", best, peer[1] and median(peer[1]), "ms", less=True),
        row("the slowest of ten in a hundred", sorted(ours)[int(len(ours) * 0.9)],
            peer[0] and sorted(peer[0])[int(len(peer[0]) * 0.9)], "ms", less=True)])


def jobs():
    with tempfile.TemporaryDirectory() as d:
        m = Muster(d)
        ours = m.short_jobs()
        m.close()
    with tempfile.TemporaryDirectory() as d:
        peer = with_slurm(d, lambda s: s.short_jobs(max(SHORT // 5, 10)))
    sides.table("short jobs a second, submit to end", [row("true, one after the other", ours, peer,
                                                            "/s")])


if __name__ == "__main__":
    for name in sys.argv[1:] or ["submits", "latency", "jobs"]:
        {"submits": submits, "latency": latency, "jobs": jobs}[name]()
