"""What is wrong is said in one sentence that names it, with an exit code of its kind, and leaves
nothing half-written."""
import gzip
import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

ROWS = "a,b,y\n" + "".join(f"{i},{i % 7},{2 * i + i % 7}\n" for i in range(40))
SPEC = """name: t
data:
  train: {{csv: {file}}}
  split: {{test: 0.25}}
  target: y
  task: regression
model:
  - linear: 1
loss: squared_error
optimizer: {{sgd: {{lr: 0.0001}}}}
batch: 8
epochs: 2
"""


def fails(muster, code, *words, **kw):
    done = muster(*words, check=False, **kw)
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "Sanitizer" not in done.stderr
    return lines[0]


@pytest.fixture
def write(tmp_path):
    def make(rows=ROWS, spec=SPEC, name="rows.csv"):
        file = tmp_path / name
        file.write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        (tmp_path / "t.yaml").write_text(spec.format(file=file))
        return tmp_path / "t.yaml"
    return make


def image_spec(tmp_path, images, labels, more=""):
    spec = tmp_path / "t.yaml"
    spec.write_text(f"""name: t
data:
  train: {{idx: [{images}, {labels}]}}
{more}
model:
  - flatten
  - linear: 10
loss: cross_entropy
optimizer: {{sgd: {{lr: 0.01}}}}
batch: 4
epochs: 1
""")
    return spec


def idx(dims, data):
    return struct.pack(">BBBB", 0, 0, 8, len(dims)) + struct.pack(f">{len(dims)}I", *dims) + data


def test_an_empty_file(muster, write, tmp_path):
    said = fails(muster, 2, "train", write(""), "--out", tmp_path / "run")
    assert "rows.csv" in said and "empty" in said
    assert not (tmp_path / "run").exists()


def test_a_header_without_rows(muster, write, tmp_path):
    said = fails(muster, 2, "train", write("a,b,y\n"), "--out", tmp_path / "run")
    assert "no rows" in said


def test_a_truncated_gzip(muster, write, tmp_path):
    said = fails(muster, 2, "train", write(gzip.compress(ROWS.encode())[:-30], name="rows.csv.gz"),
                 "--out", tmp_path / "run")
    assert "rows.csv.gz" in said and "cut off" in said


def test_a_truncated_idx(muster, tmp_path):
    (tmp_path / "i").write_bytes(idx((10, 28, 28), bytes(10 * 784))[:-5])
    (tmp_path / "l").write_bytes(idx((10,), bytes(10)))
    said = fails(muster, 2, "train", image_spec(tmp_path, tmp_path / "i", tmp_path / "l"),
                 "--out", tmp_path / "run")
    assert "cut off" in said


def test_a_ragged_row(muster, write, tmp_path):
    said = fails(muster, 2, "train", write(ROWS.replace("\n17,3,37\n", "\n17,3\n")),
                 "--out", tmp_path / "run")
    assert "row 18" in said and "2 fields" in said and "3" in said


def test_a_label_outside_the_list(muster, tmp_path):
    (tmp_path / "i").write_bytes(idx((10, 28, 28), bytes(10 * 784)))
    (tmp_path / "l").write_bytes(idx((10,), bytes([0, 1, 2, 3, 4, 5, 6, 11, 8, 9])))
    labels = "  labels: [a, b, c, d, e, f, g, h, i, j]"
    said = fails(muster, 2, "train", image_spec(tmp_path, tmp_path / "i", tmp_path / "l", labels),
                 "--out", tmp_path / "run")
    assert "row 8" in said and "label 11" in said and "0..9" in said


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "1e999", "abc"])
def test_a_value_that_is_no_number(muster, write, tmp_path, value):
    said = fails(muster, 2, "train", write(ROWS.replace("\n17,3,37\n", f"\n17,{value},37\n")),
                 "--out", tmp_path / "run")
    assert "row 18" in said and value in said and '"b"' in said


def test_the_policy_to_skip_counts_rows(muster, write, tmp_path):
    spec = write(ROWS.replace("\n17,3,37\n", "\n17,nan,37\n"),
                 SPEC.replace("  target: y", "  target: y\n  on_error: skip"))
    done = muster("train", spec, "--out", tmp_path / "run")
    assert "1 wrong row left out" in done.stdout
    assert json.loads((tmp_path / "run/run.json").read_text())["rows_skipped"] == 1


def test_a_misspelt_key(muster, write, tmp_path):
    said = fails(muster, 2, "train", write(spec=SPEC.replace("optimizer:", "optimiser:")),
                 "--out", tmp_path / "run")
    assert "t.yaml:10:1" in said and '"optimiser"' in said and '"optimizer"' in said


def test_shapes_that_do_not_fit_show_both(muster, tmp_path, data_dir):
    spec = tmp_path / "t.yaml"
    base = data_dir / "fashion-mnist"
    spec.write_text(f"""name: t
data:
  train: {{idx: [{base}/t10k-images-idx3-ubyte.gz, {base}/t10k-labels-idx1-ubyte.gz]}}
model:
  - conv2d: {{out: 4, kernel: 31}}
  - flatten
  - linear: 10
loss: cross_entropy
optimizer: {{sgd: {{lr: 0.01}}}}
batch: 4
epochs: 1
""")
    said = fails(muster, 2, "train", spec, "--out", tmp_path / "run")
    assert "t.yaml:5" in said and "31" in said and "28" in said
    spec.write_text(spec.read_text().replace("kernel: 31", "kernel: 3").replace("linear: 10",
                                                                               "linear: 7"))
    said = fails(muster, 2, "train", spec, "--out", tmp_path / "run")
    assert "7" in said and "10" in said


