"""Both image networks after an epoch: as good as PyTorch's, from its own initial weights.

tests/numeric/record_networks.py recorded five PyTorch seeds. Ours start from the weights of each of
these seeds; the sample orders are our own, so single runs differ, and the means are compared.
"""
import json
import statistics
import subprocess
import sys

import pytest


def accuracy(muster, root, network, seed, out):
    init = out / f"{network}-{seed}.safetensors"
    subprocess.run([sys.executable, root / "tests/numeric/torch_init.py", network, str(seed), init],
                   check=True)
    run = out / f"{network}-{seed}"
    muster("train", root / f"examples/fashion-{network}/train.yaml", "--out", run, "--set",
           "epochs=1", "--set", f"seed={seed}", "--set", f"init={init}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["test_accuracy"] for line in lines if "test_accuracy" in line][-1]


@pytest.mark.parametrize("network", ["lenet", "convblock"])
def test_accuracy_after_an_epoch_is_in_the_spread_of_five_pytorch_seeds(muster, root, tmp_path,
                                                                        network):
    recorded = json.loads((root / f"tests/numeric/fixtures/{network}.json").read_text())["epoch"]
    theirs = [run["accuracy"] for run in recorded]
    ours = [accuracy(muster, root, network, run["seed"], tmp_path) for run in recorded[:3]]
    assert min(theirs) <= statistics.mean(ours) <= max(theirs), (ours, theirs)
