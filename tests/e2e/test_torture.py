"""muster torture: sixty random events, one digest and one chain, and nobody left behind."""
import json
import os
import signal
import subprocess
from pathlib import Path

from hosts import wait_for

LENET = "examples/fashion-lenet/train.yaml"
KINDS = {"kill", "stop", "slow", "partition", "join", "leave", "coordinator"}


def processes_of(out):
    """All that were started with this word in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TORTURED={out}".encode() in entry.read_bytes():
                found.append((entry.parent / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
    return found


def steps_of(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "test_loss" not in line]


def test_sixty_events_change_no_bit(muster, root, tmp_path):
    out = tmp_path / "torture"
    done = muster("torture", root / LENET, "--events", 60, "--seed", 7, "--set", "epochs=1",
                  "--set", "limit=8000", "--set", "data.test.limit=400", "--out", out, "--json",
                  timeout=550, env={"TORTURED": str(out)})
    found = json.loads(done.stdout)
    assert found["equal"] and found["steps"] == 2000 and found["events"] == 60
    assert set(found["kinds"]) == KINDS
    assert sum(kind["fired"] for kind in found["kinds"].values()) == 60
    assert found["generations"] > 20
    runs = {name: json.loads((out / name / "run.json").read_text())
            for name in ("single", "undisturbed", "disturbed")}
    assert len({run["digest"] for run in runs.values()}) == 1
    assert runs["undisturbed"]["chain"] == runs["disturbed"]["chain"] != "0" * 16
    assert steps_of(out / "disturbed") == list(range(1, 2001))
    wait_for(lambda: not processes_of(out))
    # What many disturbed workers have made, one process verifies.
    assert "2000 of them" in muster("verify", out / "disturbed").stdout


def test_events_fire_at_their_steps(muster, root, tmp_path):
    """Two hundred steps that take no time by themselves are held to the pace of the events."""
    out = tmp_path / "torture"
    said = muster("torture", root / "examples/fit-a-line/train.yaml", "--tls", "--set", "epochs=10",
                  "--events", 6, "--seed", 3, "--workers", "2..3", "--out", out).stdout
    assert "equal: " in said and "6 events" in said
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert len(events) == 6
    assert all(event["fired"] and event["step"] >= event["due"] for event in events)
    assert all(2 <= event["size"] <= 3 for event in events if event["event"] in ("join", "leave"))
    again = muster("torture", root / "examples/fit-a-line/train.yaml", "--out", out, check=False)
    assert again.returncode == 5 and f"{out}: holds such runs already" in again.stderr


def test_a_spec_that_is_wrong_is_said_before_anything_runs(muster, tmp_path):
    (tmp_path / "program.yaml").write_text("command: ['true']\n")
    (tmp_path / "wrong.yaml").write_text("epochs: many\n")
    for spec, code, says in (("nowhere.yaml", 4, "cannot read "), ("wrong.yaml", 2, "wrong.yaml:1:9: "),
                             ("program.yaml", 2, "a program of the user's own")):
        done = muster("torture", tmp_path / spec, "--out", tmp_path / "out", check=False)
        assert done.returncode == code and says in done.stderr and done.stderr.count("muster: ") == 1
    assert not (tmp_path / "out").exists()


def start(muster, root, tmp_path):
    """A torture in the middle of its disturbed run, in a directory of its own choice."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "TORTURED": str(tmp_path)}
    process = subprocess.Popen([muster.path, "torture", str(root / LENET), "--set", "epochs=1"],
                               env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: list(tmp_path.glob("muster-torture-*/disturbed/checkpoints/step-*"))
             or process.poll() is not None, 300)
    wait_for(lambda: len(processes_of(tmp_path)) > 2)
    return process


def test_ctrl_c_leaves_nobody_and_nothing(muster, root, tmp_path):
    process = start(muster, root, tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "stopped" in said
    wait_for(lambda: not processes_of(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_killed_torture_takes_all_with_it(muster, root, tmp_path):
    process = start(muster, root, tmp_path)
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(tmp_path))


def test_wrong_arguments_are_one_sentence(muster, root, tmp_path):
    for words, part in ((["--events", "0"], "--events wants a number from 1"),
                        (["--workers", "0"], "workers"), (["--workers", "1..999"], "at most 64"),
                        ([], "no-such.yaml")):
        spec = root / LENET if words else tmp_path / "no-such.yaml"
        done = muster("torture", spec, *words, check=False, env={"TMPDIR": str(tmp_path)})
        assert done.returncode and part in done.stderr and done.stderr.count("\n") == 1
