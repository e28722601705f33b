"""A distributed program of the user's own: PyTorch's DDP, unmodified, and workers that misbehave."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hosts import wait_for

WORKER = Path(__file__).parent / "programs/worker.py"
SENTENCE = re.compile(r"muster: [^\n]+\n")


@pytest.fixture
def train(muster, tmp_path):
    """Runs workers: train("--workers", "2", "--", ...) with the plain Python of the tests."""
    def call(*args, python=WORKER, check=True, env=None):
        return muster("train", *(["--python", python] if python else []), "--out", tmp_path / "run",
                      *args, check=check, cwd=tmp_path, timeout=300,
                      env={"MUSTER_PYTHON": sys.executable, **(env or {})})
    call.run = tmp_path / "run"
    return call


def result(run):
    return json.loads((run / "run.json").read_text())


def members(run):
    """Processes that have the run in their environment: {pid: rank}."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or "\nState:\tZ" in (entry / "status").read_text():
                continue
            env = dict(item.split("=", 1) for item in
                       (entry / "environ").read_text(errors="replace").split("\0") if "=" in item)
        except OSError:
            continue
        if env.get("MUSTER_RUN") == str(run.resolve()):
            found[int(entry.name)] = int(env["RANK"])
    return found


def nobody_left(run):
    wait_for(lambda: not members(run), why=lambda: str(members(run)))


def start(muster, run, *args, python=WORKER, env=None, **kw):
    return subprocess.Popen([muster.path, "train", "--python", str(python), "--out", str(run),
                             *map(str, args)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE,
                            env={**os.environ, "MUSTER_PYTHON": sys.executable, **(env or {})}, **kw)


def log(run, rank):
    path = run / f"logs/worker-{rank}.log"
    return path.read_text() if path.exists() else ""


# ------------------------------------------------------------------ PyTorch

def losses(text):
    return [float(x) for x in re.findall(r"epoch \d+  loss ([\d.]+)", text)]


def test_two_workers_of_an_unmodified_ddp_program_train(muster, root, torch_python, tmp_path):
    done = muster("train", "--python", root / "examples/ddp/train.py", "--workers", "2", "--out",
                  tmp_path / "run", "--", "--epochs", "6", env={"MUSTER_PYTHON": torch_python})
    assert "muster" not in re.sub(r'""".*?"""', "", (root / "examples/ddp/train.py").read_text(),
                                  flags=re.S)
    said = done.stdout.splitlines()
    assert len(said) == 6 and all(line.startswith("[0] epoch") for line in said)
    assert said[-1].endswith("workers 2")
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] / 2
    assert result(tmp_path / "run")["exit"] == 0


def test_a_killed_worker_restarts_the_group_which_goes_on(muster, root, torch_python, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--workers", 2, "--", "--epochs", 80, "--checkpoint",
              tmp_path / "state.pt", python=root / "examples/ddp/train.py",
              env={"MUSTER_PYTHON": torch_python})
    (victim,) = wait_for(lambda: [pid for pid, rank in members(run).items() if rank == 1])
    wait_for(lambda: len(losses(log(run, 0))) >= 3)
    os.kill(victim, signal.SIGKILL)
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert "worker 1 was killed by signal 9 (Killed)" in err and "restart 1 of 3" in err
    told = [int(n) for n in re.findall(r"epoch (\d+) ", log(run, 0))]
    assert told[-1] == 80 and len(told) < 84          # it went on from its checkpoint
    assert re.findall(r"^--- start (\d): worker 1 of 2", log(run, 1), re.M) == ["0", "1"]
    got = result(run)
    assert got["restarts"] == 1 and got["workers"] == 2 and got["ended"] == "done"


def test_a_spec_runs_the_same_program(muster, root, torch_python, tmp_path):
    done = muster("train", root / "examples/ddp/train.yaml", "--", "--epochs", "2", cwd=tmp_path,
                  env={"MUSTER_PYTHON": torch_python})
    assert len(losses(done.stdout)) == 2
    assert result(tmp_path / "runs/ddp")["workers"] == 2


