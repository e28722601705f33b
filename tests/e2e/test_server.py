"""muster serve: starts, answers, says where it is, ends as asked."""
import hashlib
import http.client
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hosts import wait_for
from server import Server


def test_it_says_where_it_is_and_takes_it_back_at_the_end(server):
    doc = json.loads((server.data_dir / "server.json").read_text())
    assert doc["address"] == server.address and doc["pid"] == server.process.pid
    assert server.call("GET", "/healthz", token="")[0] == 200
    assert server.stop() == 0
    assert not (server.data_dir / "server.json").exists()
    assert doc["address"] in server.said() and server.token not in server.said()


def test_the_link_with_the_token_is_for_a_terminal_or_who_asks(muster, tmp_path):
    """Elsewhere it would stay, in a file that others read."""
    ours, theirs = pty.openpty()
    args = [muster.path, "serve", "--port", "0", "--data-dir", tmp_path / "data"]
    process = subprocess.Popen(args, stdout=theirs, stderr=subprocess.DEVNULL)
    try:
        shown = b""
        while b"stop" not in shown:
            shown += os.read(ours, 4096)
        token = (tmp_path / "data/token").read_text().strip()
        assert f"/#token={token}".encode() in shown
        done = subprocess.run([*args, "--detach"], capture_output=True, text=True, check=True)
        assert f"/#token={token}" in done.stdout
    finally:
        process.terminate()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_what_it_keeps_is_for_its_owner_alone(server):
    for f in [server.data_dir, *server.data_dir.iterdir()]:
        assert f.stat().st_mode & 0o077 == 0, f


def test_the_token_stays_over_a_restart(server):
    token = server.token
    server.stop()
    server.start()
    assert server.token == token


def test_one_server_a_data_directory(server, muster):
    done = muster("serve", "--data-dir", server.data_dir, "--port", "0", check=False, timeout=120)
    assert done.returncode == 5 and "a server runs on" in done.stderr


def test_a_taken_port_is_told_in_a_sentence(server, muster, tmp_path):
    done = muster("serve", "--data-dir", tmp_path / "other", "--port", server.port, check=False,
                  timeout=120)
    assert done.returncode == 5 and "--port 0" in done.stderr and done.stderr.count("\n") == 1


def test_beyond_loopback_it_wants_tls(muster, tmp_path):
    done = muster("serve", "--data-dir", tmp_path / "d", "--listen", "0.0.0.0", "--port", "0",
                  check=False, timeout=120)
    assert done.returncode == 3 and "--tls-cert" in done.stderr


