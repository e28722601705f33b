"""A server under test: its own data directory, a free port, gone at the end.

`server` (a fixture, one for each test) is running; Server(muster, folder).start() makes further ones.
    status, headers, body = server.call("GET", "/api/jobs")
    doc = server.json("POST", "/api/jobs", {...})             # fails the test unless 2xx
    muster("jobs", "list", env=server.env)                    # CLI commands that call it
    server.kill(); server.start()                             # kill -9, and again
"""
import contextlib
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
import urllib.parse
from pathlib import Path

import pytest
from hosts import die_with_parent, wait_for

@contextlib.contextmanager
def edited(data_dir):
    """The database of a server that is down, to be changed by hand. What another program writes has no
    checksums of pages and would be refused: a new file is one from before there were any."""
    db = sqlite3.connect(data_dir / "muster.db")
    with db:
        yield db
    new = sqlite3.connect(data_dir / "new.db")
    new.executescript("\n".join(db.iterdump()))
    new.close()
    db.close()
    os.rename(data_dir / "new.db", data_dir / "muster.db")


ENDED = ("succeeded", "failed", "cancelled")


class Server:
    def __init__(self, muster, data_dir, *args, env=None):
        self.binary = getattr(muster, "path", muster)
        self.data_dir = Path(data_dir)
        self.args = [str(a) for a in args]
        self.extra = env or {}
        self.process = None
        self.address = None

    def start(self, *args, wait=120):
        """Returns when it answers. Further arguments are for this start alone."""
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.log = open(self.data_dir.parent / f"{self.data_dir.name}.log", "ab")
        self.process = subprocess.Popen(
            [self.binary, "serve", "--data-dir", str(self.data_dir), "--port", "0", *self.args,
             *map(str, args)],
            stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
            env={**os.environ, **self.extra})
        until = time.monotonic() + wait
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"muster serve: exit {self.process.returncode}\n{self.said()}")
            try:
                doc = json.loads((self.data_dir / "server.json").read_text())
                if doc["pid"] == self.process.pid:
                    self.address = doc["address"]
                    return self
            except (OSError, ValueError):
                pass
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"muster serve did not answer in {wait} s\n{self.said()}")

    def said(self):
        """All that it printed."""
        return (self.data_dir.parent / f"{self.data_dir.name}.log").read_text(errors="replace")

    def stop(self, wait=120):
        """SIGTERM, and its exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(wait)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.log.close()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()

    @property
    def port(self):
        return urllib.parse.urlsplit(self.address).port

    @property
    def token(self):
        return (self.data_dir / "token").read_text().strip()

    @property
    def url(self):
        """With the token in the path, for clients that send no header."""
        return f"{self.address}/k/{self.token}"

    @property
    def env(self):
        """For muster's own commands."""
        return {"MUSTER_SERVER": self.address, "MUSTER_TOKEN": self.token,
                "MUSTER_DATA_DIR": str(self.data_dir)}

    def client_env(self, *args):
        """What `muster env` prints, for gcloud, gcsfs, kfp ..."""
        out = subprocess.run([self.binary, "env", *args], env={**os.environ, **self.env}, text=True,
                             capture_output=True, check=True).stdout
        shown = subprocess.run(["bash", "-c", out + "\nenv -0"], text=True, capture_output=True,
                               check=True, env={"PATH": os.environ["PATH"]}).stdout
        names = set(re.findall(r"^export (\w+)=", out, re.M))
        pairs = (p.split("=", 1) for p in shown.split("\0") if "=" in p)
        return {k: v for k, v in pairs if k in names}

    def call(self, method, path, body=None, token=None, headers=None, timeout=120):
        """(status, headers, bytes). The server's own token unless another, or "" for none."""
        at = urllib.parse.urlsplit(self.address)
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        conn = kind(at.hostname, at.port, timeout=timeout)
        headers = dict(headers or {})
        if token != "":
            headers.setdefault("Authorization", f"Bearer {token or self.token}")
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        try:
            conn.request(method, path, body=body, headers=headers)
            answer = conn.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            conn.close()

    def json(self, method, path, body=None, **kw):
        status, _, text = self.call(method, path, body, **kw)
        assert 200 <= status < 300, f"{method} {path}: {status} {text[:2000]!r}"
        return json.loads(text) if text else None

    def reach(self, name, *states, project="default", token=None):
        """The job, once it is in one of these states, of all that end it unless some are named."""
        def look():
            return self.json("GET", f"/api/jobs/{project}/{name}", token=token)

        job = wait_for(lambda: (j := look())["state"] in (*states, *ENDED) and j,
                       why=lambda: str(look()))
        assert job["state"] in (states or ENDED), job
        return job

    def job_token(self, name):
        """Of a job that then sleeps. It leaves it in a file: in its log it would be hidden."""
        script = "umask 077; echo $MUSTER_TOKEN >told.new; mv told.new told; exec sleep 600"
        job = self.json("POST", "/api/jobs", {"name": name, "spec": {
            "kind": "command", "command": ["sh", "-c", script], "resources": {"cpu": 0.1}}})
        told = self.work(job) / "told"
        wait_for(told.exists, why=lambda: str(self.json("GET", f"/api/jobs/default/{name}")))
        return told.read_text().strip()

    def work(self, job, attempt=1):
        """The folder that a job runs in."""
        return self.data_dir / f"jobs/{job['uid']}/{attempt}/work"

    def __enter__(self):
        return self if self.process else self.start()

    def __exit__(self, *_):
        self.stop()


@pytest.fixture
def server(muster, tmp_path):
    with Server(muster, tmp_path / "data") as s:
        yield s
