"""kill -9 of the server at its failure points while a workflow of 30 steps with loops, retries, artifacts
and a volume runs: after a restart it goes on, each step ran once to its end, outputs are the same.

MUSTER_STORE_FAULT=N kills the server at the N-th point that it passes (store_point in server/store.h).
"""
import http.client
import itertools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import joblog
import pytest
from hosts import wait_for
from server import Server
from test_pipelines import ENDED, SAY, VOLUME, begin, chain, nodes, on_volume, sh, wait, workflow
from test_server_faults import fill, small_disk  # noqa: F401 (a fixture)

# Every so many-th point is tried by make test; a prime, since points come in groups. With
# MUSTER_FAULT_POINTS=all every point of every name is, which takes some ten minutes.
STRIDE = 31

COUNT = sh("count", "echo ran; printf '%s' '{{inputs.parameters.m}}' > /tmp/out; "
           "echo '{{inputs.parameters.m}}' > /tmp/art", "{parameters: [{name: m}]}",
           "{parameters: [{name: out, valueFrom: {path: /tmp/out}}], "
           "artifacts: [{name: art, path: /tmp/art}]}")
LARGE = sh("large", "echo ran; mkdir /tmp/d; seq 60000 > /tmp/d/f; echo a > /tmp/art", "",
           "{artifacts: [{name: art, path: /tmp/art}, {name: dir, path: /tmp/d}]}")
FLAKY = sh("flaky", "echo ran; test {{retries}} = 1 && echo good > /tmp/out", "",
           "{parameters: [{name: out, valueFrom: {path: /tmp/out, default: ''}}]}",
           "retryStrategy: {limit: 3}\n")
JOIN = sh("join", "echo ran; printf '%s' '{{inputs.parameters.m}}' > /tmp/out; cat /in >> /tmp/out; "
          "tail -n 1 /dir/f >> /tmp/out",
          "{parameters: [{name: m}], artifacts: [{name: a, path: /in}, {name: d, path: /dir}]}",
          "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")


def story():
    """Some 30 steps."""
    def m(value):
        return "arguments: {parameters: [{name: m, value: '%s'}]}" % value

    volume = "arguments: {parameters: [{name: v, value: '{{tasks.volume.outputs.parameters.name}}'}]}"
    inner = "name: inner\ninputs: {parameters: [{name: m}]}\ndag:\n  tasks:\n" \
            f"  - {{name: x, template: count, {m('{{inputs.parameters.m}}.{{item}}')}, " \
            "withItems: [1, 2]}\n"
    write = on_volume("write", "echo ran; echo x >> /data/f")
    return workflow(COUNT, LARGE, FLAKY, JOIN, SAY, VOLUME, write, inner, chain(
        "{name: first, template: large}",
        f"{{name: each, template: count, dependencies: [first], {m('{{item}}')}, "
        "withItems: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]}",
        f"{{name: nest, template: inner, dependencies: [first], {m('n{{item}}')}, "
        "withItems: [a, b, c]}",
        "{name: flaky, template: flaky, dependencies: [first]}",
        "{name: flakier, template: flaky, dependencies: [flaky]}",
        "{name: volume, template: volume}",
        f"{{name: write, template: write, dependencies: [volume], {volume}}}",
        f"{{name: again, template: write, dependencies: [write], {volume}}}",
        "{name: join, template: join, dependencies: [each, nest], arguments: {parameters: [{name: m, "
        "value: '{{tasks.each.outputs.parameters.out}}'}], artifacts: [{name: a, "
        "from: '{{tasks.first.outputs.artifacts.art}}'}, {name: d, from: "
        "'{{tasks.first.outputs.artifacts.dir}}'}]}}",
        f"{{name: last, template: count, dependencies: [join, flakier, again], "
        f"{m('{{tasks.join.outputs.parameters.out}}')}}}"), name="name: story",
        spec="onExit: bye\n") + "  - " + sh("bye", "echo ran '{{workflow.status}}'").replace(
            "\n", "\n    ").rstrip() + "\n"


def outcome(server, run):
    """All that is said of the nodes, but for times and where things are."""
    found = {}
    for name, n in nodes(server, run).items():
        out = n["outputs"]
        arts = {k: [(x["sha256"], x["size"]) for x in (a if isinstance(a, list) else [a])]
                for k, a in out.get("artifacts", {}).items()}
        found[name] = (n["kind"], n["phase"], n["attempt"], json.dumps(out.get("parameters", {}),
                                                                       sort_keys=True), arts)
    return found


def times_run(server, run):
    """How often each job's program printed its line."""
    found = {}
    for name, n in nodes(server, run).items():
        if n["job"]:
            job = server.json("GET", f"/api/jobs/default/{n['job']}")
            folder = server.data_dir / "jobs" / str(job["uid"])
            found[name] = sum(text.startswith("ran") for attempt in folder.glob("*")
                              for _, _, _, text in joblog.read(attempt))
    return found


