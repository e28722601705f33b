"""muster verify RUN: trained again by one process, held against what the run recorded of itself."""
import hashlib
import json
import shutil

import pytest

LENET = "examples/fashion-lenet/train.yaml"
STEPS = 500


@pytest.fixture(scope="module")
def original(muster, root, tmp_path_factory):
    """A run of three workers that kept five checkpoints."""
    out = tmp_path_factory.mktemp("verify") / "run"
    muster("train", root / LENET, "--workers", "3..3", "--out", out, "--quiet", "--log-every", 10,
           "--set", "epochs=1", "--set", "limit=2000", "--set", "data.test.limit=100", "--set",
           "checkpoint.every=100 steps", "--set", "checkpoint.keep=5")
    return out


@pytest.fixture
def run(original, tmp_path):
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def flip(path, at=-1):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def change_chain(run, step):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["step"] == step and "chain" in line:
            line["chain"] = f"{int(line['chain'], 16) ^ 1:016x}"
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_document(run, change):
    doc = json.loads((run / "run.json").read_text())
    change(doc)
    (run / "run.json").write_text(json.dumps(doc))


def test_an_untouched_run_is_equal(muster, original):
    said = muster("verify", original).stdout
    assert "equal: " in said and f"({STEPS} steps" in said and f"right at {STEPS // 10}" in said
    assert muster("verify", original, "--threads", 2).stdout == said


def test_a_spot_check_says_what_it_saw(muster, original):
    said = muster("verify", original, "--spot", 99).stdout
    assert "steps 1 to 100: right (10 marks)" in said
    assert "steps 401 to 500: right (10 marks, from a checkpoint)" in said
    assert "500 of 500 steps trained again" in said
    one = muster("verify", original, "--spot", 1).stdout
    assert one.count("right (") == 1 and "equal where it was looked" in one


@pytest.mark.parametrize("how", [[], ["--spot", "9"]])
def test_changed_weights_are_seen(muster, run, how):
    flip(run / "weights.safetensors")
    done = muster("verify", run, *how, check=False)
    assert done.returncode in (2, 5) and "weights.safetensors" in done.stderr


def test_a_changed_line_of_metrics_is_named(muster, run):
    change_chain(run, 250)
    done = muster("verify", run, check=False)
    assert done.returncode == 5
    assert "another chain for step 250" in done.stderr and "changed after the run" in done.stderr
    spot = muster("verify", run, "--spot", 9, check=False)
    assert spot.returncode == 5 and "step 250" in spot.stderr


def test_a_changed_checkpoint_is_not_trained_from(muster, run):
    flip(run / "checkpoints/step-300.safetensors")
    done = muster("verify", run, "--spot", 9, check=False)
    assert done.returncode and "step-300.safetensors" in done.stderr
    assert "equal" in muster("verify", run).stdout      # it has no part in the whole


def test_a_forged_checkpoint_does_not_pass(muster, run):
    """Whole and with a right digest of its own, and yet not what this run had at this step."""
    path = run / "checkpoints/step-200.safetensors"
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header, values = json.loads(raw[8:8 + n]), bytearray(raw[8 + n:])
    values[header["fc3.bias"]["data_offsets"][0]] ^= 1
    header["__metadata__"]["values_sha256"] = hashlib.sha256(values).hexdigest()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    done = muster("verify", run, "--spot", 9, check=False)
    assert done.returncode == 5
    assert "from its checkpoint of step 200" in done.stderr and "for step 210" in done.stderr


def test_a_changed_head_of_the_chain_is_seen(muster, run):
    change_document(run, lambda doc: doc.update(chain="0123456789abcdef"))
    done = muster("verify", run, check=False)
    assert done.returncode == 5 and "run.json has chain 0123456789abcdef" in done.stderr


def test_where_another_training_parts_is_named(muster, run):
    """The spec says another learning rate than the run was made with."""
    change_document(run, lambda doc: doc["spec"]["optimizer"]["sgd"].update(lr=0.002))
    done = muster("verify", run, check=False)
    assert done.returncode == 5 and "in steps 1 to 10" in done.stderr
    assert "conv1.weight is the first that differs" in done.stderr


def test_a_spot_check_needs_a_chain_and_one_run(muster, run):
    done = muster("verify", run, run, "--spot", 2, check=False)
    assert done.returncode == 2 and "--spot wants one RUN" in done.stderr
    change_document(run, lambda doc: doc.pop("chain"))
    done = muster("verify", run, "--spot", 2, check=False)
    assert done.returncode == 5 and "recorded no chain" in done.stderr
