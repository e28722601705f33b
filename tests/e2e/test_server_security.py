"""What strangers try, one by one: each is refused, and the server goes on."""
import base64
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import urllib.parse
from pathlib import Path

import pytest
from hosts import wait_for
from server import Server, edited


def talk(server, data, timeout=120, wait=True):
    """Raw bytes to the server; what it answers until it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as s:
        out = b""
        try:
            s.sendall(data)
            while wait and (piece := s.recv(65536)):
                out += piece
        except ConnectionError:         # it hung up first
            pass
        return out


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def alive(server):
    return server.call("GET", "/healthz", token="")[0] == 200


def login(server, token):
    return server.call("POST", "/login", {"token": token}, token="")


def session(server, token=None):
    """A browser's, after log-in."""
    code, headers, body = login(server, token or server.token)
    assert code == 200 and "Set-Cookie" not in headers
    return json.loads(body)["session"]


@pytest.fixture
def other(server, muster):
    """The token of another project."""
    muster("project", "add", "other-team", env=server.env)
    return muster("project", "token", "add", "--project", "other-team", env=server.env).stdout.strip()


PROTECTED = [("GET", "/api/jobs"), ("POST", "/api/jobs"), ("GET", "/api/jobs/default/x"),
             ("GET", "/api/machine"), ("GET", "/metrics"), ("GET", "/api/projects"),
             ("GET", "/api/projects/default/secrets"), ("PUT", "/api/projects/default/secrets/a"),
             ("GET", "/v1/projects/default/jobs")]


@pytest.mark.parametrize("method,path", PROTECTED)
def test_no_token(server, method, path):
    code, headers, body = server.call(method, path, {} if method != "GET" else None, token="")
    assert code == 401 and headers["WWW-Authenticate"] == "Bearer"
    assert b"token" in body


@pytest.mark.parametrize("method,path", PROTECTED)
def test_wrong_token(server, method, path):
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    for token in (wrong, server.token.upper(), server.token + "x", "x" * 500, server.token[:20]):
        assert server.call(method, path, {} if method != "GET" else None, token=token)[0] == 401
    for path in (f"/k/{wrong}/api/whoami", f"/api/whoami?key={wrong}", f"/k//api/whoami"):
        assert server.call("GET", path, token="")[0] in (401, 404)
    assert login(server, wrong)[0] == 403


def test_a_good_token_in_each_place(server):
    for path, headers in ((f"/k/{server.token}/api/whoami", {}), (f"/api/whoami?key={server.token}", {}),
                          ("/api/whoami", {"Authorization": f"bearer {server.token}"}),
                          ("/api/whoami", {"Authorization": f"Bearer {session(server)}"})):
        assert server.call("GET", path, token="", headers=headers)[0] == 200


def test_another_projects_token(server, other):
    server.json("PUT", "/api/projects/default/secrets/key", {"value": "theirs"})
    for method, path, body in [("GET", "/api/jobs/default/x", None), ("GET", "/api/jobs?project=default", None),
                               ("POST", "/api/jobs", {"project": "default", "spec": {"command": ["true"]}}),
                               ("GET", "/api/projects/default/secrets", None),
                               ("PUT", "/api/projects/default/secrets/key", {"value": "x"}),
                               ("DELETE", "/api/projects/default/secrets/key", None),
                               ("GET", "/api/projects/default/tokens", None),
                               ("POST", "/api/projects/other-team/tokens", {}),
                               ("POST", "/api/projects", {"name": "mine-now"}),
                               ("DELETE", "/api/projects/default", None), ("GET", "/metrics", None)]:
        assert server.call(method, path, body, token=other)[0] == 403, (method, path)
    assert [p["name"] for p in server.json("GET", "/api/projects", token=other)["projects"]] == ["other-team"]
    assert server.json("GET", "/api/jobs", token=other)["jobs"] == []
    assert server.json("GET", "/api/projects/other-team/secrets", token=other) == {"values": []}


def test_a_removed_token_is_nobodys_at_once(server, other, muster):
    (row,) = json.loads(muster("project", "token", "list", "--project", "other-team", "--json",
                               env=server.env).stdout)["tokens"]
    # on a connection that has proved itself before
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        ask = f"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {other}\r\n\r\n".encode()
        s.sendall(ask)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
        muster("project", "token", "remove", row["id"], "--project", "other-team", env=server.env)
        s.sendall(ask)
        assert s.recv(65536).startswith(b"HTTP/1.1 401")


