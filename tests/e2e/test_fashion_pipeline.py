"""examples/fashion-pipeline: the commands of its page, from compile to logs, with kfp 1.8 and PyTorch; and
the same in the console.

The server's data directory is in the cache, since the environment of the steps costs a download; all
else in it is removed at each start. The data set is cut to what takes no time.
"""
import gzip
import importlib.util
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
IMAGES = {"train": 640, "t10k": 128}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MAIN = "fashion-mnist"
STEPS = ("create-volume", "preprocessing", "train")


# Every plot has something in the colour of its first curve, also where the curve is one value.
DRAWN = """() => [...document.querySelectorAll('.panel .plot canvas')].every((c) => {
  const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  for (let i = 0; i < p.length; i += 4)
    if (p[i] === 0x35 && p[i + 1] === 0x73 && p[i + 2] === 0xd9) return true;
  return false;
})"""


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


def cut(source, to):
    """The first images of each part, in the form that the whole has."""
    to.mkdir(parents=True)
    for file in source.glob("*.gz"):
        n = IMAGES[file.name.split("-")[0]]
        head, size = (16, 784) if "images" in file.name else (8, 1)
        with gzip.open(file) as f:
            data = f.read(head + n * size)
        with gzip.open(to / file.name, "wb", 1) as f:
            f.write(data[:4] + n.to_bytes(4, "big") + data[8:])


class Page:
    """The blocks of the page, each in a shell of its own."""

    def __init__(self, served, data_dir, folder):
        cut(data_dir / "fashion-mnist", folder / "data/fashion-mnist")
        self.folder = folder / "example"
        self.folder.mkdir()
        for name in subprocess.run(["git", "ls-files", EXAMPLE], cwd=EXAMPLE, text=True, check=True,
                                   capture_output=True).stdout.split():
            shutil.copy(EXAMPLE / name, self.folder / name)
        (folder / "bin").mkdir()
        (folder / "bin/muster").symlink_to(served.binary)
        self.env = {**os.environ, **served.env, "PATH": f"{folder / 'bin'}:{SDK}:{PATH}",
                    "HOME": str(folder), "MUSTER_DATA": str(folder / "data"),
                    "PYTHONWARNINGS": "ignore"}
        self.blocks = BLOCK.findall((EXAMPLE / "README.md").read_text())

    def run(self, i):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", self.blocks[i]], cwd=self.folder,
                              env=self.env, text=True, capture_output=True, timeout=600,
                              preexec_fn=die_with_parent)
        assert done.returncode == 0, f"{self.blocks[i]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def has_browser():
    return CHROMIUM and importlib.util.find_spec("playwright")


def in_the_console(served, folder, screens):
    """Uploads what was compiled, begins a run with parameters, watches it; what the node's log said."""
    playwright = importlib.import_module("playwright.sync_api")
    expect = playwright.expect
    expect.set_options(timeout=400000)
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(400000)
        page.goto(f"{served.address}/#token={served.token}")
        page.click("nav >> text=Experiments")
        page.fill("input[aria-label='Name of a new experiment']", "in the console")
        page.click("button:has-text('Make')")
        page.click("a:has-text('in the console')")
        page.wait_for_selector("h1:has-text('in the console')")
        page.click("nav >> text=Pipelines")
        page.set_input_files("input[type=file]", folder / "fashion_pipeline.tar.gz")
        page.wait_for_selector("h1:has-text('fashion_pipeline')")
        page.wait_for_selector(f"g.box[data-key='{MAIN}.train'].Waiting")
        page.click("header >> text=Create run")
        page.fill("#run-name", "fourth")
        page.fill("#run-experiment", "in the console")
        page.fill("#p-epochs", "1")
        page.click("button:has-text('Start')")
        page.wait_for_selector("h1:has-text('fourth')")
        for step in STEPS:
            page.wait_for_selector(f"g.box[data-key='{MAIN}.{step}'].Succeeded")
        page.wait_for_selector("header .state.succeeded")
        page.click(f"g.box[data-key='{MAIN}.train']")
        page.wait_for_selector(".panel .log >> text=accuracy=")
        expect(page.locator(".panel .plot canvas")).to_have_count(2)    # TensorBoard's files
        page.wait_for_function(DRAWN)
        page.screenshot(path=screens / "fashion-pipeline.png", full_page=True)
        said = page.inner_text(".panel .log")
        browser.close()
    return said


