"""What the tests of buckets share: Google's clients at a server, a proxy that cuts, a disk that fills."""
import json
import os
import socket
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

from server import Server

QUOTE = urllib.parse.quote


def client(server, token=None):
    """google-cloud-storage, pointed here by the one variable that users set."""
    from google.cloud import storage
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    os.environ["STORAGE_EMULATOR_HOST"] = f"{server.address}/k/{token or server.token}"
    try:
        return storage.Client()
    finally:
        if before is None:
            del os.environ["STORAGE_EMULATOR_HOST"]
        else:
            os.environ["STORAGE_EMULATOR_HOST"] = before


def make(server, bucket, **doc):
    return server.json("POST", "/storage/v1/b?project=default", {"name": bucket, **doc})


def put(server, bucket, name, data, **query):
    """(status, document)"""
    more = "".join(f"&{k}={QUOTE(str(v))}" for k, v in query.items())
    status, _, text = server.call(
        "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={QUOTE(name, safe='')}{more}",
        data, headers={"Content-Type": "text/plain"})
    return status, json.loads(text)


def get(server, bucket, name, headers=None, **query):
    """(status, headers, bytes)"""
    more = "".join(f"&{k}={QUOTE(str(v))}" for k, v in query.items())
    return server.call("GET", f"/download/storage/v1/b/{bucket}/o/{QUOTE(name, safe='')}?alt=media{more}",
                       headers=headers)


class Session:
    """An upload in several requests, by hand."""

    def __init__(self, server, bucket, name, doc=None, **query):
        more = "".join(f"&{k}={v}" for k, v in query.items())
        status, headers, text = server.call(
            "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable{more}",
            {"name": name, **(doc or {})})
        assert status == 200, text
        self.path = urllib.parse.urlsplit(headers["Location"])
        self.path = f"{self.path.path}?{self.path.query}"

    def send(self, server, data, first, total="*", method="PUT", **kw):
        span = f"{first}-{first + len(data) - 1}" if data else "*"
        return server.call(method, self.path, data,
                           headers={"Content-Range": f"bytes {span}/{total}"}, **kw)


class Cutter:
    """A proxy that breaks the connection after so many bytes to the server, each number once."""

    def __init__(self, port, after):
        self.port, self.after, self.cuts = port, list(after), 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.socket.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port))
            threading.Thread(target=self.pump, args=(far, near, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(near, far, True), daemon=True).start()

    def pump(self, source, target, counts):
        sent = 0
        try:
            while data := source.recv(65536):
                if counts and self.after and sent + len(data) > self.after[0]:
                    target.sendall(data[:self.after.pop(0) - sent])
                    self.cuts += 1
                    time.sleep(0.05)
                    break
                target.sendall(data)
                sent += len(data)
        except OSError:
            pass
        for s in (source, target):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()           # or what the client still sends would wait for ever

    def close(self):
        self.socket.close()


class SmallDisk(Server):
    """Its data directory is a file system of its own, of so many bytes."""

    def __init__(self, muster, folder, size):
        super().__init__(muster, folder)
        self.folder, self.size = Path(folder), size

    def start(self, *args, wait=120):
        self.folder.mkdir(parents=True)
        mine = [] if os.getuid() == 0 else ["--map-root-user"]
        self.log = open(f"{self.folder}.log", "ab")
        self.process = subprocess.Popen(
            ["unshare", "--mount", *mine, "sh", "-c",
             f'mount -t tmpfs -o size={self.size} none "$0" && exec "$@"', str(self.folder),
             self.binary, "serve", "--data-dir", str(self.folder), "--port", "0"],
            stdout=self.log, stderr=subprocess.STDOUT)
        self.data_dir = Path(f"/proc/{self.process.pid}/root{self.folder}")
        until = time.monotonic() + wait
        while time.monotonic() < until and self.process.poll() is None:
            try:
                self.address = json.loads((self.data_dir / "server.json").read_text())["address"]
                return self
            except (OSError, ValueError):
                time.sleep(0.02)
        self.kill()
        raise OSError(Path(f"{self.folder}.log").read_text())
