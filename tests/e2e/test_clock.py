"""The calendar's clock is set back by days while the server runs, or between two of its lives: what waits
waits no longer than it was to.

MUSTER_CLOCK=FILE adds the seconds that the file says to the server's calendar clock (base/clock.h).
"""
import time

import pytest
from hosts import wait_for
from server import Server

DAYS = 5 * 86400
RETRY = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: again-}
spec:
  entrypoint: main
  ttlStrategy: {secondsAfterCompletion: 1}
  templates:
  - name: main
    retryStrategy: {limit: 1, backoff: {duration: "2"}}
    container: {image: alpine, command: [sh, -c, "exit 1"]}
"""
SUSPENDED = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: waits-}
spec:
  entrypoint: main
  templates:
  - name: main
    suspend: {duration: "2"}
"""
FAILS = {"kind": "command", "command": ["sh", "-c", "exit 1"], "retries": {"limit": 1, "backoff_s": 2}}


@pytest.fixture
def clock(tmp_path):
    """clock(seconds) sets it."""
    file = tmp_path / "clock"

    def put(by):
        with open(file, "r+" if file.exists() else "w") as f:
            f.write(f"{by:<20}")

    put(0)
    put.env = {"MUSTER_CLOCK": str(file)}
    return put


def waiting(server):
    """A job and two runs that wait for some seconds each: for a retry, a retry, a resume."""
    server.json("POST", "/api/jobs", {"name": "again", "spec": FAILS})
    runs = [server.json("POST", "/api/runs", {"text": text})["id"] for text in (RETRY, SUSPENDED)]
    wait_for(lambda: "job.retrying" in [e["type"] for e in server.json(
        "GET", "/api/jobs/default/again/events")["events"]])
    wait_for(lambda: any(n["phase"] == "Failed" for n in server.json(
        "GET", f"/api/runs/default/{runs[0]}/nodes")["nodes"]))
    wait_for(lambda: any(n["phase"] == "Running" for n in server.json(
        "GET", f"/api/runs/default/{runs[1]}/nodes")["nodes"]))
    return runs


def all_end(server, runs):
    """Soon, with the retries that were waited for; and the run's time to live passes, too."""
    def run(i):
        return server.json("GET", f"/api/runs/default/{runs[i]}")

    began = time.monotonic()
    job = wait_for(lambda: (j := server.json("GET", "/api/jobs/default/again"))["ended"] and j, 30)
    assert job["state"] == "failed" and job["attempt"] == 2
    wait_for(lambda: run(0)["ended"] and run(1)["ended"], 30)
    assert run(0)["state"] == "failed" and run(1)["state"] == "succeeded"
    wait_for(lambda: run(0)["archived"], 30)
    assert time.monotonic() - began < 30


def test_a_clock_that_is_set_back_keeps_no_retry_waiting(muster, tmp_path, clock):
    with Server(muster, tmp_path / "data", env=clock.env) as server:
        runs = waiting(server)
        clock(-DAYS)
        server.json("POST", "/api/jobs", {"name": "other", "spec": {**FAILS, "retries": {"limit": 0}}})
        all_end(server, runs)


def test_a_clock_that_is_set_back_while_no_server_runs_keeps_no_retry_waiting(muster, tmp_path, clock):
    with Server(muster, tmp_path / "data", env=clock.env) as server:
        runs = waiting(server)
        server.kill()
        clock(-DAYS)
        server.start()
        all_end(server, runs)


def test_a_clock_that_is_set_forward_ends_no_run_before_its_deadline(muster, tmp_path, clock):
    with Server(muster, tmp_path / "data", env=clock.env) as server:
        text = SUSPENDED.replace("spec:", "spec:\n  activeDeadlineSeconds: 600", 1)
        run = server.json("POST", "/api/runs", {"text": text})["id"]
        wait_for(lambda: server.json("GET", f"/api/runs/default/{run}")["state"] == "running")
        clock(DAYS)
        doc = wait_for(lambda: (d := server.json("GET", f"/api/runs/default/{run}"))["ended"] and d, 30)
        assert doc["state"] == "succeeded", doc


def test_a_recurring_run_comes_after_its_period_when_the_clock_was_set_back(muster, tmp_path, clock):
    with Server(muster, tmp_path / "data", env=clock.env) as server:
        quick = SUSPENDED.replace('"2"', '"0"')
        made = server.json("POST", "/api/recurring", {
            "name": "often", "text": quick, "trigger": {"interval_s": 1}, "max_concurrency": 1})

        def count():
            return len(server.json("GET", "/api/runs?limit=100")["runs"])

        wait_for(lambda: count() >= 1)
        clock(-DAYS)
        had = count()
        wait_for(lambda: count() >= had + 2, 75)
        server.json("DELETE", f"/api/recurring/default/{made['id']}")


def test_a_session_lasts_as_long_as_it_was_to_when_the_clock_is_set(muster, tmp_path, clock):
    with Server(muster, tmp_path / "data", env=clock.env) as server:
        session = server.json("POST", "/login", {"token": server.token}, token="")["session"]
        for by in (400 * 86400, -400 * 86400):
            clock(by)
            assert server.call("GET", "/api/whoami", token=session)[0] == 200, by
