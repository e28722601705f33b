"""examples/fashion-pipeline: the commands of its page, from compile to logs, with kfp 1.8 and PyTorch.

The server's data directory is in the cache, since the environment of the steps costs a download; all
else in it is removed at each start.
"""
import os
import re
import shutil
import subprocess

import pytest
from conftest import CACHE, ROOT
from hosts import die_with_parent
from server import Server

SDK = CACHE / "kfp1-venv/bin"
EXAMPLE = ROOT / "examples/fashion-pipeline"
PYTHON = "/usr/bin/python3"
PATH = "/usr/local/bin:/usr/bin:/bin"       # Debian's Python, which has Debian's PyTorch
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.M | re.S)
RAW = "datasets/fashion-mnist/FashionMNIST/raw/"


def has_torch():
    try:
        return subprocess.run([PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not all("
                               "map(u.find_spec, ('torch', 'torchvision'))))"]).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.skipif(not (SDK / "dsl-compile").exists(), reason="no kfp 1.8 here (./setup.sh)"),
    pytest.mark.skipif(not has_torch(), reason="no python3-torch and python3-torchvision here"),
]


@pytest.fixture(scope="module")
def served(muster):
    data = CACHE / f"test-fashion{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    data.mkdir(parents=True, exist_ok=True)
    for old in data.iterdir():
        if old.name != "envs":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    with Server(muster, data, env={"PATH": PATH}) as s:
        yield s


@pytest.fixture(scope="module")
def page(served, data_dir, tmp_path_factory):
    """What each block of the page printed."""
    folder = tmp_path_factory.mktemp("example")
    for name in subprocess.run(["git", "ls-files", EXAMPLE], cwd=EXAMPLE, text=True, check=True,
                               capture_output=True).stdout.split():
        shutil.copy(EXAMPLE / name, folder / name)
    (folder / "bin").mkdir()
    (folder / "bin/muster").symlink_to(served.binary)
    env = {**os.environ, **served.env, "PATH": f"{folder / 'bin'}:{SDK}:{PATH}", "HOME": str(folder),
           "MUSTER_DATA": str(data_dir), "PYTHONWARNINGS": "ignore"}
    said = []
    for block in BLOCK.findall((EXAMPLE / "README.md").read_text()):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=env,
                              text=True, capture_output=True, timeout=250,
                              preexec_fn=die_with_parent)
        assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        said.append(done.stdout)
    return said


def volumes(served, run):
    """The files of the run's volume, relative to it."""
    (found,) = [d for d in (served.data_dir / "volumes/default").iterdir() if run in d.name]
    return {str(f.relative_to(found / "data")): f for f in found.rglob("*") if f.is_file()
            if f.is_relative_to(found / "data")}


def workflow(served, name):
    (run,) = [r for r in served.json("GET", "/api/runs")["runs"] if r["name"] == name]
    assert run["state"] == "succeeded"
    return served.json("GET", f"/api/runs/default/{run['id']}")["workflow"]


def check_volume(served, name, logs):
    files = volumes(served, workflow(served, name))
    for part in ("train-images", "train-labels", "t10k-images", "t10k-labels"):
        kind = 3 if part.endswith("images") else 1
        assert f"{RAW}{part}-idx{kind}-ubyte" in files
    assert {"datasets/fashion-mnist/train.pickle", "datasets/fashion-mnist/test.pickle"} <= set(files)
    assert [f for f in files if f.startswith(logs) and "tfevents" in f and files[f].stat().st_size]
    return str(files["mnist.pt"])



def test_apply_runs_what_dsl_compile_wrote(page, served):
    for step in ("create-volume", "preprocessing", "train"):
        assert re.search(rf"Succeeded .* {step}$", page[0], re.M), page[0]
    assert re.search(r"^epoch 1: accuracy=0\.\d+, \d+ samples/s$", page[0], re.M)
    assert "registry.example/kubeflow-mnist:train: as muster image has it" in page[0]


def test_the_sdk_uploads_runs_and_waits(page, served):
    assert "Succeeded" in page[1].splitlines()
    assert re.search(r"^epoch 1: accuracy=", page[1], re.M)


def test_the_training_step_by_our_own_engine_leaves_the_same_things(page, served):
    assert re.search(r"test_accuracy 0\.\d+", page[2])


def test_the_volumes_hold_data_set_logs_and_weights(page, served):
    weights = [check_volume(served, run, logs) for run, logs in
               (("first", "logs/1_0.01/"), ("second", "logs/1_0.01/"), ("third", "native/"))]
    done = subprocess.run(
        [PYTHON, "-c", "import sys, torch; from model import Net; n = Net()\n"
         "for path in sys.argv[1:]:\n    print(n.load_state_dict(torch.load(path)))", *weights],
        cwd=EXAMPLE, text=True, capture_output=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0 and done.stdout.count("All keys matched") == 3, done.stderr
