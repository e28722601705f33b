"""kill -9 of the server at its failure points while a workflow of 30 steps with loops, retries, artifacts
and a volume runs: after a restart it goes on, each step ran once to its end, outputs are the same.

MUSTER_STORE_FAULT=N kills the server at the N-th point that it passes (store_point in server/store.h).
"""
import http.client
import json
import os
import time

import joblog
from server import Server
from test_pipelines import ENDED, SAY, VOLUME, begin, chain, nodes, on_volume, sh, wait, workflow

# Of some hundred points so many are tried, spread over all; another offset is another sample.
SAMPLES = 22

COUNT = sh("count", "echo ran; printf '%s' '{{inputs.parameters.m}}' > /tmp/out; "
           "echo '{{inputs.parameters.m}}' > /tmp/art", "{parameters: [{name: m}]}",
           "{parameters: [{name: out, valueFrom: {path: /tmp/out}}], "
           "artifacts: [{name: art, path: /tmp/art}]}")
FLAKY = sh("flaky", "echo ran; test {{retries}} = 1 && echo good > /tmp/out", "",
           "{parameters: [{name: out, valueFrom: {path: /tmp/out, default: ''}}]}",
           "retryStrategy: {limit: 3}\n")
JOIN = sh("join", "echo ran; printf '%s' '{{inputs.parameters.m}}' > /tmp/out; cat /in >> /tmp/out",
          "{parameters: [{name: m}], artifacts: [{name: a, path: /in}]}",
          "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")


def story():
    """Some 30 steps."""
    def m(value):
        return "arguments: {parameters: [{name: m, value: '%s'}]}" % value

    volume = "arguments: {parameters: [{name: v, value: '{{tasks.volume.outputs.parameters.name}}'}]}"
    inner = "name: inner\ninputs: {parameters: [{name: m}]}\ndag:\n  tasks:\n" \
            f"  - {{name: x, template: count, {m('{{inputs.parameters.m}}.{{item}}')}, " \
            "withItems: [1, 2]}\n"
    return workflow(COUNT, FLAKY, JOIN, SAY, VOLUME, on_volume("write", "echo ran; echo x >> /data/f"),
                    inner, chain(
        f"{{name: first, template: count, {m('a')}}}",
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
        "from: '{{tasks.first.outputs.artifacts.art}}'}]}}",
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
        run = wait(server, run, seconds=40)
        return server, run, False
    except (OSError, http.client.HTTPException):
        assert server.process.wait(10) == -9, server.said()
    except AssertionError:
        if server.process.poll() != -9:
            raise
    server.kill()
    server.extra = {}
    server.start()
    runs = server.json("GET", "/api/runs")["runs"]
    assert runs or not run, f"point {fault}: an acknowledged run is gone"
    run = runs[0] if runs else begin(server, text)
    return server, wait(server, run, seconds=40), True


def check(muster, server):
    server.kill()
    assert "is sound" in muster("serve", "--data-dir", server.data_dir, "--check").stdout


def points_of(muster, folder, text, most=100000):
    """How many points it passes: the last at which it dies, found by doubling and halving."""
    low, high = 1, 64
    while died_at(muster, folder / f"h{high}", text, high) and high < most:
        low, high = high, 2 * high
    return low, high


def died_at(muster, folder, text, fault):
    server, _, died = with_fault(muster, folder, text, fault)
    server.kill()
    return died


def test_a_server_killed_at_points_all_over_a_run_loses_and_repeats_nothing(muster, tmp_path):
    text = story()
    server, run, _ = with_fault(muster, tmp_path / "whole", text, None)
    assert run["state"] == "succeeded", json.dumps(nodes(server, run), indent=1)
    want, ran = outcome(server, run), times_run(server, run)
    assert set(ran.values()) == {1} and len(ran) >= 30, ran
    assert want["main.flaky(0)"][1] == "Failed" and want["main.flaky(1)"][1] == "Succeeded"
    check(muster, server)

    low, high = points_of(muster, tmp_path, text)
    died = 0
    for i in range(SAMPLES):
        fault = 1 + i * low // SAMPLES + (i * 7) % max(1, low // SAMPLES)
        server, run, dead = with_fault(muster, tmp_path / f"p{fault}", text, fault)
        try:
            died += dead
            assert run["state"] == "succeeded", f"point {fault}: {run}\n{outcome(server, run)}"
            assert outcome(server, run) == want, f"point {fault}"
            assert times_run(server, run) == ran, f"point {fault}"
        finally:
            check(muster, server)
    assert died >= SAMPLES - 2, f"{died} of {SAMPLES} deaths, {low} to {high} points"


def test_a_run_that_is_being_terminated_ends_after_a_restart(muster, tmp_path):
    text = workflow(sh("sleep", "sleep 60"), chain("{name: a, template: sleep}",
                                                   "{name: b, template: sleep}"))
    for fault in (None, "runs.stop:1", "runs.stop:2", "runs.commit:1", "runs.committed:1"):
        server = Server(muster, tmp_path / str(fault)).start()
        run = begin(server, text)
        while [n["phase"] for n in nodes(server, run).values()].count("Running") < 3:
            time.sleep(0.02)
        server.kill()
        server.extra = {"MUSTER_STORE_FAULT": fault} if fault else {}
        server.start()
        try:
            server.json("POST", f"/api/runs/default/{run['id']}/terminate")
            run = wait(server, run)
            assert not fault
        except (OSError, http.client.HTTPException):
            server.process.wait(10)
            server.extra = {}
            server.start()
            if server.json("GET", f"/api/runs/default/{run['id']}")["state"] == "running":
                server.json("POST", f"/api/runs/default/{run['id']}/terminate")
            run = wait(server, run)
        assert run["state"] == "terminated"
        jobs = server.json("GET", "/api/jobs")["jobs"]
        assert [j["state"] for j in jobs] == ["cancelled", "cancelled"], fault
        check(muster, server)


def test_a_step_whose_keeper_is_killed_is_an_error_and_is_retried_as_its_strategy_says(server):
    text = workflow(sh("die", "echo begun; test {{retries}} = 1 || sleep 60",
                       more="retryStrategy: {limit: 1, retryPolicy: Always}\n"),
                    chain("{name: a, template: die}"))
    run = begin(server, text)
    while True:
        n = nodes(server, run).get("main.a(0)")
        if n and n["phase"] == "Running" and n["job"]:
            break
        time.sleep(0.02)
    job = server.json("GET", f"/api/jobs/default/{n['job']}")
    lock = next((server.data_dir / "jobs" / str(job["uid"])).glob("*/lock"))
    os.kill(int(lock.read_text().split()[0]), 9)
    run = wait(server, run)
    assert run["state"] == "succeeded"
    assert nodes(server, run)["main.a(0)"]["phase"] == "Error"


def test_a_step_that_prints_and_writes_without_end_fails_alone(server):
    text = workflow(sh("fill", "head -c 3000000 /dev/zero > /tmp/out",
                       outputs="{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}"), SAY,
                    chain("{name: a, template: fill}",
                          "{name: b, template: say, arguments: {parameters: [{name: m, value: x}]}}"))
    run = wait(server, begin(server, text))
    assert run["state"] in ENDED and run["state"] != "succeeded"
    found = nodes(server, run)
    assert "larger than" in found["main.a"]["message"] and found["main.b"]["phase"] == "Succeeded"
