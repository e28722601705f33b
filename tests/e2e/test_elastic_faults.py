"""What goes wrong in a job of many workers is said in one clear sentence, and the job goes on or
stops with nothing lost: at its end, here or resumed, the model is that of one undisturbed process."""
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from hosts import (LENET, TOKEN, Caller, Job, Process, alive, chain, die_with_parent, digest, free_port,
                   held, settings, stop_and_go, stopped, wait_for)

SLOW = 40               # steps a second at most, until the pace is lifted
CRAWL = 3               # for what has to happen before the end, however busy the machine is
LONG = ["epochs=10", *LENET[1:]]
OFTEN = ["checkpoint.every=10 steps"]


@pytest.fixture
def job_of(muster, lenet, tmp_path):
    """job_of(workers, ...) starts a job of LENET; all of them are ended with the test."""
    jobs = []

    def start(workers, *words, changes=LENET, pace=SLOW, out=tmp_path / "run", **kw):
        jobs.append(Job(muster, lenet, out, workers, *words, changes=changes, pace=pace, **kw))
        return jobs[-1]

    yield start
    for job in jobs:
        job.__exit__()


def one_sentence(said):
    """What was said is one line that names the program; the line."""
    lines = [line for line in said.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("muster: "), said
    return lines[0]


# ------------------------------------------------------------------ deaths, pauses, sizes


def test_a_killed_worker_is_replaced(job_of, lenet, alone):
    job = job_of("2..3", changes=LONG)
    job.wait_team(3)
    os.kill(job.pids()[0], signal.SIGKILL)
    job.wait_event("join", 4)
    assert job.digest() == alone(lenet, LONG)
    assert chain(job.out) == alone.chain(lenet, LONG)


def test_a_worker_that_cannot_be_replaced_does_not_stop_the_others(job_of, lenet, alone, data_dir,
                                                                    tmp_path):
    """Its data is gone, so that every new one fails; those who have read it go on."""
    data = tmp_path / "data"
    data.symlink_to(data_dir)
    job = job_of(2, changes=LONG, env={"MUSTER_DATA": str(data), "MUSTER_TORTURE": str(SLOW)})
    job.wait_team(2)
    data.unlink()
    os.kill(job.pids()[0], signal.SIGKILL)
    assert job.end() == 0, job.said     # at its pace: there is time for many that fail
    assert digest(job.out) == alone(lenet, LONG)
    assert chain(job.out) == alone.chain(lenet, LONG)
    assert len(job.history("go")[-1]["workers"]) == 1
    assert job.said.count("train-images-idx3-ubyte.gz") >= 2


def test_a_worker_that_sleeps_is_fenced_off_and_comes_back(job_of, lenet, alone):
    job = job_of("1..3", changes=LONG)
    job.wait_team(3)
    pid = job.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    job.wait_event("lost")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: pid in [h["pid"] for h in job.history("join")[3:]], why=job.story)
    assert job.digest() == alone(lenet, LONG)
    assert chain(job.out) == alone.chain(lenet, LONG)


def test_with_a_slow_beat_a_short_sleep_is_waited_for(job_of, lenet, alone):
    job = job_of(2, "--beat", "10000", changes=LONG)
    job.wait_team(2)
    stop_and_go(job.pids()[1], 1.5)     # 15 beats of the usual length
    assert job.digest() == alone(lenet, LONG)
    assert not job.history("lost") and len(job.history("join")) == 2


def test_a_beat_that_cannot_be_is_refused(muster, lenet, tmp_path):
    done = muster("train", lenet, "--workers", "2", "--beat", "5", "--out", tmp_path / "run",
                  check=False)
    assert done.returncode == 2 and "--beat wants milliseconds" in one_sentence(done.stderr)


