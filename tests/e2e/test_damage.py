"""One byte of a data directory is another one: it is refused, reported or harmless, and nothing that is
answered is wrong.

A data directory of every kind of content is made once and kept twice: as a server that was stopped
leaves it, and as one that was killed does (with SQLite's write-ahead log). Then, again and again, bytes
of it are changed at random and all that a server hands out is compared with what it handed out before.
MUSTER_DAMAGES (default 60) says how many bytes; 10000 take a quarter of an hour.
"""
import collections
import http.client
import json
import os
import random
import shutil
import urllib.parse
from pathlib import Path

import pytest

from server import Server

DAMAGES = int(os.environ.get("MUSTER_DAMAGES", "60"))
SEED = int(os.environ.get("MUSTER_DAMAGE_SEED", "1"))
DATABASE = ("muster.db", "muster.db-wal", "muster.db-mark")

FLOW = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: flow}
spec:
  entrypoint: make
  templates:
  - name: make
    container: {image: "alpine", command: [sh, -c, "seq 1 9000 > /tmp/out"]}
    outputs: {artifacts: [{name: out, path: /tmp/out}]}
"""


def flip(path, offset, mask):
    """One byte, as a disk changes it: the times of the file stay."""
    st = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(offset)
        was = f.read(1)
        f.seek(offset)
        f.write(bytes([was[0] ^ mask]))
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def object_path(name, media=False):
    return f"/storage/v1/b/bucket/o/{urllib.parse.quote(name, safe='')}" + ("?alt=media" if media else "")


def put_object(server, name, body):
    status, _, text = server.call(
        "POST", f"/upload/storage/v1/b/bucket/o?uploadType=media&name={urllib.parse.quote(name, safe='')}",
        body, headers={"Content-Type": "application/octet-stream"})
    assert status == 200, text


def fill(server, muster, folder):
    server.json("POST", "/storage/v1/b?project=default", {"name": "bucket"})
    rng = random.Random(7)
    for i in range(24):
        put_object(server, f"small/{i}", rng.randbytes(rng.randrange(1, 16 << 10)))
    for i in range(24):
        put_object(server, f"large/{i}", rng.randbytes(rng.randrange(17 << 10, 300 << 10)))
    server.json("POST", "/api/projects", {"name": "other"})
    server.json("POST", "/api/projects/other/tokens", {})
    muster("secret", "set", "word", input="swordfish", env=server.env)
    for i in range(10):
        text = f"for n in $(seq 1 {200 * (i + 1)}); do echo line $n of job {i}; done; echo {i} >result"
        server.json("POST", "/api/jobs", {"name": f"job-{i}", "spec": {"kind": "command", "command": ["sh", "-c", text]}})
    (folder / "flow.yaml").write_text(FLOW)
    muster("apply", "-f", folder / "flow.yaml", "--wait", env=server.env)
    for i in range(10):
        assert server.reach(f"job-{i}")["state"] == "succeeded"


def questions(server):
    """What is asked of each server, with the file that the answer comes from ("": the database)."""
    runs = server.json("GET", "/api/runs")["runs"]
    jobs = {j["name"]: j for j in server.json("GET", "/api/jobs")["jobs"]}
    asked = [("/storage/v1/b?project=default", ""), ("/storage/v1/b/bucket/o", ""), ("/api/jobs", ""),
             ("/api/projects", ""), ("/api/projects/other/tokens", ""),
             ("/api/projects/default/secrets", ""), ("/api/runs", "")]
    for name, job in jobs.items():
        asked += [(f"/api/jobs/default/{name}", ""), (f"/api/jobs/default/{name}/events", ""),
                  (f"/api/jobs/default/{name}/logs?limit=5000", f"jobs/{job['uid']}/1/log.0")]
        if name.startswith("JOB-"):
            asked.append((f"/api/jobs/default/{name}/files/result", f"jobs/{job['uid']}/1/work/result"))
    for run in runs:
        asked += [(f"/api/runs/default/{run['id']}/{what}", "") for what in ("nodes", "flow", "events")]
    for i in range(24):
        asked += [(object_path(f"small/{i}", True), ""), (object_path(f"large/{i}"), "")]
        sha = sha256_of(server, f"large/{i}")
        asked.append((object_path(f"large/{i}", True), f"blobs/{sha[:2]}/{sha[2:]}"))
    return asked


def sha256_of(server, name):
    import hashlib
    return hashlib.sha256(server.call("GET", object_path(name, True))[2]).hexdigest()


def answers(server, asked):
    """(status, body) of each; status 0: the connection was broken off."""
    at = urllib.parse.urlsplit(server.address)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
    head = {"Authorization": f"Bearer {server.token}"}
    for path, file in asked:
        try:
            conn.request("GET", path, headers=head)
            answer = conn.getresponse()
            yield path, file, answer.status, answer.read().replace(server.address.encode(), b"ADDRESS")
        except (http.client.HTTPException, ConnectionError):
            conn.close()
            yield path, file, 0, b""
    conn.close()


class Kept:
    """A data directory as it was, and the answers of its server."""

    def __init__(self, muster, folder):
        self.muster, self.folder = muster, folder
        self.data = folder / "data"
        server = Server(muster, self.data).start()
        fill(server, muster, folder)
        self.asked = questions(server)
        self.truth = {p: (s, b) for p, _, s, b in answers(server, self.asked)}
        assert all(s == 200 for s, _ in self.truth.values()), self.truth
        server.stop()
        self.clean = folder / "clean"
        self.copy(self.clean)
        server.start()
        for i in range(8):          # so that there is something in the log, which a kill leaves
            put_object(server, f"late/{i}", os.urandom(3000))
        server.json("DELETE", object_path("late/0"))
        self.late = {p: (s, b) for p, _, s, b in answers(server, self.asked)}
        server.kill()
        self.killed = folder / "killed"
        self.copy(self.killed)

    def copy(self, to):
        shutil.copytree(self.data, to, symlinks=True, ignore=shutil.ignore_patterns("way"))  # a socket

    def back(self, source, files):
        for name in {*files, *DATABASE, "muster.db-shm"}:
            to = self.data / name
            to.unlink(missing_ok=True)
            if (source / name).exists():
                shutil.copy2(source / name, to)

    def start(self):
        """A server on what is there, or the text with which it refused."""
        server = Server(self.muster, self.data)
        try:
            return server.start(), ""
        except AssertionError as e:
            return None, str(e)


@pytest.fixture(scope="module")
def kept(muster, tmp_path_factory):
    return Kept(muster, tmp_path_factory.mktemp("damage"))


def check(muster, kept):
    done = muster("serve", "--check", "--data-dir", kept.data, check=False)
    return done.returncode, done.stdout + done.stderr


def judge(kept, server, truth, damaged, tally, said):
    """Every answer is the one before, or says that something is damaged."""
    reported = set()
    for path, file, status, body in answers(server, kept.asked):
        if (status, body) == truth[path]:
            continue
        what = f"{path} ({file or 'the database'}) after {said}: {status} {body[:300]!r}"
        if status == 200:           # of a log: what is right of it, and a line for what is not
            assert "/logs" in path and b"damaged here" in body, f"wrong answer: {what}"
            right = truth[path][1]
            for line in json.loads(body)["lines"]:
                assert "damaged here" in line["text"] or json.dumps(line["text"]).encode() in right, what
        else:
            assert status in (0, 500), f"not told as damage: {what}"
            assert status == 0 or b"damaged" in body, f"not told as damage: {what}"
        reported.add(file)
    return reported


def test_a_changed_byte_of_the_database_is_never_answered_as_right(muster, kept):
    rng = random.Random(SEED)
    tally = collections.Counter()
    for n in range(max(1, DAMAGES // 4)):
        source, truth = (kept.killed, kept.late) if n % 2 else (kept.clean, kept.truth)
        files = [f for f in DATABASE if (source / f).exists() and (source / f).stat().st_size]
        name = rng.choices(files, [(source / f).stat().st_size ** 0.5 for f in files])[0]
        offset, mask = rng.randrange((source / name).stat().st_size), 1 << rng.randrange(8)
        kept.back(source, ())
        flip(kept.data / name, offset, mask)
        said = f"byte {offset} of {name} ({source.name}) xor {mask}"
        code, found = check(muster, kept) if n % 5 == 0 else (None, "")
        kept.back(source, ())
        flip(kept.data / name, offset, mask)
        server, why = kept.start()
        if not server:
            assert "damaged" in why, f"{said}: {why[-500:]}"
            tally["refused"] += 1
            continue
        try:
            reported = judge(kept, server, truth, {name}, tally, said)
        finally:
            server.kill()
        tally["reported" if reported else "harmless"] += 1
        if code == 0:
            assert not reported, f"serve --check found nothing of {said}"
            tally["sound for --check"] += 1
    print(dict(tally))
    kept.back(kept.clean, ())


def test_a_changed_byte_of_a_file_is_never_handed_out_as_right(muster, kept):
    rng = random.Random(SEED + 1)
    tally = collections.Counter()
    kinds = sorted({f for _, f in kept.asked if f})
    done = 0
    while done < DAMAGES * 3 // 4:
        files = rng.sample(kinds, min(len(kinds), DAMAGES * 3 // 4 - done))
        kept.back(kept.clean, kinds)
        for name in files:
            flip(kept.data / name, rng.randrange((kept.data / name).stat().st_size),
                 1 << rng.randrange(8))
        code, found = check(muster, kept)
        server, why = kept.start()
        assert server, why
        try:
            reported = judge(kept, server, kept.truth, set(files), tally, f"damage of {files}")
        finally:
            server.kill()
        assert reported <= set(files)
        for name in files:
            told = name in reported
            listed = name in found or (name.rpartition("/")[0] + "/" + Path(name).name) in found
            tally["reported" if told else "harmless"] += 1
            assert told, f"{name} is damaged and its content was answered as before"
            assert listed, f"serve --check does not list {name}:\n{found}"
        assert code == 7
        done += len(files)
    print(dict(tally))
    kept.back(kept.clean, kinds)