def with_fault(muster, folder, text, fault):
    """The run of `text` on a server that dies at its point number `fault`; whether it died."""
    server = Server(muster, folder, env={"MUSTER_STORE_FAULT": str(fault)} if fault else {})
    run = None
    try:
        server.start()
        run = begin(server, text)
        run = wait(server, run)
        return server, run, False
    except (OSError, http.client.HTTPException):
        assert server.process.wait(60) == -9, server.said()
    except AssertionError:
        if server.process.poll() != -9:
            raise
    server.kill()
    server.extra = {}
    server.start()
    runs = server.json("GET", "/api/runs")["runs"]
    assert runs or not run, f"point {fault}: an acknowledged run is gone"
    run = runs[0] if runs else begin(server, text)
    return server, wait(server, run), True


def check(muster, server):
    server.kill()
    assert "is sound" in muster("serve", "--data-dir", server.data_dir, "--check").stdout


def names_of_points(root):
    """Of the failure points that the sources have."""
    text = "".join(f.read_text() for part in ("server", "pipelines") for f in (root / part).glob("*.c"))
    return sorted(set(re.findall(r'store_point\("([\w.-]+)"\)', text)))


def try_points(points, whole, muster, folder, text, patience=1):
    """Kills at one after the other until `patience` in a row were outlived; (deaths, what went wrong)."""
    died, outlived, wrong = 0, 0, []
    for fault in points:
        at = folder / f"p{fault}"
        server, run, dead = with_fault(muster, at, text, fault)
        died, outlived = died + dead, 0 if dead else outlived + 1
        if (outcome(server, run), times_run(server, run)) != whole:
            wrong.append((fault, run["state"], run["message"], outcome(server, run),
                          times_run(server, run)))
        check(muster, server)
        if outlived >= patience:
            break
        if not wrong:
            shutil.rmtree(at, ignore_errors=True)       # keepers may still be at it
    return died, wrong


@pytest.fixture
def quick(tmp_path):
    """A folder in memory where there is room: kill -9 takes nothing from a disk's cache."""
    shm = "/dev/shm"
    room = os.statvfs(shm).f_bavail * os.statvfs(shm).f_frsize if os.access(shm, os.W_OK) else 0
    if room < 512 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm, prefix="muster-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_a_server_killed_at_points_all_over_a_run_loses_and_repeats_nothing(muster, quick, root):
    text = story()
    server, run, _ = with_fault(muster, quick / "whole", text, None)
    assert run["state"] == "succeeded", json.dumps(nodes(server, run), indent=1)
    want, ran = whole = outcome(server, run), times_run(server, run)
    assert set(ran.values()) == {1} and len(ran) >= 30, ran
    assert want["main.flaky(0)"][1] == "Failed" and want["main.flaky(1)"][1] == "Succeeded"
    check(muster, server)

    if os.environ.get("MUSTER_FAULT_POINTS") != "all":
        died, wrong = try_points(itertools.count(STRIDE, STRIDE), whole, muster, quick, text)
        assert not wrong and died >= 10, f"{died} deaths: {wrong}"
        return
    all_wrong = []
    for name in names_of_points(root):          # how many there are varies: commits are shared
        points = (f"{name}:{i}" for i in itertools.count(1))
        died, wrong = try_points(points, whole, muster, quick, text, patience=3)
        all_wrong += wrong
        print(f"{name}: {died} deaths, {len(wrong)} of them wrong", flush=True)
    assert not all_wrong, all_wrong


def test_a_run_that_is_being_terminated_ends_after_a_restart(muster, tmp_path):
    text = workflow(sh("sleep", "sleep 600"), chain("{name: a, template: sleep}",
                                                   "{name: b, template: sleep}"))
    for fault in (None, "runs.stop:1", "runs.stop:2", "runs.commit:1", "runs.committed:1"):
        server = Server(muster, tmp_path / str(fault)).start()
        run = begin(server, text)
        wait_for(lambda: [n["phase"] for n in nodes(server, run).values()].count("Running") == 3)
        server.kill()
        server.extra = {"MUSTER_STORE_FAULT": fault} if fault else {}
        server.start()
        try:
            server.json("POST", f"/api/runs/default/{run['id']}/terminate")
            run = wait(server, run)
            assert not fault
        except (OSError, http.client.HTTPException):
            server.process.wait(60)
            server.extra = {}
            server.start()
            if server.json("GET", f"/api/runs/default/{run['id']}")["state"] == "running":
                server.json("POST", f"/api/runs/default/{run['id']}/terminate")
            run = wait(server, run)
        assert run["state"] == "terminated"
        jobs = server.json("GET", "/api/jobs")["jobs"]
        assert [j["state"] for j in jobs] == ["cancelled", "cancelled"], fault
        check(muster, server)