def test_a_killed_coordinator_is_replaced_and_nobody_starts_over(job_of, lenet, alone):
    job = job_of("2..3", changes=LONG)
    job.wait_team(3)
    pids = job.pids()
    os.kill(job.coordinator(), signal.SIGKILL)
    job.wait_event("start", 2)
    assert {h["pid"] for h in [job.wait_event("back", n) for n in (1, 2, 3)]} == set(pids)
    wait_for(lambda: job.history("go")[-1]["step"] > 0, why=job.story)
    assert job.digest() == alone(lenet, LONG)
    assert chain(job.out) == alone.chain(lenet, LONG)
    steps = [h["step"] for h in job.history("go")]
    assert steps == sorted(steps) and steps[-1] > 0


def test_a_coordinator_that_sleeps_costs_no_step(job_of, lenet, alone):
    """All connections are given up meanwhile; the workers are the same when it wakes."""
    changes = [*LONG, "checkpoint.every=never"]
    job = job_of(2, changes=changes)
    job.wait_step(41)
    stop_and_go(job.coordinator(), 2.5)
    job.wait_event("back")
    wait_for(lambda: job.history("go")[-1]["step"] > 40, why=job.story)
    assert job.digest() == alone(lenet, changes)
    assert chain(job.out) == alone.chain(lenet, changes)
    steps = [h["step"] for h in job.history("go")]
    assert steps == sorted(steps) and steps[-1] > 40