# ------------------------------------------------------------------ what a worker sees

def test_the_environment_is_what_torch_distributed_reads(train):
    out = train("--workers", "3", "--max-restarts", "7", "--", "--env", "--", "--lr", "a b",
                env={"MUSTER_TOKEN": "secret", "MASTER_PORT": "1", "OMP_NUM_THREADS": "5"}).stdout
    seen = [json.loads(line.split(" ", 1)[1]) for line in out.splitlines() if "{" in line]
    assert sorted(int(e["RANK"]) for e in seen) == [0, 1, 2]
    for e in seen:
        assert e["LOCAL_RANK"] == e["RANK"] and e["GROUP_RANK"] == "0"
        assert e["WORLD_SIZE"] == e["LOCAL_WORLD_SIZE"] == "3"
        assert e["MASTER_ADDR"] == "127.0.0.1" and int(e["MASTER_PORT"]) > 1023
        assert e["MASTER_PORT"] == seen[0]["MASTER_PORT"]
        assert e["TORCHELASTIC_RESTART_COUNT"] == e["MUSTER_RESTART_COUNT"] == "0"
        assert e["TORCHELASTIC_MAX_RESTARTS"] == "7" and e["MUSTER_TOKEN"] is None
        assert e["OMP_NUM_THREADS"] == "5" and e["rest"] == ["--lr", "a b"]
        assert Path(e["MUSTER_RUN"]).resolve() == train.run.resolve()


def test_cores_are_shared_where_nobody_said_how_many_threads(train, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = json.loads(train("--workers", "1", "-q", "--json", "--", "--env").stdout.splitlines()[1])
    cores = len(os.sched_getaffinity(0))
    assert json.loads(seen["line"])["OMP_NUM_THREADS"] == str(cores)


def test_lines_of_two_workers_never_mix(train):
    done = train("--workers", "2", "--", "--lines", "200")
    for text, odd in ((done.stdout, 0), (done.stderr, 1)):
        for rank in (0, 1):
            got = [line for line in text.splitlines() if line.startswith(f"[{rank}] worker")]
            assert got == [f"[{rank}] worker {rank} says line {i}" for i in range(odd, 200, 2)]
    assert log(train.run, 1).count("worker 1 says") == 200
    assert "worker 0 says" not in log(train.run, 1)


def test_one_worker_has_no_prefix_and_a_last_line_gets_its_end(train):
    done = train("--", "--bytes", b"a\r\nb\rc\xff\nend".hex())
    assert done.stdout == "ready\na\nb\nc\ufffd\nend\n"   # a '\\r' reads as '\\n' here
    assert (train.run / "logs/worker-0.log").read_bytes().endswith(b"\nready\na\nb\rc\xff\nend\n")


def test_json_has_an_object_a_line(train):
    done = train("--workers", "2", "--json", "--", "--die", "1", "--exit", "3", "--bytes",
                 b"\xff\n".hex())
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0]["start"] == 0 and said[0]["workers"] == 2
    assert {"rank": 1, "stream": "stdout", "line": "?"} in said
    (lost,) = [s for s in said if "lost" in s]
    assert lost["lost"] == 1 and lost["exit"] == 3 and lost["restart"] == 1
    ports = [s["port"] for s in said if "port" in s]
    assert len(ports) == 2 and ports[0] != ports[1]
    assert said[-1]["ended"] == "done" and said[-1]["restarts"] == 1


# ------------------------------------------------------------------ losses

