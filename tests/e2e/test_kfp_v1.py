"""Kubeflow's v1beta1 API by its own client: kfp 1.8 compiles, uploads, runs, follows."""
import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import CACHE
from hosts import die_with_parent
from server import Server

PYTHON = CACHE / "kfp1-venv/bin/python"
PROGRAM = Path(__file__).parent / "programs/kfp1_calls.py"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no kfp 1.8 here (./setup.sh)")


def call(server, folder, *command, check=True):
    """A program of the SDK with what `muster env` says, and a home of its own."""
    env = {**os.environ, **server.client_env(), "HOME": str(folder), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([str(c) for c in command], env=env, cwd=folder, text=True,
                          capture_output=True, timeout=500, preexec_fn=die_with_parent)
    if check:
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done


@pytest.fixture(scope="module")
def served(muster, tmp_path_factory):
    with Server(muster, tmp_path_factory.mktemp("kfp1") / "data") as s:
        yield s


@pytest.fixture(scope="module")
def seen(served, tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    (folder / "flags").mkdir()
    done = call(served, folder, PYTHON, PROGRAM, folder, folder / "flags/flag")
    return json.loads(done.stdout)


def test_pipelines_and_versions_are_uploaded_listed_and_removed(seen):
    assert seen["healthz"] is False
    assert seen["upload"] == ["features", "by the SDK", {"n": "3", "word": "tails"}, "features",
                              "short.yaml"]
    for what in ("default", "default moved", "version", "template", "version template"):
        assert seen[what], what
    assert seen["versions"] == ["short.yaml", "second"]
    assert seen["id by name"] == [True, None]
    assert seen["pages"] == [[["endless", "features"], ["short.yaml"]], 3]
    assert seen["substring"] == ["features"]


def test_what_is_not_there_or_cannot_run_is_told_in_kubeflows_form(seen):
    assert seen["version gone"] == seen["experiment gone"] == seen["run gone"] == 404
    assert seen["job gone"] == seen["no pipeline"] == 404
    status, body = seen["pipeline gone"]
    assert status == 404 and body["code"] == 5 and "there is no pipeline" in body["error"]
    assert body["details"][0]["error_message"] == body["message"] == body["error"]
    assert seen["twice"][0] == 409 and "already" in seen["twice"][1]["error"]
    assert seen["bad"][0] == 400 and "bad.yaml" in seen["bad"][1]["error"]
    assert "nowhere" in seen["bad"][1]["error"]
    assert seen["bad filter"] == seen["bad sort"] == seen["bad token"] == 400
    assert seen["bad parameter"][0] == 400 and "nobody" in seen["bad parameter"][1]["error"]


def test_experiments_are_found_again_archived_and_removed(seen):
    assert seen["same experiment"] and seen["by name"]
    assert seen["experiments"] == ["other", "first"]
    assert seen["archived"] == "STORAGESTATE_ARCHIVED"
    assert seen["not archived"] == ["first"]
    assert seen["unarchived"] == "STORAGESTATE_AVAILABLE"


def test_a_run_with_every_feature_is_shown_as_argo_would(seen):
    run = seen["run"]
    assert run["status"] == "Succeeded" and run["name"] == "all of it"
    assert run["parameters"] == {"n": "4", "word": "heads"}
    assert {"name": "word", "value": "heads"} in run["arguments"]
    assert run["pipeline"] and run["experiment"] == ["first"]
    assert run["edges"] and run["boundaries"] and run["times"]
    phases = run["phases"]
    assert phases["first"] == phases["heads"] == phases["square"] == "Succeeded"
    assert "never" not in phases and "Skipped" in phases.values()
    assert {"DAG", "Pod", "TaskGroup"} <= set(run["types"].values())
    assert run["first"]["first-word"].strip() == "heads"


def test_logs_and_artifacts_of_its_steps_are_read(seen):
    run = seen["run"]
    assert run["log"].splitlines()[-1] == "said heads"
    assert run["file"] == "large\n"
    assert run["read"].splitlines()[-1] == "large"
    assert [log.splitlines()[-1] for log in run["squares"]] == [f"square {i * i}" for i in range(4)]
    assert [log.splitlines()[-1] for log in run["exit"]] == ["status Succeeded"]
    assert run["missing"] == [404, 404]


def test_metrics_are_reported_once(seen):
    assert seen["metrics"] == [["OK", "accuracy"], ["INVALID_ARGUMENT", "Bad Name"]]
    assert seen["metrics again"] == ["DUPLICATE_REPORTING"]
    assert sorted(seen["metric"]) == [["accuracy", 0.5, "PERCENTAGE"], ["loss", 0.25, "RAW"]]


def test_runs_end_as_they_are_asked_to(seen):
    assert seen["direct"] == "Succeeded"
    assert seen["failed"] == ["Failed", True, ["Failed"]]
    assert seen["retried"] == ["Succeeded", True], "what had succeeded is not run again"
    assert seen["retry of what succeeded"] == 409 and seen["terminated twice"] == 409
    assert seen["terminated"] == "Failed"
    assert seen["run archived"] == "STORAGESTATE_ARCHIVED"
    assert seen["run unarchived"] == "STORAGESTATE_AVAILABLE"
    assert seen["runs"][-1] == "all of it" and not seen["failed runs"]


def test_recurring_runs_begin_by_the_clock(seen):
    assert seen["recurring"] == [True, "Succeeded", False, "1"]
    assert seen["cron"] == [True, "0 0 9 * * *", "Enabled"]
    assert seen["jobs"] == ["cron", "often"]


def test_every_call_of_the_api_was_made(seen):
    assert seen["never called"] == []
    assert seen["from a bucket"] == ["from a bucket", "again", 2] and seen["packed"] == "Succeeded"


def test_the_commands_of_kfp_do_the_same(seen):
    assert seen["commands"] == [True, True, True, "Succeeded", True, True]


def test_the_command_line_of_kfp_uploads_and_lists(seen, served, tmp_path):
    (tmp_path / "hello.yaml").write_text(
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: hello-}\n"
        "spec:\n  entrypoint: main\n  templates:\n"
        "  - {name: main, container: {image: alpine, command: [echo, hello]}}\n")
    kfp = [PYTHON.parent / "kfp", "--endpoint", served.url]
    call(served, tmp_path, *kfp, "pipeline", "upload", "-p", "hello", tmp_path / "hello.yaml")
    listed = served.json("GET", "/apis/v1beta1/pipelines?sort_by=created_at+desc&page_size=1")
    assert listed["pipelines"][0]["name"] == "hello"


def test_a_token_sees_its_project_alone(muster, served, tmp_path):
    muster("project", "add", "secluded", env=served.env)
    token = served.json("POST", "/api/projects/secluded/tokens", {})["token"]
    mine = served.json("POST", "/apis/v1beta1/experiments", {"name": "mine"}, token=token)
    listed = served.json("GET", "/apis/v1beta1/experiments", token=token)
    assert [e["name"] for e in listed["experiments"]] == ["mine"]
    other = served.json("POST", "/apis/v1beta1/experiments", {"name": "of default"})
    assert served.call("GET", f"/apis/v1beta1/experiments/{other['id']}", token=token)[0] == 404
    assert served.call("GET", f"/apis/v1beta1/experiments/{mine['id']}", token=token)[0] == 200
    named = ("/apis/v1beta1/experiments?resource_reference_key.type=NAMESPACE"
             "&resource_reference_key.id=")
    assert served.call("GET", named + "secluded", token=token)[0] == 200
    status, _, body = served.call("GET", named + "default", token=token)
    assert status == 403 and json.loads(body)["code"] == 7
    assert served.call("GET", "/apis/v1beta1/experiments", token="")[0] == 401
    assert served.call("GET", "/apis/v1beta1/healthz", token="")[0] == 200
