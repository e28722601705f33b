"""What the texts say to type works: every fenced sh block is run, block after block of a page.

Training is shortened (one epoch, the first rows), since it is the command that is tested here and
not the model; a job that others are to join is slowed down instead, so that they can. A line is left out only where LEFT_OUT says why.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("MUSTER_ROOT", Path(__file__).resolve().parents[2]))
MUSTER = Path(os.environ.get("MUSTER", ROOT / "build/muster"))

# pattern of a line, and why it is not run here
LEFT_OUT = [
    (r"git clone .*|cd muster", "this clone is the result"),
    (r"make (run|build|setup|help)?", "what built the binary under test"),
    (r"make test|tests/run.*|\.ci/run", "that is this run"),
    (r"make bench|bench/.*", "builds a large environment; run by hand"),
    (r"make fuzz.*", "takes minutes by design; the corpus is replayed by make test"),
    (r"sudo make install|make install", "writes outside the clone; test_install.py installs"),
]

PAGES = sorted(p for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
               for p in ROOT.glob(pattern))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)

# Stands for the program on PATH; a training run is cut short.
WRAPPER = """#!/bin/sh
case " $* " in
*" --dry-run "*|*" --help "*|*" --python "*|*examples/ddp*) exec {muster} "$@" ;;
" train "*" --listen "*) MUSTER_TORTURE=15 exec {muster} "$@" --set epochs=1 --set limit=500 ;;
" train "*) exec {muster} "$@" --set epochs=1 --set limit=500 ;;
esac
exec {muster} "$@"
"""


def lines_to_run(block):
    for line in block.replace("\\\n", " ").splitlines():
        command = line.split(" #")[0].strip()
        if command and not command.startswith("#") and \
                not any(re.fullmatch(p, command) for p, _ in LEFT_OUT):
            yield line


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """What `make install` would put down, for pages that compile a program: the environment."""
    dest = tmp_path_factory.mktemp("install")
    subprocess.run(["meson", "install", "-C", MUSTER.parent, "--no-rebuild", "--destdir", dest],
                   check=True, capture_output=True)
    (pc,) = dest.rglob("pkgconfig/muster.pc")
    return {"PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(dest),
            "LD_LIBRARY_PATH": str(pc.parent.parent)}


def torch_python():
    """A Python that has PyTorch, for pages that run examples/ddp."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for python in ("/usr/bin/python3", str(cache / "muster/bench-venv/bin/python")):
        if Path(python).exists() and \
                subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    return None


@pytest.fixture
def clone(tmp_path):
    """A folder that looks like the clone, where commands may write."""
    here = tmp_path / "muster"
    here.mkdir()
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, check=True,
                               capture_output=True).stdout.splitlines():
        if name.startswith(("tests/", "bench/")) or not (ROOT / name).exists():
            continue
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, here / name)
    (here / "build").mkdir()
    for at in (here / "build/muster", tmp_path / "bin/muster"):
        at.parent.mkdir(exist_ok=True)
        at.write_text(WRAPPER.format(muster=MUSTER))
        at.chmod(0o755)
    return here


def on_free_ports(lines):
    """The same with ports that nobody has, in place of those that the page names."""
    text = "\n".join(lines)
    for port in set(re.findall(r"127\.0\.0\.1:(\d{4,5})\b", text)):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            text = re.sub(rf"\b{port}\b", str(s.getsockname()[1]), text)
    return text.split("\n")


def end_servers(folder):
    """Those that a page left running."""
    for said in folder.rglob("server.json"):
        try:
            os.kill(json.loads(said.read_text())["pid"], signal.SIGTERM)
        except (ProcessLookupError, FileNotFoundError):
            pass


@pytest.mark.parametrize("page", [str(p.relative_to(ROOT)) for p in PAGES])
def test_the_commands_of_a_page_work(page, clone, installed, tmp_path):
    blocks = BLOCK.findall((ROOT / page).read_text())
    script = on_free_ports([line for block in blocks for line in lines_to_run(block)])
    if not script:
        pytest.skip("shows no command that is run here")
    env = {**os.environ, **installed, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
           "MUSTER_DATA_DIR": str(tmp_path / "server")}
    if any("examples/ddp" in line for line in script):
        env["MUSTER_PYTHON"] = torch_python() or pytest.skip("no PyTorch (apt: python3-torch)")
    try:
        done = subprocess.run(["bash", "-euxo", "pipefail", "-c", "\n".join(script)], cwd=clone,
                              env=env, text=True, capture_output=True, timeout=500)
    finally:
        end_servers(tmp_path)
    assert done.returncode == 0, f"{page}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
