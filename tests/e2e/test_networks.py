"""Both image networks after an epoch: from PyTorch's own initial weights and in its sample order.

tests/numeric/record_networks.py recorded five PyTorch seeds; torch_init.py makes the weights and the
order that each of them had.
"""
import json
import subprocess
import sys

import pytest


def accuracy(muster, root, network, seed, out):
    init, order, run = (out / f"{network}-{seed}{end}" for end in (".safetensors", ".bin", ""))
    subprocess.run([sys.executable, root / "tests/numeric/torch_init.py", network, str(seed), init,
                    order], check=True)
    muster("train", root / f"examples/fashion-{network}/train.yaml", "--out", run, "--set",
           "epochs=1", "--set", f"init={init}", "--set", f"order={order}")
    return json.loads((run / "run.json").read_text())["test"]["accuracy"]


@pytest.mark.parametrize("network", ["lenet", "convblock"])
def test_accuracy_after_an_epoch_is_in_the_spread_of_five_pytorch_seeds(muster, root, tmp_path,
                                                                        network):
    recorded = json.loads((root / f"tests/numeric/fixtures/{network}.json").read_text())["epoch"]
    theirs = [run["accuracy"] for run in recorded]
    # An epoch of the larger one is minutes on a busy machine: one seed of it.
    seeds = recorded[:2 if network == "lenet" else 1]
    ours = [accuracy(muster, root, network, run["seed"], tmp_path) for run in seeds]
    assert min(theirs) <= ours[0] <= max(theirs), (ours, theirs)
    # The same weights and the same order: rounding alone parts the two, far less than a seed does.
    assert all(abs(a - b) < 0.01 for a, b in zip(ours, theirs)), (ours, theirs)
