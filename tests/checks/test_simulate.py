"""The simulator of docs/design/scale.md runs, and what the page concludes from it holds."""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("MUSTER_ROOT", Path(__file__).resolve().parents[2]))
COLUMNS = ("workers", "step ms", "useful %", "gather %", "reduce %", "links", "beats/s", "coord %",
           "kill ms", "join ms", "lost %")


def play(*args):
    """{(way, net): {workers: {column: value}}}"""
    done = subprocess.run([sys.executable, ROOT / "bench/simulate.py", *args], text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    tables, rows = {}, {}
    for line in done.stdout.splitlines():
        if title := re.match(r"(mesh|tree): (\w+),", line):
            rows = tables[title[1], title[2]] = {}
        elif re.match(r"\s+\d+[* ]\s", line):
            cells = [float(x.rstrip("*")) for x in line.split()]
            rows[int(cells[0])] = dict(zip(COLUMNS, cells, strict=True))
    return tables


def test_what_the_page_says_of_scale():
    tables = play("--workers", "8,64,1024")
    assert set(tables) == {(way, net) for way in ("mesh", "tree") for net in ("convblock", "large")}
    for net in ("convblock", "large"):
        mesh, tree = tables["mesh", net], tables["tree", net]
        assert abs(mesh[8]["step ms"] / tree[8]["step ms"] - 1) < 0.05      # one host: the same
        assert mesh[64]["step ms"] > tree[64]["step ms"]
        assert mesh[1024]["coord %"] > 50 > tree[1024]["coord %"]
        assert mesh[1024]["links"] == 1023 and tree[1024]["links"] == 7 + 7
    assert tables["tree", "large"][1024]["useful %"] > 80


def test_a_faster_link_makes_a_faster_step():
    slow, fast = (play("--net", "convblock", "--way", "mesh", "--workers", "64", "--gbits", g)
                  for g in ("10", "100"))
    assert fast["mesh", "convblock"][64]["step ms"] < slow["mesh", "convblock"][64]["step ms"] / 2
