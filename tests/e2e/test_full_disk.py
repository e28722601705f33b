"""A disk that others fill to its last byte and inode, and kill -9 of the server at random moments: nothing
acknowledged is lost, the server starts, and what was asked to be deleted or cancelled is.

MUSTER_FULL_DISK_KILLS=100 makes it that many kills on each file system; MUSTER_TEST_SEED repeats a run.
"""
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import random
import subprocess
import threading
import time
import urllib.parse

import pytest
from buckets import get, make, put
from hosts import wait_for
from server import ENDED, Server

KILLS = int(os.environ.get("MUSTER_FULL_DISK_KILLS", "3"))
SEED = int(os.environ.get("MUSTER_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
WORKFLOW = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: full-}
spec:
  entrypoint: main
  templates:
  - name: main
    container: {image: alpine, command: [sh, -c, "echo ran"]}
"""
BIG = 6 << 20                                   # uploads leave a sixteenth of the disk free
DISKS = {"ext4": 2048, "tmpfs": 4096}           # inodes


def mount(kind, folder):
    """64 MB; skips the test where that is not allowed."""
    disk = folder / "disk"
    disk.mkdir()
    if kind == "ext4":
        image = folder / "image"
        with open(image, "wb") as f:
            f.truncate(64 << 20)
        steps = [["mkfs.ext4", "-q", "-F", "-m", "0", "-N", str(DISKS[kind]), image],
                 ["mount", "-o", "loop", image, disk]]
    else:
        steps = [["mount", "-t", "tmpfs", "-o", f"size=64m,nr_inodes={DISKS[kind]}", "muster-test", disk]]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True)
        except OSError as e:
            pytest.skip(f"no {kind} can be made here: {e}")
        if done.returncode:
            pytest.skip(f"no {kind} can be mounted here (it takes root): {done.stderr.strip()}")
    return disk


@pytest.fixture(params=list(DISKS))
def disk(request, tmp_path):
    at = mount(request.param, tmp_path)
    yield at
    subprocess.run(["umount", "-l", at])


class Filler:
    """Another program on the same disk, which takes each free block, and inodes where it is told to."""

    def __init__(self, disk):
        self.folder = disk / "filler"
        self.wants = self.inodes = self.ends = False
        self.files = self.passes = 0
        self.lock = threading.Lock()
        self.empty()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def empty(self):
        self.folder.mkdir()
        self.big = os.open(self.folder / "big", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def run(self):
        while not self.ends:
            with self.lock:
                if self.wants:
                    self.fill()
                    self.passes += 1
            time.sleep(0.002)

    def fill(self):
        with contextlib.suppress(OSError):
            while self.wants and self.inodes:
                os.close(os.open(self.folder / f"i{self.files}", os.O_WRONLY | os.O_CREAT))
                self.files += 1
        for size in (1 << 20, 1 << 16, 1 << 12, 1 << 10):
            with contextlib.suppress(OSError):
                while self.wants and os.write(self.big, b"x" * size) == size:
                    pass

    def full(self):
        """Returns when nothing is left."""
        self.wants = True
        done = self.passes + 3
        wait_for(lambda: self.passes >= done)
        fs = os.statvfs(self.folder)
        assert fs.f_bavail * fs.f_frsize < 1 << 16, fs

    def remove(self):
        self.wants = self.inodes = False
        with self.lock:
            os.close(self.big)
            subprocess.run(["rm", "-rf", self.folder], check=True)
            self.empty()

    def end(self):
        self.wants, self.ends = False, True
        self.thread.join()


class World:
    """What clients were told, and what they asked for and never heard of (`unsure`)."""

    def __init__(self, server, rng):
        self.server, self.rng = server, rng
        self.count = itertools.count()
        self.lock = threading.Lock()
        self.objects, self.jobs, self.config, self.runs = {}, {}, {}, {}
        self.secrets, self.gone, self.unsure = set(), set(), set()
        self.told = self.refused = 0

    def ask(self, method, path, body=None, **kw):
        """(status, document); None: no answer came."""
        try:
            status, _, text = self.server.call(method, path, body, **kw)
        except (OSError, http.client.HTTPException):
            return None
        with self.lock:
            self.told += 200 <= status < 300
            self.refused += status >= 500
        assert status < 400 or status >= 500 or status == 404, (method, path, status, text)
        assert status < 500 or b"disk is full" in text or b"No space" in text, (method, path, status, text)
        return status, text

    def good(self, answer):
        return answer is not None and 200 <= answer[0] < 300

    def upload(self, size):
        name = f"o{next(self.count)}"
        data = random.Random(name).randbytes(size)
        answer = self.ask("POST", f"/upload/storage/v1/b/bkt/o?uploadType=media&name={name}", data)
        if self.good(answer):
            self.objects[name] = hashlib.md5(data).digest(), size
        elif answer is None:
            self.unsure.add(name)

    def submit(self, command):
        name = f"j{next(self.count)}"
        answer = self.ask("POST", "/api/jobs", {"name": name, "spec": {
            "kind": "command", "command": ["sh", "-c", command], "resources": {"cpu": 0.01}}})
        if self.good(answer):
            self.jobs[name] = json.loads(answer[1])
            return name

    def set_value(self, kind):
        name = f"v{next(self.count)}"
        if self.good(self.ask("PUT", f"/api/projects/default/{kind}/{name}", {"value": "x" + name})):
            if kind == "secrets":
                self.secrets.add(name)
            else:
                self.config[name] = "x" + name

    def run(self):
        answer = self.ask("POST", "/api/runs", {"text": WORKFLOW})
        if self.good(answer):
            self.runs[json.loads(answer[1])["id"]] = True

    def delete_object(self):
        with self.lock:
            small = [n for n, (_, size) in self.objects.items() if size < BIG]
            if not small:
                return
            name = self.rng.choice(small)
            data = self.objects.pop(name)
        answer = self.ask("DELETE", f"/storage/v1/b/bkt/o/{name}")
        if self.good(answer):
            self.gone.add(name)
        elif answer is None:
            self.unsure.add(name)
        else:
            self.objects[name] = data

    def load(self, until):
        """Clients, until that is set."""
        kinds = [lambda: self.upload(700), lambda: self.upload(700), lambda: self.upload(3000),
                 lambda: self.upload(1 << 20), lambda: self.submit("echo ran"), self.delete_object,
                 lambda: self.submit("seq 20000"), lambda: self.set_value("config"),
                 lambda: self.set_value("secrets"), self.run, self.delete_object]
        while not until.is_set():
            self.rng.choice(kinds)()

    def check(self):
        """All that was acknowledged is there, and what was deleted is not."""
        for name, (digest, size) in self.objects.items():
            status, _, data = get(self.server, "bkt", name)
            assert status == 200 and hashlib.md5(data).digest() == digest, (name, size, status, data[:200])
        for name in self.gone:
            assert get(self.server, "bkt", name)[0] == 404, name
        for name in sorted(self.unsure):
            status, _, data = get(self.server, "bkt", name)
            whole = random.Random(name).randbytes(len(data))
            assert status == 404 or (status == 200 and data == whole), (name, status, data[:200])
        for name, job in self.jobs.items():
            assert self.server.json("GET", f"/api/jobs/default/{name}")["uid"] == job["uid"], name
        config = {v["name"]: v["value"] for v in
                  self.server.json("GET", "/api/projects/default/config")["values"]}
        assert self.config.items() <= config.items()
        secrets = {v["name"] for v in self.server.json("GET", "/api/projects/default/secrets")["values"]}
        assert self.secrets <= secrets
        for run in self.runs:
            self.server.json("GET", f"/api/runs/default/{run}")

    def must(self, method, path, body=None):
        status, _, text = self.server.call(method, path, body)
        assert 200 <= status < 300, (method, path, status, text)

    def make_room(self, big):
        """On a full disk: ends the job that waits, cancels another, deletes."""
        status, _, text = self.server.call("DELETE", f"/storage/v1/b/bkt/o/{big}")
        assert status in (200, 204), (status, text)
        self.gone.add(big)
        del self.objects[big]
        for name in sorted(self.objects)[:3]:
            self.must("DELETE", f"/storage/v1/b/bkt/o/{name}")
            del self.objects[name]
            self.gone.add(name)
        for name in sorted(self.config)[:2]:
            self.must("DELETE", f"/api/projects/default/config/{name}")
            del self.config[name]

    def clear(self):
        """Every job has ended; keeps a few of everything for the next round."""
        for name in sorted(self.jobs):
            self.server.reach(name)
        for name in sorted(self.jobs)[:-3]:
            self.must("DELETE", f"/api/jobs/default/{name}")
            del self.jobs[name]
        def ended(run):
            return self.server.json("GET", f"/api/runs/default/{run}")["ended"]
        for run in sorted(self.runs):
            wait_for(lambda: ended(run))
        for run in sorted(self.runs)[:-2]:
            self.must("DELETE", f"/api/runs/default/{run}")
            del self.runs[run]
        for name in sorted(self.objects)[:-20]:
            self.must("DELETE", f"/storage/v1/b/bkt/o/{name}")
            del self.objects[name]
            self.gone.add(name)
        for name in sorted(self.unsure):
            self.ask("DELETE", f"/storage/v1/b/bkt/o/{name}")
        self.gone |= self.unsure
        self.unsure = set()
        jobs = self.server.json("GET", "/api/jobs?state=active")["jobs"]
        for job in jobs:                        # of submits that nobody heard of
            self.server.reach(job["name"])
        for job in self.server.json("GET", "/api/jobs?limit=500")["jobs"]:
            if job["name"] not in self.jobs and not job["name"].startswith("full-"):
                self.must("DELETE", f"/api/jobs/default/{urllib.parse.quote(job['name'], safe='')}")


def start(server, rng, took):
    """On the full disk; sometimes it is killed on its way up as well."""
    if rng.random() < 0.3:
        with contextlib.suppress(AssertionError):
            server.start(wait=rng.uniform(0, 0.15))
        server.kill()
    began = time.monotonic()
    server.start(wait=60)
    took.append(time.monotonic() - began)


def one_round(world, filler, rng, took):
    server = world.server
    world.upload(BIG)                       # to be deleted when nothing is left
    big = max(world.objects, key=lambda o: (world.objects[o][1], int(o[1:])))
    assert world.objects[big][1] == BIG
    waits = world.submit("touch hold; while [ -e hold ]; do sleep 0.05; done; echo end")
    sleeps = world.submit("sleep 1000")
    hold = server.work(server.reach(waits, "running")) / "hold"
    wait_for(hold.exists)
    server.reach(sleeps, "running")
    stop = threading.Event()
    clients = [threading.Thread(target=world.load, args=[stop]) for _ in range(4)]
    for c in clients:
        c.start()
    time.sleep(rng.uniform(0, 0.3))
    filler.inodes = rng.random() < 0.5
    filler.wants = True
    time.sleep(rng.uniform(0, 0.9))
    server.kill()
    stop.set()
    for c in clients:
        c.join()
    filler.full()
    start(server, rng, took)
    world.check()
    filler.wants = greedy = rng.random() < 0.5  # whether what is freed is taken at once
    world.must("POST", f"/api/jobs/default/{sleeps}/cancel")
    server.reach(sleeps, "cancelled")
    world.make_room(big)
    hold.unlink()
    assert server.reach(waits)["state"] == "succeeded"
    world.must("DELETE", f"/api/jobs/default/{waits}")
    del world.jobs[waits]
    if not greedy:                              # room is made by deletes alone
        if filler.inodes:
            for i in range(100):
                (filler.folder / f"i{i}").unlink(missing_ok=True)
        wait_for(lambda: put(server, "bkt", "room", b"x" * 2000)[0] == 200)
    filler.remove()
    wait_for(lambda: put(server, "bkt", "after", b"x" * 2000)[0] == 200)
    world.clear()
    world.check()


def test_a_server_killed_on_a_full_disk_starts_and_loses_nothing(muster, disk):
    print(f"MUSTER_TEST_SEED={SEED}")
    rng, took = random.Random(SEED), []
    filler = Filler(disk)
    server = Server(muster, disk)              # its log is beside that, on another disk
    try:
        server.start()
        make(server, "bkt")
        world = World(server, rng)
        for _ in range(KILLS):
            one_round(world, filler, rng, took)
        server.stop()
        filler.full()
        server.start()                          # the same after a clean stop
        world.check()
        filler.remove()
        server.stop()
        done = muster("serve", "--data-dir", server.data_dir, "--check", timeout=300)
        assert "is sound" in done.stdout
        print(f"{KILLS} kills, {world.told} acknowledged, {world.refused} refused, "
              f"slowest start {max(took):.2f} s")
    finally:
        filler.end()
        server.kill()