def test_a_program_that_fails_ends_with_its_own_code_after_the_last_restart(train):
    done = train("--workers", "2", "--max-restarts", "1", "--", "--die", "1", "--starts", "9",
                 "--exit", "17", check=False)
    assert done.returncode == 17
    last = done.stderr.splitlines()[-1]
    assert "worker 1 ended with exit code 17; gave up after 1 restart (" in last
    assert "worker-1.log" in last
    got = result(train.run)
    assert got["ended"] == "failed" and got["exit"] == 17 and got["restarts"] == 1
    assert log(train.run, 0).count("--- start") == 2
    nobody_left(train.run)


def test_a_program_that_is_killed_each_time_is_given_up(train):
    done = train("--max-restarts", "0", "--", "--die", "0", "--signal", "9", check=False)
    assert done.returncode == 128 + 9
    assert "worker 0 was killed by signal 9 (Killed); gave up after 0 restarts" in done.stderr


def test_a_repeated_loss_leaves_one_fewer_down_to_the_least(train):
    done = train("--workers", "2..3", "--json", "--", "--die", "1", "--starts", "3", "--exit", "1")
    sizes = [s["workers"] for s in map(json.loads, done.stdout.splitlines()) if "start" in s]
    assert sizes == [3, 3, 2, 2]
    assert result(train.run)["workers"] == 2


# ------------------------------------------------------------------ stopping

@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everybody(muster, tmp_path, sig):
    run = tmp_path / "run"
    p = start(muster, run, "--workers", 2, "--", "--child", "--tidy", "--sleep", 600)
    wait_for(lambda: len(members(run)) == 6 and "ready" in log(run, 0) and "ready" in log(run, 1))
    for _ in range(2):                                  # two at once are one, as timeout(1) sends them
        p.send_signal(sig)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 128 + sig
    assert "stopped by signal" in err.splitlines()[-1]
    assert out.count("tidying up") == 2                 # it was asked, not killed
    assert result(run)["ended"] == "stopped"
    nobody_left(run)


def test_who_does_not_hear_is_killed_after_the_grace(muster, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--workers", 2, "--", "--deaf", "--child", "--sleep", 600)
    wait_for(lambda: "ready" in log(run, 0) and "ready" in log(run, 1))
    began = time.monotonic()
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=120)
    assert time.monotonic() - began > 4
    nobody_left(run)


