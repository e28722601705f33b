"""Jobs of a running server: they outlive it, are ended whole, limited, and tried again."""
import json
import time

from hosts import SLEEPS, sleeping, wait_for
from server import Server

WAIT = "until [ -e go ]; do sleep 0.05; done; "


def submit(server, name, script, **more):
    spec = {"kind": "command", "command": ["sh", "-c", script], "resources": {"cpu": 0.1}, **more}
    return server.json("POST", "/api/jobs", {"name": name, "spec": spec})


def log_of(muster, server, name):
    return muster("jobs", "logs", name, env=server.env).stdout


def test_a_job_goes_on_while_its_server_is_killed_and_started_again(muster, server):
    job = submit(server, "long", "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.25; done; " + WAIT +
                 "echo line 7; exit 3")
    server.reach("long", "running")
    for _ in range(2):
        server.kill()
        time.sleep(0.3)
        server.start()
    (server.work(job) / "go").touch()
    job = server.reach("long")
    assert job["state"] == "failed" and job["reason"] == "exit code 3" and job["attempt"] == 1
    lines = [x for x in log_of(muster, server, "long").splitlines() if "line" in x]
    assert [x.split("line ")[1] for x in lines] == [str(i) for i in range(1, 8)]


def test_a_job_that_ends_while_there_is_no_server_is_found_ended(server):
    job = submit(server, "short", WAIT + "exit 4")
    server.reach("short", "running")
    server.kill()
    (server.work(job) / "go").touch()
    wait_for((server.work(job).parent / "exit.json").exists)
    server.start()
    assert server.reach("short")["reason"] == "exit code 4"


def test_a_cancel_ends_the_whole_tree(muster, server):
    long = SLEEPS + 3
    submit(server, "tree", f"(setsid sleep {long} &); sleep {long} & sleep {long}")
    server.reach("tree", "running")
    wait_for(lambda: sleeping(long) == 3)
    muster("jobs", "cancel", "tree", env=server.env)
    server.reach("tree", "cancelled")
    wait_for(lambda: not sleeping(long))


def test_a_time_limit_is_the_reason(server):
    submit(server, "slow", "sleep 100", time_limit_s=1)
    job = server.reach("slow")
    assert job["state"] == "failed" and job["reason"] == "ran longer than its limit of 1 s"


def test_a_job_is_tried_again_in_a_fresh_directory(muster, server):
    submit(server, "again", "test -e was && echo old; touch was; exit 1",
           retries={"limit": 2, "backoff_s": 0})
    job = server.reach("again")
    assert job["state"] == "failed" and job["attempt"] == 3
    assert "old" not in log_of(muster, server, "again")


def test_secrets_reach_the_job_and_nothing_else(muster, server):
    muster("secret", "set", "pass", env=server.env, input="swordfish\n")
    submit(server, "s", "echo ${#PASS}", secrets={"PASS": "pass"})
    assert server.reach("s")["state"] == "succeeded"
    assert "9" in log_of(muster, server, "s")
    for f in (server.data_dir / "jobs").rglob("*"):
        if f.is_file():
            assert b"swordfish" not in f.read_bytes(), f
    assert "swordfish" not in json.dumps(server.json("GET", "/api/jobs/default/s"))


def test_a_secret_or_token_that_a_job_prints_is_masked_in_its_log(muster, server):
    muster("secret", "set", "pass", env=server.env, input="swordfish\n")
    submit(server, "tells", "echo it is $PASS; echo $MUSTER_TOKEN >&2; env; printf sword; sleep 0.1; echo fish",
           secrets={"PASS": "pass"})
    assert server.reach("tells")["state"] == "succeeded"
    text = log_of(muster, server, "tells")
    assert "it is ***" in text and "PASS=***" in text and "MUSTER_TOKEN=***" in text
    assert "swordfish" not in text and "job_" not in text
    for f in (server.data_dir / "jobs").rglob("*"):
        assert not f.is_file() or b"swordfish" not in f.read_bytes(), f


def test_a_gpu_is_seen_by_the_job_that_has_it_and_by_no_other(muster, tmp_path):
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):          # a machine with one, as far as files go
        (tmp_path / "gpu/dev").mkdir(parents=True, exist_ok=True)
        (tmp_path / "gpu/dev" / name).touch()
    look = "echo sees $(ls /dev | grep nvidia) as $CUDA_VISIBLE_DEVICES.; "
    with Server(muster, tmp_path / "data", env={"MUSTER_GPU_ROOT": str(tmp_path / "gpu")}) as server:
        first = submit(server, "first", look + "while ! [ -e go ]; do sleep 0.05; done",
                       resources={"cpu": 0.1, "gpu": 1})
        server.reach("first", "running")
        submit(server, "second", look, resources={"cpu": 0.1, "gpu": 1})
        submit(server, "many", look, resources={"cpu": 0.1, "gpu": 2})
        submit(server, "none", look)
        assert server.reach("none")["state"] == "succeeded"
        assert server.reach("many")["reason"] == "it asks for 2 GPUs, and the machine has 1 GPU"
        assert server.json("GET", "/api/jobs/default/second")["state"] == "queued"
        server.kill()                                            # who has it is nobody's memory
        server.start()
        assert server.json("GET", "/api/jobs/default/second")["state"] == "queued"
        (tmp_path / f"data/jobs/{first['uid']}/1/work/go").touch()
        assert server.reach("first")["state"] == server.reach("second")["state"] == "succeeded"
        for name in ("first", "second"):
            assert "sees nvidia-uvm nvidia0 nvidiactl as 0." in log_of(muster, server, name)
        assert "sees as ." in log_of(muster, server, "none")