def test_a_long_sleep_of_the_coordinator_costs_no_line_of_the_record(muster, root, tmp_path):
    """At full speed: the workers do more steps meanwhile than they remember, unless they wait."""
    spec, changes = root / "examples/fit-a-line/train.yaml", ["epochs=10000"]
    with Job(muster, spec, tmp_path / "run", 2, changes=changes) as job:
        job.wait_team(2)
        with stopped(job.coordinator()):
            time.sleep(2.5)
            assert job.poll() is None and len(job.read("metrics.jsonl").splitlines()) < 23000
        assert job.end() == 0, job.said
    lines = [json.loads(line) for line in job.read("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(100, 210001, 100))
    assert [line["step"] for line in lines if "test_loss" in line] == list(range(10, 210001, 10))


def test_resize_up_and_down_while_it_runs(muster, job_of, lenet, alone):
    job = job_of(1, changes=LONG)
    job.wait_team(1)
    said = muster("resize", job.out, "1..4").stdout
    assert "1..4 workers from now on" in said
    job.wait_team(4)
    muster("resize", job.out, 2)
    job.wait_team(2)
    job.wait_children(3)
    assert "3..3 workers from now on" in muster("resize", job.out, "3..3").stdout
    job.wait_team(3)
    assert job.status()["min"] == 3
    assert job.digest() == alone(lenet, LONG)
    assert chain(job.out) == alone.chain(lenet, LONG)


def drawn(muster, out, rows, columns):
    """What top draws for the first time on a terminal of that size, as lines."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with subprocess.Popen([muster.path, "top", out], stdout=far, stderr=far,
                          preexec_fn=die_with_parent) as top:
        os.close(far)
        text = ""
        while "\033[J" not in text:
            text += os.read(near, 4096).decode()
        top.kill()
    os.close(near)
    return text.split("\033[J")[0].replace("\033[K", "").split("\r\n")[:-1]


def test_top_fits_its_terminal(muster, job_of):
    job = job_of(3, pace=CRAWL)
    job.wait_team(3)
    # A busy machine may cost the list a worker for a moment: its size is waited for.
    whole = wait_for(lambda: (text := drawn(muster, job.out, 24, 100))[6:] and text, why=job.story)
    assert whole[0].startswith("fashion-lenet  ") and "127.0.0.1:" in whole[-1], whole
    narrow = wait_for(lambda: "and 2 more" in (text := drawn(muster, job.out, 7, 30))[-1] and text,
                      why=job.story)
    assert len(narrow) == 6 and max(map(len, narrow)) == 30, narrow


def test_top_tells_each_change_in_a_pipe(muster, job_of):
    job = job_of(1, changes=LONG)
    job.wait_team(1)
    with Process(muster, "top", job.out) as top:
        first = top.stdout.readline()           # it looks on
        muster("resize", job.out, 2)
        job.wait_team(2)
        job.lift()
        assert job.end() == 0, job.said
        lines = [line.rstrip("\n") for line in top.stdout]
    assert top.returncode == 0, lines
    assert re.match(r"worker 1 joined \(pid \d+, 127\.0\.0\.1:\d+\)", first), (first, lines)
    assert any(line.startswith("worker 2 joined") for line in lines), lines
    ended = r"ended  generation \d+  workers 2  epoch 10/10  step 300  loss "
    assert any(re.search(ended, line) for line in lines), lines
    assert lines[-1] == "the job has ended"


def test_resize_refuses_what_cannot_be(muster, job_of):
    job = job_of(1)
    job.wait_team(1)
    for size in ("0", "3..2", "65", "many"):
        done = muster("resize", job.out, size, check=False)
        assert done.returncode and one_sentence(done.stderr)
        assert job.status()["max"] == 1


def test_resize_and_top_say_when_there_is_no_job(muster, tmp_path):
    for words in (["resize", tmp_path, "2"], ["top", tmp_path, "--once"]):
        done = muster(*words, check=False)
        assert done.returncode and "no job of many workers runs here" in one_sentence(done.stderr)


def test_resize_and_top_say_when_the_job_has_ended(muster, job_of):
    job = job_of(1, pace=0)
    assert job.end() == 0, job.said
    for words in (["resize", job.out, "2"], ["top", job.out, "--once"]):
        done = muster(*words, check=False)
        assert done.returncode and "has ended" in one_sentence(done.stderr)


# ------------------------------------------------------------------ the end of everything


def test_kill_everything_and_resume(job_of, lenet, alone):
    changes = LENET + OFTEN
    job = job_of(3, changes=changes)
    job.wait_event("checkpoint", 2)
    everybody = [job.pid, *job.children()]
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)
    job.end()
    wait_for(lambda: not any(map(alive, everybody)))
    again = job_of("2..2", "--resume", changes=changes)
    assert again.digest() == alone(lenet, changes)
    assert again.history("load")[0]["step"] >= 20
    assert chain(again.out) == alone.chain(lenet, changes)


def test_a_killed_supervisor_leaves_nobody_behind(job_of, lenet, alone):
    changes = LENET + OFTEN
    job = job_of(3, changes=changes)
    job.wait_event("checkpoint")
    children = job.children()
    assert len(children) == 4
    job.kill()
    wait_for(lambda: not any(map(alive, children)), why=f"{children} live on")
    again = job_of(1, "--resume", changes=changes)
    assert again.digest() == alone(lenet, changes)


def test_ctrl_c_saves_and_says_how_to_go_on(muster, lenet, job_of, alone, tmp_path):
    job = job_of(2, process_group=0, pace=CRAWL)
    job.wait_step(3)
    os.killpg(job.pid, signal.SIGINT)           # as a terminal does: to everybody
    assert job.end() == 0, job.said
    said = re.search(r"stopped at step (\d+).*To go on:\n  (muster train .*)\n", job.said)
    assert said and "--workers 2" in said[2] and "--resume" in said[2], job.said
    assert list((job.out / "checkpoints").glob(f"step-{said[1]}.*"))
    words = [w.strip("'") for w in said[2].split()[1:]]
    muster(*words, "--quiet", env={"MUSTER_TOKEN": TOKEN})
    assert digest(job.out) == alone(lenet, LENET)


def test_a_stop_outlives_its_coordinator_and_the_job_goes_on_in_one_process(muster, lenet, job_of,
                                                                            alone):
    changes = LENET + OFTEN
    job = job_of(2, changes=changes, pace=CRAWL)
    job.wait_step(3)
    coordinator = job.coordinator()
    os.kill(coordinator, signal.SIGSTOP)        # it does not hear of the stop
    job.terminate()
    os.kill(coordinator, signal.SIGKILL)
    assert job.end() == 0, job.said
    assert re.search(r"stopped at step \d+", job.said) and len(job.history("start")) == 2
    muster("train", lenet, "--out", job.out, "--resume", "--quiet", *settings(changes))
    assert digest(job.out) == alone(lenet, changes)


def test_resume_takes_the_number_of_workers_it_is_given(job_of, lenet, alone):
    job = job_of(3, pace=CRAWL)
    job.wait_step(3)
    job.send_signal(signal.SIGINT)              # two at once are one, as timeout(1) sends them
    job.send_signal(signal.SIGTERM)
    assert job.end() == 0, job.said
    again = job_of(1, "--resume")
    again.wait_event("start", 2)
    assert again.digest() == alone(lenet, LENET)
    assert len(again.history("go")[-1]["workers"]) == 1


def test_resume_of_what_is_no_run_is_refused(job_of, tmp_path):
    (tmp_path / "empty").mkdir()
    job = job_of(2, "--resume", out=tmp_path / "empty")
    assert job.end() and "holds no run to go on with" in one_sentence(job.said)


def test_a_run_belongs_to_one_at_a_time(muster, lenet, job_of, alone):
    """Neither another job nor a single process touches what a job is at work on."""
    job = job_of(2, pace=CRAWL)
    job.wait_team(2)
    for words, says in ((["--resume"], "another muster train is at work"),
                        (["--workers", 2], "holds a run already")):
        done = muster("train", lenet, "--out", job.out, *words, *settings(LENET), check=False)
        assert done.returncode == 5 and says in one_sentence(done.stderr)
    assert job.digest() == alone(lenet, LENET)
    assert chain(job.out) == alone.chain(lenet, LENET)


def test_what_cannot_start_leaves_no_run_behind(muster, lenet, tmp_path):
    for words, env, says in (
            (["--listen", "0.0.0.0:0"], {}, "name the address"), (["--workers", "65"], {}, "at most 64"),
            ([], {"MUSTER_TOKEN": "short"}, "it needs 16")):
        done = muster("train", lenet, "--out", tmp_path / "run", "--workers", "2", *words,
                      *settings(LENET), env=env, check=False)
        assert done.returncode == 2 and says in one_sentence(done.stderr)
    low = subprocess.run(["sh", "-c", "ulimit -n 40; exec \"$@\"", "sh", muster.path, "train", lenet, "--out",
                          tmp_path / "run", "--workers", "30", *settings(LENET)], capture_output=True, text=True)
    assert low.returncode == 2 and "30 workers need 54 open files" in one_sentence(low.stderr)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("roster", ["garbage", "[]", '{"generation": 1, "next_id": 2, "workers": [1, 3]}'])
def test_a_damaged_roster_is_named_and_the_job_goes_on_without(roster, muster, lenet, killed, alone, tmp_path):
    run, changes = tmp_path / "run", killed[1]
    shutil.copytree(killed[0], run)
    (run / "roster.json").write_text(roster)
    words = ["train", lenet, "--out", run, "--resume", "--quiet", "--workers", 1, *settings(changes)]
    done = muster(*words, check=False)
    assert done.returncode == 2 and "roster.json: is damaged (remove it" in one_sentence(done.stderr)
    if roster == "garbage":
        (run / "roster.json").unlink()
        muster(*words)
        assert digest(run) == alone(lenet, changes)


# ------------------------------------------------------------------ disks


def test_a_disk_that_fills_during_a_checkpoint_costs_that_checkpoint(job_of, lenet, alone):
    """The checkpoint's own file cannot be had; the rest of the disk is fine."""
    changes = LENET + OFTEN
    job = job_of(2, changes=changes)
    job.wait_event("checkpoint", 2)
    (job.out / "checkpoints").rename(job.out / "kept")
    (job.out / "checkpoints").write_text("in the way")
    failed = wait_for(lambda: [h for h in job.history("checkpoint") if "failed" in h])[0]
    (job.out / "checkpoints").unlink()
    (job.out / "kept").rename(job.out / "checkpoints")
    assert job.digest() == alone(lenet, changes)
    assert f"the checkpoint of step {failed['step']} was not written" in job.said
    assert "the job goes on" in job.said


def test_a_full_disk_stops_the_job_with_nothing_lost(job_of, lenet, alone, tmp_path):
    changes = LENET + OFTEN
    full = job_of("2..2", changes=changes, pace=0, env={"MUSTER_FAULT": "write:30"})
    assert full.end() != 0
    assert "the disk is full" in full.said, full.said
    assert "was not written; still good: " in full.said
    again = job_of("2..2", "--resume", changes=changes)
    assert again.digest() == alone(lenet, changes)
    assert again.history("load")


def test_a_roster_that_cannot_be_stored_makes_the_job_wait(job_of, lenet, alone):
    """A worker dies while the disk takes nothing: those who are left wait until it does."""
    job = job_of("2..3", changes=LONG)
    job.wait_team(3)
    roster = job.out / "roster.json"
    roster.rename(job.out / "kept")
    roster.mkdir()
    (roster / "in the way").touch()
    os.kill(job.pids()[0], signal.SIGKILL)
    job.wait_event("lost")
    said = job.stderr.readline()
    went = len(job.history("go"))
    (roster / "in the way").unlink()
    roster.rmdir()
    assert job.digest() == alone(lenet, LONG)
    assert chain(job.out) == alone.chain(lenet, LONG)
    assert len(job.history("go")) > went
    assert "the job waits until its roster can be stored" in one_sentence(said + job.said)


@pytest.fixture(scope="module")
def killed(muster, root, tmp_path_factory):
    """A run with two checkpoints that ended in the middle."""
    changes = LENET + OFTEN
    with Job(muster, root / "examples/fashion-lenet/train.yaml", tmp_path_factory.mktemp("killed") / "run",
             2, changes=changes, pace=SLOW) as job:
        job.wait_event("checkpoint", 3)
    return job.out, changes


@pytest.mark.parametrize("harm", ["cut", "bits", "empty"])
@pytest.mark.parametrize("workers", [None, "2..2"])
def test_a_corrupt_checkpoint_is_passed_over_and_named(harm, workers, killed, muster, job_of, lenet,
                                                       alone, tmp_path):
    def step(path):
        return int(path.name.split("-")[1].split(".")[0])

    run, changes = tmp_path / "run", killed[1]
    shutil.copytree(killed[0], run)
    before, newest = sorted((run / "checkpoints").glob("step-*"), key=step)[-2:]
    raw = bytearray(newest.read_bytes())
    if harm == "bits":
        raw[-100] ^= 1
    newest.write_bytes(raw if harm == "bits" else raw[:len(raw) // 2] if harm == "cut" else b"")
    if workers:
        again = job_of(workers, "--resume", changes=changes, pace=0)
        assert again.digest() == alone(lenet, changes)
        said = again.said
        assert again.history("load")[0]["step"] == step(before)
    else:
        said = muster("train", lenet, "--out", run, "--resume", "--quiet", *settings(changes)).stderr
        assert digest(run) == alone(lenet, changes)
    assert newest.name in one_sentence(said) and f"going on from {before}" in said


def test_resize_says_that_the_job_was_killed_and_how_to_go_on(muster, killed):
    done = muster("resize", killed[0], 2, check=False)
    assert done.returncode == 4 and "if it was killed, muster train" in one_sentence(done.stderr)


# ------------------------------------------------------------------ who is refused


def test_a_wrong_token_is_refused(muster, job_of, lenet, alone):
    job = job_of(1)
    hand = job.join(env={"MUSTER_TOKEN": "another token, long enough"})
    assert hand.end() and "the token is not this job's" in one_sentence(hand.said)
    with pytest.raises(PermissionError):
        Caller(job.address(), "another token, long enough")
    (job.out / "token").write_text("another token, long enough")
    for words in (["resize", job.out, "2"], ["top", job.out, "--once"]):
        done = muster(*words, check=False)
        assert done.returncode == 3
        assert "token: is not the token of the job at 127." in one_sentence(done.stderr)
    hand = job.join(address=f"tls:{job.address()}")
    assert hand.end() and "does not use TLS (it is another's" in one_sentence(hand.said)
    assert job.digest() == alone(lenet, LENET)


def test_a_worker_without_a_token_is_told_where_it_is(muster, job_of):
    job = job_of(1)
    job.wait_event("start")
    for env, says in (({"MUSTER_TOKEN": "short"}, "has 5 characters, it needs 16"),
                      ({"MUSTER_TOKEN": ""}, "the file \"token\"")):
        hand = job.join(env=env)
        assert hand.end() and says in one_sentence(hand.said)


def test_a_job_with_a_short_token_does_not_start(job_of):
    job = job_of(1, env={"MUSTER_TOKEN": "short"})
    assert job.end() and "has 5 characters, it needs 16" in one_sentence(job.said)


def test_the_token_is_for_this_user_alone(muster, lenet, tmp_path):
    with Job(muster, lenet, tmp_path / "run", 1, changes=LENET, pace=SLOW) as job:
        job.wait_event("start")
        at = job.out / "token"
        assert at.stat().st_mode & 0o777 == 0o600
        for pid in [job.pid, *job.children()]:
            assert at.read_text() not in Path(f"/proc/{pid}/cmdline").read_text()


def hello(job, **changed):
    """What a worker of this job would say."""
    return {"role": "worker", "version": "0.1.0", "numerics": 1, "mark": "?", "data": "?",
            "address": "127.0.0.1:1", "host": "here", "pid": 1, "id": 0, **changed}


def refusal(job, **changed):
    with Caller(job.address()) as caller:
        caller.send("HELLO", hello(job, **changed))
        kind, text = caller.receive()
        assert kind == "REFUSED" and caller.closed()
        return text.decode()


def test_a_worker_of_another_version_or_numerics_is_refused(muster, job_of, lenet, alone):
    job = job_of(1)
    version = re.search(r"\d+\.\d+\.\d+", muster("--version").stdout)[0]
    assert "this worker is muster 9.9.9, the job runs " + version in refusal(job, version="9.9.9")
    assert "numerics version 999" in refusal(job, version=version, numerics=999)
    with Caller(job.address(), prove=False) as caller:
        caller.receive()
        caller.send("CHALLENGE", bytes(64), version=7)
        assert caller.closed()
    assert job.digest() == alone(lenet, LENET)
    assert {h["event"] for h in job.history() if "why" in h} == {"refused"}


def test_an_address_that_others_cannot_call_is_refused(job_of, tmp_path):
    job = job_of(1, changes=LONG)
    for i, address in enumerate(("0.0.0.0:0", ":0")):
        bad = job_of(1, "--listen", address, out=tmp_path / f"bad-{i}")
        assert bad.end() and "name the address of this host" in one_sentence(bad.said)
        hand = job.join("--listen", address)
        assert hand.end() and "name the address of this host" in one_sentence(hand.said)


def test_a_worker_may_be_started_before_its_job(muster, job_of, lenet, alone, tmp_path):
    address, until = f"127.0.0.1:{free_port()}", tmp_path / "lifted"
    early = Process(muster, "worker", "--join", address,
                    env={"MUSTER_TOKEN": TOKEN, **held(SLOW, until)})
    time.sleep(0.5)
    job = job_of(1, "--listen", address, changes=LONG, until=until)
    job.hands.append(early)
    job.wait_team(2)
    assert job.digest() == alone(lenet, LONG)
    assert early.end() == 0, early.said


def test_another_spec_and_other_data_are_refused(muster, job_of, lenet, alone, tmp_path):
    job = job_of(1, changes=LONG)
    other = job.join(lenet, *settings(LONG), "--set", "optimizer.sgd.lr=0.002")
    assert other.end() and "another spec than the job" in one_sentence(other.said)
    rows = job.join(lenet, *settings(LONG), "--set", "limit=232")
    assert rows.end() and "another spec than the job" in one_sentence(rows.said)
    assert job.digest() == alone(lenet, LONG)


def test_other_data_under_the_same_name_is_refused(muster, job_of, root, data_dir, alone, tmp_path):
    spec = root / "examples/fit-a-line/train.yaml"
    changes = ["epochs=3", "stop.test_loss.below=0"]
    mine = tmp_path / "data/boston_house_prices.csv"
    mine.parent.mkdir()
    text = (data_dir / mine.name).read_text()
    mine.write_text(text.replace("0.00632", "0.00633", 1))
    job = Job(muster, spec, tmp_path / "run", 1, changes=changes, pace=20)
    with job:
        hand = job.join(spec, *settings(changes), env={"MUSTER_DATA": str(mine.parent)})
        assert hand.end() and "reads other data than the job" in one_sentence(hand.said)
        assert job.digest() == alone(spec, changes)


# ------------------------------------------------------------------ strangers


GARBAGE = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(200), os.urandom(4096), b"musW" + b"\xff" * 300,
           b"musW\x01\x00\x00\x00" + bytes(16) + b"\xff" * 8, b"\n"]


def memory(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@pytest.mark.parametrize("whose", ["coordinator", "worker"])
def test_garbage_on_a_port_is_dropped(whose, job_of, lenet, alone):
    job = job_of("2..2")
    job.wait_team(2)
    worker = job.status()["workers"][0]
    pid, address = ((job.coordinator(), job.address()) if whose == "coordinator" else
                    (worker["pid"], worker["address"]))
    before = memory(pid)
    host, port = address.split(":")
    for garbage in GARBAGE * 10:
        with socket.create_connection((host, int(port)), timeout=60) as s:
            try:
                s.sendall(garbage)
                s.shutdown(socket.SHUT_WR)
            except OSError:
                pass                    # it hung up first
    # A header that announces much, from one who knows the token, takes what comes and no more.
    with Caller(address) as caller:
        caller.send("STATE", b"x" * 1000, length=1 << 35)
        caller.send("POST", b"x" * 1000, length=1 << 33)
    assert memory(pid) - before < 20000, "kB"
    wait_for(lambda: len(job.status()["workers"]) == 2)
    assert job.digest() == alone(lenet, LENET)
    assert {h["why"] for h in job.history("lost")} <= {"silent"}, job.story()   # on a busy machine


@pytest.mark.parametrize("whose", ["coordinator", "worker"])
def test_a_stranger_who_stays_is_shown_the_door(whose, job_of, lenet, alone):
    """Silent, or a byte at a time, or in numbers: the places are for workers."""
    job = job_of(2, changes=LONG)
    job.wait_team(2)
    address = job.address() if whose == "coordinator" else job.status()["workers"][0]["address"]
    crowd = [Caller(address, prove=False) for _ in range(150)]
    try:
        if whose == "coordinator":
            hand = job.join()
            job.wait_team(3)
        assert crowd[0].closed()
        drip, end = Caller(address, prove=False), time.monotonic() + 60
        with pytest.raises(OSError):
            while time.monotonic() < end:
                drip.socket.sendall(b"m")
                time.sleep(0.2)
        drip.socket.close()
    finally:
        for caller in crowd:
            caller.socket.close()
    assert job.digest() == alone(lenet, LONG)
    if whose == "coordinator":
        assert hand.end() == 0, hand.said
