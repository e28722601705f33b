"""What every end-to-end test starts from: the binary under test, data, the clients' Pythons."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Alone, die_with_parent
from server import server  # noqa: F401 (a fixture of every file)

ROOT = Path(os.environ.get("MUSTER_ROOT", Path(__file__).resolve().parents[2]))
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def data_dir():
    return Path(os.environ.get("MUSTER_DATA") or CACHE / "data")


@pytest.fixture(scope="session")
def muster():
    """Runs the binary: muster("train", spec, env={...}); check=False where it is to fail."""
    binary = os.environ.get("MUSTER", str(ROOT / "build/muster"))

    def call(*args, check=True, env=None, timeout=300, **kw):
        done = subprocess.run([binary, *map(str, args)], text=True, errors="replace",
                              capture_output=True, env={**os.environ, **(env or {})},
                              timeout=timeout, preexec_fn=die_with_parent, **kw)
        if check and done.returncode:
            raise AssertionError(f"muster {' '.join(map(str, args))}: exit {done.returncode}\n"
                                 f"{done.stdout}\n{done.stderr}")
        return done

    call.path = binary
    return call


@pytest.fixture(scope="session")
def torch_python():
    """A Python that has PyTorch: Debian's, this one, or that of the benchmarks."""
    for python in ("/usr/bin/python3", sys.executable, str(CACHE / "bench-venv/bin/python")):
        try:
            if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
                return python
        except OSError:
            pass
    pytest.skip("no PyTorch here (apt-get install python3-torch)")


@pytest.fixture(scope="module")
def alone(muster, tmp_path_factory):
    """What one process makes of a spec; each is trained once in a file of tests."""
    return Alone(muster, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def lenet(root):
    return root / "examples/fashion-lenet/train.yaml"
