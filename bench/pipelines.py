#!/usr/bin/env python3
"""bench/pipelines.py [steps] [many] [training] - what a step of a pipeline costs beyond its program

steps: a chain of 200 steps and a fan of 200, each step the program `true` in its sandbox, from the request to
the end of the run, beside a chain of Python functions that do nothing by kfp.local's SubprocessRunner
(no sandbox, no server, nothing kept on disk).
many: a chain of 10,000 steps: what the first hundred and the last hundred cost, and the server's memory. After
MANY_S seconds it is stopped, and what it had done by then is told.
training: examples/fashion-pipeline: the training step by PyTorch and by muster's own engine, from the step's
start to its end; the same volume, data and network, EPOCHS epochs of LIMIT images.
All of it takes some three minutes on a quiet machine, and is ended after WHOLE_S.
The peers need what `./setup.sh test` installs; without it muster stands alone.
"""
import contextlib
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import server
import sides

STEPS = int(os.environ.get("STEPS", 200))
MANY = int(os.environ.get("MANY", 10000))
MANY_S = float(os.environ.get("MANY_S", 170))
WHOLE_S = int(os.environ.get("WHOLE_S", 350))
LIMIT = int(os.environ.get("LIMIT", 20000))
EPOCHS = int(os.environ.get("EPOCHS", 1))
PEER_STEPS = int(os.environ.get("PEER_STEPS", 5))
EXAMPLE = os.path.join(sides.ROOT, "examples", "fashion-pipeline")
DEBIAN = "/usr/local/bin:/usr/bin:/bin"     # whose Python has Debian's PyTorch


def workflow(tasks):
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
            "metadata": {"generateName": "bench-"},
            "spec": {"entrypoint": "main", "templates": [
                {"name": "main", "dag": {"tasks": tasks}},
                {"name": "true", "container": {"image": "alpine", "command": ["true"]}}]}}


def chain(n):
    return workflow([{"name": f"t{i}", "template": "true",
                      **({"dependencies": [f"t{i - 1}"]} if i else {})} for i in range(n)])


def fan(n):
    return workflow([{"name": "all", "template": "true", "withSequence": {"count": str(n)}}])


