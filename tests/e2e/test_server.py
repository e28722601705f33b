"""muster serve: starts, answers, says where it is, ends as asked."""
import json
import os
import socket
import subprocess
import time

import pytest
from server import Server


def test_it_says_where_it_is_and_takes_it_back_at_the_end(server):
    doc = json.loads((server.data_dir / "server.json").read_text())
    assert doc["address"] == server.address and doc["pid"] == server.process.pid
    assert server.call("GET", "/healthz", token="")[0] == 200
    assert server.stop() == 0
    assert not (server.data_dir / "server.json").exists()
    assert f"{doc['address']}/login?token=" in server.said()


def test_what_it_keeps_is_for_its_owner_alone(server):
    for f in [server.data_dir, *server.data_dir.iterdir()]:
        assert f.stat().st_mode & 0o077 == 0, f


def test_the_token_stays_over_a_restart(server):
    token = server.token
    server.stop()
    server.start()
    assert server.token == token


def test_one_server_a_data_directory(server, muster):
    done = muster("serve", "--data-dir", server.data_dir, "--port", "0", check=False, timeout=20)
    assert done.returncode == 5 and "a server runs on" in done.stderr


def test_a_taken_port_is_told_in_a_sentence(server, muster, tmp_path):
    done = muster("serve", "--data-dir", tmp_path / "other", "--port", server.port, check=False,
                  timeout=20)
    assert done.returncode == 5 and "--port 0" in done.stderr and done.stderr.count("\n") == 1


def test_beyond_loopback_it_wants_tls(muster, tmp_path):
    done = muster("serve", "--data-dir", tmp_path / "d", "--listen", "0.0.0.0", "--port", "0",
                  check=False, timeout=20)
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
        assert s.address.startswith("https://")
        out = subprocess.run(["curl", "-sS", "--cacert", tmp_path / "cert.pem",
                              f"https://localhost:{s.port}/healthz"], text=True, capture_output=True)
        assert json.loads(out.stdout)["status"] == "ok", out.stderr
        # more than one record, both ways
        big = subprocess.run(["curl", "-sS", "--cacert", tmp_path / "cert.pem", "-d", "x" * 100000,
                              f"https://localhost:{s.port}/healthz"], text=True, capture_output=True)
        assert "405" in big.stdout, big.stderr


def test_requests_on_one_connection_are_answered_in_order(server):
    one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        s.sendall((one * 20 + last).encode())
        text = b""
        while piece := s.recv(65536):
            text += piece
    assert text.count(b"HTTP/1.1 200 OK") == 20 and text.count(b"HTTP/1.1 404") == 1
    assert text.rfind(b"200 OK") < text.find(b"404")


def test_a_head_in_single_bytes_is_a_head(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
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
    time.sleep(0.5)
    before = ticks()
    time.sleep(2)
    used = ticks() - before
    rss_kb = next(int(line.split()[1]) for line in open(f"/proc/{server.process.pid}/status")
                  if line.startswith("VmRSS"))
    assert used <= 1 and rss_kb <= 20 << 10


def test_a_service_manager_passes_the_socket_and_is_told(muster, tmp_path):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(20)
    listen = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(listen.fileno(), True)
    script = f'exec 3<&{listen.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    p = subprocess.Popen(["bash", "-c", script, "-", muster.path, "serve", "--data-dir",
                          tmp_path / "data"], pass_fds=[listen.fileno()],
                         env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert notify.recv(100).startswith(b"READY=1")
        with socket.create_connection(listen.getsockname(), timeout=10) as s:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200")
        p.terminate()
        assert notify.recv(100).startswith(b"STOPPING=1")
        assert p.wait(20) == 0
    finally:
        p.kill()
