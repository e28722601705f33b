"""muster pipelines, experiments, runs and recurring: what the SDK does, in a terminal."""
import json
import re

import pytest
from hosts import wait_for
from server import Server

FLOW = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: greet-}
spec:
  entrypoint: main
  arguments: {parameters: [{name: who, value: world}]}
  templates:
  - name: main
    dag:
      tasks:
      - {name: hello, template: hello}
      - {name: each, template: echo, dependencies: [hello], withItems: [a, b],
         arguments: {parameters: [{name: x, value: '{{item}}'}]}}
  - name: hello
    metadata: {labels: {pipelines.kubeflow.org/enable_caching: "true"}}
    container:
      image: alpine
      command: [sh, -c, 'echo hello $0 | tee /tmp/out', '{{workflow.parameters.who}}']
    outputs: {artifacts: [{name: out, path: /tmp/out}]}
  - name: echo
    inputs: {parameters: [{name: x}]}
    container: {image: alpine, command: [echo, 'item {{inputs.parameters.x}}']}
"""


@pytest.fixture(scope="module")
def call(muster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "flow.yaml").write_text(FLOW)
    (folder / "long.yaml").write_text(re.sub(r"(?s)  - name: main.*", "", FLOW) + "  - name: main\n"
                                      "    container: {image: alpine, command: [sleep, '600']}\n")
    (folder / "fails.yaml").write_text(FLOW.replace("'echo hello", "'exit 4; echo hello"))
    with Server(muster, folder / "data") as s:
        def call(*args, **kw):
            return muster(*args, env=s.env, cwd=folder, **kw)
        call("pipelines", "upload", "flow.yaml", "--name", "greet", "--description", "says hello")
        call("pipelines", "upload", "fails.yaml", "--name", "fails")
        call("pipelines", "upload", "long.yaml", "--name", "long")
        yield call


def create(call, pipeline, *args, **kw):
    """The name of a run that has ended."""
    return call("runs", "create", pipeline, "--wait", *args, **kw).stdout.split()[0]


def test_a_pipeline_is_uploaded_shown_and_has_versions(call):
    call("pipelines", "upload", "flow.yaml", "--name", "v2", "--version-of", "greet")
    shown = call("pipelines", "show", "greet").stdout
    assert "says hello" in shown and "parameter who = world" in shown
    assert re.search(r"v2  \(default\)", shown)
    doc = json.loads(call("pipelines", "show", "greet", "--json").stdout)
    assert [v["name"] for v in doc["versions"]] == ["v2", "greet"]
    assert "greet" in call("pipelines", "list").stdout
    assert call("pipelines", "list", "--text", "nothing").stdout == ""
    assert create(call, "greet", "--version", "greet")
    done = call("runs", "create", "greet", "--version", "v9", check=False)
    assert done.returncode == 4 and 'no version "v9"' in done.stderr
    call("pipelines", "upload", "flow.yaml", "--name", "gone")
    call("pipelines", "delete", "gone")
    done = call("pipelines", "show", "gone", check=False)
    assert done.returncode == 4 and '"gone"' in done.stderr


def test_a_run_is_created_shown_and_its_logs_and_artifacts_are_printed(call):
    run = create(call, "greet", "-p", "who=you", "--name", "my run", "--experiment", "words")
    shown = call("runs", "show", run).stdout
    assert "my run  succeeded" in shown and "parameter who = you" in shown
    assert re.search(r"Succeeded +\d+\.\d\d s +hello$", shown, re.M) and "each(1:b)" in shown
    assert call("runs", "logs", run, "hello").stdout.splitlines()[-1] == "hello you"
    whole = call("runs", "logs", "my run").stdout
    assert whole.count("==> ") == 3 and "item a\n" in whole and "item b\n" in whole
    assert call("runs", "logs", "-f", run).stdout.count("==> ") == 3
    assert re.search(r"\b10  main\.hello  out  gs://", call("runs", "artifacts", run).stdout)
    assert call("runs", "artifacts", run, "hello", "out").stdout == "hello you\n"
    again = create(call, "greet", "-p", "who=you")
    explained = json.loads(call("runs", "explain", again, "--json").stdout)
    assert [e["cached"] for e in explained if e["name"] == "main.hello"] == [True]
    assert "cached  Succeeded main.hello: " in call("runs", "explain", again).stdout
    for args in (["logs", run, "nobody"], ["artifacts", run, "hello", "nothing"],
                 ["show", "nobody"]):
        assert call("runs", *args, check=False).returncode == 4, args


def test_runs_fail_are_retried_archived_and_deleted(call):
    done = call("runs", "create", "fails", "--wait", "--name", "it fails", check=False)
    assert done.returncode == 1 and "exit code 4" in done.stderr
    done = call("runs", "retry", "it fails", "--wait", check=False)
    assert done.returncode == 1 and "exit code 4" in done.stderr
    states = {r["name"]: r["state"] for r in json.loads(
        call("runs", "list", "--state", "failed", "--json").stdout)}
    assert states == {"it fails": "failed"}
    call("runs", "archive", "it fails")
    assert "it fails" not in call("runs", "list").stdout
    assert "it fails" in call("runs", "list", "--archived").stdout
    call("runs", "unarchive", "it fails")
    call("runs", "delete", "it fails")
    assert call("runs", "show", "it fails", check=False).returncode == 4


def test_a_run_is_terminated(call):
    made = call("runs", "create", "long").stdout.split()
    assert call("runs", "terminate", made[1]).stdout.startswith(made[1])
    assert call("runs", "logs", "-f", made[0], check=False).returncode == 1
    assert call("runs", "terminate", made[1], check=False).returncode == 5


def test_experiments_are_created_archived_and_deleted(call):
    call("experiments", "create", "rates", "--description", "which one")
    create(call, "greet", "--experiment", "rates")
    assert len(call("runs", "list", "--experiment", "rates").stdout.splitlines()) == 1
    call("experiments", "archive", "rates")
    assert "rates" not in call("experiments", "list").stdout
    assert "rates" in call("experiments", "list", "--archived").stdout
    done = call("runs", "create", "greet", "--experiment", "rates", check=False)
    assert done.returncode == 5 and "archived" in done.stderr
    call("experiments", "unarchive", "rates")
    call("experiments", "delete", "rates")
    assert call("experiments", "create", "x", "y", check=False).returncode == 2


def test_runs_begin_by_the_clock(call):
    call("recurring", "create", "greet", "--every", "1", "--name", "often", "-p", "who=clock",
         "--experiment", "ticks")
    made = call("recurring", "create", "greet", "--cron", "0 0 9 1 1 *", "--at-once", "3",
                "--no-catchup", "--disabled").stdout
    assert re.match(r"disabled  next .* 0 runs  greet  \(0 0 9 1 1 \*\)$", made), made

    def listed():
        return {r["name"]: r for r in json.loads(call("recurring", "list", "--json").stdout)}
    wait_for(lambda: listed()["often"]["index"])
    assert call("recurring", "disable", "often").stdout == "often: disabled\n"
    assert re.search(r"disabled  next +\d+ runs  often  \(every 1 s\)",
                     call("recurring", "list").stdout)
    assert call("runs", "list", "--experiment", "ticks").stdout
    rarely = listed()["greet"]
    assert (rarely["max_concurrency"], rarely["no_catchup"]) == (3, True)
    call("recurring", "enable", rarely["id"])
    assert listed()["greet"]["next"] > 0
    call("recurring", "delete", "often", "greet")
    assert not listed()
    for bad in (["create", "greet"], ["create", "greet", "--every", "1", "--cron", "@daily"],
                ["create", "greet", "--cron", "soon"]):
        assert call("recurring", *bad, check=False).returncode == 2, bad
    assert call("recurring", "enable", "nobody", check=False).returncode == 4


def test_what_cannot_run_is_refused_with_its_line(call, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(FLOW.replace("template: echo", "template: nobody"))
    done = call("pipelines", "upload", bad, check=False)
    assert done.returncode == 2 and "bad.yaml:12" in done.stderr and "nobody" in done.stderr
    done = call("runs", "create", "greet", "-p", "whom=x", check=False)
    assert done.returncode == 2 and '"whom"' in done.stderr
