"""The server's package index has a password: packages are installed from it, and their own code never sees it."""
import base64
import hashlib
import http.server
import io
import json
import tarfile
import threading

import pytest
from server import Server

LOGIN = "builder:hunter-2-secret"

# A build backend of the package's own: it needs no other package, and tells what it can find out.
BACKEND = '''
import base64, hashlib, json, os, urllib.request, zipfile

def seen():
    found = dict(os.environ)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found["environ of " + pid] = open(f"/proc/{pid}/environ", errors="replace").read()
        except OSError:
            pass
    index = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX")
    for path in ("../private", "%2e%2e/private", "/f/" + 32 * "0" + "/0/aHR0cDovLzEyNy4wLjAuMS8=/x"):
        try:
            found[path] = urllib.request.urlopen(index + path, timeout=10).read().decode()
        except Exception as e:
            found[path] = str(e)
    return found

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "tells-1.0-py3-none-any.whl"
    files = {"tells/__init__.py": "", "tells/task.py": "SEEN = " + repr(json.dumps(seen())) + "\\nprint(SEEN)\\n",
             "tells-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: tells\\nVersion: 1.0\\n",
             "tells-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    files["tells-1.0.dist-info/RECORD"] = "".join(f"{f},,\\n" for f in [*files, "tells-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(os.path.join(directory, name), "w") as z:
        for f, text in files.items():
            z.writestr(f, text)
    return name
'''


def sdist():
    out = io.BytesIO()
    files = {"pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
                               '[project]\nname = "tells"\nversion = "1.0"\n',
             "PKG-INFO": "Metadata-Version: 2.1\nName: tells\nVersion: 1.0\n", "backend.py": BACKEND}
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for name, text in files.items():
            m = tarfile.TarInfo(f"tells-1.0/{name}")
            m.size = len(text.encode())
            t.addfile(m, io.BytesIO(text.encode()))
    return out.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """Pages want a password; the files are the index's own, or another host's, which must not hear it."""

    def __init__(self, files_at=None, folder="files"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files_at, self.folder = files_at, folder
        self.package = sdist()
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        login = self.headers.get("Authorization", "")
        self.server.asked.append((self.path, login))
        right = "Basic " + base64.b64encode(LOGIN.encode()).decode()
        if self.path == "/private":
            body, status = b"private", 200 if login == right else 401
        elif self.path == "/simple/tells/" and login == right:
            at = f"http://{self.server.files_at}" if self.server.files_at else "../.."
            digest = hashlib.sha256(self.server.package).hexdigest()
            body = f'<html><body><A class="x" HREF="{at}/{self.server.folder}/tells-1.0.tar.gz#sha256={digest}">tells</a>'
            body, status = body.encode(), 200
        elif self.path == f"/{self.server.folder}/tells-1.0.tar.gz" and (login == right or not self.server.files_at):
            body, status = self.server.package, 200
        else:
            body, status = b"no", 404 if login == right else 401
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def job_of(server, name):
    server.json("POST", "/api/jobs", {"name": name, "spec": {
        "kind": "python", "python": {"module": "tells.task", "requirements": "tells==1.0"}}})
    job = server.reach(name)
    text = server.call("GET", f"/api/jobs/default/{name}/logs?format=text")[2].decode()
    return job, text


# Folders whose names differ by a letter: the relay's links hold the address in base64, with each length of padding.
@pytest.mark.parametrize("where, folder", [("same host", "files"), ("other host", "wheels"), ("same host", "sources")])
def test_a_password_of_the_index_reaches_no_code_of_a_package(muster, tmp_path, where, folder):
    other = Index(folder=folder) if where == "other host" else None
    index = Index(files_at=other.address if other else None, folder=folder)
    url = f"http://{LOGIN}@{index.address}/simple"
    with Server(muster, tmp_path / "data", env={
            "PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url, "PIP_CLIENT_CERT": "/hunter-2-secret.pem",
            "UV_PUBLISH_TOKEN": "hunter-2-secret", "PIP_FIND_LINKS": ""}) as server:
        job, text = job_of(server, "tells")
    assert job["state"] == "succeeded", text
    assert "hunter-2-secret" not in text and base64.b64encode(LOGIN.encode()).decode() not in text
    seen = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert "127.0.0.1" in seen["PIP_INDEX_URL"] and index.address not in seen["PIP_INDEX_URL"]
    assert [seen[p] for p in ("../private", "%2e%2e/private")] == ["HTTP Error 404: -"] * 2
    assert not [p for p, _ in index.asked if "private" in p]
    if other:
        assert other.asked and all(not login for _, login in other.asked)


def test_a_proxy_with_a_password_is_told_to_no_job(muster, tmp_path):
    with Server(muster, tmp_path / "data", env={"http_proxy": "http://u:hunter-2-secret@127.0.0.1:9",
                                                "no_proxy": "127.0.0.1"}) as server:
        server.json("POST", "/api/jobs", {"name": "env", "spec": {"kind": "command", "command": ["env"]}})
        assert server.reach("env")["state"] == "succeeded"
        text = server.call("GET", "/api/jobs/default/env/logs?format=text")[2].decode()
    assert "hunter-2-secret" not in text and "http_proxy" not in text and "no_proxy=127.0.0.1" in text


def test_a_wrong_password_is_named_as_the_cause(muster, tmp_path):
    index = Index()
    with Server(muster, tmp_path / "data", env={
            "PIP_INDEX_URL": f"http://builder:wrong-secret@{index.address}/simple",
            "UV_DEFAULT_INDEX": f"http://builder:wrong-secret@{index.address}/simple"}) as server:
        job, text = job_of(server, "tells")
    assert job["state"] == "failed" and "wrong-secret" not in text + job["reason"]
    assert "package index: http" in text and "answers 401" in text, text
