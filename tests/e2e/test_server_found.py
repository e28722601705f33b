"""Who looks for a server finds the one that runs, and is never sent to one that ended."""
import http.server
import json
import os
import threading

import pytest
from server import Server


@pytest.fixture
def impostor():
    """Another program, at a port that a server had: it answers everything with 200."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    web = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()


def here(server):
    """The environment of one who has the data directory and nothing else."""
    return {"MUSTER_DATA_DIR": str(server.data_dir), "MUSTER_SERVER": "", "MUSTER_TOKEN": ""}


def test_a_second_serve_says_that_one_runs_and_where_and_fails(server, muster):
    done = muster("serve", "--data-dir", server.data_dir, "--port", "0", check=False)
    assert done.returncode == 5 and done.stdout == ""
    assert "a server runs on" in done.stderr and server.address in done.stderr
    assert "no other one was started" in done.stderr and done.stderr.count("\n") == 1


def test_detach_on_a_directory_in_use_says_already_running_and_where(server, muster):
    for port in (["--port", "0"], ["--port", str(server.port)], []):
        done = muster("serve", "--detach", "--data-dir", server.data_dir, *port)
        assert done.stdout.startswith(f"already running (process {server.process.pid}): muster ")
        assert f"{server.address}/#token={server.token}" in done.stdout


def test_detach_with_another_port_than_the_running_servers_is_refused(server, muster):
    done = muster("serve", "--detach", "--data-dir", server.data_dir, "--port", str(server.port - 1),
                  check=False)
    assert done.returncode == 5 and done.stdout == ""
    assert server.address in done.stderr and "none was started" in done.stderr


def test_detach_that_fails_does_not_repeat_the_address_of_a_server_that_was_killed(server, muster, tmp_path):
    stale = json.loads((server.data_dir / "server.json").read_text())["address"]
    server.kill()
    with Server(muster, tmp_path / "other") as other:
        done = muster("serve", "--detach", "--data-dir", server.data_dir, "--port", str(other.port),
                      check=False)
        assert done.returncode == 5 and "is taken" in done.stderr
        assert stale not in done.stdout + done.stderr


def test_env_after_the_server_was_killed_prints_nothing_and_fails(server, muster, impostor):
    found = muster("env", env=here(server))
    assert server.address in found.stdout
    server.kill()
    doc = json.loads((server.data_dir / "server.json").read_text())
    for left in (doc,                                           # as it was left
                 {**doc, "pid": os.getpid()},                   # its number is another process by now
                 {**doc, "pid": 1, "address": impostor}):       # and its port another program
        (server.data_dir / "server.json").write_text(json.dumps(left))
        for command in (["env"], ["jobs", "list"]):
            done = muster(*command, env=here(server), check=False)
            assert done.returncode == 6 and done.stdout == "" and "no server runs here" in done.stderr


def test_env_leads_to_a_server_that_was_started_again_at_another_address(server, muster):
    before = {**server.env}
    server.kill()
    done = muster("env", env=before, check=False)
    assert done.returncode == 6 and done.stdout == "" and "nobody answers" in done.stderr
    server.start()
    assert server.address != before["MUSTER_SERVER"]
    done = muster("env", env=before)
    assert f"export MUSTER_SERVER='{server.address}'" in done.stdout
    assert before["MUSTER_SERVER"] not in done.stdout and before["MUSTER_SERVER"] in done.stderr
