"""Early stopping delivers the best model, not the last: by one process, by many through kills, and
after a resume. `evaluate`, `predict` and `export` take the others by name."""
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from hosts import Job

SPEC = """name: over
data:
  train: {{csv: {rows}, rows: 0..30}}
  test: {{csv: {rows}, rows: 30..60}}
  target: y
model:
  - linear: 64
  - tanh
  - linear: 1
loss: squared_error
optimizer: {{adam: {{lr: 0.01}}}}
metrics: [mae]
batch: 4
epochs: 60
stop: {{patience: 6}}
"""


@pytest.fixture
def spec(tmp_path):
    """A net that learns its 30 rows by heart: the test loss gets worse after some epochs."""
    random.seed(1)
    rows = tmp_path / "rows.csv"
    with open(rows, "w") as f:
        f.write("x,z,y\n")
        for _ in range(60):
            x, z = random.random(), random.random()
            f.write(f"{x:.4f},{z:.4f},{2 * x - z + random.gauss(0, .5):.4f}\n")
    path = tmp_path / "over.yaml"
    path.write_text(SPEC.format(rows=rows))
    return path


def run_of(out):
    return json.loads((Path(out) / "run.json").read_text())


def losses_of(out):
    lines = [json.loads(t) for t in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return {t["step"]: t["test_loss"] for t in lines if "test_loss" in t}


def loss_of(muster, out, *words):
    return json.loads(muster("evaluate", out, "--json", *words).stdout)["loss"]


def train(muster, spec, out, *words):
    muster("train", spec, "--out", out, "--quiet", *words)
    return run_of(out)


def test_patience_delivers_the_best_test_and_keeps_the_last_beside_it(muster, spec, tmp_path):
    run = train(muster, spec, tmp_path / "run")
    tests = losses_of(tmp_path / "run")
    best = min(tests, key=lambda step: (tests[step], step))
    assert best < max(tests) == run["steps"]            # else this shows nothing
    assert run["best"]["step"] == best and run["best"]["metric"] == "test_loss"
    assert run["test"]["loss"] == pytest.approx(tests[best], rel=1e-7)
    assert run["last"]["test"]["loss"] == pytest.approx(tests[run["steps"]], rel=1e-7)
    assert run["last"]["digest"] != run["digest"]
    assert loss_of(muster, tmp_path / "run") == pytest.approx(tests[best], rel=1e-7)
    assert "equal" in muster("verify", tmp_path / "run").stdout
    # The same as a run that is told to end there.
    short = train(muster, spec, tmp_path / "short", "--set", f"epochs={run['best']['epoch']}")
    assert short["digest"] == run["digest"]


def test_evaluate_predict_and_export_take_best_last_or_a_step(muster, spec, tmp_path):
    out = tmp_path / "run"
    run = train(muster, spec, out, "--set", "checkpoint={every: 8 steps, keep: 3}")
    tests = losses_of(out)
    kept = sorted(int(p.stem[5:]) for p in (out / "checkpoints").glob("step-*"))
    for which in ("best", "last", *kept):
        step = {"best": run["best"]["step"], "last": run["steps"]}.get(which, which)
        assert loss_of(muster, out, "--checkpoint", which) == pytest.approx(tests[step], rel=1e-7)
        assert loss_of(muster, out, "--checkpoint", which, "--data", tmp_path / "rows.csv") > 0
    answers = {w: muster("predict", out, "--input", tmp_path / "rows.csv", "--checkpoint", w).stdout
               for w in ("best", "last")}
    plain = muster("predict", out, "--input", tmp_path / "rows.csv").stdout
    assert answers["best"] == plain != answers["last"]
    for which, file in (("best", "weights"), ("last", "last")):
        muster("export", out, "--format", "safetensors", "-o", tmp_path / which, "--checkpoint", which)
        assert (tmp_path / which).read_bytes() == (out / f"{file}.safetensors").read_bytes()
    done = muster("evaluate", out, "--checkpoint", "7", check=False)
    assert done.returncode == 4 and ", ".join(map(str, sorted(kept, reverse=True))) in done.stderr
    done = muster("evaluate", out, "--checkpoint", "first", check=False)
    assert done.returncode == 2 and "best, last or the number of a step" in done.stderr


def test_without_patience_the_last_weights_are_the_model(muster, spec, tmp_path):
    run = train(muster, spec, tmp_path / "run", "--set", "stop=null", "--set", "epochs=12")
    tests = losses_of(tmp_path / "run")
    assert not (tmp_path / "run/last.safetensors").exists() and "last" not in run
    assert run["best"]["step"] < run["steps"] and run["test"]["loss"] == pytest.approx(tests[run["steps"]])
    for words, step in (((), run["steps"]), (("--checkpoint", "last"), run["steps"]),
                        (("--checkpoint", "best"), run["best"]["step"])):
        assert loss_of(muster, tmp_path / "run", *words) == pytest.approx(tests[step], rel=1e-7)


def test_a_bound_that_is_met_delivers_the_weights_that_met_it(muster, spec, tmp_path):
    train(muster, spec, tmp_path / "a")
    tests = losses_of(tmp_path / "a")
    third = sorted(tests)[2]            # not the best of the first three, which is the first
    assert tests[third] > min(tests.values())
    bound = tests[third] * 0.999
    run = train(muster, spec, tmp_path / "run", "--set", f"stop.test_loss.above={bound}")
    assert run["ended"].startswith("test_loss") and not (tmp_path / "run/last.safetensors").exists()
    assert run["test"]["loss"] == pytest.approx(losses_of(tmp_path / "run")[run["steps"]], rel=1e-7)


def test_checkpoint_best_none_delivers_the_last(muster, spec, tmp_path):
    best = train(muster, spec, tmp_path / "best")
    last = train(muster, spec, tmp_path / "run", "--set", "checkpoint.best=none")
    assert last["digest"] == best["last"]["digest"]
    done = muster("evaluate", tmp_path / "run", "--checkpoint", "best", check=False)
    assert done.returncode == 4 and "keeps no best parameters" in done.stderr


def test_the_best_of_equal_tests_is_the_first_and_nan_is_never_best(muster, tmp_path):
    """A learning rate of 0: every test is the same. AUC of one class is not a number."""
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{i / 40},{int(i < 20 and i % 2)}\n"
                                                           for i in range(40)))
    (tmp_path / "s.yaml").write_text(f"""name: flat
data:
  train: {{csv: {tmp_path}/rows.csv, rows: 0..20}}
  test: {{csv: {tmp_path}/rows.csv, rows: 20..40}}
  target: y
  task: classification
model: [linear: 1]
loss: bce_with_logits
optimizer: {{sgd: {{lr: 0}}}}
metrics: [auc]
batch: 5
epochs: 9
stop: {{patience: 3}}
""")
    run = train(muster, tmp_path / "s.yaml", tmp_path / "run")
    assert run["best"]["step"] == 4 and run["steps"] == 16
    for workers in ("1", "2"):
        out = tmp_path / f"auc-{workers}"
        run = train(muster, tmp_path / "s.yaml", out, "--set", "checkpoint.best=test_auc", "--workers",
                    workers)
        assert run["test"]["auc"] is None and "best" not in run and "last" not in run
        assert '"test_auc":null' in (out / "metrics.jsonl").read_text()
    said = muster("evaluate", out, "--json").stdout
    assert json.loads(said)["auc"] is None
    said = muster("train", tmp_path / "s.yaml", "--out", tmp_path / "json", "--json").stdout
    assert all(json.loads(line).get("test_auc") is None for line in said.splitlines())


