"""Logs as people read them: whole, in part, while they grow, when the server goes and comes, cut at a limit."""
import os
import re
import subprocess

import joblog
import pytest
from hosts import wait_for
from server import Server


def submit(server, name, script, **more):
    spec = {"kind": "command", "command": ["sh", "-c", script], "resources": {"cpu": 0.1}, **more}
    return server.json("POST", "/api/jobs", {"name": name, "spec": spec})


def logs(server, muster, *args):
    return subprocess.run([muster.path, "jobs", "logs", *args], env={**os.environ, **server.env},
                          capture_output=True, text=True, timeout=300)


def test_a_log_is_read_whole_from_the_end_by_time_and_by_words(server, muster):
    job = submit(server, "two", "for i in 1 2 3; do echo out $i; echo err $i >&2; "
                 "until [ -e heard-$i ]; do sleep 0.02; done; done")
    for i in (1, 2, 3):         # two pipes: what comes first of a pair is not known
        wait_for(lambda: len(server.json("GET", "/api/jobs/default/two/logs")["lines"]) == 2 * i)
        (server.work(job) / f"heard-{i}").touch()
    server.reach("two")
    r = logs(server, muster, "two")
    assert r.stdout == "out 1\nout 2\nout 3\n" and r.stderr == "err 1\nerr 2\nerr 3\n"
    r = logs(server, muster, "two", "--tail", "2")
    assert sorted((r.stdout + r.stderr).split("\n")) == ["", "err 3", "out 3"]
    r = logs(server, muster, "two", "--search", "OUT")
    assert (r.stdout, r.stderr) == ("out 1\nout 2\nout 3\n", "")
    assert logs(server, muster, "two", "--since", "1h").stdout == "out 1\nout 2\nout 3\n"
    lines = server.json("GET", "/api/jobs/default/two/logs")["lines"]
    assert {(l["stream"], l["text"]) for l in lines} >= {("o", "out 2"), ("e", "err 2")}
    second = next(l["t"] for l in lines if l["text"] == "out 2")
    assert logs(server, muster, "two", "--since", f"{second:.6f}").stdout == "out 2\nout 3\n"
    r = logs(server, muster, "two", "--since", "yesterday")
    assert r.returncode == 2 and "--since takes a while ago (90s, 10m, 2h, 1d) or a time" in r.stderr


def test_a_log_is_downloaded_as_text_whatever_its_size(server, muster):
    submit(server, "much", "yes 'a line of the usual length, that says nothing' | head -n 400000; echo last")
    server.reach("much")
    status, headers, body = server.call("GET", "/api/jobs/default/much/logs?format=text")
    want = b"a line of the usual length, that says nothing\n" * 400000 + b"last\n"
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    assert headers["Content-Disposition"] == 'attachment; filename="much.log"'
    assert body == want
    r = logs(server, muster, "much")
    assert r.stdout.encode() == want
    # Little more than the text itself is on the disk.
    job = server.json("GET", "/api/jobs/default/much")
    files = joblog.numbered(server.data_dir / "jobs" / str(job["uid"]) / "1")
    assert sum(f.stat().st_size for f in files) < len(want) * 1.01
    memory = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read())[1])
    assert memory < 60000, f"{memory} kB"
    assert server.call("GET", "/api/jobs/default/much/logs?format=pdf")[0] == 400


def test_following_goes_on_when_the_server_is_killed_and_comes_back(muster, tmp_path):
    server = Server(muster, tmp_path / "data").start()
    try:
        go = "while ! test -e go; do sleep 0.05; done"
        job = submit(server, "long", f"for i in $(seq 1 50); do echo line $i; done; {go}; "
               "for i in $(seq 51 100); do echo line $i; done; sleep 0.2; echo done")
        env = {**os.environ, "MUSTER_DATA_DIR": str(server.data_dir)}
        env.pop("MUSTER_SERVER", None)
        out, err = tmp_path / "out", tmp_path / "err"
        with open(out, "w") as o, open(err, "w") as e:
            follower = subprocess.Popen([muster.path, "jobs", "logs", "-f", "long"], env=env, stdout=o,
                                        stderr=e)
        wait_for(lambda: "line 50\n" in out.read_text())
        server.kill()
        (server.work(job) / "go").touch()
        wait_for(lambda: "waiting" in err.read_text())
        server.start()                  # at another port
        assert follower.wait(120) == 0
        assert out.read_text() == "".join(f"line {i}\n" for i in range(1, 101)) + "done\n"
        assert err.read_text() == ("long: the server does not answer; waiting for it (the job goes on)\n"
                                   "long: succeeded\n")
    finally:
        server.stop()


def test_following_shows_the_attempts_one_after_the_other(server, muster):
    submit(server, "again", "echo attempt $MUSTER_ATTEMPT; test $MUSTER_ATTEMPT = 3",
           retries={"limit": 2, "backoff_s": 0})
    r = logs(server, muster, "again", "-f")
    assert r.stdout == "attempt 1\nattempt 2\nattempt 3\n" and r.returncode == 0
    assert logs(server, muster, "again").stdout == "attempt 3\n"
    place = server.json("GET", "/api/jobs/default/again/logs?after=1-0-0&limit=1")
    assert [l["text"] for l in place["lines"]] == ["attempt 1"]
    rest = server.json("GET", f"/api/jobs/default/again/logs?after={place['next']}")["lines"]
    assert [l["text"] for l in rest if l["stream"] == "o"] == ["attempt 2", "attempt 3"]


@pytest.mark.parametrize("limit,status", [("1M", 0), ("5", 2), ("1X", 2)])
def test_a_log_that_grows_beyond_its_limit_loses_its_oldest_lines(muster, tmp_path, limit, status):
    server = Server(muster, tmp_path / "data", "--log-limit", limit)
    if status:
        r = subprocess.run([muster.path, "serve", "--data-dir", str(tmp_path / "data"), "--port", "0",
                            "--log-limit", limit], capture_output=True, text=True, timeout=120)
        assert r.returncode == status and "--log-limit takes a size of 1M or more" in r.stderr
        return
    server.start()
    try:
        submit(server, "endless", "seq 1 1000000; test $MUSTER_ATTEMPT = 2",
               retries={"limit": 1, "backoff_s": 0})
        job = server.reach("endless")
        folder = server.data_dir / f"jobs/{job['uid']}"
        assert sum(f.stat().st_size for a in "12" for f in joblog.numbered(folder / a)) < 1.1 * 2**20
        said = logs(server, muster, "endless")
        dropped = int(re.match(r"(\d+) lines were dropped here", said.stderr)[1])
        lines = said.stdout.split()
        assert dropped > 500000 and int(lines[0]) == dropped + 1 and lines[-1] == "1000000"
        assert len(lines) == 1000000 - dropped
    finally:
        server.stop()