def test_with_a_certificate_it_speaks_tls(muster, tmp_path):
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                           "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                           "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
                          capture_output=True)
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    s = Server(muster, tmp_path / "data", "--listen", "0.0.0.0", "--name", "localhost",
               "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    with s:
        assert s.address == f"https://localhost:{s.port}"
        whoami = muster("project", "list", env={**s.env, "SSL_CERT_FILE": str(tmp_path / "cert.pem")})
        assert "default" in whoami.stdout
        assert muster("project", "list", env=s.env, check=False).returncode != 0   # not to be trusted
        out = subprocess.run(["curl", "-sS", "--cacert", tmp_path / "cert.pem",
                              f"https://localhost:{s.port}/healthz"], text=True, capture_output=True)
        assert json.loads(out.stdout)["status"] == "ok", out.stderr
        # more than one record, both ways
        big = subprocess.run(["curl", "-sS", "--cacert", tmp_path / "cert.pem", "-d", "x" * 100000,
                              f"https://localhost:{s.port}/healthz"], text=True, capture_output=True)
        assert "405" in big.stdout, big.stderr

        def curl(*args):
            return subprocess.run(["curl", "-sSf", "--cacert", tmp_path / "cert.pem", "-H",
                                   f"Authorization: Bearer {s.token}", *args], capture_output=True,
                                  check=True, timeout=300).stdout
        spec = sh("head -c 20000000 /dev/urandom > f; sha256sum f",
                  origin={"api": "native", "request": {"long": "x" * 2000000}})
        (tmp_path / "body").write_text(json.dumps({"name": "big", **spec}))
        curl("--data-binary", f"@{tmp_path / 'body'}", f"{s.address}/api/jobs")
        log = curl("-N", f"{s.address}/api/jobs/default/big/logs?follow=1").decode()
        file = curl(f"{s.address}/api/jobs/default/big/files/f")
        assert len(file) == 20000000 and hashlib.sha256(file).hexdigest() in log


def test_requests_on_one_connection_are_answered_in_order(server):
    one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall((one * 20 + last).encode())
        text = b""
        while piece := s.recv(65536):
            text += piece
    assert text.count(b"HTTP/1.1 200 OK") == 20 and text.count(b"HTTP/1.1 404") == 1
    assert text.rfind(b"200 OK") < text.find(b"404")


def test_a_head_in_single_bytes_is_a_head(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        for b in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
            s.sendall(bytes([b]))
        assert s.recv(100).startswith(b"HTTP/1.1 200")


def test_head_is_get_without_the_body(server):
    status, headers, body = server.call("HEAD", "/healthz", token="")
    assert status == 200 and int(headers["Content-Length"]) > 0 and body == b""


def test_idle_it_takes_little_memory_and_no_time(server):
    def ticks():
        fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def used():
        before = ticks()
        time.sleep(1.5)
        return ticks() - before
    wait_for(lambda: used() <= 1)               # once it has started
    rss_kb = next(int(line.split()[1]) for line in open(f"/proc/{server.process.pid}/status")
                  if line.startswith("VmRSS"))
    assert rss_kb <= 20 << 10


def test_a_service_manager_passes_the_socket_and_is_told(muster, tmp_path):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(120)
    listen = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(listen.fileno(), True)
    script = f'exec 3<&{listen.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    p = subprocess.Popen(["bash", "-c", script, "-", muster.path, "serve", "--data-dir",
                          tmp_path / "data"], pass_fds=[listen.fileno()],
                         env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert notify.recv(100).startswith(b"READY=1")
        with socket.create_connection(listen.getsockname(), timeout=60) as s:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200")
        p.terminate()
        assert notify.recv(100).startswith(b"STOPPING=1")
        assert p.wait(120) == 0
    finally:
        p.kill()


def sh(script, **spec):
    return {"spec": {"name": "test", "kind": "command", "command": ["sh", "-c", script], **spec}}


def test_a_job_from_submit_to_its_last_line(server):
    job = server.json("POST", "/api/jobs", {"name": "one", **sh("echo hello; echo wörld >&2")})
    assert job["name"] == "one" and job["project"] == "default"
    done = server.reach("one", "succeeded")
    assert done["ended"] >= done["started"] >= done["created"] > 0
    log = server.json("GET", "/api/jobs/default/one/logs")
    said = {(line["stream"], line["text"]) for line in log["lines"]}
    assert ("o", "hello") in said and ("e", "wörld") in said
    assert server.json("GET", f"/api/jobs/default/one/logs?after={log['next']}")["lines"] == []
    assert [x["text"] for x in server.json("GET", "/api/jobs/default/one/logs?search=HELL")["lines"]] \
        == ["hello"]
    types = [e["type"] for e in server.json("GET", "/api/jobs/default/one/events")["events"]]
    assert types[0] == "job.submitted" and types[-1] == "job.ended"
    assert server.call("POST", "/api/jobs", {"name": "one", **sh("true")})[0] == 409
    assert server.call("DELETE", "/api/jobs/default/one")[0] == 204
    assert server.call("GET", "/api/jobs/default/one")[0] == 404


def follow(server, path):
    """The events of a stream until it ends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as s:
        s.sendall(f"GET /k/{server.token}{path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        text = b""
        while b"\r\n\r\n" not in text:
            text += s.recv(65536)
        head, text = text.split(b"\r\n\r\n", 1)
        assert b"text/event-stream" in head
        while True:
            while b"\n\n" in text:
                event, text = text.split(b"\n\n", 1)
                yield event.decode()
            piece = s.recv(65536)
            if not piece:
                return
            text += piece


def converse(server):
    """A job that says its next line when its last one was heard: the lines, and the last event."""
    job = server.json("POST", "/api/jobs", {"name": "talks", **sh(
        "for i in 1 2 3 4; do echo line $i; until [ -e heard-$i ]; do sleep 0.02; done; done")})
    lines, last = [], None
    for event in follow(server, "/api/jobs/default/talks/logs?follow=1"):
        last = event
        if event.startswith("data: {\"t\""):
            line = json.loads(event[6:].split("\n")[0])
            if line["stream"] == "o":
                lines.append(line["text"])
                (server.work(job) / f"heard-{len(lines)}").touch()
    return lines, last


def test_a_log_is_followed_as_it_is_written(server):
    lines, last = converse(server)
    assert lines == [f"line {i}" for i in range(1, 5)] and "event: end" in last
    assert len(list(follow(server, "/api/jobs/default/talks/logs?follow=1&tail=1"))) >= 2


def test_a_log_is_followed_under_load(server):
    """Other requests on the same loops do not keep its lines waiting."""
    busy = threading.Event()

    def ask():
        while not busy.is_set():
            server.call("GET", "/healthz", token="")

    others = [threading.Thread(target=ask) for _ in range(4)]
    for t in others:
        t.start()
    try:
        assert converse(server)[0] == [f"line {i}" for i in range(1, 5)]
    finally:
        busy.set()
        for t in others:
            t.join()


def test_events_are_followed_to_the_end(server):
    server.json("POST", "/api/jobs", {"name": "short", **sh("sleep 0.3")})
    got = [json.loads(e.split("data: ")[1]) for e in
           follow(server, "/api/jobs/default/short/events?follow=1") if e.startswith("id:")]
    assert got[0]["type"] == "job.submitted" and got[-1]["type"] == "job.ended"
    assert [e["seq"] for e in got] == sorted(e["seq"] for e in got)


def test_a_job_is_cancelled_and_run_again(server):
    server.json("POST", "/api/jobs", {"name": "long", **sh("sleep 100", labels={"team": "a"})})
    assert server.call("POST", "/api/jobs/default/long/cancel")[0] == 200
    assert server.reach("long", "cancelled")["ended"] > 0
    again = server.json("POST", "/api/jobs/default/long/rerun")
    assert again["name"] != "long" and again["spec"]["command"] == ["sh", "-c", "sleep 100"]
    server.json("POST", f"/api/jobs/default/{again['name']}/cancel")
    listed = server.json("GET", "/api/jobs?label=team&value=a")["jobs"]
    assert {j["name"] for j in listed} == {"long", again["name"]}


def test_the_values_of_a_project_reach_its_jobs(server, muster):
    muster("secret", "set", "deep", env=server.env, input="42\n")
    muster("config", "set", "REGION", env=server.env, input="north\n")
    muster("config", "set", "PLACE", env=server.env, input="not this\n")
    server.json("POST", "/api/jobs", {"name": "reads", **sh(
        'test "$ANSWER $REGION $PLACE" = "42 north here"', secrets={"ANSWER": "deep"}, env={"PLACE": "here"})})
    server.reach("reads", "succeeded")


def test_metrics_count_what_happens(server):
    server.json("POST", "/api/jobs", {"name": "one", **sh("true")})
    server.reach("one", "succeeded")
    server.call("GET", "/nothing")
    text = server.call("GET", "/metrics")[2].decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['muster_jobs{state="succeeded"}'] == "1"
    assert int(values['muster_http_requests_total{status="4xx"}']) >= 1
    assert int(values["muster_store_commits_total"]) >= 3
    assert int(values['muster_http_request_seconds_bucket{le="+Inf"}']) \
        == int(values["muster_http_request_seconds_count"])


def test_env_points_clients_here_and_takes_it_back(server, muster):
    env = server.client_env()
    assert env["STORAGE_EMULATOR_HOST"] == server.url and env["NO_GCE_CHECK"] == "true"
    assert open(env["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read().strip() == server.token
    assert env["CLOUDSDK_CORE_PROJECT"] == "default"
    muster("project", "add", "it-s-ours", env=server.env)
    token = muster("project", "token", "add", "--project", "it-s-ours", env=server.env).stdout.strip()
    out = muster("env", "--project", "it-s-ours", env={**server.env, "MUSTER_TOKEN": token}).stdout
    file = next(line.split("'")[1] for line in out.splitlines() if "TOKEN_FILE" in line)
    assert open(file).read().strip() == token and os.stat(file).st_mode & 0o077 == 0
    script = f"{out}\ntype -p gcloud\n{muster('env', '--unset', env=server.env).stdout}\necho PATH=$PATH; env"
    left = subprocess.run(["bash", "-c", script], text=True, capture_output=True, check=True,
                          env={"PATH": os.environ["PATH"]}).stdout
    assert "CLOUDSDK" not in left and token not in left and left.splitlines()[0].endswith("gcloud")
    assert f"PATH={os.environ['PATH']}\n" in left


def test_without_a_server_commands_say_what_to_do(muster, tmp_path):
    for command in (["project", "list"], ["env"], ["secret", "list"]):
        done = muster(*command, env={"MUSTER_DATA_DIR": str(tmp_path), "MUSTER_SERVER": ""}, check=False)
        assert done.returncode == 6 and "muster serve" in done.stderr and done.stderr.count("\n") == 1


def test_it_drains_what_it_is_about_to_answer(server):
    """A followed log is ended, a request under way is answered, then it is gone."""
    server.json("POST", "/api/jobs", {"name": "long", **sh("sleep 1000")})
    stream = follow(server, "/api/jobs/default/long/events?follow=1")
    next(stream)
    assert server.stop() == 0
    assert len(list(stream)) >= 0
    server.start()
    assert server.json("GET", "/api/jobs/default/long")["state"] in ("queued", "preparing", "running")
    server.json("POST", "/api/jobs/default/long/cancel")
    server.reach("long", "cancelled")


def test_units_for_systemd_are_installed(muster, tmp_path):
    build = os.path.dirname(os.path.realpath(muster.path))
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", tmp_path], check=True,
                   capture_output=True)
    (service,) = tmp_path.rglob("muster.service")
    (_,) = tmp_path.rglob("muster.socket")
    text = service.read_text()
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert (tmp_path / start.split("=")[1].split()[0].lstrip("/")).exists()
    assert "Type=notify" in text and "KillMode=process" in text
    assert str(service.parent).endswith("lib/systemd/user")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(muster, tmp_path):
    """It complains on stderr and succeeds all the same; of other units on the machine it may say more."""
    source = Path(__file__).resolve().parents[2] / "server"
    text = (source / "muster.service.in").read_text()
    binary = os.path.realpath(muster.path)
    units = [tmp_path / "muster.service", tmp_path / "muster.socket"]
    units[0].write_text(text.replace("@bindir@/muster", binary))
    units[1].write_text((source / "muster.socket").read_text())

    def verify():
        r = subprocess.run(["systemd-analyze", "--user", "verify", *map(str, units)], text=True,
                           capture_output=True, timeout=300,
                           env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
        return r.returncode, [line for line in r.stderr.splitlines() if str(tmp_path) in line
                              or "muster" in line]

    assert verify() == (0, [])
    units[0].write_text(units[0].read_text().replace("KillMode=process", "KillMode=perhaps"))
    assert verify()[1], "it would have found nothing anyhow"


@pytest.mark.parametrize("body,words", [
    (b'{"spec": }', "at line 1, column 10: } is not expected there"),
    (b'{"spec": {},\n  "name": hello}', "at line 2, column 15: hello is not expected there"),
    (b'{"spec": {', "at line 1, column 10: it ends before it is whole"),
    (b'{} {}', "at line 1, column 4: there is more after its end"),
    (b'{"a": 1, "a": 2}', "at line 1, column 12: a name is there twice"),
    (b'{"a": 1e999}', "at line 1, column 11: a number is too large"),
    (b'{"a": "\xff"}', "at line 1, column 7: there are bytes that are no UTF-8"),
    (b'spec', "at line 1, column 4: it begins with neither { nor ["),
    (b'{"a" 1}', "at line 1, column 6: 1 is not expected there"),
])
def test_a_body_that_is_no_json_is_told_where_and_what(server, body, words):
    conn = http.client.HTTPConnection("127.0.0.1", server.port)
    conn.request("POST", "/api/jobs", body, {"Authorization": f"Bearer {server.token}"})
    answer = conn.getresponse()
    assert answer.status == 400
    assert json.loads(answer.read())["error"]["message"] == "the body is not JSON " + words


def test_it_outlives_the_terminal_where_that_is_asked_for(muster, tmp_path):
    with Server(muster, tmp_path / "data") as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(120) == 0
    script = tmp_path / "nohup"
    script.write_text(f'#!/bin/sh\ntrap "" HUP\nexec {muster.path} "$@"\n')
    script.chmod(0o755)
    with Server(str(script), tmp_path / "other") as server:
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert server.call("GET", "/healthz", token="")[0] == 200


def test_a_data_directory_may_be_named_from_where_one_is(muster, tmp_path):
    p = subprocess.Popen([muster.path, "serve", "--data-dir", "here", "--port", "0"], cwd=tmp_path,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "here/server.json").exists)
        out = muster("env", env={"MUSTER_DATA_DIR": "here"}, cwd=tmp_path).stdout
        assert f"'{tmp_path}/here/token'" in out
    finally:
        p.terminate()
        p.wait(120)


def test_an_empty_name_is_none_and_a_project_must_exist(server):
    job = server.json("POST", "/api/jobs", {"name": "", "spec": {"kind": "command", "command": ["true"]}})
    server.reach(job["name"], "succeeded")
    status, _, text = server.call("POST", "/api/jobs", {"project": "nope", "spec": {
        "kind": "command", "command": ["true"]}})
    assert status == 404 and b"nope" in text


@pytest.mark.parametrize("who", ["owner", "project"])
def test_a_spec_cannot_name_what_is_the_servers_or_the_machines(who, server, muster, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "1,2\n" * 20)
    server.json("POST", "/api/projects", {"name": "evil-co"})
    token = server.json("POST", "/api/projects/evil-co/tokens", {"label": "x"})["token"]
    token, project = (None, "default") if who == "owner" else (token, "evil-co")

    def ended(path, folder):
        spec = (f"data: {{train: {{csv: {path}}}, target: b}}\nmodel:\n  - linear: 1\n"
                "loss: squared_error\noptimizer: {sgd: {lr: 0.001}}\nbatch: 2\nepochs: 1\n")
        job = server.json("POST", "/api/jobs", {"project": project, "spec": {
            "kind": "train", "host_files": True, "train": {"spec": spec, "dir": str(folder)}}},
            token=token)
        return server.reach(job["name"], project=project, token=token)

    for path in (server.data_dir / "token", server.data_dir, tmp_path, "/"):
        job = ended(path, tmp_path / "elsewhere")
        assert job["state"] == "failed" and ("server's own" in job["reason"] or
                                             "this machine" in job["reason"]), (path, job)
    job = ended(table, tmp_path / "elsewhere")
    assert job["state"] == ("succeeded" if who == "owner" else "failed"), job
    if who == "owner":
        assert "server's own" in ended(table, server.data_dir)["reason"]


def test_stop_ends_the_server_of_a_data_directory_and_waits(muster, tmp_path):
    stop = ("serve", "--stop", "--data-dir", tmp_path / "data")
    none = muster(*stop, check=False)
    assert none.returncode == 4 and "no server runs on" in none.stderr
    muster("serve", "--detach", "--port", "0", "--data-dir", tmp_path / "data")
    address = json.loads((tmp_path / "data/server.json").read_text())["address"]
    assert "has stopped" in muster(*stop).stdout
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])))
    assert muster(*stop, check=False).returncode == 4
    # one that was killed leaves its number behind, which is another process by now
    with Server(muster, tmp_path / "data") as server:
        server.kill()
        (tmp_path / "data/server.json").write_text(json.dumps({"pid": os.getpid(), "address": "x"}))
        assert muster(*stop, check=False).returncode == 4
