"""Data behind URLs: the same digest as from a file, whatever the server and the network do."""
import gzip
import json
import random
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

BLOCK = 4 << 20                 # HTTP_BLOCK of base/http.h
OFFSET = {"no_proxy": "127.0.0.1", "MUSTER_HTTP_STALL": "30"}
IMPATIENT = {"MUSTER_HTTP_STALL": "1"}


class Server(ThreadingHTTPServer):
    """/HOW/FILE: the file, served in a way of its own. `seen` has each request."""
    daemon_threads = True
    block_on_close = False

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.seen, self.count = files, [], {}
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.other = None       # where /away sends
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, address):
        pass                    # clients that hang up are part of the game

    def ranges(self, how):
        return [r["range"] for r in self.seen if r["how"] == how]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        gs = re.search(r"/download/storage/v1/b/([^/]+)/o/(.*)$", path)
        how, name = gs.groups() if gs else path.strip("/").split("/", 1)
        s = self.server
        s.count[how] = s.count.get(how, 0) + 1
        s.seen.append({"how": how, "path": self.path, "range": self.headers.get("Range"),
                       "if_range": self.headers.get("If-Range"),
                       "authorization": self.headers.get("Authorization")})
        getattr(self, how, self.good)(s.files.get(name, b""), s.count[how])

    def head(self, status, length, **headers):
        self.send_response(status)
        for key, value in {"ETag": '"one"', **headers}.items():
            if value:
                self.send_header(key.replace("_", "-"), value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def part(self, data):
        """(what was asked for, Content-Range)"""
        first, last = map(int, re.match(r"bytes=(\d+)-(\d+)$", self.headers["Range"]).groups())
        last = min(last, len(data) - 1)
        return data[first:last + 1], f"bytes {first}-{last}/{len(data)}"

    def hang_up(self, at_once=False):
        self.wfile.flush()
        self.close_connection = True
        if at_once:             # a reset, that also takes back what is on the way
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def good(self, data, _):
        if not data:
            return self.head(416, 0, Content_Range="bytes */0")
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where)
        self.wfile.write(part)

    def plain(self, data, _):
        self.head(200, len(data))
        self.wfile.write(data)

    def chunked(self, data, _):
        self.head(200, None, Transfer_Encoding="chunked")
        for at in range(0, len(data), 1 << 20):
            piece = data[at:at + (1 << 20)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def breaks(self, data, count):
        """Two thirds of the answers end in the middle."""
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where)
        if count % 3 == 0:
            return self.wfile.write(part)
        self.wfile.write(part[:len(part) // 2])
        self.hang_up()

    def resets(self, data, count):
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where)
        self.wfile.write(part[:len(part) // 2] if count % 2 else part)
        self.hang_up(at_once=count % 2)

    def plain_breaks(self, data, count):
        """The first answer is the one to the question for ranges; two more end early."""
        self.head(200, len(data))
        self.wfile.write(data[:len(data) * count // 4])
        if count < 4:
            self.hang_up()

    def drips(self, data, _):
        """A byte a connection: no end of it."""
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where)
        self.wfile.write(part[:1])
        self.hang_up()

    def changes(self, data, count):
        part, where = self.part(data)
        tag = '"one"' if count == 1 else '"two"'
        if self.headers.get("If-Range") not in (None, tag):
            self.head(200, len(data), ETag=tag)
            return self.wfile.write(data)
        self.head(206, len(part), Content_Range=where, ETag=tag)
        self.wfile.write(part)

    def changes_unasked(self, data, count):
        """A server that does not look at If-Range and has only dates."""
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where, ETag=None,
                  Last_Modified=f"Mon, 0{min(count, 2)} Jan 2024 00:00:00 GMT")
        self.wfile.write(part)

    def grows(self, data, count):
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where if count == 1 else where + "0", ETag=None)
        self.wfile.write(part)

    def lies(self, data, _):
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where.replace("bytes 0", "bytes 7"))
        self.wfile.write(part)

    def flaky(self, data, count):
        if count % 3:
            self.head(500, 0)
        else:
            self.good(data, count)

    def broken(self, data, count):
        self.head(503, 0)

    def missing(self, data, count):
        self.head(404, 9)
        self.wfile.write(b"not found")

    def denied(self, data, count):
        self.head(403, 0)

    def loop(self, data, count):
        self.head(302, 0, Location=self.path)

    def to_file(self, data, count):
        self.head(302, 0, Location="file:///etc/passwd")

    def away(self, data, count):
        self.head(302, 0, Location=f"{self.server.other.base}/good/{self.path.split('/')[-1]}")

    def once(self, data, count):
        self.head(302, 0, Location=self.path.replace("/once/", "/good/"))

    def hangs(self, data, count):
        time.sleep(30)

    def stalls(self, data, count):
        """The first answer stops in the middle and leaves the connection open."""
        part, where = self.part(data)
        self.head(206, len(part), Content_Range=where)
        self.wfile.write(part[:len(part) // 2] if count == 1 else part)
        if count == 1:
            self.wfile.flush()
            time.sleep(10)

    def nothing(self, data, count):
        self.hang_up(at_once=count % 2)


SPEC = """
name: url
data:
  train: {{csv: {path}}}
  target: y
  task: regression
  features: {{a: numeric, b: numeric, c: numeric}}
  shuffle: {shuffle}
  stream: {stream}
model: [{{linear: 1}}]
loss: squared_error
optimizer: {{sgd: {{lr: 0.01}}}}
batch: 1000
epochs: 2
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two and a half blocks of rows, and as many packed; a small file; an empty one."""
    rng = random.Random(5)
    noise = [f"{rng.random():.15f}" for _ in range(1000)]
    rows = "".join(f"{i % 7},{noise[i % 1000]},{noise[i * 7 % 1000]},{(i % 7) * 0.3:.3f}\n"
                   for i in range(5 * BLOCK // 2 // 42)).encode()
    big = b"a,b,c,y\n" + rows
    folder = tmp_path_factory.mktemp("files")
    files = {"big.csv": big, "big.csv.gz": gzip.compress(big, 1), "small.csv": big[:42 * 2000 + 8],
             "empty.csv": b"", "two/parts.csv": big[:42 * 2000 + 8]}
    files["small.csv"] = files["small.csv"][:files["small.csv"].rindex(b"\n") + 1]
    files["two/parts.csv"] = files["small.csv"]
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    assert len(big) > 2 * BLOCK + 1000
    return folder, files


@pytest.fixture
def server(files):
    s = Server(files[1])
    yield s
    s.shutdown()
    s.server_close()


@pytest.fixture
def train(muster, tmp_path):
    """What run.json says of a training on `path`; or, with fails=True, how it ended."""
    def call(path, *more, stream=False, fails=False, env=None):
        spec, out = tmp_path / "train.yaml", tmp_path / f"run{time.monotonic_ns()}"
        spec.write_text(SPEC.format(path=json.dumps(str(path)), stream=str(stream).lower(),
                                    shuffle=5000 if stream else "true"))
        done = muster("train", spec, "--out", out, *more, check=not fails, timeout=300,
                      env={**OFFSET, **(env or {})})
        if fails:
            said = [line for line in done.stderr.splitlines() if "gives no ranges" not in line]
            assert done.returncode > 0 and len(said) == 1, done.stderr
            return done
        run = json.loads((out / "run.json").read_text())
        run["said"] = done.stderr
        return run
    return call


def same(a, b):
    return a["digest"] == b["digest"] and a["identity"]["data"] == b["identity"]["data"]


@pytest.fixture(scope="module")
def local(muster, files, tmp_path_factory):
    """Runs on the local files, each trained once."""
    known = {}

    def call(name, stream=False):
        if (name, stream) not in known:
            folder = tmp_path_factory.mktemp("local")
            (folder / "train.yaml").write_text(SPEC.format(
                path=files[0] / name, stream=str(stream).lower(),
                shuffle=5000 if stream else "true"))
            muster("train", folder / "train.yaml", "--out", folder / "run")
            known[name, stream] = json.loads((folder / "run/run.json").read_text())
        return known[name, stream]
    return call


@pytest.mark.parametrize("how", ["good", "plain", "chunked", "breaks", "resets", "plain_breaks",
                                 "flaky", "once", "stalls"])
def test_the_digest_is_that_of_the_local_file(server, train, local, how):
    run = train(f"{server.base}/{how}/big.csv", env=IMPATIENT if how == "stalls" else None)
    assert same(run, local("big.csv"))
    told = run["said"].count("gives no ranges")
    assert told == (how in ("plain", "chunked", "plain_breaks"))


def test_packed_files_are_unpacked(server, train, local):
    assert same(train(f"{server.base}/breaks/big.csv.gz"), local("big.csv.gz"))


def test_each_byte_is_fetched_once_also_for_the_digest(server, train):
    train(f"{server.base}/good/big.csv")
    assert len(server.ranges("good")) == 3
    assert sorted(server.ranges("good"))[0] == f"bytes=0-{BLOCK - 1}"
    assert [r["if_range"] for r in server.seen] == [None, '"one"', '"one"']


def test_a_stream_is_read_again_in_each_pass(server, train, local):
    assert same(train(f"{server.base}/breaks/big.csv", stream=True), local("big.csv", True))


def test_a_broken_connection_goes_on_at_its_byte(server, train):
    train(f"{server.base}/breaks/big.csv")
    asked = server.ranges("breaks")
    assert f"bytes={BLOCK // 2}-{BLOCK - 1}" in asked
    assert len(asked) == len(set(asked))        # no byte twice


def test_two_workers_read_for_themselves(server, train, local):
    run = train(f"{server.base}/breaks/big.csv", "--workers", "2..2")
    assert same(run, local("big.csv"))
    assert train(f"{server.base}/plain/big.csv", "--workers", "2..2")["said"].count("no ranges") == 1


@pytest.mark.parametrize("how, says, code", [
    ("missing", "answers 404 (there is no such object", 4),
    ("denied", "answers 403", 3),
    ("broken", "after 5 tries: {url}: the server answers 503", 6),
    ("loop", "more than five times", 7),
    ("to_file", "not http or https", 3),
    ("hangs", "after 5 tries: {url}: nothing came in time", 6),
    ("nothing", "after 5 tries", 6),
    ("changes", "changed while it was being read", 5),
    ("changes_unasked", "changed while it was being read", 5),
    ("grows", "changed while it was being read", 5),
    ("lies", "another range (\"bytes 7-", 7),
    ("drips", "after 64 tries", 6),
])
def test_trouble_is_one_sentence(server, train, how, says, code):
    url = f"{server.base}/{how}/big.csv"
    done = train(url + "?key=secret", fails=True, env=IMPATIENT if how == "hangs" else None)
    assert says.format(url=url) in done.stderr and "secret" not in done.stderr
    assert done.returncode == code


def test_nobody_there_is_told_at_once(train):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    began = time.monotonic()
    done = train(f"http://127.0.0.1:{port}/x.csv", fails=True)
    assert "is the server running?" in done.stderr and time.monotonic() - began < 30


@pytest.mark.parametrize("url, says", [
    ("http://user:word@127.0.0.1/x.csv", "before its host is not read"),
    ("http:///x.csv", "no host"),
    ("gs://bucket", "gs://BUCKET/OBJECT"),
    ("http://127.0.0.1/a b.csv", "%20"),
])
def test_what_is_no_url(train, url, says):
    done = train(url, fails=True)
    assert says in done.stderr and "word" not in done.stderr.replace("password", "")


def test_an_empty_object_is_an_empty_file(server, train, files):
    assert "is empty" in train(f"{server.base}/good/empty.csv", fails=True).stderr
    assert "is empty" in train(f"{server.base}/plain/empty.csv", fails=True).stderr


@pytest.fixture
def bucket(server):
    """Where gs:// leads in these tests, with a token in the path as some clients carry it."""
    return {"STORAGE_EMULATOR_HOST": f"{server.base}/k/in-the-path/", "MUSTER_TOKEN": "T" * 20,
            "GOOGLE_OAUTH_ACCESS_TOKEN": "G" * 20}


def test_an_object_of_a_bucket(server, train, local, bucket):
    assert same(train("gs://good/two/parts.csv", env=bucket), local("small.csv"))
    assert server.seen[0]["path"] == \
        "/k/in-the-path/download/storage/v1/b/good/o/two%2Fparts.csv?alt=media"
    assert {r["authorization"] for r in server.seen} == {"Bearer " + "T" * 20}
    server.seen.clear()
    del bucket["MUSTER_TOKEN"]
    assert same(train("gs://good/two/parts.csv", "--workers", "2..2", env=bucket), local("small.csv"))
    assert {r["authorization"] for r in server.seen} == {"Bearer " + "G" * 20}
    server.seen.clear()
    del bucket["GOOGLE_OAUTH_ACCESS_TOKEN"]
    train("gs://good/two/parts.csv", "--workers", "2..2", env=bucket)
    assert {r["authorization"] for r in server.seen} == {None}  # not the job's own token


def test_a_token_goes_to_its_host_alone(server, train, files, bucket, local):
    server.other = Server(files[1])
    assert same(train("gs://away/small.csv", env=bucket), local("small.csv"))
    assert server.seen[0]["authorization"] and not server.other.seen[0]["authorization"]
    train(f"{server.other.base}/good/small.csv", env=bucket)
    assert not any(r["authorization"] for r in server.other.seen)
    server.other.shutdown()
    server.other.server_close()


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_https_needs_a_certificate_to_trust(server, train, files, local, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    safe = Server(files[1])
    safe.socket = context.wrap_socket(safe.socket, server_side=True)
    base, safe.other = safe.base.replace("http:", "https:"), server
    trusts = {"SSL_CERT_FILE": str(cert)}
    assert same(train(f"{base}/breaks/big.csv", env=trusts), local("big.csv"))
    assert "not to be trusted" in train(f"{base}/good/big.csv", fails=True).stderr
    assert "from https to http" in train(f"{base}/away/big.csv", fails=True, env=trusts).stderr
    assert not server.seen
    safe.shutdown()
    safe.server_close()


def test_a_message_about_a_bucket_has_no_secret(server, train, bucket):
    done = train("gs://missing/x.csv", fails=True, env=bucket)
    assert "gs://missing/x.csv: the server answers 404" in done.stderr
    assert "in-the-path" not in done.stderr and "T" * 20 not in done.stderr


def test_initial_weights_and_predictions(server, muster, train, files, tmp_path, local):
    first = train(f"{server.base}/good/small.csv")
    run = next(p for p in tmp_path.iterdir() if p.name.startswith("run"))
    files[1]["w.safetensors"] = (run / "weights.safetensors").read_bytes()
    again = train(f"{server.base}/good/small.csv", "--set", f"init={server.base}/good/w.safetensors")
    assert again["digest"] != first["digest"]
    said = [muster("predict", run, "--input", where, env=OFFSET).stdout
            for where in (f"{server.base}/good/small.csv", files[0] / "small.csv")]
    assert said[0] == said[1] and said[0].count("\n") > 100
