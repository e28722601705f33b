"""bench/storage.py - buckets beside fake-gcs-server: reads under wrk, uploads and large objects by Google's client

Both sides serve the same requests in turn, on the same cores as the clients. muster syncs every upload
to the disk before it answers; fake-gcs-server (its file system backend) does not.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from sides import CACHE, MUSTER, QUICK, left_out, median, table

PEER = "github.com/fsouza/fake-gcs-server@v1.56.1"
SECONDS = float(os.environ.get("BENCH_SECONDS", "2"))
ROUNDS = 1 if QUICK else 3
LARGE = (1 if QUICK else 64) << 20
BUCKET = "bench"


def need(program, how):
    path = shutil.which(program) or shutil.which(program, path=os.path.join(CACHE, "bench-go", "bin"))
    if not path:
        sys.exit(f"bench/storage: {program} is not here ({how})")
    return path


def peer_binary():
    bin_ = os.path.join(CACHE, "bench-go", "bin")
    if not os.path.exists(os.path.join(bin_, "fake-gcs-server")):
        subprocess.run([need("go", "golang.org, or apt-get install golang"), "install", PEER],
                       env={**os.environ, "GOBIN": bin_}, check=True)
    return os.path.join(bin_, "fake-gcs-server")


def google_client():
    try:
        import google.cloud.storage
    except ImportError:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "google-cloud-storage==3.17.1"],
                       check=True)
        import google.cloud.storage
    return google.cloud.storage


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Side:
    def __init__(self, name, command, base):
        self.name, self.base = name, base
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.figures = {}

    def wait(self):
        for _ in range(200):
            try:
                self.call("GET", "/storage/v1/b?project=default")
                return self
            except OSError:
                time.sleep(0.05)
        sys.exit(f"bench/storage: {self.name} does not answer")

    def call(self, method, path, body=None, kind="application/json"):
        request = urllib.request.Request(self.base() + path, data=body, method=method,
                                         headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def add(self, what, figure):
        self.figures.setdefault(what, []).append(figure)

    def figure(self, what):
        return median(self.figures[what])


def calls(url, post):
    """Requests a second by one client in Python, where a quick run has no wrk."""
    n, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < SECONDS:
        body = b"x" * 4096 if post else None
        with urllib.request.urlopen(urllib.request.Request(f"{url}{n}" if post else url, data=body),
                                    timeout=30) as answer:
            answer.read()
        n += 1
    return n / took


def wrk(url, *more):
    if QUICK and not shutil.which("wrk"):
        return calls(url, bool(more))
    seconds = max(1, round(SECONDS))    # it takes whole ones
    out = subprocess.run([need("wrk", "apt-get install wrk"), "-t2", "-c16", f"-d{seconds}s", *more, url],
                         capture_output=True, text=True, check=True).stdout
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    if bad:
        raise RuntimeError(f"{url}: {bad.group(0)}")
    return float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))


def client_of(side):
    storage = google_client()
    os.environ["STORAGE_EMULATOR_HOST"] = side.base()
    return storage.Client(project="default").bucket(BUCKET)


def uploads(side, threads):
    """Objects of 4 KiB a second by Google's client, each thread with its own connection."""
    data, counts = os.urandom(4096), [0] * threads
    buckets = [client_of(side) for _ in range(threads)]
    until = time.perf_counter() + SECONDS

    def work(i):
        while time.perf_counter() < until:
            buckets[i].blob(f"up/{threads}/{i}/{counts[i]}").upload_from_string(data)
            counts[i] += 1

    start = time.perf_counter()
    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    return sum(counts) / (time.perf_counter() - start)


def large(side, data):
    """MB/s up and down."""
    blob = client_of(side).blob("large")
    start = time.perf_counter()
    blob.upload_from_string(data)
    up = time.perf_counter() - start
    start = time.perf_counter()
    got = blob.download_as_bytes()
    down = time.perf_counter() - start
    assert len(got) == len(data)
    return len(data) / 1e6 / up, len(data) / 1e6 / down


def measure(sides, folder):
    post = os.path.join(folder, "post.lua")
    with open(post, "w") as f:
        f.write('wrk.method = "POST"\nwrk.body = string.rep("x", 4096)\nlocal n = 0\n'
                'local me = tostring({}):gsub("[^%w]", "")\n'
                'request = function()\n  n = n + 1\n'
                '  return wrk.format(nil, wrk.path .. me .. n)\nend\n')
    data = os.urandom(LARGE)
    for _ in range(ROUNDS):
        for s in sides:
            s.add("get", wrk(f"{s.base()}/download/storage/v1/b/{BUCKET}/o/four?alt=media"))
        for s in sides:
            s.add("stat", wrk(f"{s.base()}/storage/v1/b/{BUCKET}/o/four"))
        for s in sides:
            s.add("post", wrk(f"{s.base()}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=w/",
                              "-s", post))
        for s in sides:
            up, down = large(s, data)
            s.add("up", up)
            s.add("down", down)
    for s in sides:
        for threads in (1, 8):
            s.add(f"client{threads}", uploads(s, threads))


def rows(m, p=None):
    def row(what, key, unit, goal=None):
        if not p:
            return what, f"{m.figure(key):,.0f}{unit}", "", "", "", None
        ratio = m.figure(key) / p.figure(key)
        return (what, f"{m.figure(key):,.0f}{unit}", f"{p.figure(key):,.0f}{unit}", f"{ratio:.1f}x",
                f">= {goal}x" if goal else "", ratio >= goal if goal else None)

    return [row("GET of 4 KiB, wrk -t2 -c16", "get", "/s", 5),
            row("metadata, wrk -t2 -c16", "stat", "/s", 5),
            row("uploads of 4 KiB, wrk (ours durable)", "post", "/s"),
            row("uploads by the client, 1 thread", "client1", "/s"),
            row("uploads by the client, 8 threads", "client8", "/s"),
            row(f"{LARGE >> 20} MB up, client", "up", " MB/s"),
            row(f"{LARGE >> 20} MB down, client", "down", " MB/s")]


def main():
    if not QUICK:
        need("wrk", "apt-get install wrk")
    binary = None if left_out("fake-gcs-server") else peer_binary()
    google_client()
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        ports = free_port(), free_port()
        data = os.path.join(folder, "muster")

        def token():
            with open(os.path.join(data, "token")) as f:
                return f.read().strip()

        sides = [
            Side("muster", [MUSTER, "serve", "--data-dir", data, "--port", str(ports[0])],
                 lambda: f"http://127.0.0.1:{ports[0]}/k/{token()}")]
        if binary:
            sides.append(Side(
                 "fake-gcs-server",
                 [binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(ports[1]), "-backend",
                  "filesystem", "-filesystem-root", os.path.join(folder, "peer"), "-log-level", "error",
                  "-public-host", f"127.0.0.1:{ports[1]}", "-external-url", f"http://127.0.0.1:{ports[1]}"],
                 lambda: f"http://127.0.0.1:{ports[1]}"))
        try:
            for s in sides:
                s.wait()
                s.call("POST", "/storage/v1/b?project=default", json.dumps({"name": BUCKET}).encode())
                s.call("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=four",
                       os.urandom(4096), "application/octet-stream")
            measure(sides, folder)
            table("Buckets beside fake-gcs-server", rows(*sides))
        finally:
            for s in sides:
                s.process.terminate()
                s.process.wait()


if __name__ == "__main__":
    main()
