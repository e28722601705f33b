"""kill -9 of the server at every failure point, a full disk, 50,000 jobs: nothing vanishes, nothing runs
twice, nothing is stuck.

A failure point (store_point in server/store.h) is passed around every commit and every start of a job;
MUSTER_STORE_FAULT=N kills the server at the N-th one.
"""
import http.client
import itertools
import json
import os
import random
import subprocess
import threading
import time

import hosts
import joblog
import pytest
from server import Server, edited

DONE = ("succeeded", "failed", "cancelled")
# Its log and its own folder say how often it ran.
JOB = {"kind": "command", "command": ["sh", "-c", "echo ran; echo ran >> ran"],
       "resources": {"cpu": 0.1}}


def start(server, fault=None):
    """False: it died on the way up."""
    server.extra = {"MUSTER_STORE_FAULT": str(fault)} if fault else {}
    try:
        server.start()
        return True
    except AssertionError:
        if server.process.returncode == -9:
            return False
        raise


def ask(server, *args, **kw):
    """None: the server died before it answered."""
    try:
        return server.call(*args, **kw)
    except (OSError, http.client.HTTPException):
        server.process.wait(120)
        return None


def wait_for(server, name, states=DONE, seconds=120):
    """The job in one of these states; None: the server died."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ask(server, "GET", f"/api/jobs/default/{name}")
        if answer is None:
            return None
        job = json.loads(answer[2])
        if job.get("state") in states:
            return job
        time.sleep(0.01)
    raise AssertionError(f"job {name} is stuck: {job}")


def submit(server, name, spec, acknowledged):
    answer = ask(server, "POST", "/api/jobs", {"name": name, "spec": spec})
    if answer and answer[0] == 201:
        acknowledged.add(name)
    return answer


def times_run(server, job):
    """By the files of all attempts, and by their logs."""
    folder = server.data_dir / "jobs" / str(job["uid"])
    files = sum(f.read_text().count("ran") for f in folder.glob("*/work/ran"))
    logs = sum(text == "ran" for attempt in folder.glob("*") for _, _, _, text in joblog.read(attempt))
    return files, logs


def events(server, name):
    return [e["type"] for e in server.json("GET", f"/api/jobs/default/{name}/events")["events"]]


def at_every_point(muster, tmp_path, story, most=400):
    """Runs story(server, fault) for a server that dies at its 1st, 2nd, ... point, until it does not."""
    for fault in range(1, most):
        server = Server(muster, tmp_path / str(fault))
        try:
            if not story(server, fault):
                print(f"{fault - 1} failure points")
                return fault - 1
        finally:
            server.kill()
            done = muster("serve", "--data-dir", server.data_dir, "--check", timeout=300)
            assert "is sound" in done.stdout
    raise AssertionError(f"more than {most} failure points?")


def test_a_server_killed_at_every_point_of_submit_and_completion(muster, tmp_path):
    # Long enough to be seen running: its start and its end are two transactions.
    spec = {**JOB, "command": [*JOB["command"][:2], JOB["command"][2] + "; sleep 0.1"]}

    def story(server, fault):
        acknowledged = set()
        died = not start(server, fault)
        if not died:
            died = submit(server, "j", spec, acknowledged) is None or wait_for(server, "j") is None
        if died:
            start(server)
            known = server.call("GET", "/api/jobs/default/j")[0] == 200
            assert known or not acknowledged, f"point {fault}: an acknowledged job is gone"
            if not known:
                submit(server, "j", spec, acknowledged)
        job = wait_for(server, "j")
        assert job["state"] == "succeeded", f"point {fault}: {job}"
        assert job["attempt"] == 1 and times_run(server, job) == (1, 1), f"point {fault}"
        assert events(server, "j") == ["job.submitted", "job.preparing", "attempt.started",
                                       "attempt.ended", "job.ended"] or died
        return died

    assert at_every_point(muster, tmp_path, story) > 20


def test_a_server_killed_at_every_point_of_a_cancel(muster, tmp_path):
    sleeper = {"kind": "command", "command": ["sleep", "1000"], "resources": {"cpu": 0.1}}

    def story(server, fault):
        server.start()
        submit(server, "j", sleeper, set())
        wait_for(server, "j", ("running",))
        server.kill()
        died = not start(server, fault)
        asked = None if died else ask(server, "POST", "/api/jobs/default/j/cancel")
        if died or asked is None or wait_for(server, "j") is None:
            died = True
            start(server)
            state = server.json("GET", "/api/jobs/default/j")["state"]
            assert asked is None or state in ("cancelling", "cancelled")
            if state == "running":
                assert server.call("POST", "/api/jobs/default/j/cancel")[0] == 200
        job = wait_for(server, "j")
        assert job["state"] == "cancelled" and job["attempt"] == 1
        hosts.wait_for(lambda: subprocess.run(["pgrep", "-f", f"keeper {server.data_dir}/"],
                                              stdout=subprocess.DEVNULL).returncode == 1)
        return died

    assert at_every_point(muster, tmp_path, story) > 5


def test_a_server_killed_again_and_again_while_many_submit(muster, tmp_path):
    server = Server(muster, tmp_path / "data").start()
    acknowledged, stop = set(), threading.Event()

    def client(i):
        for k in itertools.count():
            if stop.is_set():
                return
            try:
                if server.call("POST", "/api/jobs", {"name": f"c{i}-{k}", "spec": JOB})[0] == 201:
                    acknowledged.add(f"c{i}-{k}")
            except (OSError, http.client.HTTPException, AttributeError):
                pass
            time.sleep(0.02)

    clients = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(4)]
    for c in clients:
        c.start()
    dice = random.Random(5)
    try:
        for _ in range(8):
            time.sleep(dice.uniform(0.05, 0.5))
            server.kill()
            server.start()
        hosts.wait_for(lambda: len(acknowledged) > 20)
    finally:
        stop.set()
        for c in clients:
            c.join()
    for name in acknowledged:
        job = wait_for(server, name)
        assert job["state"] == "succeeded", job
        assert job["attempt"] == 1 and times_run(server, job) == (1, 1), job
    print(f"{len(acknowledged)} jobs, each ran once")
    server.stop()
    assert "is sound" in muster("serve", "--data-dir", server.data_dir, "--check").stdout


def test_a_killed_keeper_is_a_failed_attempt_and_is_tried_again(server):
    spec = {"kind": "command", "resources": {"cpu": 0.1}, "retries": {"limit": 1, "backoff_s": 0},
            "command": ["sh", "-c", "echo ran >> ran; [ $MUSTER_ATTEMPT = 2 ] || sleep 1000"]}
    submit(server, "j", spec, set())
    wait_for(server, "j", ("running",))
    log = server.json("GET", "/api/jobs/default/j/events")["events"]
    keeper = [e["pid"] for e in log if e["type"] == "attempt.started"][0]
    os.kill(keeper, 9)
    job = wait_for(server, "j")
    assert job["state"] == "succeeded" and job["attempt"] == 2
    assert "job.retrying" in events(server, "j")


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "muster-test", disk],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small disk can be made here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk])


def fill(path):
    with open(path, "wb", buffering=0) as f:
        try:
            while f.write(b"x" * 4096):
                pass
        except OSError:
            pass


def test_a_full_disk_is_one_clear_error_and_work_goes_on_after(muster, small_disk):
    with Server(muster, small_disk / "data") as server:
        acknowledged = set()
        slow = {**JOB, "command": ["sh", "-c", "touch hold; echo ran; while [ -e hold ]; do sleep 0.1; done"]}
        submit(server, "slow", slow, acknowledged)
        hold = server.work(wait_for(server, "slow", ("running",))) / "hold"
        hosts.wait_for(hold.exists)
        fill(small_disk / "filler")
        told = None
        for i in range(300):
            status, _, body = submit(server, f"j{i}", {**JOB, "labels": {"x": "y" * 2000}},
                                     acknowledged)
            if status != 201:
                told = status, json.loads(body)["error"]["message"]
                break
        assert told and told[0] >= 500 and "the disk is full" in told[1], told
        assert f"j{i}" not in acknowledged
        hold.unlink()
        time.sleep(0.5)                         # "slow" ends, and cannot be recorded
        (small_disk / "filler").unlink()
        assert submit(server, "after", JOB, acknowledged)[0] == 201
        for name in acknowledged:
            job = wait_for(server, name)
            assert job["state"] == "succeeded", job
        assert server.call("GET", f"/api/jobs/default/j{i}")[0] == 404


def test_lines_that_a_full_disk_took_are_told(muster, small_disk):
    with Server(muster, small_disk / "data") as server:
        loud = {**JOB, "command": ["sh", "-c", "touch hold; while [ -e hold ]; do sleep 0.05; done; seq 1000"]}
        assert submit(server, "loud", loud, set())[0] == 201
        hold = server.work(wait_for(server, "loud", ("running",))) / "hold"
        hosts.wait_for(hold.exists)
        fill(small_disk / "filler")
        hold.unlink()
        job = wait_for(server, "loud")
        assert job["state"] == "succeeded" and "lines of its log were lost" in job["reason"], job


def test_a_job_that_fills_the_disk_in_its_first_moments_is_told_as_ended(muster, small_disk):
    with Server(muster, small_disk / "data") as server:
        for i in range(6):
            quick = {**JOB, "command": ["sh", "-c", "cat /dev/zero >big"]}
            assert submit(server, f"q{i}", quick, set())[0] == 201
            assert wait_for(server, f"q{i}", seconds=20)["state"] == "failed"
            muster("jobs", "delete", f"q{i}", env=server.env)


def test_a_disk_that_a_job_filled_is_cleared_by_the_jobs_commands(muster, small_disk):
    with Server(muster, small_disk / "data") as server:
        holder = {**JOB, "command": ["sleep", "1000"]}
        assert submit(server, "holder", holder, set())[0] == 201
        wait_for(server, "holder", ("running",))
        filler = {**JOB, "command": ["sh", "-c", "cat /dev/zero >big; echo full; sleep 1000"]}
        assert submit(server, "filler", filler, set())[0] == 201
        job = wait_for(server, "filler")        # it is ended before others are hurt
        assert job["state"] == "failed" and job["reason"].startswith("killed: wrote more than its"), job
        fill(small_disk / "rest")               # nobody of ours: to the last byte
        server.stop()
        server.start()                          # also when it is full
        muster("jobs", "cancel", "holder", env=server.env)
        assert wait_for(server, "holder", ("cancelled",))
        muster("jobs", "delete", "filler", env=server.env)
        (small_disk / "rest").unlink()
        assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize > 2 << 20
        assert submit(server, "after", JOB, set())[0] == 201
        assert wait_for(server, "after")["state"] == "succeeded"


def test_uploads_and_logs_leave_room_to_delete_them(muster, small_disk):
    with Server(muster, small_disk / "data") as server:
        muster("storage", "mb", "gs://bkt", env=server.env)
        one = small_disk.parent / "one"
        for size in (1 << 20, 1 << 17):         # until not even a small one fits
            for i in range(9):
                one.write_bytes(os.urandom(size))
                done = muster("storage", "cp", one, f"gs://bkt/{size}/{i}", env=server.env, check=False)
                if done.returncode:
                    break
            assert done.returncode and "the disk is full" in done.stderr
        loud = {**JOB, "command": ["sh", "-c", "head -c 6000000 /dev/urandom | base64"]}
        assert submit(server, "loud", loud, set())[0] == 201
        job = wait_for(server, "loud")
        assert job["state"] == "succeeded" and "lines of its log were lost" in job["reason"], job
        reserve = server.data_dir / "reserve"
        assert reserve.stat().st_size == 1 << 20
        fill(small_disk / "filler")             # nobody of ours: to the last byte
        server.stop()
        server.start()
        muster("storage", "rm", "-r", "gs://bkt", env=server.env)
        muster("jobs", "delete", "loud", env=server.env)
        assert submit(server, "after", JOB, set())[0] == 201
        assert wait_for(server, "after")["state"] == "succeeded"
        hosts.wait_for(lambda: reserve.stat().st_size == 1 << 20)


def test_fifty_thousand_queued_jobs_are_listed_at_once(muster, tmp_path):
    with Server(muster, tmp_path / "data") as server:
        # Waits for a machine that it never gets to itself: what is behind it waits, too.
        blocker = {"kind": "command", "command": ["sleep", "1000"],
                   "resources": {"cpu": os.cpu_count()}}
        server.json("POST", "/api/jobs", {"name": "blocker", "spec": blocker})
        wait_for(server, "blocker", ("running",))
        spec = {**JOB, "resources": {"cpu": 1}}
        server.json("POST", "/api/jobs", {"name": "first", "spec": spec})
        server.kill()
        with edited(server.data_dir) as db:
            (first,) = db.execute("SELECT id FROM jobs WHERE name = 'first'").fetchone()
            numbers = [(first, first + 1000 + i) for i in range(50_000)]
            db.executemany("INSERT INTO events SELECT ?2, ?2, t, type, replace(body, '\"first\"', "
                           "'\"q' || ?2 || '\"') FROM events WHERE seq = ?1", numbers)
            columns = [c[1] for c in db.execute("PRAGMA table_info(jobs)")]
            picked = ", ".join({"id": "?2", "name": "'q' || ?2"}.get(c, c) for c in columns)
            db.executemany(f"INSERT INTO jobs SELECT {picked} FROM jobs WHERE id = ?1", numbers)
        server.start()
        for query in ("", "?state=queued", "?state=queued&project=default", "?text=q2599",
                      "?state=queued&limit=1000"):
            best, limit = 1e9, 0.1 if query == "?state=queued" else 0.5
            for _ in range(100):                # the machine may be busy, but not all the time
                begin = time.perf_counter()
                got = server.json("GET", "/api/jobs" + query)
                best = min(best, time.perf_counter() - begin)
                if best < limit:
                    break
            assert got["jobs"] and best < limit, (query, best)
            print(f"GET /api/jobs{query}: {len(got['jobs'])} jobs in {best * 1000:.1f} ms")
        begin = time.perf_counter()
        done = muster("jobs", "list", "--state", "queued", env=server.env)
        print(f"muster jobs list: {(time.perf_counter() - begin) * 1000:.1f} ms")
        assert len(done.stdout.splitlines()) == 100
        counts = server.json("GET", "/api/machine")["jobs"]
        assert counts["queued"] >= 50_000
        server.json("POST", "/api/jobs/default/blocker/cancel")
        wait_for(server, "blocker")