def test_secrets_are_never_told(server, muster):
    muster("secret", "set", "key", env=server.env, input="do-not-tell\n")
    assert "key" in muster("secret", "list", env=server.env).stdout
    for path in ("/api/projects/default/secrets", "/api/projects/default/config", "/metrics"):
        assert b"do-not-tell" not in server.call("GET", path)[2]
    done = muster("secret", "set", "key", "on-the-command-line", env=server.env, check=False)
    assert done.returncode == 2 and "command line" in done.stderr
    assert "do-not-tell" not in server.said()


def test_tokens_are_stored_as_hashes_and_not_logged(server, other):
    assert server.stop() == 0
    for f in server.data_dir.iterdir():
        if f.is_file():
            assert other.encode() not in f.read_bytes(), f
    assert other not in server.said()


@pytest.mark.parametrize("form", ["json", "text"])
def test_debug_logs_no_token_wherever_it_stands(muster, tmp_path, form):
    with Server(muster, tmp_path / "data", "--debug", "--log-format", form) as server:
        job = server.job_token("teller")
        own = session(server)
        at = "/api/jobs/default/teller"
        ticket = server.json("POST", "/api/tickets", {"target": at})["ticket"]
        server.call("GET", f"{at}?ticket={ticket}", token="")
        secrets = [server.token, own, job, ticket]
        for t in secrets:
            for path in (f"/k/{t}/api/whoami", f"/k/{t}", f"//k/{t}/api/whoami", f"/k/{t}/k/{t}/api/jobs",
                         f"/k%2F{t}/x", f"/K/{t}/x", f"/api/whoami?key={t}", f"/api/jobs?token={t}", f"/{t}",
                         f"/api/jobs/default/{t}", f"/storage/v1/b/{t}/o", f"/api/jobs?ticket={t}",
                         f"/k/{t}/download/storage/v1/b/none/o/x?alt=media", f"/k/{t}/%zz", f"/k/x{t}/"):
                for headers in ({}, {"Authorization": f"Bearer {t}"}, {"Cookie": f"muster={t}"},
                                {"Referer": f"http://h/k/{t}"}, {"Host": f"{t}.example"}):
                    server.call("GET", path, token="", headers=headers)
            server.call("POST", f"/k/{t}/api/jobs", b"no json " + t.encode(), token="")
            server.call("POST", "/login", {"token": t + "x"}, token="")
            server.call("POST", "/api/jobs", {"name": t, "spec": {"kind": "command", "command": ["true"]}})
            server.call("PUT", f"/api/projects/default/config/{t}", {"value": t})
        lines = server.said()
        assert lines.count("http.request") > 200 and "_***" in lines
        assert not [t for t in secrets if t in lines]
        # nor in a command line, where others on the machine read it
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = line.read_bytes()
            except OSError:
                continue
            assert not [t for t in secrets if t.encode() in text], line
        server.json("POST", "/api/jobs/default/teller/cancel")


