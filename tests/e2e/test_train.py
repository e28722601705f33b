"""What train leaves behind and says, with the real TensorBoard reader on its events."""
import json
import os
import signal
import subprocess

import pytest
from hosts import wait_for


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def fit(muster, root, out, *more, **kw):
    return muster("train", root / "examples/fit-a-line/train.yaml", "--out", out, *more, **kw)


def test_fit_a_line_learns(muster, root, tmp_path):
    fit(muster, root, tmp_path / "run")
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["steps"] == 2100 and run["epochs"] == 100
    assert 16 < run["test"]["loss"] < 18        # where this learning rate gets in 100 epochs
    metrics = lines(tmp_path / "run/metrics.jsonl")
    tests = [m for m in metrics if "test_loss" in m]
    assert len(tests) == 210 and tests[0]["step"] == 10 and tests[-1]["step"] == 2100
    losses = [m["loss"] for m in metrics if "loss" in m]
    assert len(losses) == 21 and losses[-1] < losses[0] / 10


def test_the_stop_rule_fires(muster, root, tmp_path):
    done = fit(muster, root, tmp_path / "run", "--set", "stop.test_loss.below=20")
    assert "is below 20" in done.stdout
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["steps"] < 2100 and run["test"]["loss"] < 20


def test_tensorboard_reads_the_events(muster, root, tmp_path):
    fit(muster, root, tmp_path / "run", "--set", "epochs=5", "--log-every", "10")
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(tmp_path / "run"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/loss", "test/loss"}
    want = [m for m in lines(tmp_path / "run/metrics.jsonl") if "test_loss" in m]
    got = events.Scalars("test/loss")
    assert [s.step for s in got] == [m["step"] for m in want]
    assert [s.value for s in got] == pytest.approx([m["test_loss"] for m in want], rel=1e-6)


def test_json_lines(muster, root, tmp_path):
    out = fit(muster, root, tmp_path / "run", "--json", "--set", "epochs=5").stdout
    said = [json.loads(line) for line in out.splitlines()]
    assert said[-1]["digest"] == json.loads((tmp_path / "run/run.json").read_text())["digest"]
    assert any("loss" in s and s["step"] == 100 for s in said)


def test_dry_run_shows_spec_layers_and_memory(muster, root, tmp_path):
    out = muster("train", root / "examples/fashion-lenet/train.yaml", "--dry-run",
                 cwd=tmp_path).stdout
    assert "shards: 4" in out
    assert "conv1" in out and "6 x 24 x 24" in out and "156" in out
    assert "parameters 44426" in out and "MB" in out
    assert not list(tmp_path.iterdir())


def test_ctrl_c_saves_and_says_how_to_resume(muster, root, tmp_path):
    words = ["train", str(root / "examples/fit-a-line/train.yaml"), "--out", str(tmp_path / "run"),
             "--set", "epochs=1000000", "--set", "stop.test_loss.below=0"]
    process = subprocess.Popen([muster.path, *words], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run/metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)         # two at once are one, as timeout(1) sends them
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "stopped at step" in said and "--resume" in said
    assert list((tmp_path / "run/checkpoints").glob("step-*"))
    again = said.strip().splitlines()[-1].strip().replace("muster", muster.path, 1)
    again = again.replace("epochs=1000000", "epochs=1")
    done = subprocess.run(again, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "going on from step" in done.stderr


def test_best_and_last_checkpoints(muster, root, tmp_path):
    fit(muster, root, tmp_path / "run", "--set", "checkpoint={every: 50 steps, keep: 3, best: test_loss}",
        "--set", "epochs=20")
    names = sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["best.safetensors", "step-300.safetensors", "step-350.safetensors",
                     "step-400.safetensors"]


def test_a_run_does_not_go_on_with_other_data(muster, root, data_dir, tmp_path):
    text = (data_dir / "boston_house_prices.csv").read_text()
    rows = tmp_path / "rows.csv"
    words = ["--set", f"data.train.csv={rows}", "--set", "checkpoint={every: 21 steps}"]
    rows.write_text(text)
    fit(muster, root, tmp_path / "run", "--set", "epochs=2", *words)
    rows.write_text(text.replace("24", "25"))
    for workers in ([], ["--workers", "2"]):
        done = muster("train", root / "examples/fit-a-line/train.yaml", "--out", tmp_path / "run",
                      "--set", "epochs=4", *words, *workers, "--resume", check=False)
        assert done.returncode and "was made from other training data" in done.stderr
    rows.write_text(text)
    fit(muster, root, tmp_path / "run", "--set", "epochs=4", *words, "--resume")


def test_more_epochs_go_on_from_a_finished_run(muster, root, tmp_path):
    every = ["--set", "checkpoint={every: 21 steps}"]
    fit(muster, root, tmp_path / "short", "--set", "epochs=2", *every)
    fit(muster, root, tmp_path / "short", "--set", "epochs=4", *every, "--resume")
    fit(muster, root, tmp_path / "long", "--set", "epochs=4", *every)
    digest = [json.loads((tmp_path / d / "run.json").read_text())["digest"] for d in ("short", "long")]
    assert digest[0] == digest[1]


def test_init_and_order_files(muster, root, tmp_path):
    """Weights of a run as the start of another; an order file that repeats the shuffle's rows."""
    import numpy as np
    fit(muster, root, tmp_path / "a", "--set", "epochs=1")
    np.arange(404, dtype="<u4").tofile(tmp_path / "order.bin")
    fit(muster, root, tmp_path / "b", "--set", "epochs=1", "--set",
        f"init={tmp_path}/a/weights.safetensors", "--set", f"order={tmp_path}/order.bin")
    fit(muster, root, tmp_path / "c", "--set", "epochs=1", "--set",
        f"init={tmp_path}/a/weights.safetensors", "--set", "data.shuffle=false")
    digest = [json.loads((tmp_path / d / "run.json").read_text())["digest"] for d in "abc"]
    assert digest[1] == digest[2] != digest[0]


def test_the_c_program_trains_the_same_line(muster, root, tmp_path, data_dir):
    """fit_a_line.c, built with what the build left, gives the model of its own calls."""
    build = os.path.dirname(muster.path)
    program = tmp_path / "fit_a_line"
    subprocess.run(["cc", "-std=gnu17", "-Wall", "-Wextra", "-Werror", f"-I{root}",
                    str(root / "examples/fit-a-line/fit_a_line.c"), "-o", str(program),
                    f"{build}/libmuster.so", f"-Wl,-rpath,{build}"], check=True)
    done = subprocess.run([str(program), str(data_dir / "boston_house_prices.csv")],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 16 < float(done.stdout.split("test loss ")[1].split()[0]) < 18
    model = tmp_path / "fit_a_line.inference.model"
    rows = tmp_path / "house.csv"
    rows.write_text("x\nCRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT\n"
                    "0.00632,18,2.31,0,0.538,6.575,65.2,4.09,1,296,15.3,396.9,4.98\n")
    value = float(muster("predict", model, "--input", rows).stdout.splitlines()[1])
    said = float(done.stdout.split("first house: ")[1].split()[0])
    assert said == pytest.approx(value, abs=0.051)


@pytest.mark.parametrize("optimizer", ["ftrl: {lr: 0.1}", "sgd: {lr: 0.01, momentum: 0.9}",
                                       "adamw: {lr: 0.01}", "rmsprop: {lr: 0.01}"])
def test_a_schedule_that_ends_at_zero_leaves_the_model_as_it_is(optimizer, muster, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(
        f"{i / 40},{i % 7 / 7},{2 * i / 40 + i % 7}\n" for i in range(40)))
    (tmp_path / "t.yaml").write_text(f"""name: t
data:
  train: {{csv: {tmp_path}/rows.csv}}
  target: y
  task: regression
model:
  - linear: 1
loss: squared_error
optimizer: {{{optimizer}}}
schedule: {{cosine: {{epochs: 4}}}}
batch: 8
epochs: 4
""")
    digests = set()
    for epochs in (4, 9):       # from epoch 4 on the rate is 0
        out = tmp_path / f"run-{epochs}"
        muster("train", tmp_path / "t.yaml", "--out", out, "--quiet", "--set", f"epochs={epochs}")
        digests.add(json.loads((out / "run.json").read_text())["digest"])
    assert len(digests) == 1
