"""Too many connections: whoever has no request goes, and who has a right to an answer gets it."""
import json
import resource
import socket
import ssl
import subprocess
import time

import pytest
from hosts import wait_for
from server import Server

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FOLLOW = "GET /api/jobs/default/sleeps/logs?follow=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n"


def connect(server, host="127.0.0.1"):
    return socket.create_connection((host, server.port), timeout=60)


def ask(server, data=HEALTH):
    """The status of the answer; None: closed without one."""
    with connect(server) as s:
        s.sendall(data)
        answer = s.recv(65536)
    return int(answer.split(b" ", 2)[1]) if answer else None


def whoami(token, more=""):
    return (f"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{more}"
            "Connection: close\r\n\r\n").encode()


def is_open(s):
    s.setblocking(False)
    try:
        while s.recv(65536):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        s.setblocking(True)


@pytest.fixture
def small(muster, tmp_path):
    with Server(muster, tmp_path / "data", "--connections", 40, "--per-host", 20) as server:
        yield server


def close(sockets):
    for s in sockets:
        s.close()


def test_1024_idle_connections_of_one_address_shut_nobody_out(server):
    """With the limits as they are: a thousand from one address, idle, then twice as many again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    held = []
    try:
        for _ in range(1024):
            held.append(connect(server))
        assert ask(server) == 200
        assert server.call("GET", "/api/whoami")[0] == 200
        for _ in range(1024):
            held.append(connect(server))
        began = time.monotonic()
        for _ in range(20):
            assert ask(server) == 200
        assert time.monotonic() - began < 10
        text = server.call("GET", "/metrics")[2].decode()
        open_now = int(text.split("\nmuster_http_connections ")[1].split()[0])
        assert open_now <= 1024
        assert int(text.split("\nmuster_http_dropped_total ")[1].split()[0]) >= 1024
    finally:
        close(held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_oldest_without_a_token_goes_first_and_a_known_one_stays(small):
    known = connect(small)
    known.sendall(whoami(small.token).replace(b"Connection: close\r\n", b""))
    assert known.recv(65536).startswith(b"HTTP/1.1 200")
    held = [connect(small) for _ in range(60)]
    wait_for(lambda: sum(map(is_open, held)) <= 20)
    assert ask(small) == 200
    assert is_open(known) and is_open(held[-1]) and not is_open(held[0])
    known.sendall(HEALTH)
    assert known.recv(65536).startswith(b"HTTP/1.1 200")
    close([known, *held])


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nX: ",
                                  b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"])
def test_half_a_request_holds_no_place(small, sent):
    held = []
    for _ in range(60):
        held.append(connect(small))
        held[-1].sendall(sent)
    for _ in range(10):
        assert ask(small) == 200
        assert ask(small, whoami(small.token)) == 200
    close(held)


def test_half_a_tls_handshake_holds_no_place(muster, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert], check=True,
                   capture_output=True)
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    with Server(muster, tmp_path / "data", "--per-host", 20, "--tls-cert", cert, "--tls-key", key) as server:
        held = []
        for i in range(60):
            held.append(connect(server))
            if i % 2:
                held[-1].sendall(b"\x16\x03\x01\x02\x00\x01")
        for _ in range(5):
            with context.wrap_socket(connect(server), server_hostname="localhost") as s:
                s.sendall(whoami(server.token))
                answer = s.recv(65536)
                assert answer.startswith(b"HTTP/1.1 200") and b"Referrer-Policy: no-referrer" in answer
        close(held)


def follow(server, token, n):
    """So many that follow a job's log, all of them answered."""
    held = []
    for _ in range(n):
        held.append(connect(server))
        held[-1].sendall(FOLLOW.format(token).encode())
        assert held[-1].recv(12) == b"HTTP/1.1 200"
    return held


def test_health_and_the_owner_get_in_when_all_connections_have_a_request(small, muster):
    muster("project", "add", "other-team", env=small.env)
    theirs = muster("project", "token", "add", "--project", "other-team", env=small.env).stdout.strip()
    job = small.job_token("sleeps")
    held = follow(small, small.token, 20)
    for _ in range(10):
        assert ask(small) == 200
        assert ask(small, whoami(small.token)) == 200
        assert ask(small, whoami(theirs)) == 503        # nobody's request is ended for a project's
        assert ask(small, whoami("muster_nobody")) == 401
        assert ask(small, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == 503
    silent = [connect(small) for _ in range(300)]       # not even the reserve is theirs
    assert ask(small) == 200 and ask(small, whoami(small.token)) == 200
    assert all(map(is_open, held))
    close([*held, *silent])
    wait_for(lambda: ask(small, whoami(theirs)) == 200)

    held = follow(small, job, 20)                       # a job's requests make room for a project's, not for a job's
    assert ask(small, whoami(job)) == 503
    assert ask(small, whoami(small.token)) == 200 and all(map(is_open, held))
    assert ask(small, whoami(theirs)) == 200
    wait_for(lambda: sum(map(is_open, held)) == 19)
    close(held)
    small.json("POST", "/api/jobs/default/sleeps/cancel")


def test_an_address_has_its_share_and_others_theirs(small):
    """Of 40 connections 20 for each address: the second address takes none of the first one's."""
    first = [connect(small) for _ in range(20)]
    wait_for(lambda: json.loads(small.call("GET", "/healthz")[2])["status"] == "ok")
    second = []
    for _ in range(60):
        s = socket.socket()
        s.bind(("127.0.0.2", 0))
        s.connect(("127.0.0.1", small.port))
        second.append(s)
    wait_for(lambda: sum(map(is_open, second)) <= 20)
    assert sum(map(is_open, first)) >= 18               # healthz from this address took the place of one
    assert ask(small) == 200
    close([*first, *second])


def test_the_server_answers_when_files_are_few(muster, tmp_path):
    """The limit of open files is smaller than the connections it would take: it keeps some for itself."""
    few = tmp_path / "few"
    few.write_text(f'#!/bin/sh\nulimit -n 600\nexec "{muster.path}" "$@"\n')
    few.chmod(0o755)
    with Server(few, tmp_path / "data") as server:
        held = [connect(server) for _ in range(700)]
        for _ in range(5):
            assert ask(server) == 200
            assert server.call("GET", "/api/jobs")[0] == 200
        close(held)