def test_a_step_that_is_killed_or_whose_keeper_is_says_so_and_is_retried_as_its_strategy_says(server):
    text = workflow(sh("keeper", "echo begun; test {{retries}} = 1 || sleep 600",
                       more="retryStrategy: {limit: 1, retryPolicy: Always}\n"),
                    sh("killed", "test {{retries}} = 1 || kill -9 $$",
                       more="retryStrategy: {limit: 1}\n"),
                    sh("once", "kill -9 $$"), chain(
        "{name: a, template: keeper}", "{name: b, template: killed}",
        "{name: c, template: once, depends: a && b}"))
    run = begin(server, text)
    n = wait_for(lambda: (n := nodes(server, run).get("main.a(0)")) and n["phase"] == "Running" and n)
    job = server.json("GET", f"/api/jobs/default/{n['job']}")
    lock = next((server.data_dir / "jobs" / str(job["uid"])).glob("*/lock"))
    os.kill(int(lock.read_text().split()[0]), 9)
    run = wait(server, run)
    found = {name: (n["phase"], n["message"]) for name, n in nodes(server, run).items()}
    assert found["main.a(0)"] == ("Error", "lost: the process that kept it was killed")
    assert found["main.b(0)"] == ("Failed", "killed by signal 9 (Killed)")
    assert found["main.a(1)"] == found["main.b(1)"] == ("Succeeded", "")
    assert (run["state"], run["message"]) == ("failed", "main.c: killed by signal 9 (Killed)")


def test_a_step_that_prints_and_writes_without_end_fails_alone(server):
    text = workflow(sh("fill", "head -c 3000000 /dev/zero > /tmp/out",
                       outputs="{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}"), SAY,
                    chain("{name: a, template: fill}",
                          "{name: b, template: say, arguments: {parameters: [{name: m, value: x}]}}"))
    run = wait(server, begin(server, text))
    assert run["state"] in ENDED and run["state"] != "succeeded"
    found = nodes(server, run)
    assert "larger than" in found["main.a"]["message"] and found["main.b"]["phase"] == "Succeeded"


def test_outputs_of_nothing_but_holes_are_not_copied(server):
    text = workflow(sh("file", "truncate -s 1T /tmp/o", outputs="{artifacts: [{name: o, path: /tmp/o}]}"),
                    sh("folder", "mkdir /tmp/d; truncate -s 1T /tmp/d/o",
                       outputs="{artifacts: [{name: d, path: /tmp/d}]}"),
                    chain("{name: a, template: file}", "{name: b, template: folder, depends: a.Errored}"))
    run = wait(server, begin(server, text))
    for name in ("main.a", "main.b"):
        assert "no room for so much" in nodes(server, run)[name]["message"]


def test_a_step_that_fills_the_disk_fails_and_the_next_ones_have_room(muster, small_disk):  # noqa: F811
    fill = "echo first > /tmp/f; cat /dev/zero >> /tmp/f"
    text = workflow(sh("fill", fill), sh("leave", fill + "; true",
                                         outputs="{artifacts: [{name: f, path: /tmp/f}]}"),
                    SAY, chain("{name: a, template: fill}",
                               "{name: b, template: leave, depends: a.Failed}",
                               "{name: c, template: say, depends: b.Errored || b.Failed, "
                               "arguments: {parameters: [{name: m, value: x}]}}"))
    with Server(muster, small_disk / "data") as server:
        run = wait(server, begin(server, text))
        found = nodes(server, run)
        a = found["main.a"]
        # Its program is told that the disk is full, or the keeper ends it before that.
        ends = ("exit code 1", "killed: wrote more than its", "killed: the disk is full")
        assert a["phase"] == "Failed" and a["message"].startswith(ends), a
        log = server.call("GET", f"/api/runs/default/{run['id']}/nodes/main.a/artifacts/main-logs")
        assert b"No space left on device" in log[2] or "its log were lost" in a["message"] or \
            a["message"].startswith("killed"), (a, log)
        assert "the disk is full" in found["main.b"]["message"] or \
            found["main.b"]["message"].startswith(ends), found["main.b"]
        assert found["main.c"]["outputs"]["parameters"]["out"] == "x!"
        assert run["state"] == "succeeded"
        disk = os.statvfs(small_disk)
        assert disk.f_bavail * disk.f_frsize > 4 << 20, "what a step left beside its outputs is there"


def test_a_run_on_a_full_disk_is_terminated_and_deleted(muster, small_disk):  # noqa: F811
    text = workflow(sh("hold", ": > /tmp/ready; sleep 600"), chain("{name: a, template: hold}"))
    with Server(muster, small_disk / "data") as server:
        run = begin(server, text)
        wait_for(lambda: list((small_disk / "data/jobs").glob("*/1/work/tmp/ready")))
        fill(small_disk / "filler")
        muster("runs", "terminate", run["id"], env=server.env)
        assert wait(server, run)["state"] == "terminated"
        muster("runs", "delete", run["id"], env=server.env)