class Runs(server.Muster):
    def begin(self, conn, doc):
        return self.call(conn, "POST", "/api/runs", {"text": server.json.dumps(doc)})["id"]

    def wait(self, conn, run, seconds=60):
        def ended():
            time.sleep(0.02)            # so that looking costs nothing
            return self.call(conn, "GET", f"/api/runs/default/{run}").get("ended")
        server.wait_for(ended, seconds)
        doc = self.call(conn, "GET", f"/api/runs/default/{run}")
        if doc["state"] != "succeeded":
            raise RuntimeError(f"run {run}: {doc['state']}: {doc.get('message')}")
        return doc

    def time(self, conn, doc):
        """Seconds from the request to the end of the run."""
        begin = time.time()
        return self.wait(conn, self.begin(conn, doc))["ended"] - begin

    def processor(self):
        """Seconds that the server has used; less disturbed by others than the clock."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            words = f.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def took(self, conn, run):
        """Seconds from the end of the step before to that of each."""
        nodes = self.call(conn, "GET", f"/api/runs/default/{run}/nodes?brief=1")["nodes"]
        ends = sorted(n["ended"] for n in nodes if n["kind"] == "Pod" and n["phase"] == "Succeeded")
        return [b - a for a, b in zip(ends, ends[1:])]

    def stop_all(self):
        """Steps outlive a server that goes; these are not to."""
        conn = self.connect()
        for run in self.call(conn, "GET", "/api/runs?state=running")["runs"]:
            at = f"/api/runs/default/{run['id']}"
            self.call(conn, "POST", at + "/terminate")
            server.wait_for(lambda: self.call(conn, "GET", at).get("ended"), 10)


@contextlib.contextmanager
def serving():
    with tempfile.TemporaryDirectory() as d:
        m = Runs(d)
        try:
            yield m
        finally:
            with contextlib.suppress(OSError, RuntimeError):
                m.stop_all()
            m.process.terminate()
            m.process.wait(20)


def kfp_local():
    """Seconds a step, as kfp makes it and without its pip; none where there is no kfp 2."""
    python = os.path.join(sides.CACHE, "kfp2-venv", "bin", "python")
    if sides.left_out("kfp.local"):
        return None, None
    if not os.path.exists(python):
        print("  kfp.local: there is no kfp 2 (./setup.sh test)", file=sys.stderr)
        return None, None
    done = subprocess.run([python, os.path.join(sides.PEERS, "kfp_local.py"), str(PEER_STEPS)],
                          text=True, capture_output=True, timeout=120)
    if done.returncode:
        print(f"  kfp.local: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None, None
    return tuple(map(float, done.stdout.split()[-2:]))


def steps():
    with serving() as m:
        conn = m.connect()
        m.time(conn, chain(20))
        of_chain = m.time(conn, chain(STEPS)) / STEPS
        of_fan = m.time(conn, fan(STEPS)) / STEPS
    peer, bare = kfp_local()
    sides.table(f"a step of a pipeline, {STEPS} of `true`, beside kfp.local's SubprocessRunner", [
        server.row("chain, a step", of_chain, peer, "ms", "<= 10 ms", of_chain <= 0.010, less=True),
        server.row("chain (peer without its pip)", of_chain, bare, "ms", less=True),
        server.row("fan, a step", of_fan, bare, "ms", "<= 10 ms", of_fan <= 0.010, less=True)])


def slope(used):
    """Seconds of processor a step, of (steps done, seconds used)."""
    (n, a), (m, b) = used[0], used[-1]
    return (b - a) / max(m - n, 1)


def many():
    with serving() as m:
        conn = m.connect()
        m.time(conn, chain(20))
        before = most = m.memory()
        begin = time.time()
        run = m.begin(conn, chain(MANY))
        taken, used = time.time() - begin, []
        while not (doc := m.call(conn, "GET", f"/api/runs/default/{run}")).get("ended"):
            most = max(most, m.memory())
            used.append((doc["done"], m.processor()))
            if time.time() > begin + MANY_S:
                print(f"  stopped after {MANY_S:.0f} s", file=sys.stderr)
                m.stop_all()
            time.sleep(0.1)
        took = m.took(conn, run)
    done, tenth = len(took) + 1, max(1, len(took) // 10)
    first, last = sides.median(took[:100]), sides.median(took[-100:])
    early, late = (slope(u) for u in (
        [u for u in used if u[0] <= tenth] or used[:2],
        [u for u in used if u[0] >= done - tenth] or used[-2:]))
    sides.table(f"a chain of {MANY:,} steps, {done:,} of them done in {sum(took):.0f} s", [
        ("taken and checked", f"{taken * 1000:.0f} ms", "-", "-", "", None),
        server.row("the first 100, median of a step", first, None, "ms", "<= 10 ms", first <= 0.010),
        server.row("the last 100, median of a step", last, None, "ms", "as the first",
                   last <= first * 1.1),
        server.row(f"the first {tenth:,}, mean", sum(took[:tenth]) / tenth, None, "ms"),
        server.row(f"the last {tenth:,}, mean", sum(took[-tenth:]) / tenth, None, "ms"),
        server.row(f"server's processor time, the first {tenth:,}", early, None, "ms"),
        server.row(f"server's processor time, the last {tenth:,}", late, None, "ms", "as the first",
                   late <= early * 1.1),
        ("server's memory a node", f"{(most - before) / MANY / 1024:.1f} kB", "-", "-", "", None)])


def unpack(raw):
    """The data set as torchvision keeps it, the first LIMIT of its training images."""
    os.makedirs(raw)
    source = os.path.join(sides.DATA, "fashion-mnist")
    for name in os.listdir(source):
        with gzip.open(os.path.join(source, name)) as f:
            data = f.read()
        head, size = (16, 784) if "images" in name else (8, 1)
        n = min(LIMIT if name.startswith("train") or sides.QUICK else 10000, (len(data) - head) // size)
        with open(os.path.join(raw, name[:-3]), "wb") as f:
            f.write(data[:4] + n.to_bytes(4, "big") + data[8:head + n * size])


def compiled(code):
    package = os.path.join(code, "fashion_pipeline.yaml")
    subprocess.run([os.path.join(sides.CACHE, "kfp1-venv", "bin", "dsl-compile"), "--py",
                    os.path.join(code, "devolop_pipeline.py"), "--output", package], check=True,
                   stderr=subprocess.DEVNULL)
    return package


def took(m, name, file, *more):
    """Seconds of each step."""
    subprocess.run([sides.MUSTER, "apply", "-f", file, "--name", name, *more, "--wait"],
                   env={**m.env, "PATH": DEBIAN}, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    conn = m.connect()
    (run,) = [r for r in m.call(conn, "GET", "/api/runs")["runs"] if r["name"] == name]
    nodes = m.call(conn, "GET", f"/api/runs/default/{run['id']}/nodes")["nodes"]
    return {n["display"]: n["ended"] - n["started"] for n in nodes if n["kind"] == "Pod"}


def training():
    if not sides.QUICK and not os.path.exists(os.path.join(sides.CACHE, "kfp1-venv", "bin",
                                                           "dsl-compile")):
        print("  training: there is no kfp 1.8 (./setup.sh test)", file=sys.stderr)
        return
    if subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode:
        print("  training: there is no PyTorch of Debian's (apt-get install python3-torch)",
              file=sys.stderr)
        return
    os.environ["PATH"] = DEBIAN
    with serving() as m, tempfile.TemporaryDirectory() as d:
        code = os.path.join(d, "code")
        shutil.copytree(EXAMPLE, code, ignore=shutil.ignore_patterns("datasets", "__pycache__"))
        unpack(os.path.join(code, "datasets", "fashion-mnist", "FashionMNIST", "raw"))
        subprocess.run([sides.MUSTER, "image", "build", "-t",
                        "registry.example/kubeflow-mnist:train", code], env=m.env,
                       check=True, stdout=subprocess.DEVNULL)
        epochs = ("--param", f"epochs={EPOCHS}")
        native = took(m, "native", os.path.join(code, "native.yaml"), *epochs)
        torch = ({} if sides.left_out("PyTorch") else
                 took(m, "torch", compiled(code), *epochs))
    sides.table(f"fashion-pipeline, {LIMIT:,} images, {EPOCHS} epoch{'s' * (EPOCHS > 1)}: the steps of "
                "native.yaml beside those of PyTorch", [
        server.row(name, native[name], torch.get(name), "ms", less=True)
        for name in ("preprocessing", "train")])


def too_long(*_):
    raise TimeoutError(f"bench/pipelines: ended after {WHOLE_S} s")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(WHOLE_S)
    for name in sys.argv[1:] or ["steps", "many", "training"]:
        {"steps": steps, "many": many, "training": training}[name]()
