"""Jobs of a running server: they outlive it, are ended whole, limited, and tried again."""
import json
import subprocess
import time

from server import Server

ENDED = ("succeeded", "failed", "cancelled")


def submit(server, name, script, **more):
    spec = {"kind": "command", "command": ["sh", "-c", script], "resources": {"cpu": 0.1}, **more}
    return server.json("POST", "/api/jobs", {"name": name, "spec": spec})


def wait_for(server, name, states=ENDED, seconds=60):
    until = time.time() + seconds
    while True:
        job = server.json("GET", f"/api/jobs/default/{name}")
        if job["state"] in states:
            return job
        assert job["state"] not in ENDED and time.time() < until, job
        time.sleep(0.02)


def log_of(muster, server, name):
    return muster("jobs", "logs", name, env=server.env).stdout


def sleepers(seconds):
    return subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True).returncode == 0


def test_a_job_goes_on_while_its_server_is_killed_and_started_again(muster, server):
    submit(server, "long", "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.25; done; exit 3")
    wait_for(server, "long", ("running",))
    for _ in range(2):
        server.kill()
        time.sleep(0.3)
        server.start()
    job = wait_for(server, "long")
    assert job["state"] == "failed" and job["reason"] == "exit code 3" and job["attempt"] == 1
    lines = [x for x in log_of(muster, server, "long").splitlines() if "line" in x]
    assert [x.split("line ")[1] for x in lines] == [str(i) for i in range(1, 9)]


def test_a_job_that_ends_while_there_is_no_server_is_found_ended(server):
    submit(server, "short", "sleep 0.5; exit 4")
    wait_for(server, "short", ("running",))
    server.kill()
    time.sleep(1)
    server.start()
    assert wait_for(server, "short")["reason"] == "exit code 4"


def test_a_cancel_ends_the_whole_tree(muster, server):
    submit(server, "tree", "(setsid sleep 7401 &); sleep 7401 & sleep 7401")
    wait_for(server, "tree", ("running",))
    time.sleep(0.2)
    assert sleepers(7401)
    muster("jobs", "cancel", "tree", env=server.env)
    assert wait_for(server, "tree")["state"] == "cancelled"
    assert not sleepers(7401)


def test_a_time_limit_is_the_reason(server):
    submit(server, "slow", "sleep 100", time_limit_s=1)
    job = wait_for(server, "slow")
    assert job["state"] == "failed" and job["reason"] == "ran longer than its limit of 1 s"


def test_a_job_is_tried_again_in_a_fresh_directory(muster, server):
    submit(server, "again", "test -e was && echo old; touch was; exit 1",
           retries={"limit": 2, "backoff_s": 0})
    job = wait_for(server, "again")
    assert job["state"] == "failed" and job["attempt"] == 3
    assert "old" not in log_of(muster, server, "again")


def test_secrets_reach_the_job_and_nothing_else(muster, server):
    muster("secret", "set", "pass", env=server.env, input="swordfish\n")
    submit(server, "s", "echo ${#PASS}", secrets={"PASS": "pass"})
    assert wait_for(server, "s")["state"] == "succeeded"
    assert "9" in log_of(muster, server, "s")
    for f in (server.data_dir / "jobs").rglob("*"):
        if f.is_file():
            assert b"swordfish" not in f.read_bytes(), f
    assert "swordfish" not in json.dumps(server.json("GET", "/api/jobs/default/s"))


def test_a_gpu_is_seen_by_the_job_that_has_it_and_by_no_other(muster, tmp_path):
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):          # a machine with one, as far as files go
        (tmp_path / "gpu/dev").mkdir(parents=True, exist_ok=True)
        (tmp_path / "gpu/dev" / name).touch()
    look = "echo sees $(ls /dev | grep nvidia) as $CUDA_VISIBLE_DEVICES.; "
    with Server(muster, tmp_path / "data", env={"MUSTER_GPU_ROOT": str(tmp_path / "gpu")}) as server:
        first = submit(server, "first", look + "while ! [ -e go ]; do sleep 0.05; done",
                       resources={"cpu": 0.1, "gpu": 1})
        wait_for(server, "first", ("running",))
        submit(server, "second", look, resources={"cpu": 0.1, "gpu": 1})
        submit(server, "many", look, resources={"cpu": 0.1, "gpu": 2})
        submit(server, "none", look)
        assert wait_for(server, "none")["state"] == "succeeded"
        assert wait_for(server, "many")["reason"] == "it asks for 2 GPUs, and the machine has 1 GPU"
        assert server.json("GET", "/api/jobs/default/second")["state"] == "queued"
        server.kill()                                            # who has it is nobody's memory
        server.start()
        assert server.json("GET", "/api/jobs/default/second")["state"] == "queued"
        (tmp_path / f"data/jobs/{first['uid']}/1/work/go").touch()
        assert wait_for(server, "first")["state"] == wait_for(server, "second")["state"] == "succeeded"
        for name in ("first", "second"):
            assert "sees nvidia-uvm nvidia0 nvidiactl as 0." in log_of(muster, server, name)
        assert "sees as ." in log_of(muster, server, "none")
