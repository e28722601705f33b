"""What strangers try, one by one: each is refused, and the server goes on."""
import json
import os
import socket
import stat
import time
import urllib.parse

import pytest
from hosts import wait_for
from server import Server


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
    return server.call("POST", "/login", {"token": token}, token="", headers={"X-Muster": "1"})


def cookie(server, token=None):
    """A browser's, after log-in."""
    code, headers, _ = login(server, token or server.token)
    assert code == 204
    return {"Cookie": headers["Set-Cookie"].split(";")[0]}


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
    assert server.call("GET", "/api/whoami", token="",
                       headers={"Cookie": f"muster={wrong}"})[0] == 401
    assert login(server, wrong)[0] == 403


def test_a_good_token_in_each_place(server):
    for path, headers in ((f"/k/{server.token}/api/whoami", {}), (f"/api/whoami?key={server.token}", {}),
                          ("/api/whoami", {"Authorization": f"bearer {server.token}"}),
                          ("/api/whoami", {"Cookie": "x=y; " + cookie(server)["Cookie"]})):
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
                          f"Cookie: muster={server.token}\r\n\r\n".encode())
    assert status(answer) == 421


def test_dns_rebinding_knows_the_names_it_was_given(muster, tmp_path):
    with Server(muster, tmp_path / "data", "--name", "gpu.example") as server:
        ask = "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"
        assert status(talk(server, ask.format("GPU.example:1").encode())) == 200
        assert status(talk(server, ask.format("gpu2.example").encode())) == 421


def test_cookie_without_x_muster(server):
    own = cookie(server)
    put = ("PUT", "/api/projects/default/config/a", {"value": "1"})
    assert server.call(*put, token="", headers=own)[0] == 403
    assert server.call(*put, token="", headers={**own, "X-Muster": "0"})[0] == 403
    assert server.call("DELETE", "/api/projects/default/config/a", token="", headers=own)[0] == 403
    assert server.call(*put, token="", headers={**own, "X-Muster": "1"})[0] == 204
    assert server.call("GET", "/api/whoami", token="", headers=own)[0] == 200


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(server):
    code, headers, _ = login(server, server.token)
    assert code == 204
    assert "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
    assert "Max-Age=2592000" in headers["Set-Cookie"] and server.token not in headers["Set-Cookie"]
    assert server.call("POST", "/login", {"token": server.token}, token="")[0] == 403   # another site's
    assert server.call("GET", f"/login?token={server.token}", token="")[0] == 405


def test_a_session_is_good_in_a_cookie_alone_and_nothing_else_is_good_there(server, other):
    own, theirs = cookie(server), cookie(server, other)
    session = own["Cookie"].split("=")[1]
    who = server.json("GET", "/api/whoami", token="", headers=theirs)
    assert who["project"] == "other-team" and not who["root"]
    assert server.call("GET", "/metrics", token="", headers=theirs)[0] == 403
    assert server.call("GET", "/metrics", token="", headers=own)[0] == 200
    assert server.call("GET", "/api/whoami", token=session)[0] == 401
    assert server.call("GET", f"/k/{session}/api/whoami", token="")[0] == 401
    assert login(server, session)[0] == 403
    for token in (server.token, other):
        assert server.call("GET", "/api/whoami", token="", headers={"Cookie": f"muster={token}"})[0] == 401
    for path in server.data_dir.glob("muster.db*"):
        assert session.encode() not in path.read_bytes()


def test_a_session_ends_at_log_out_and_with_its_token(server, other, muster):
    own, theirs = cookie(server), cookie(server, other)
    server.kill()
    server.start()
    assert server.call("GET", "/api/whoami", token="", headers=own)[0] == 200
    assert server.call("POST", "/logout", token="", headers=own)[0] == 403
    assert server.call("POST", "/logout", token="", headers={**own, "X-Muster": "1"})[0] == 204
    assert server.call("GET", "/api/whoami", token="", headers=own)[0] == 401
    (row,) = server.json("GET", "/api/projects/other-team/tokens")["tokens"]
    assert server.call("GET", "/api/whoami", token="", headers=theirs)[0] == 200
    server.json("DELETE", f"/api/projects/other-team/tokens/{row['id']}")
    assert server.call("GET", "/api/whoami", token="", headers=theirs)[0] == 401


TELL = "import os, time; print(os.environ['MUSTER_TOKEN'], flush=True); time.sleep(600)"


def job_token(server, name):
    server.json("POST", "/api/jobs", {"name": name, "spec": {
        "kind": "command", "command": ["python3", "-c", TELL], "resources": {"cpu": 0.1}}})
    return wait_for(lambda: server.json("GET", f"/api/jobs/default/{name}/logs")["lines"])[0]["text"]


def test_a_jobs_token_reaches_buckets_and_its_own_and_ends_with_the_job(server):
    token, neighbour = job_token(server, "one"), job_token(server, "two")
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


def test_what_is_served_may_not_act_in_a_browser(server):
    for path in ("/healthz", "/nothing", "/api/whoami"):
        headers = server.call("GET", path)[1]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in headers["Content-Security-Policy"]


def test_connections_have_a_limit(muster, tmp_path):
    with Server(muster, tmp_path / "data", "--connections", 20, "--per-host", 10) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
        ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        wait_for(lambda: status(talk(server, ask)) == 503)
        for s in held:
            s.close()
        wait_for(lambda: status(talk(server, ask)) == 200)


def test_the_token_file_may_be_read_by_its_owner_alone(server):
    mode = os.stat(server.data_dir / "token").st_mode
    assert stat.S_IMODE(mode) == 0o600
    server.stop()
    os.chmod(server.data_dir / "token", 0o644)
    server.start()
    assert stat.S_IMODE(os.stat(server.data_dir / "token").st_mode) == 0o600