def test_a_checkpoint_of_another_model(muster, write, tmp_path):
    spec = write()
    muster("train", spec, "--out", tmp_path / "run", "--set", "checkpoint.every=2 steps")
    os.remove(tmp_path / "run/run.json")
    other = tmp_path / "o.yaml"
    other.write_text(spec.read_text().replace("  - linear: 1\n", "  - linear: 3\n  - linear: 1\n"))
    said = fails(muster, 2, "train", other, "--out", tmp_path / "run", "--resume",
                 "--set", "checkpoint.every=2 steps")
    assert "another model" in said and "fc" in said


def test_a_checkpoint_of_another_spec(muster, write, tmp_path):
    spec = write()
    muster("train", spec, "--out", tmp_path / "run", "--set", "checkpoint.every=2 steps")
    os.remove(tmp_path / "run/run.json")
    said = fails(muster, 5, "train", spec, "--out", tmp_path / "run", "--resume",
                 "--set", "checkpoint.every=2 steps", "--set", "seed=5")
    assert "another spec" in said


def test_weights_of_another_model_as_init(muster, write, tmp_path):
    spec = write()
    muster("train", spec, "--out", tmp_path / "run")
    other = tmp_path / "o.yaml"
    other.write_text(spec.read_text().replace("  - linear: 1\n", "  - linear: 3\n  - linear: 1\n") +
                     f"init: {tmp_path}/run/weights.safetensors\n")
    said = fails(muster, 2, "train", other, "--out", tmp_path / "run2")
    assert "weights.safetensors" in said and "1x2" in said and "3x2" in said


@pytest.mark.parametrize("kind", ["open", "write", "fsync", "rename"])
def test_a_full_disk_during_a_save_keeps_the_old_checkpoint(muster, write, tmp_path, kind):
    spec = write()
    run = tmp_path / "run"
    words = ["train", spec, "--out", run, "--set", "checkpoint.every=3 steps", "--set",
             "checkpoint.keep=9"]
    # The second checkpoint's first call of this kind fails, and each one after it.
    said = fails(muster, 7, *words, env={"MUSTER_FAULT": f"{kind}:2" if kind != "fsync"
                                         else "fsync:3"})
    assert "the disk is full" in said and "still good" in said and "step-3" in said
    assert [p.name for p in (run / "checkpoints").glob("step-*")] == ["step-3.safetensors"]
    assert not list(run.glob("**/*.tmp*"))
    assert not (run / "run.json").exists()
    muster(*words, "--resume")
    whole = tmp_path / "whole"
    muster("train", spec, "--out", whole, *words[4:])
    digest = [json.loads((d / "run.json").read_text())["digest"] for d in (run, whole)]
    assert digest[0] == digest[1]


def test_a_really_full_disk(muster, write, tmp_path):
    """A file system of 64 kB, where root may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "muster", disk],
                      capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        (disk / "fill").write_bytes(bytes(40 << 10))
        spec = write(spec=SPEC.replace("linear: 1", "linear: 2000\n  - linear: 1"))
        said = fails(muster, 7, "train", spec, "--out", disk / "run")
        assert "the disk is full" in said
        assert not (disk / "run/run.json").exists()
        assert not list(disk.glob("run/*.tmp*"))
    finally:
        subprocess.run(["umount", disk])


def test_a_loss_that_diverges_stops_and_keeps_the_last_good_checkpoint(muster, write, tmp_path):
    spec = write(spec=SPEC.replace("lr: 0.0001", "lr: 3").replace("epochs: 2", "epochs: 60"))
    said = fails(muster, 9, "train", spec, "--out", tmp_path / "run", "--set",
                 "checkpoint.every=1 steps")
    assert "step" in said and "diverged" in said and "last good checkpoint" in said
    kept = said.split("last good checkpoint: ")[1].split(")")[0]
    assert Path(kept).exists() and not (tmp_path / "run/run.json").exists()


def test_a_damaged_checkpoint_is_passed_over(muster, write, tmp_path):
    spec = write()
    words = ["train", spec, "--out", tmp_path / "run", "--set", "checkpoint.every=2 steps"]
    muster(*words)
    digest = json.loads((tmp_path / "run/run.json").read_text())["digest"]
    os.remove(tmp_path / "run/run.json")
    newest = max((tmp_path / "run/checkpoints").glob("step-*"),
                 key=lambda p: int(p.name.split("-")[1].split(".")[0]))
    newest.write_bytes(newest.read_bytes()[:100])
    muster(*words, "--resume")
    assert json.loads((tmp_path / "run/run.json").read_text())["digest"] == digest


def test_a_run_directory_is_never_overwritten(muster, write, tmp_path):
    spec = write()
    muster("train", spec, "--out", tmp_path / "run")
    said = fails(muster, 5, "train", spec, "--out", tmp_path / "run")
    assert "holds a run already" in said


def test_a_file_that_is_not_there(muster, write, tmp_path):
    spec = write()
    os.remove(tmp_path / "rows.csv")
    said = fails(muster, 4, "train", spec, "--out", tmp_path / "run")
    assert "rows.csv" in said


def test_a_model_that_is_not_there(muster, tmp_path):
    for words in (["evaluate"], ["predict", "--input", "x.csv"], ["verify"],
                  ["export", "--format", "onnx", "-o", "x"]):
        said = fails(muster, 4, words[0], tmp_path / "none", *words[1:])
        assert "none" in said