def test_a_token_of_the_owners_own_words_is_not_logged_either(muster, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/token").write_text("correct-horse-battery-staple\n")
    with Server(muster, tmp_path / "data", "--debug") as server:
        for path in (f"/{server.token}", f"//k/{server.token}/a", f"/api/jobs/default/{server.token}"):
            server.call("GET", path)
        assert server.said().count("http.request") >= 3 and server.token not in server.said()


def test_no_other_process_reads_the_servers_memory_nor_a_core_file(muster):
    """As an ordinary user, who owns the process: what is kept in its memory is the token."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        shutil.copy(muster.path, home / "muster")
        run_as = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"] if os.getuid() == 0 else []
        if run_as:
            os.chown(home, 1234, 1234)
        process = subprocess.Popen(
            [*run_as, home / "muster", "serve", "--port", "0", "--no-sandbox", "--data-dir", home / "data"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home, env={**os.environ, "HOME": folder},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)))
        try:
            wait_for(lambda: process.poll() is not None or (home / "data/server.json").exists())
            read = [*run_as, "cat", f"/proc/{process.pid}/environ"]
            wait_for(lambda: subprocess.run(read, capture_output=True).returncode != 0, seconds=10)
            process.send_signal(signal.SIGSEGV)
            assert process.wait(60) == -signal.SIGSEGV
            assert not list(home.glob("core*"))
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("path", [
    "/../../etc/passwd", "/console/../../etc/passwd", "/console/..%2f..%2fetc%2fpasswd",
    "/api/jobs/default/..%2F..%2F..%2Ftoken", "/api/jobs/default/x/files/../../../../token",
    "/api/jobs/default/x/files/..%2F..%2F..%2F..%2Ftoken", "/api/jobs/..%2F../token",
    "/%2e%2e/%2e%2e/etc/passwd", "/console/%00", "//etc/passwd", "/console//etc/passwd"])
def test_path_traversal(server, path):
    answer = talk(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                          f"Authorization: Bearer {server.token}\r\n\r\n".encode())
    assert status(answer) in (400, 404) and b"root:" not in answer and server.token.encode() not in answer


def test_a_jobs_links_lead_nowhere(server):
    """A job may leave links to what the server can read; its files are served, links are not."""
    server.json("POST", "/api/jobs", {"name": "links", "spec": {"kind": "command", "command": [
        "sh", "-c", "echo fine > fine; ln -s /etc/passwd link; ln -s ../../../../token up; "
                    "ln -s / root; mkdir d; ln -s /etc d/etc"]}})
    server.reach("links")
    names = [f["path"] for f in server.json("GET", "/api/jobs/default/links/files")["files"]]
    assert "fine" in names and "link" not in names and not any("etc" in n for n in names)
    assert server.call("GET", "/api/jobs/default/links/files/fine")[2] == b"fine\n"
    for path in ("link", "up", "root/etc/passwd", "d/etc/passwd", "../order.json", "d"):
        assert server.call("GET", f"/api/jobs/default/links/files/{path}")[0] == 404, path


SMUGGLE = {
    "both lengths": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "both lengths, other order": "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "two lengths": "Content-Length: 5\r\nContent-Length: 6\r\n",
    "two equal lengths": "Content-Length: 5\r\nContent-Length: 5\r\n",
    "a list of lengths": "Content-Length: 5, 5\r\n",
    "a signed length": "Content-Length: +5\r\n",
    "a folded line": "X-A: b\r\n Content-Length: 5\r\n",
    "a bare CR": "X-A: b\rContent-Length: 5\r\n",
    "a bare LF": "X-A: b\nContent-Length: 5\r\n",
    "a blank before the colon": "Content-Length : 5\r\n",
    "a coding beside chunked": "Transfer-Encoding: chunked, identity\r\n",
    "an unknown coding": "Transfer-Encoding: xchunked\r\n",
    "a hidden coding": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "a NUL": "X-A: b\0Content-Length: 5\r\n",
    "two hosts": "Host: localhost\r\n",
    "two tokens": "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
}


@pytest.mark.parametrize("what", SMUGGLE)
def test_header_smuggling(server, what):
    """Refused, and what comes after it on the connection is not taken for a request."""
    hidden = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = talk(server, (f"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\n{SMUGGLE[what]}\r\n"
                           f"0\r\n\r\n{hidden}{hidden}").encode())
    assert status(answer) in (400, 501) and answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer
    assert alive(server)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_request_for_a_host_without_a_name_is_refused(server, version):
    assert status(talk(server, f"GET /healthz HTTP/{version}\r\nHost: \r\n\r\n".encode())) == 400
    assert status(talk(server, f"GET /healthz HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                       .encode())) == 200


def test_a_body_that_nobody_takes_is_not_the_next_request(server):
    hidden = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for path in ("/nothing-here", "/healthz", "/api/jobs"):
        answer = talk(server, (f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
                               f"Content-Length: {len(hidden)}\r\n\r\n{hidden}").encode())
        assert answer.count(b"HTTP/1.1 ") == 1, answer


def test_chunks_that_lie(server):
    head = (f"PUT /api/projects/default/config/a HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {server.token}\r\nTransfer-Encoding: chunked\r\n\r\n")
    for body in ("zz\r\n", "5\r\nhelloX", "ffffffffffffffffff\r\n", "-5\r\nhello\r\n", "5;" + "x" * 20000):
        assert status(talk(server, (head + body).encode())) == 400, body[:20]
    good = '{"value": "in pieces"}'
    pieces = "".join(f"1\r\n{c}\r\n" for c in good) + "0\r\n\r\n"
    answer = talk(server, (head.replace("chunked\r\n", "chunked\r\nConnection: close\r\n") + pieces).encode())
    assert status(answer) == 204
    (row,) = server.json("GET", "/api/projects/default/config")["values"]
    assert row["value"] == "in pieces"


def test_slow_loris(muster, tmp_path):
    """A head that comes a byte at a time is cut off, others are served meanwhile."""
    with Server(muster, tmp_path / "data", "--header-timeout", 2) as server:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        began = time.monotonic()
        for s in slow:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        gone = 0
        while time.monotonic() < began + 60 and gone < len(slow):
            assert alive(server)
            gone = 0
            for s in slow:
                try:
                    s.sendall(b"x")
                    s.setblocking(False)
                    gone += s.recv(1) == b""
                except BlockingIOError:
                    pass
                except OSError:
                    gone += 1
                finally:
                    s.setblocking(True)
            time.sleep(0.2)
        assert gone == len(slow) and time.monotonic() - began >= 1.9
        for s in slow:
            s.close()


def test_a_body_that_never_comes(muster, tmp_path):
    with Server(muster, tmp_path / "data", "--idle-timeout", 1) as server:
        began = time.monotonic()
        answer = talk(server, f"PUT /api/projects/default/config/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
                              f"Bearer {server.token}\r\nContent-Length: 100\r\n\r\nx".encode())
        assert answer == b"" and time.monotonic() - began < 30


def rss_kb(server):
    return next(int(line.split()[1]) for line in open(f"/proc/{server.process.pid}/status")
                if line.startswith("VmRSS"))


def test_1_gb_header(server):
    """Cut off after a few kilobytes; its memory stays as it was."""
    before = rss_kb(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as s:
        sent = 0
        try:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
            while sent < 1 << 30:
                s.sendall(b"x" * (1 << 20))
                sent += 1 << 20
        except OSError:
            pass
        assert sent < 64 << 20
    assert rss_kb(server) < before + 4096
    answer = talk(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70000)
    assert status(answer) == 431
    many = b"".join(b"X-%d: y\r\n" % i for i in range(200))
    assert status(talk(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")) == 431
    assert alive(server)


def test_giant_body(server):
    """Announced: refused before it is sent. Not announced: cut off at the limit."""
    head = (f"PUT /api/projects/default/config/a HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {server.token}\r\n")
    answer = talk(server, f"{head}Content-Length: {10 << 30}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert status(answer) == 413 and b"100 Continue" not in answer
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        sent = 0
        try:
            while sent < 1000:
                s.sendall(piece)
                sent += 1
        except OSError:
            pass
        assert sent < 200
    wait_for(lambda: alive(server) and rss_kb(server) < 60 << 10)
    # without a token not a byte of it is kept
    answer = talk(server, b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
    assert status(answer) == 401


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                                  "10.1.2.3", "evil.example:8470", "localhost:80@evil.example"])
def test_dns_rebinding(server, host):
    """A page of another site that has its name point here: the Host header tells."""
    answer = talk(server, f"GET /api/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
                          f"Authorization: Bearer {server.token}\r\n\r\n".encode())
    assert status(answer) == 421


def test_dns_rebinding_knows_the_names_it_was_given(muster, tmp_path):
    with Server(muster, tmp_path / "data", "--name", "gpu.example") as server:
        ask = "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"
        assert status(talk(server, ask.format("GPU.example:1").encode())) == 200
        assert status(talk(server, ask.format("gpu2.example").encode())) == 421


def test_nothing_that_a_browser_sends_by_itself_is_a_token(server):
    """Cookies belong to a host, whatever the port: each program on this machine could be sent them."""
    own = session(server)
    for value in (own, server.token):
        for headers in ({"Cookie": f"muster={value}"}, {"Cookie": f"a=b; muster={value}; c=d"},
                        {"Cookie": f"muster={value}", "X-Muster": "1"},
                        {"Authorization": f"Basic {base64.b64encode(f':{value}'.encode()).decode()}"},
                        {"Referer": f"{server.address}/k/{value}/"}):
            for method, path in (("GET", "/api/whoami"), ("POST", "/api/projects/default/tokens"),
                                 ("GET", "/api/jobs"), ("POST", "/logout"), ("POST", "/api/tickets")):
                assert server.call(method, path, token="", headers=headers)[0] == 401, (headers, path)
    assert server.call("GET", "/api/whoami", token=own)[0] == 200


def test_a_session_is_good_in_a_header_alone_and_makes_no_other(server, other):
    own, theirs = session(server), session(server, other)
    who = server.json("GET", "/api/whoami", token=theirs)
    assert who["project"] == "other-team" and not who["root"]
    assert server.call("GET", "/metrics", token=theirs)[0] == 403
    assert server.call("GET", "/metrics", token=own)[0] == 200
    for path in (f"/k/{own}/api/whoami", f"/api/whoami?key={own}", f"/api/whoami?ticket={own}"):
        assert server.call("GET", path, token="")[0] == 401, path
    assert login(server, own)[0] == 403
    assert server.call("GET", f"/login?token={server.token}", token="")[0] == 405
    for path in server.data_dir.glob("muster.db*"):
        assert own.encode() not in path.read_bytes()
    # on a connection where it was good in a header before
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(f"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {own}\r\n\r\n".encode())
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
        s.sendall(f"GET /api/whoami?key={own} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert s.recv(65536).startswith(b"HTTP/1.1 401")


def test_a_session_ends_at_log_out_and_with_its_token(server, other):
    own, theirs = session(server), session(server, other)
    server.kill()
    server.start()
    assert server.call("GET", "/api/whoami", token=own)[0] == 200
    assert server.call("POST", "/logout", token=own)[0] == 204
    assert server.call("GET", "/api/whoami", token=own)[0] == 401
    assert server.call("POST", "/logout", token=own)[0] == 401
    (row,) = server.json("GET", "/api/projects/other-team/tokens")["tokens"]
    assert server.call("GET", "/api/whoami", token=theirs)[0] == 200
    server.json("DELETE", f"/api/projects/other-team/tokens/{row['id']}")
    assert server.call("GET", "/api/whoami", token=theirs)[0] == 401


def test_a_stream_ends_with_the_session_that_opened_it(server):
    server.json("POST", "/api/jobs", {"name": "talks", "spec": {"kind": "command", "command": [
        "sh", "-c", "while :; do echo word; sleep 0.05; done"], "resources": {"cpu": 0.1}}})
    server.reach("talks", "running")
    own = session(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(f"GET /api/jobs/default/talks/logs?follow=1 HTTP/1.1\r\nHost: localhost\r\n"
                  f"Authorization: Bearer {own}\r\n\r\n".encode())
        while b"word" not in s.recv(65536):
            pass
        assert server.call("POST", "/logout", token=own)[0] == 204
        try:
            while s.recv(65536):
                pass
        except ConnectionError:
            pass
    server.json("POST", "/api/jobs/default/talks/cancel")


def test_sessions_of_cookies_are_refused_after_an_upgrade(server):
    """A data directory whose sessions were given as cookies: others on the machine may know them."""
    own = session(server)
    server.stop()
    with edited(server.data_dir) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert db.execute("UPDATE schema SET version = 2 WHERE module = 'auth'").rowcount == 1
    server.start()
    assert server.call("GET", "/api/whoami", token=own)[0] == 401
    code, headers, _ = server.call("GET", "/", token="", headers={"Cookie": f"muster={own}"})
    assert code == 200 and "Max-Age=0" in headers["Set-Cookie"]


def test_a_ticket_is_for_one_address_a_minute_and_reading_alone(server, other):
    server.json("PUT", "/api/projects/other-team/config/a", {"value": "1"})
    at = "/api/projects/other-team/config"
    own = session(server, other)

    def ticket(target, token=own):
        return server.json("POST", "/api/tickets", {"target": target}, token=token)["ticket"]

    good = ticket(at)
    assert server.call("GET", f"{at}?ticket={good}", token="")[0] == 200
    assert server.call("HEAD", f"{at}?ticket={good}", token="")[0] == 200
    assert server.call("PUT", f"{at}/a?ticket={ticket(at + '/a')}", {"value": "2"}, token="")[0] == 401
    for path in (f"{at}?x=1&ticket={good}", f"{at}?ticket={good}&x=1", f"{at}/?ticket={good}",
                 f"/api/projects/default/config?ticket={good}", f"/api/whoami?ticket={good}",
                 f"{at}?ticket={good[:-1]}", f"{at}?ticket=", f"{at}?key={good}", f"/k/{good}{at}"):
        assert server.call("GET", path, token="")[0] in (401, 404), path
    assert server.call("GET", at, token=good)[0] == 401
    asked = f"{at}?a=b%20c&d"
    assert server.call("GET", f"{asked}&ticket={ticket(asked)}", token="")[0] == 200
    # it can do no more than who asked for it, and ends with the session
    assert server.call("GET", f"/metrics?ticket={ticket('/metrics')}", token="")[0] == 403
    for wrong in ("http://evil.example/", "", "x" * 5000, "/a#b"):
        assert server.call("POST", "/api/tickets", {"target": wrong}, token=own)[0] == 400
    assert server.call("POST", "/api/tickets", {"target": at}, token="")[0] == 401
    server.call("POST", "/logout", token=own)
    assert server.call("GET", f"{at}?ticket={good}", token="")[0] == 401


def test_the_name_localhost_leads_to_the_address(server):
    """Another program may have the port at ::1, which the name means, too: it would be our origin."""
    for host, code, to in ((f"localhost:{server.port}", 307, f"{server.address}/"),
                           ("LOCALHOST:9000", 307, "http://127.0.0.1:9000/"), ("localhost", 307, "http://127.0.0.1/"),
                           (f"127.0.0.1:{server.port}", 200, None)):
        got, headers, _ = server.call("GET", "/", token="", headers={"Host": host})
        assert (got, headers.get("Location")) == (code, to)


def test_a_jobs_token_reaches_buckets_and_its_own_and_ends_with_the_job(server):
    token, neighbour = server.job_token("one"), server.job_token("two")
    assert token != neighbour
    assert server.json("GET", "/api/whoami", token=token)["job"] == "one"
    server.json("POST", "/storage/v1/b?project=default", {"name": "of-the-project"}, token=token)
    at = "/upload/storage/v1/b/of-the-project/o?uploadType=media&name=a"
    assert server.call("POST", at, b"bytes", token=token)[0] == 200
    assert server.call("GET", "/api/jobs/default/one/logs", token=token)[0] == 200
    listed = {"resourceNames": ["projects/default"], "filter": 'resource.labels.job_id="one"'}
    assert server.call("POST", "/v2/entries:list", listed, token=token)[0] == 200
    for method, path, body in [("GET", "/api/jobs", None), ("GET", "/api/jobs/default/two/logs", None),
                               ("POST", "/api/jobs", {"spec": {"kind": "command", "command": ["true"]}}),
                               ("POST", "/api/jobs/default/two/cancel", {}),
                               ("GET", "/api/projects/default/secrets", None),
                               ("PUT", "/api/projects/default/config/a", {"value": "1"}),
                               ("GET", "/v1/projects/default/jobs", None),
                               ("POST", "/v2/entries:list", {**listed, "filter": ""}),
                               ("GET", "/metrics", None)]:
        assert server.call(method, path, body, token=token)[0] == 403, path
    assert login(server, token)[0] == 403
    server.kill()
    server.start()              # the job goes on, and so does its token
    assert server.call("GET", "/api/whoami", token=token)[0] == 200
    server.json("POST", "/api/jobs/default/one/cancel")
    server.reach("one", "cancelled")
    assert server.call("GET", "/api/whoami", token=token)[0] == 401
    assert server.call("GET", "/storage/v1/b/of-the-project/o", token=token)[0] == 401
    assert server.call("GET", "/storage/v1/b/of-the-project/o", token=neighbour)[0] == 200
    server.json("POST", "/api/jobs/default/two/cancel")


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2Jgone", "a\x9bm", "tab\t"])
def test_control_characters_in_names_and_labels(server, text):
    server.json("POST", "/storage/v1/b?project=default", {"name": "names"})
    job = {"kind": "command", "command": ["true"], "labels": {"a": text}}
    at = f"/upload/storage/v1/b/names/o?uploadType=media&name={urllib.parse.quote(text)}"
    for method, path, body in [("POST", "/api/projects/default/tokens", {"label": text}),
                               ("POST", "/api/projects", {"name": "abc" + text}),
                               ("POST", "/api/jobs", {"name": "a" + text, "spec": {**job, "labels": {}}}),
                               ("POST", "/api/jobs", {"spec": job}),
                               ("POST", "/storage/v1/b?project=default", {"name": "abc" + text}),
                               ("PUT", f"/api/projects/default/config/{urllib.parse.quote(text)}",
                                {"value": "1"}), ("POST", at, b"x")]:
        if text == "tab\t" and body == b"x":
            continue            # Cloud Storage takes it, and it hides nothing
        assert server.call(method, path, body)[0] == 400, path
    server.json("POST", "/api/jobs", {"name": "plain", "spec": {**job, "labels": {}}})
    assert server.call("PATCH", "/api/jobs/default/plain", {"labels": {"k": text}})[0] == 400


SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin"}


def test_every_answer_may_not_act_in_a_browser_nor_tell_its_address(server):
    server.json("POST", "/storage/v1/b?project=default", {"name": "pages"})
    server.call("POST", "/upload/storage/v1/b/pages/o?uploadType=media&name=a.html", b"<script>1</script>",
                headers={"Content-Type": "text/html"})
    last = b"Connection: close\r\n\r\n"
    raw = [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n",
           b"GET / HTTP/1.1\r\nHost: evil.example\r\n" + last,
           b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n" + last,
           b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70000]
    answers = [head.partition(b"\r\n\r\n")[0].decode() for head in (talk(server, r) for r in raw)]
    assert all(status(a.encode()) >= 400 for a in answers)
    kinds = [dict(line.split(": ", 1) for line in a.split("\r\n")[1:]) for a in answers]
    shown = ["/", "/console/app.js", "/console/app.css"]
    for path in (*shown, "/healthz", "/nothing", "/api/whoami", "/api/jobs/default/none", "/metrics",
                 "/storage/v1/b/pages/o", "/download/storage/v1/b/pages/o/a.html?alt=media",
                 "/storage/v1/b/none", "/apis/v1beta1/pipelines", "/apis/v2beta1/runs/none",
                 "/v1/projects/default/jobs"):
        for token in (None, ""):
            code, headers, _ = server.call("GET", path, token=token)
            assert code < 500
            kinds.append(headers)
            policy = headers["Content-Security-Policy"]
            assert ("script-src 'self'" in policy) if path in shown else ("sandbox" in policy)
            assert "frame-ancestors 'none'" in policy
    for method in ("DELETE", "OPTIONS", "HEAD", "TRACE"):
        kinds.append(server.call(method, "/healthz", token="")[1])
    for headers in kinds:
        assert SAFE.items() <= headers.items(), headers
        assert headers.keys().isdisjoint({"Set-Cookie", "Access-Control-Allow-Origin"})
    answer = talk(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    for name in SAFE:
        assert answer.count(name.encode() + b":") == 1


def test_other_origins_are_told_nothing(server):
    """Without an answer of CORS a browser lets no other page read, or send a token in a header."""
    for origin in ("http://evil.example", "null", server.address, "http://127.0.0.1:1"):
        for method, path in (("OPTIONS", "/api/jobs"), ("OPTIONS", "/storage/v1/b/x/o"), ("GET", "/healthz"),
                             ("GET", "/api/jobs"), ("POST", "/login"), ("OPTIONS", "/login")):
            headers = server.call(method, path, headers={
                "Origin": origin, "Access-Control-Request-Method": "GET",
                "Access-Control-Request-Headers": "authorization"})[1]
            assert not [h for h in headers if h.lower().startswith("access-control")], (method, path)


def test_the_token_file_may_be_read_by_its_owner_alone(server):
    mode = os.stat(server.data_dir / "token").st_mode
    assert stat.S_IMODE(mode) == 0o600
    server.stop()
    os.chmod(server.data_dir / "token", 0o644)
    server.start()
    assert stat.S_IMODE(os.stat(server.data_dir / "token").st_mode) == 0o600
