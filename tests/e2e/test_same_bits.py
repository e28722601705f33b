"""The digest of a trained model depends on spec and data alone: not on threads, not on the
instruction set, not on being stopped, killed and resumed. The digests are written down in
digests.json: a change of numerics cannot pass unseen. To record them anew, on purpose and with a new
NUMERICS_VERSION: MUSTER_RECORD=1 pytest tests/e2e/test_same_bits.py"""
import json
import os
import platform
import signal
import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RECORD = HERE / "digests.json"

# Short runs: the plain C kernels are some hundred times slower than the vector ones.
RUNS = {
    "fit-a-line": ("examples/fit-a-line/train.yaml", ["epochs=3"]),
    "fashion-lenet": ("examples/fashion-lenet/train.yaml",
                      ["epochs=1", "limit=200", "data.test.limit=50"]),
    "fashion-convblock": ("examples/fashion-convblock/train.yaml",
                          ["epochs=1", "limit=224", "data.test.limit=80"]),
    "taxi-tabular": ("examples/taxi-tabular/train.yaml", ["epochs=1", "limit=1500"]),
    "dropout-batchnorm": ("tests/e2e/specs/dropout-batchnorm.yaml",
                          ["limit=200", "data.test.limit=50"]),
}


def command(root, name, out, *more):
    spec, changes = RUNS[name]
    words = ["train", str(root / spec), "--out", str(out), "--quiet", *more]
    for change in changes:
        words += ["--set", change]
    return words


def digest(out):
    return json.loads((out / "run.json").read_text())["digest"]


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


@pytest.fixture(scope="module")
def plain(muster, root, tmp_path_factory):
    """The digest of each run with one thread and the machine's own instruction set."""
    found = {}

    def get(name):
        if name not in found:
            out = tmp_path_factory.mktemp("plain") / name
            muster(*command(root, name, out, "--threads", "1"))
            found[name] = digest(out)
        return found[name]

    return get


@pytest.mark.parametrize("name", RUNS)
def test_digest_is_the_recorded_one(name, plain, recorded):
    if os.environ.get("MUSTER_RECORD"):
        now = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        now[name] = plain(name)
        RECORD.write_text(json.dumps(now, indent=2, sort_keys=True) + "\n")
        return
    assert plain(name) == recorded[name]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_digest_does_not_depend_on_threads(name, threads, muster, root, tmp_path, plain):
    muster(*command(root, name, tmp_path / "run", "--threads", threads))
    assert digest(tmp_path / "run") == plain(name)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86")
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
@pytest.mark.parametrize("name", RUNS)
def test_digest_does_not_depend_on_the_instruction_set(name, isa, muster, root, tmp_path, plain):
    muster(*command(root, name, tmp_path / "run"), env={"MUSTER_ISA": isa})
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    if run["isa"] != isa:
        pytest.skip(f"this machine has no {isa}")
    assert run["digest"] == plain(name)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("name", RUNS)
def test_digest_does_not_depend_on_a_stop(name, how, muster, root, tmp_path, plain):
    """Stopped once there is a checkpoint, wherever that is, and resumed until the end."""
    out = tmp_path / "run"
    words = command(root, name, out, "--set", "checkpoint.every=3 steps", "--threads", "2")
    base = command(root, name, tmp_path / "whole", "--set", "checkpoint.every=3 steps")
    muster(*base)
    process = subprocess.Popen([muster.path, *words], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while not list(out.glob("checkpoints/step-*")) and process.poll() is None:
        assert time.monotonic() < end, "no checkpoint within five minutes"
        time.sleep(0.0005)
    process.send_signal(how)
    process.communicate(timeout=300)
    if not (out / "run.json").exists():
        muster(*words, "--resume")
    assert digest(out) == digest(tmp_path / "whole")
    assert digest(out) == plain(name)


def test_verify_says_equal_and_names_where_runs_part(muster, root, tmp_path):
    for name, more in (("a", []), ("b", ["--threads", "2"]), ("c", ["--set", "seed=2"]),
                       ("d", ["--set", "epochs=4"])):
        muster(*command(root, "fit-a-line", tmp_path / name), *more)
    assert "equal" in muster("verify", tmp_path / "a", tmp_path / "b").stdout
    assert "equal" in muster("verify", tmp_path / "a").stdout
    other = muster("verify", tmp_path / "a", tmp_path / "c", check=False)
    assert other.returncode == 5 and "part at step 1, tensor fc1.weight" in other.stderr
    longer = muster("verify", tmp_path / "a", tmp_path / "d", check=False)
    assert longer.returncode == 5 and "equal for 63 steps" in longer.stderr


def test_verify_sees_a_changed_weight(muster, root, tmp_path):
    muster(*command(root, "fit-a-line", tmp_path / "a"))
    weights = tmp_path / "a" / "weights.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    done = muster("verify", tmp_path / "a", check=False)
    assert done.returncode == 5 and "changed after the run" in done.stderr