def test_a_run_killed_between_best_and_end_resumes_to_the_same_model(muster, spec, tmp_path):
    whole = train(muster, spec, tmp_path / "whole", "--set", "checkpoint={every: 8 steps, keep: 99}")
    steps = sorted(int(p.stem[5:]) for p in (tmp_path / "whole/checkpoints").glob("step-*"))
    for step in steps[1:]:              # the last one was written after the rule had fired
        out = tmp_path / f"from-{step}"
        subprocess.run(["cp", "-r", tmp_path / "whole", out], check=True)
        for name in ("run.json", "model.json", "weights.safetensors", "last.safetensors",
                     "checkpoints/best.safetensors"):
            (out / name).unlink()
        for later in [s for s in steps if s > step]:
            (out / f"checkpoints/step-{later}.safetensors").unlink()
        words = ["--resume", "--set", "checkpoint={every: 8 steps, keep: 99}"]
        again = train(muster, spec, out, *words, *(["--workers", "2"] if step == steps[2] else []))
        for key in ("digest", "steps", "test", "best", "last"):
            assert again[key] == whole[key], (step, key)


def test_workers_that_are_killed_deliver_the_same_best(muster, spec, tmp_path):
    changes = ["checkpoint={every: 10 steps}", "shards=4", "stop.patience=12"]
    whole = train(muster, spec, tmp_path / "one", *[w for c in changes for w in ("--set", c)])
    assert whole["best"]["step"] < whole["steps"] - 60
    with Job(muster, spec, tmp_path / "many", "2..3", changes=changes, pace=30) as job:
        job.wait_team(3)
        job.wait_step(whole["best"]["step"] + 4)
        os.kill(job.pids()[0], signal.SIGKILL)          # who leads, and who tested
        job.wait_event("join", 4)
        os.kill(job.coordinator(), signal.SIGKILL)
        job.wait_event("start", 2)
        assert job.digest() == whole["digest"]
    many = run_of(tmp_path / "many")
    for key in ("test", "best", "last", "steps"):
        assert many[key] == whole[key]
    assert muster("verify", tmp_path / "one", tmp_path / "many").stdout.startswith("equal")


def test_verify_notices_a_changed_last_model(muster, spec, tmp_path):
    train(muster, spec, tmp_path / "run")
    last = tmp_path / "run/last.safetensors"
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    done = muster("verify", tmp_path / "run", check=False)
    assert done.returncode == 5 and "last.safetensors" in done.stderr
