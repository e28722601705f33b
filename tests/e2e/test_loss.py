"""One number is called loss: the mean over the samples since the last multiple of --log-every steps.
The terminal, --json, metrics.jsonl, TensorBoard's files and `muster top` take it from one place."""
import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

from test_best import spec  # noqa: F401 (a fixture)


def lines_of(out):
    lines = [json.loads(t) for t in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return {t["step"]: t["loss"] for t in lines if "loss" in t}


def scalars_of(out):
    """train/loss of TensorBoard's files, by hand: float simple_value = 2 behind the tag."""
    found = {}
    for path in sorted(Path(out).glob("events.out.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            n, = struct.unpack_from("<Q", data, at)
            record = data[at + 12:at + 12 + n]
            at += 16 + n
            i = record.find(b"train/loss\x15")
            if i >= 0:
                value, = struct.unpack_from("<f", record, i + 11)
                step, shift = 0, 0
                for byte in record[10:]:
                    step |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
                found[step] = value
    return found


def train(muster, spec, out, *words):
    return muster("train", spec, "--out", out, "--set", "stop=null", "--set", "epochs=7", *words).stdout


def test_every_output_has_the_same_loss_for_a_step(muster, spec, tmp_path):  # noqa: F811
    said = train(muster, spec, tmp_path / "a", "--log-every", "8", "--json")
    told = {t["step"]: t["loss"] for t in map(json.loads, said.splitlines()) if "loss" in t}
    lines = lines_of(tmp_path / "a")
    assert told == lines and list(lines) == list(range(8, 57, 8))
    assert scalars_of(tmp_path / "a") == pytest.approx(lines, rel=1e-6)
    said = train(muster, spec, tmp_path / "b", "--log-every", "8")      # a test each 8 steps
    shown = {int(s): v for s, v in re.findall(r"step (\d+)  loss (\S+)", said)}
    assert shown == {step: f"{loss:.4f}" for step, loss in lines.items()}


def test_the_loss_is_the_mean_over_the_samples_since_the_last_line(muster, spec, tmp_path):  # noqa: F811
    """Batches of 4 but for each eighth one, which has 2."""
    train(muster, spec, tmp_path / "each", "--log-every", "1")
    train(muster, spec, tmp_path / "run", "--log-every", "5")
    each = lines_of(tmp_path / "each")
    for step, loss in lines_of(tmp_path / "run").items():
        n = {s: 2 if s % 8 == 0 else 4 for s in range(step - 4, step + 1)}
        assert loss == pytest.approx(sum(each[s] * n[s] for s in n) / sum(n.values()), rel=1e-6)


@pytest.mark.parametrize("workers", [[], ["--workers", "3"]])
def test_many_workers_and_a_resumed_run_show_the_same_losses(muster, spec, tmp_path, workers):  # noqa: F811
    """The checkpoint lies in the middle of a line of 10 steps."""
    keep = ["--log-every", "10", "--set", "checkpoint={every: 24 steps, keep: 9}"]
    train(muster, spec, tmp_path / "whole", *keep)
    train(muster, spec, tmp_path / "run", *keep, *workers)
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")
    out = tmp_path / "run"
    (out / "run.json").unlink()
    (out / "checkpoints/step-48.safetensors").unlink()
    text = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(t for t in text if json.loads(t)["step"] <= 24))
    train(muster, spec, out, *keep, *workers, "--resume")
    assert lines_of(out) == lines_of(tmp_path / "whole")


def test_a_c_program_is_told_the_same_loss(muster, root, spec, tmp_path):  # noqa: F811
    source = tmp_path / "p.c"
    source.write_text(r"""
#include <stdio.h>
#include "muster.h"
static void on(struct muster_trainer *t, const struct muster_event *e, void *arg)
{
    (void)t; (void)arg;
    if (e->kind == MUSTER_END_STEP)
        printf("%ld %.9g %.9g\n", e->steps, e->loss, e->batch_loss);
}
int main(int argc, char **argv)
{
    struct muster_reader *r = muster_read_csv(argv[argc - 1]);
    muster_reader_rows(r, 0, 30);
    muster_reader_set(r, "target", "y");
    muster_reader_batch(r, 4);
    struct muster_net *n = muster_net_new();
    muster_linear(n, 64);
    muster_layer(n, "tanh", NULL);
    muster_linear(n, 1);
    struct muster_trainer *t = muster_trainer_new(n, "squared_error", "adam: {lr: 0.01}");
    int rc = muster_train(t, r, 14, on, NULL);
    if (rc < 0)
        fprintf(stderr, "%s\n", muster_error());
    return rc < 0;
}
""")
    build = Path(muster.path).parent
    made = subprocess.run(["cc", source, "-I", root, "-o", tmp_path / "p", "-L", build, "-lmuster",
                           f"-Wl,-rpath,{build}"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no shared library beside {muster.path}: {made.stderr[-200:]}")
    done = subprocess.run([tmp_path / "p", tmp_path / "rows.csv"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = {int(a): (float(b), float(c)) for a, b, c in map(str.split, done.stdout.splitlines())}
    muster("train", spec, "--out", tmp_path / "run", "--set", "stop=null", "--set", "epochs=14", "-q")
    muster("train", spec, "--out", tmp_path / "each", "--set", "stop=null", "--set", "epochs=14",
           "--log-every", "1", "-q")
    for step, loss in lines_of(tmp_path / "run").items():
        assert told[step][0] == pytest.approx(loss, rel=1e-7)
    assert {s: c for s, (_, c) in told.items()} == pytest.approx(lines_of(tmp_path / "each"), rel=1e-7)
