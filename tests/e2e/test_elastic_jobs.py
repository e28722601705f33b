"""Two elastic jobs, example and example2, share a machine of two cores as EDL describes it.

Workers ask for 0.2 of a core, the load limit is 0.9: nine workers. Idle capacity is handed out, taken back
when another job waits; neither job is restarted, neither result changes. The time line is printed, and
kept as a file beside the server's data.
"""
import json
import os
import time

import pytest
from server import Server

CORES, LIMIT, EACH, MAX = 2, 0.9, 0.2, 8
SETTLE = 5          # seconds that the scheduler may take between two decisions on a busy machine


@pytest.fixture
def two_cores():
    """For this process and what it starts."""
    before = os.sched_getaffinity(0)
    if len(before) < CORES:
        pytest.skip("needs two cores")
    os.sched_setaffinity(0, sorted(before)[:CORES])
    yield
    os.sched_setaffinity(0, before)


def job(server, name):
    return server.json("GET", f"/api/jobs/default/{name}")


def until(server, name, what, seconds=240):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        doc = job(server, name)
        if what(doc):
            return doc
        assert doc["state"] not in ("failed", "cancelled"), doc
        time.sleep(0.02)
    raise AssertionError(f"{name} did not come that far: {doc}")


def workers(n):
    return lambda doc: doc["workers"]["now"] >= n


def ended(doc):
    return doc["state"] == "succeeded"


def history(server, names):
    """[(t, name, event)] of all, in order."""
    out = []
    for name in names:
        for e in server.json("GET", f"/api/jobs/default/{name}/events")["events"]:
            out.append((e["t"], name, e))
    return sorted(out, key=lambda x: x[0])


def time_line(log):
    """[{t, granted, there, waiting}] after each event; in workers of 0.2 of a core."""
    granted, there, waiting, line = {}, {}, set(), []
    for t, name, e in log:
        kind = e["type"]
        if kind == "job.submitted":
            waiting.add(name)
        elif kind in ("job.preparing", "job.scaled") and "workers" in e:
            waiting.discard(name)
            granted[name] = e["workers"] * (4 if name == "third" else 1)
        elif kind in ("worker.joined", "worker.left"):
            there[name] = e["workers"]
        elif kind == "job.ended":
            granted.pop(name, None)
            there.pop(name, None)
        line.append({"t": t, "event": f"{name} {kind}", "granted": dict(granted),
                     "there": dict(there), "waiting": sorted(waiting)})
    return line


def show(line, path):
    begin = line[0]["t"]
    rows = ["   seconds  granted: example example2 third   at work: example example2  waiting  event"]
    for p in line:
        g, w = p["granted"], p["there"]
        rows.append(f"{p['t'] - begin:10.3f} {g.get('example', 0):17} {g.get('example2', 0):8} "
                    f"{g.get('third', 0):5} {w.get('example', 0):17} {w.get('example2', 0):8}  "
                    f"{','.join(p['waiting']) or '-':8} {p['event']}")
    text = "\n".join(rows)
    path.write_text(text + "\n")
    print("\n" + text)


def test_example_and_example2_share_the_machine(muster, lenet, tmp_path, two_cores):
    sets = ["--set", "limit=4000", "--set", "batch=64", "--set", "test.every=never",
            "--set", f"resources.cpu={EACH}"]
    mine = {"example": [*sets, "--set", "epochs=150"],
            "example2": [*sets, "--set", "epochs=60", "--set", "seed=2"]}
    with Server(muster, tmp_path / "data") as server:
        for name in mine:
            muster("submit", lenet, *mine[name], "--workers", f"1..{MAX}", "--name", name,
                   env=server.env)
            until(server, name, workers(MAX if name == "example" else 1))
        # Asks for four workers' worth: example has most to give.
        server.json("POST", "/api/jobs", {"name": "third", "spec": {
            "kind": "command", "command": ["sleep", "2"], "resources": {"cpu": 4 * EACH}}})
        until(server, "third", ended)
        until(server, "example2", workers(3))
        for name in mine:
            until(server, name, ended)
        log = history(server, [*mine, "third"])
        runs = {name: json.loads((server.data_dir / "jobs" / str(job(server, name)["uid"]) /
                                  "1/work/run/run.json").read_text()) for name in mine}
    line = time_line(log)
    show(line, tmp_path / "time-line.txt")

    # Neither was restarted, and each got and gave workers.
    for name in mine:
        kinds = [e["type"] for _, n, e in log if n == name]
        assert kinds.count("attempt.started") == 1 and "job.scaled" in kinds
    third = [p for p in line if "third" in p["granted"]]
    assert third[0]["granted"]["example"] < MAX and third[0]["granted"]["example2"] == 1

    # When it had ended, the one with least grew first: 4/7 and 3/7.
    after = [p for p in line if "third job.ended" == p["event"] or p["t"] > third[-1]["t"] and
             set(p["granted"]) == set(mine)]
    assert any(p["granted"] == {"example": 5, "example2": 4} for p in after), after[:3]

    # Never more than one worker below the limit while a job wanted one and nobody waited.
    full = CORES * LIMIT / EACH
    for p, after in zip(line, line[1:]):
        wants = [n for n in mine if n in p["granted"] and p["granted"][n] < MAX]
        if wants and not p["waiting"] and after["t"] - p["t"] > SETTLE:
            assert sum(p["granted"].values()) > full - 1 - 1e-6, p
        assert sum(p["granted"].values()) * EACH <= CORES + 1e-6, p

    # The same bits as alone and undisturbed.
    for name in mine:
        muster("train", lenet, *mine[name], "--out", tmp_path / name, "--quiet")
        alone = json.loads((tmp_path / name / "run.json").read_text())
        assert runs[name]["digest"] == alone["digest"]