@pytest.fixture(scope="module")
def screens():
    folder = Path(os.environ.get("MUSTER_SCREENS", ROOT / "build/screens"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def page(served, data_dir, tmp_path_factory, screens):
    """What each block of the page printed, and the console; the runs of all ways go at once."""
    page = Page(served, data_dir, tmp_path_factory.mktemp("page"))
    prepared = page.run(0)
    with ThreadPoolExecutor(3) as pool:
        ways = [pool.submit(page.run, i) for i in (1, 2, 3)]
        seen = in_the_console(served, page.folder, screens) if has_browser() else None
        return [prepared, *(w.result() for w in ways), seen]


def run_called(served, name):
    (run,) = [r for r in served.json("GET", "/api/runs")["runs"] if r["name"] == name]
    assert run["state"] == "succeeded"
    return served.json("GET", f"/api/runs/default/{run['id']}")


def volume(served, name):
    """The files of the run's volume, by their places in it."""
    workflow = run_called(served, name)["workflow"]
    (found,) = [d for d in (served.data_dir / "volumes/default").iterdir() if workflow in d.name]
    return {str(f.relative_to(found / "data")): f for f in (found / "data").rglob("*") if f.is_file()}


def test_apply_runs_what_dsl_compile_wrote(page, served):
    for step in STEPS:
        assert re.search(rf"Succeeded .* {step}$", page[1], re.M), page[1]
    assert "epoch 1, batch 0 of 10: loss=" in page[1] and "accuracy=0." in page[1]
    assert "registry.example/kubeflow-mnist:train: as muster image has it" in page[1]


def test_the_sdk_uploads_runs_and_waits(page, served):
    assert "Succeeded" in page[2].splitlines() and "accuracy=0." in page[2]


def test_the_training_step_by_our_own_engine_leaves_the_same_things(page, served):
    assert re.search(r"test_accuracy 0\.\d+", page[3])


def test_the_console_shows_it_from_the_upload_to_the_log_of_a_node(page, served):
    if page[4] is None:
        pytest.skip("no Chromium here")
    assert "epoch 1, batch 0 of 10: loss=" in page[4] and "accuracy=0." in page[4]
    run = run_called(served, "fourth")
    assert run["parameters"]["epochs"] in (1, "1")
    pipeline = served.json("GET", f"/api/pipelines/default/{run['pipeline']}")
    assert pipeline["name"] == "fashion_pipeline" and pipeline["default_version"] == run["version"]


def test_the_volumes_hold_data_set_logs_and_weights(page, served):
    runs = ["first", "second", "third"] + ["fourth"] * (page[4] is not None)
    weights = []
    for run in runs:
        files = volume(served, run)
        for part in IMAGES:
            assert {f"{RAW}{part}-images-idx3-ubyte", f"{RAW}{part}-labels-idx1-ubyte"} <= set(files)
        assert {f"datasets/fashion-mnist/{part}.pickle" for part in ("train", "test")} <= set(files)
        logs = "native/" if run == "third" else "logs/1_0.01/"
        (events,) = [f for f in files if f.startswith(logs) and "tfevents" in f]
        check_events(files[events], native=run == "third")
        weights.append(str(files["mnist.pt"]))
    done = subprocess.run(
        [PYTHON, "-c", "import sys, torch; from model import Net; n = Net()\n"
         "for path in sys.argv[1:]:\n    print(n.load_state_dict(torch.load(path)))", *weights],
        cwd=EXAMPLE, text=True, capture_output=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0 and done.stdout.count("All keys matched") == len(runs), done.stderr


def check_events(file, native):
    """By TensorBoard itself, where it is."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(file))
    events.Reload()
    tags = events.Tags()["scalars"]
    if native:
        assert [t for t in tags if "loss" in t] and [t for t in tags if "accuracy" in t], tags
    else:
        assert sorted(tags) == ["accuracy", "loss"] and len(events.Scalars("loss")) == 10


def test_the_logs_of_the_nodes_are_there_when_all_has_ended(page, served):
    run = run_called(served, "second")
    nodes = served.json("GET", f"/api/runs/default/{run['id']}/nodes")["nodes"]
    for step, said in (("preprocessing", b"640 images"), ("train", b"accuracy=0.")):
        (node,) = [n for n in nodes if n["display"] == step]
        at = f"/api/runs/default/{run['id']}/nodes/{node['id']}/artifacts/main-logs"
        status, _, body = served.call("GET", at)
        assert status == 200 and said in body
