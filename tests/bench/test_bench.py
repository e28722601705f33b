"""Every benchmark is run once, without its peers and on little data: none stops working unseen. What it
measures is not looked at."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("MUSTER_ROOT", Path(__file__).resolve().parents[2]))
BENCH = ROOT / "bench"
# name: what stands at the start of lines of its tables
LINES = {
    "train": ["fashion-lenet: training", "fashion-convblock: training", "beside the best of them"],
    "fit_a_line": ["fit-a-line:", "wall clock of the process"],
    "predict": ["one row through LeNet", "median"],
    "memory": ["fashion-lenet, one epoch", "a CSV of"],
    "shards": ["fashion-lenet, shards: 4", "fashion-convblock, shards: 8"],
    "csv": ["texts as strings", "texts as categories"],
    "elastic": ["kill -9 to the next step", "resize to the first step", "fashion-convblock, batch 64",
                "fashion-lenet, 2 workers", "batch 64, 500 MB/s", "2 workers by TCP inside"],
    "simulate": ["mesh: convblock", "tree: large"],
    "server": ["HTTP, 1 client", "muster submit, 4", "sandbox included", "true, one after the other"],
    "storage": ["GET of 4 KiB", "uploads by the client, 8 threads", "1 MB down, client"],
    "pipelines": ["chain, a step", "fan, a step", "the last 100, median"],
}
HELPERS = {"sides", "argo_examples"}    # not benchmarks by themselves; the second has its own test


def run(*words, **more):
    return subprocess.run([str(w) for w in words], text=True, capture_output=True, timeout=300,
                          env={**os.environ, "PYTHON": sys.executable, **more}, cwd=ROOT)


def test_every_benchmark_is_named_here_and_in_its_runner():
    assert {p.stem for p in BENCH.glob("*.py")} - HELPERS == set(LINES)
    assert set(re.search(r'^all="(.*)"', (BENCH / "run").read_text(), re.M)[1].split()) == set(LINES)


@pytest.mark.parametrize("name", LINES)
def test_a_benchmark_runs_and_prints_its_lines(name):
    done = run(BENCH / "run", "--quick", name)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.strip() for line in done.stdout.splitlines()]
    for line in LINES[name]:
        assert any(s.startswith(line) for s in said), f"{name}: no line {line}\n{done.stdout}"


def test_a_quick_run_fails_by_what_a_benchmark_cannot_do(tmp_path):
    (tmp_path / "muster").write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    (tmp_path / "muster").chmod(0o755)
    for name in ("memory", "predict"):
        done = run(BENCH / "run", "--quick", name, MUSTER=str(tmp_path / "muster"))
        assert done.returncode == 1 and "did not finish" in done.stderr, done.stdout + done.stderr


def test_the_survey_of_argos_examples_runs(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/hello.yaml").write_text("""apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: hello-}
spec:
  entrypoint: main
  templates:
  - name: main
    container: {image: busybox, command: ["true"]}
""")
    done = run(sys.executable, BENCH / "argo_examples.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| hello.yaml | succeeded |" in done.stdout and "1 files: 1 succeeded" in done.stdout
