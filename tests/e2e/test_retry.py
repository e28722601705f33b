"""Native training that is lost goes on from its last checkpoint, and ends with the same bits."""
import contextlib
import hashlib
import os
import signal
from pathlib import Path

import pytest
from hosts import wait_for


def job(server, name):
    return server.json("GET", f"/api/jobs/default/{name}")


def processes(folder):
    """Of training below this folder, whatever they are in."""
    for p in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = p.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"train" in words[1:2] and any(w.startswith(os.fsencode(folder)) for w in words):
            yield int(p.parent.name)


def kill_all(folder):
    for pid in processes(folder):
        with contextlib.suppress(ProcessLookupError):       # it went with another
            os.kill(pid, signal.SIGKILL)


def weights(server, name):
    (file,) = server.data_dir.glob(f"jobs/{job(server, name)['uid']}/*/work/run/weights.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_retry_goes_on_from_the_last_checkpoint(muster, server, lenet, workers):
    sets = ["--set", "limit=3000", "--set", "epochs=8", "--set", "batch=8", "--set",
            "test.every=never", "--set", "checkpoint.every=100 steps", "--set", "resources.cpu=0.5",
            "--workers", workers]
    muster("submit", lenet, *sets, "--name", "whole", env=server.env)
    wait_for(lambda: job(server, "whole")["state"] == "succeeded")

    # Killed twice, by the kernel as far as it knows; a retry comes at once.
    spec = job(server, "whole")["spec"]
    server.json("POST", "/api/jobs", {"name": "lost", "spec": {
        **spec, "retries": {"limit": 3, "backoff_s": 0}}})
    home = server.data_dir / f"jobs/{job(server, 'lost')['uid']}"
    for attempt in (1, 2):
        run = home / f"{attempt}/work/run"
        wait_for(lambda: list(processes(run.parent)))
        before = set(run.glob("checkpoints/*.safetensors"))
        wait_for(lambda: set(run.glob("checkpoints/*.safetensors")) - before)
        kill_all(run.parent)
        wait_for(lambda: job(server, "lost")["attempt"] > attempt)
    wait_for(lambda: job(server, "lost")["state"] == "succeeded")
    said = [line["text"] for line in server.json("GET", "/api/jobs/default/lost/logs")["lines"]]
    assert said[0] == "going on with the run of attempt 2"
    if workers == "1":          # a coordinator says nothing of it
        (step,) = [int(line.split()[-1]) for line in said if line.startswith("going on from step ")]
        assert step >= 200
    assert not list(home.glob("3/work/run/checkpoints/*.tmp-*"))
    assert weights(server, "lost") == weights(server, "whole")
    assert job(server, "lost")["attempt"] == 3


def test_one_that_is_lost_before_its_first_checkpoint_begins_again(muster, server, lenet):
    sets = ["--set", "limit=2000", "--set", "epochs=3", "--set", "batch=8", "--set",
            "test.every=never", "--set", "checkpoint.every=never"]
    muster("submit", lenet, *sets, "--name", "first", env=server.env)
    server.json("POST", "/api/jobs", {"name": "early", "spec": {
        **job(server, "first")["spec"], "retries": {"limit": 1, "backoff_s": 0}}})
    home = server.data_dir / f"jobs/{job(server, 'early')['uid']}"
    wait_for(lambda: (home / "1/work/run/metrics.jsonl").exists() and list(processes(home / "1")))
    kill_all(home / "1")
    doc = wait_for(lambda: (d := job(server, "early"))["state"] in ("succeeded", "failed") and d)
    assert (doc["state"], doc["attempt"]) == ("succeeded", 2)
    wait_for(lambda: job(server, "first")["state"] == "succeeded")
    assert weights(server, "early") == weights(server, "first")