def test_a_second_signal_does_not_wait(muster, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--", "--deaf", "--sleep", 600)
    wait_for(lambda: "ready" in log(run, 0))
    began = time.monotonic()
    while p.poll() is None:             # two that come at once are one
        p.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert time.monotonic() - began < 4.5, "the grace is five seconds"
    p.communicate()
    nobody_left(run)


def test_a_signal_between_two_starts_ends_it(muster, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--workers", 2, "--", "--die", 0, "--starts", 9, "--exit", 1)
    while "restart 1 of 3" not in p.stderr.readline():
        assert p.poll() is None
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=120)
    assert p.returncode == 128 + signal.SIGTERM and "stopped by signal 15" in err
    assert log(run, 0).count("--- start") < 4
    nobody_left(run)


def test_a_worker_that_is_stopped_can_still_be_ended(muster, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--", "--sleep", 600)
    wait_for(lambda: "ready" in log(run, 0))
    (pid,) = members(run)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=120)
    assert time.monotonic() - began < 4.5, "the grace is five seconds"
    nobody_left(run)


def test_nobody_outlives_muster_when_it_is_killed(muster, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--workers", 2, "--", "--deaf", "--child", "--sleep", 600)
    wait_for(lambda: len(members(run)) == 6 and "ready" in log(run, 0) and "ready" in log(run, 1))
    p.kill()
    p.communicate(timeout=120)
    nobody_left(run)


def test_a_process_that_a_worker_leaves_behind_is_ended(train):
    train("--workers", "2", "--", "--child")
    nobody_left(train.run)


def test_output_that_nobody_takes_ends_the_group(muster, tmp_path):
    run = tmp_path / "run"
    p = start(muster, run, "--workers", 2, "--", "--lines", 100000, "--sleep", 600)
    p.stdout.close()
    p.stderr.read()
    assert p.wait(timeout=120) == 7
    nobody_left(run)


# ------------------------------------------------------------------ specs and slips

def test_a_package_starts_in_its_folder(train, tmp_path):
    (tmp_path / "pack/own").mkdir(parents=True)
    (tmp_path / "pack/own/__init__.py").touch()
    (tmp_path / "pack/own/task.py").write_text(
        "import os, sys\nprint(os.getcwd(), os.environ['RANK'], sys.argv[1:])\n")
    (tmp_path / "train.yaml").write_text(
        "name: mine\npython: {package: pack, module: own.task, args: [--n, 3]}\nworkers: 2\n")
    out = train(tmp_path / "train.yaml", "--", "--more", python=None).stdout
    assert f"[1] {tmp_path / 'pack'} 1 ['--n', '3', '--more']" in out
    assert result(train.run)["name"] == "mine"


def test_a_command_starts_beside_its_spec(muster, train, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/say.sh").write_text("#!/bin/sh\necho $RANK of $WORLD_SIZE in $(pwd) $1\n")
    (tmp_path / "jobs/say.sh").chmod(0o755)
    (tmp_path / "jobs/job.yaml").write_text("command: [./say.sh, hello]\nworkers: 1..2\n")
    out = train(tmp_path / "jobs/job.yaml", python=None).stdout
    assert f"[1] 1 of 2 in {tmp_path / 'jobs'} hello" in out
    done = muster("verify", train.run, check=False)
    assert done.returncode == 2 and "a program of the user's own" in done.stderr


def test_dry_run_starts_nothing(train):
    out = train("--workers", "1..3", "--dry-run", "--", "--lr", "1").stdout
    assert "name: worker\nworkers: 1..3" in out and "--lr 1" in out and not train.run.exists()


@pytest.mark.parametrize("args, code, words", [
    (["--workers", "0"], 2, "from 1 to 4096 workers"),
    (["--workers", "4..2"], 2, "write 2..4"),
    (["--workers", "many"], 2, "a range such as 2..8"),
    (["--max-restarts", "-1"], 2, "--max-restarts"),
    (["--resume"], 2, "--resume"),
    (["--set", "epochs=1"], 2, "--set has no place"),
    (["left", "over"], 2, "usage"),
])
def test_a_slip_is_one_sentence(train, args, code, words):
    done = train(*args, check=False)
    assert done.returncode == code and words in done.stderr
    assert SENTENCE.fullmatch(done.stderr)


@pytest.mark.parametrize("spec, code, words", [
    ("python: {package: nowhere, module: m}", 4, "1:10: python.package: "),
    ("python: {package: train.yaml, module: m}", 2, "a folder, a zip or a wheel"),
    ("command: [no-such-program-at-all]", 4, 'cannot run "no-such-program-at-all"'),
    ("command: ['true']\nimage: mine:1", 2, "in no image"),
    ("command: ['true']\nworkers: 3..1", 2, "workers"),
])
def test_a_wrong_spec_is_one_sentence(train, tmp_path, spec, code, words):
    (tmp_path / "train.yaml").write_text(spec + "\n")
    done = train(tmp_path / "train.yaml", "-q", python=None, check=False)
    assert done.returncode == code and words in done.stderr, done.stderr
    assert SENTENCE.fullmatch(done.stderr)


def test_what_is_missing_is_named(train, tmp_path):
    done = train(python=tmp_path / "nothing.py", check=False)
    assert done.returncode == 4 and "nothing.py: No such file" in done.stderr
    done = train("-q", check=False, env={"MUSTER_PYTHON": "/no/python"})
    assert done.returncode == 4 and 'cannot run "/no/python"' in done.stderr
    assert not train.run.exists()               # the next try may have the same --out


def test_a_run_is_not_written_over(train):
    train("-q")
    done = train("-q", check=False)
    assert done.returncode == 5 and "holds a run already" in done.stderr
