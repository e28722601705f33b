"""Kubeflow's v2beta1 API by its own client, kfp 2, and by hand."""
import io
import json
import os
import subprocess
import tarfile
import urllib.parse
from pathlib import Path

import pytest
from conftest import CACHE
from hosts import die_with_parent, wait_for
from server import Server

PYTHON = CACHE / "kfp2-venv/bin/python"
PROGRAM = Path(__file__).parent / "programs/kfp2_calls.py"
with_sdk = pytest.mark.skipif(not PYTHON.exists(), reason="no kfp 2 here (./setup.sh)")
BASE = "/apis/v2beta1"

HELLO = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: hello-}
spec:
  entrypoint: main
  arguments:
    parameters: [{name: n, value: '1'}, {name: who, value: me}, {name: wide, value: 'false'},
                 {name: list, value: '[]'}]
  templates:
  - name: main
    container:
      image: alpine
      command: [echo, '{{workflow.parameters.n}}', '{{workflow.parameters.who}}',
                '{{workflow.parameters.wide}}', '{{workflow.parameters.list}}']
"""
LOOP = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: loop-}
spec:
  entrypoint: main
  templates:
  - name: main
    dag:
      tasks:
      - {name: each, template: echo, withItems: [a, b],
         arguments: {parameters: [{name: x, value: '{{item}}'}]}}
  - name: echo
    inputs: {parameters: [{name: x}]}
    container: {image: alpine, command: [echo, '{{inputs.parameters.x}}']}
"""
ENDLESS = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: endless-}
spec:
  entrypoint: main
  templates:
  - {name: main, container: {image: alpine, command: [sleep, '600']}}
"""


@pytest.fixture(scope="module")
def served(muster, tmp_path_factory):
    with Server(muster, tmp_path_factory.mktemp("kfp2") / "data") as s:
        yield s


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    for name, text in (("hello", HELLO), ("loop", LOOP), ("endless", ENDLESS)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


def call(server, folder, *command):
    env = {**os.environ, **server.client_env(), "HOME": str(folder), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([str(c) for c in command], env=env, cwd=folder, text=True,
                          capture_output=True, timeout=500, preexec_fn=die_with_parent)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def seen(served, folder):
    if not PYTHON.exists():
        pytest.skip("no kfp 2 here (./setup.sh)")
    return json.loads(call(served, folder, PYTHON, PROGRAM, folder))


def test_pipelines_and_versions_are_uploaded_listed_and_removed(seen):
    assert seen["healthz"] is False
    assert seen["upload"] == ["hello", "hello", "by the SDK", "default", "second", True]
    assert seen["versions"] == ["second", "hello"] and seen["spec"] == "Workflow"
    assert seen["id by name"] == [True, None] and seen["get"] == "hello"
    assert seen["pages"] == [[["loop", "hello"], ["endless"]], 3]
    assert seen["filtered"] == ["hello", "loop"]
    assert seen["other's version"] == seen["version gone"] == 404 and seen["twice"] == 409
    status, body = seen["pipeline gone"]
    assert status == 404 and body["code"] == 5 and "there is no pipeline" in body["message"]
    assert seen["namespace"] == 404, "a namespace is a project"


def test_experiments_are_found_again_archived_and_removed(seen):
    assert seen["same experiment"] and seen["by name"]
    assert seen["experiments"] == ["other", "first"]
    assert seen["archived"] == "ARCHIVED" and seen["unarchived"] == "AVAILABLE"
    assert seen["not archived"] == ["first"] and seen["experiment gone"] == 404


def test_a_run_has_typed_parameters_states_and_tasks(seen):
    state, name, its, parameters, storage, version, history = seen["run"]
    assert [state, name, its, storage, version] == ["SUCCEEDED", "greets", True, "AVAILABLE", True]
    assert parameters == {"n": "3", "who": "you", "wide": "true", "list": "[1,2]"}, "texts in Argo"
    assert history == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert [t[1:] for t in seen["tasks"]] == [["SUCCEEDED", True]]
    names, parents, children, times = seen["loop"]
    assert {"each(0:a)", "each(1:b)"} <= set(names) and parents and children and times
    assert seen["bad parameter"][0] == 400 and "nobody" in seen["bad parameter"][1]["message"]


def test_a_run_that_is_terminated_ends_the_clients_wait(seen):
    state, code, message = seen["terminated"]
    assert state == "FAILED" and code == 10 and "terminated" in message
    assert seen["terminated twice"] == 409
    assert seen["failed runs"] == ["endless"] and seen["run gone"] == 404
    assert seen["run archived"] == "ARCHIVED" and seen["archived runs"] == ["loops"]
    assert seen["runs"] == ["endless", "loops", "greets"]


def test_recurring_runs_begin_by_the_clock(seen):
    assert seen["recurring"] == ["SUCCEEDED", "DISABLED", "DISABLE", "1", True]
    assert seen["cron"] == ["ENABLED", "0 0 9 * * *", "3"]
    assert seen["total"] == 2 and seen["recurring list"] == ["cron", "often"]
    assert seen["recurring gone"] == 404


def test_pipelines_that_the_sdk_compiled_are_uploaded_and_run(seen, served):
    description, name, n = seen["compiled"]
    assert description == "a function" and name == "compiled"
    assert n["defaultValue"] == 2 and n["parameterType"] == "NUMBER_INTEGER"
    state, parameters, tasks = seen["typed"]
    assert state == "SUCCEEDED" and parameters == {"word": "yo", "n": 5, "loud": False}
    assert tasks == {"say": "SUCCEEDED", "condition-1": "SKIPPED"}
    assert seen["wrong type"] == 400 and seen["own name"] == 409
    *rest, run = seen["function"]
    assert rest == ["SUCCEEDED", "compiled", "SUCCEEDED"] and seen["package"] == "SUCCEEDED"
    old = served.json("GET", f"/apis/v1beta1/runs/{run}")
    manifest = json.loads(old["pipeline_runtime"]["workflow_manifest"])
    assert {n["displayName"] for n in manifest["status"]["nodes"].values()} >= {"say", "say-2"}
    assert "pipelineInfo" in old["pipeline_runtime"]["pipeline_manifest"]


def test_every_call_of_the_api_was_made(seen):
    """But those for Kubeflow's own parts."""
    assert seen["never called"] == [
        "auth_service_authorize", "dummy_filter_service_get_filter",
        "report_service_report_scheduled_workflow", "report_service_report_workflow",
        "visualization_service_create_visualization_v1"]
    assert seen["services"] == ["not for long", "Workflow", "One", "better", True]
    assert seen["old names"] == ["DISABLE", "ENABLE", 404] and seen["retried"] == "FAILED"


@with_sdk
def test_the_command_line_of_kfp_uploads_and_lists(served, folder, seen):
    kfp = [PYTHON.parent / "kfp", "--endpoint", served.url, "--output", "json"]
    made = call(served, folder, *kfp, "pipeline", "create", "-p", "by-hand", folder / "hello.yaml")
    assert "by-hand" in made
    assert served.json("GET", f"{BASE}/pipelines/names/by-hand")["display_name"] == "by-hand"


# ------------------------------------------------------------ by hand

def until(server, run):
    return wait_for(lambda: "finished_at" in (doc := server.json("GET", f"{BASE}/runs/{run}")) and doc)


def test_a_run_with_its_own_spec_fails_and_is_retried(served, tmp_path):
    host = tmp_path / "host"
    host.mkdir()                # steps are another user: they see what all may see
    spec = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
            "metadata": {"generateName": "flag-"},
            "spec": {"entrypoint": "main", "templates": [
                {"name": "main", "container": {
                    "image": "alpine", "command": ["test", "-e", "/host/flag"],
                    "volumeMounts": [{"name": "host", "mountPath": "/host"}]},
                 "volumes": [{"name": "host", "hostPath": {"path": str(host)}}]}]}}
    run = served.json("POST", f"{BASE}/runs", {"display_name": "flag", "pipeline_spec": spec})
    done = until(served, run["run_id"])
    assert done["state"] == "FAILED" and done["error"]["code"] == 13 and done["error"]["message"]
    assert done["pipeline_spec"]["metadata"] == {"generateName": "flag-"}
    assert [t["state"] for t in done["run_details"]["task_details"]] == ["FAILED"]
    (host / "flag").touch()
    served.json("POST", f"{BASE}/runs/{run['run_id']}:retry", {})
    done = until(served, run["run_id"])
    assert done["state"] == "SUCCEEDED", done
    old = served.json("GET", f"/apis/v1beta1/runs/{run['run_id']}")
    assert old["run"]["status"] == "Succeeded", "both versions show the same runs"


def test_packages_come_from_buckets_of_the_server_and_from_nowhere_else(served):
    served.json("POST", "/storage/v1/b?project=default", {"name": "packages-of-kfp"})
    put = "/upload/storage/v1/b/packages-of-kfp/o?uploadType=media&name=hello.yaml"
    assert served.call("POST", put, HELLO.encode())[0] == 200

    def body(url, name):
        return {"pipeline": {"display_name": name, "tags": {"a": "b"}},
                "pipeline_version": {"package_url": {"pipeline_url": url},
                                     "code_source_url": "https://example.com/x"}}
    made = served.json("POST", f"{BASE}/pipelines/create",
                       body("gs://packages-of-kfp/hello.yaml", "from a bucket"))
    assert made["tags"] == {"a": "b"}
    versions = served.json("GET", f"{BASE}/pipelines/{made['pipeline_id']}/versions")
    assert versions["total_size"] == 1
    more = served.json("POST", f"{BASE}/pipelines/{made['pipeline_id']}/versions",
                       {"display_name": "again",
                        "package_url": {"pipeline_url": "gs://packages-of-kfp/hello.yaml"}})
    assert more["pipeline_spec"]["kind"] == "Workflow"
    for url in ("http://127.0.0.1/x.yaml", "file:///etc/passwd", "gs://packages-of-kfp/none", ""):
        status = served.call("POST", f"{BASE}/pipelines/create", body(url, "x"))[0]
        assert status in (400, 404), url


def test_a_pipeline_may_be_changed_and_have_no_version_yet(served):
    made = served.json("POST", f"{BASE}/pipelines", {"display_name": "empty"})
    path = f"{BASE}/pipelines/{made['pipeline_id']}"
    changed = served.json("PATCH", path, {"description": "what it is", "display_name": "Empty"})
    assert changed["description"] == "what it is" and changed["display_name"] == "Empty"
    status, _, body = served.call("POST", f"{BASE}/runs", {
        "pipeline_version_reference": {"pipeline_id": made["pipeline_id"]}})
    assert status == 404 and "no version" in json.loads(body)["message"]


@pytest.mark.parametrize("query", [
    "filter=x", "filter=[]", 'filter={"predicates":[{"key":"name"}]}', "sort_by=name sideways",
    'filter={"predicates":[{"operation":"EQUALS","key":"name"}]}', "page_size=-1",
    'filter={"predicates":[{"operation":"EQUALS","key":"created_at","timestamp_value":"soon"}]}',
    'filter={"predicates":{"a":1}}', "page_token=00"])
def test_a_list_that_cannot_be_given_is_refused(served, query):
    name, value = query.split("=", 1)
    status, _, body = served.call("GET", f"{BASE}/pipelines?{name}={urllib.parse.quote(value)}")
    assert status == 400 and json.loads(body)["code"] == 3


HEAD = b"--x\r\nContent-Disposition: form-data; name="


@pytest.mark.parametrize("body", [
    b"", b"--x\r\n", HEAD + b'"other"\r\n\r\nx\r\n--x--\r\n',
    HEAD + b'"uploadfile"; filename="a"\r\n\r\n\r\n--x--\r\n',
    HEAD + b'"uploadfile"\r\n\r\n\0\1\2\r\n--x--\r\n'])
def test_an_upload_that_is_no_pipeline_is_refused(served, body):
    form = "multipart/form-data"
    for kind in (form + "; boundary=x", "application/octet-stream", form):
        for version in ("v1beta1", "v2beta1"):
            status, _, answer = served.call("POST", f"/apis/{version}/pipelines/upload?name=n",
                                            body, headers={"Content-Type": kind})
            assert status == 400 and json.loads(answer)["code"] == 3


def uploaded(server, package, name="a.yaml"):
    """(status, message) of each API for one package."""
    body = HEAD + f'"uploadfile"; filename="{name}"\r\n\r\n'.encode() + package + b"\r\n--x--\r\n"
    for version in ("v1beta1", "v2beta1"):
        status, _, answer = server.call("POST", f"/apis/{version}/pipelines/upload?name=n", body,
                                        headers={"Content-Type": "multipart/form-data; boundary=x"})
        yield status, json.loads(answer)["message"]


def test_a_50_mb_package_is_refused_also_when_it_comes_small(served):
    for status, said in uploaded(served, b"#" * (50 << 20)):
        assert status == 400 and "at most 32 MB" in said
    packed, file = io.BytesIO(), tarfile.TarInfo("pipeline.yaml")
    file.size = 50 << 20
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.addfile(file, io.BytesIO(b"#" * file.size))
    for status, said in uploaded(served, packed.getvalue(), "a.tar.gz"):
        assert status == 400 and "16 MB" in said, said


def ir(tasks, bomb=""):
    return f"""{bomb}components:
  comp-a: {{executorLabel: exec-a}}
deploymentSpec: {{executors: {{exec-a: {{container: {{image: alpine, command: ['true']}}}}}}}}
pipelineInfo: {{name: p}}
root: {{dag: {{tasks: {tasks}}}}}
schemaVersion: 2.1.0
"""


def task(name, component="comp-a", after=""):
    return f"{name}: {{componentRef: {{name: {component}}}, taskInfo: {{name: {name}}}, " \
           f"dependentTasks: [{after}]}}"


BOMB = "a0: &a0 [" + ", ".join(["lol"] * 9) + "]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
DAG = LOOP.replace("      - {name: each, template: echo, withItems: [a, b],\n",
                   "      - {name: each, TASK,\n")
BAD = {
    "cyclic dependencies": (DAG.replace("TASK", "template: echo, dependencies: [each]"), "a cycle"),
    "cyclic dependencies, kfp 2": (ir("{" + task("a", after="b") + ", " + task("b", after="a") + "}"),
                                   "waits for itself"),
    "unknown template": (DAG.replace("TASK", "template: ech0"), 'no template "ech0"; did you mean'),
    "unknown template, kfp 2": (ir("{" + task("a", "comp-b") + "}"), "comp-b"),
    "missing parameter": (DAG.replace("TASK", "template: echo").replace("name: x, value", "name: y, value"),
                          'parameter "x"'),
    "an alias bomb": (BOMB + HELLO, "too many values"),
    "an alias bomb, kfp 2": (ir("{}", BOMB), "too many values"),
    "a path that climbs": (HELLO.replace("    container:", "    outputs: {artifacts: [{name: x, "
                                         "path: /tmp/../../etc/passwd}]}\n    container:"), "climbs"),
    "a name that climbs": (HELLO.replace("    container:", "    outputs: {artifacts: [{name: ../../x, "
                                         "path: /tmp/x}]}\n    container:"), "../../x"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_its_reason(served, what):
    text, reason = BAD[what]
    for status, said in uploaded(served, text.encode()):
        assert status == 400 and reason in said, said
    status, _, answer = served.call("POST", "/api/runs", {"text": text})
    assert status == 400 and reason in json.loads(answer)["error"]["message"], answer


JUNK = [b"", b"null", b"[]", b"5", b'"x"', b"{", b'{"metrics": 5}', b'{"metrics": [5, {"name": 7}]}',
        b'{"pipeline_spec": 5}', b'{"pipeline_spec": {"pipeline_spec": [], "platform_spec": 3}}',
        b'{"pipeline_spec": {"workflow_manifest": "a: b", "parameters": [5, {"name": 3}]}}',
        b'{"pipeline_spec": {"workflow_manifest": "{", "pipeline_manifest": 4}}',
        b'{"resource_references": [1, {"key": 2}, {"key": {"type": "EXPERIMENT", "id": 4}}]}',
        b'{"display_name": 5, "description": [], "tags": 7, "namespace": {}}',
        b'{"name": {"a": 1}, "url": 4, "package_url": {"pipeline_url": 7}}',
        b'{"trigger": {"cron_schedule": {"cron": 5}}, "pipeline_spec": {}}',
        b'{"trigger": {"periodic_schedule": {"interval_second": "x", "start_time": "soon"}}}',
        b'{"runtime_config": {"parameters": []}, "pipeline_version_reference": []}',
        b'{"pipeline": {}, "pipeline_version": {"package_url": []}}',
        b'{"name": "x", "text": "a: b", "trigger": {"interval_s": 1e300, "start": -1e300}}',
        b'{"name": "x", "trigger": {"cron": "@hourly"}, "max_concurrency": 1e300}']


def test_no_body_is_more_than_the_server_can_refuse(served):
    made = served.json("POST", f"{BASE}/pipelines", {"display_name": "for junk"})["pipeline_id"]
    calls = [("POST", "/apis/v1beta1/" + p) for p in (
        "pipelines", "pipeline_versions", "experiments", "runs", "jobs", "runs/x:reportMetrics",
        "pipelines/upload", "pipelines/upload_version?pipelineid=x", "runs/x/retry")]
    calls += [("POST", f"{BASE}/{p}") for p in (
        "pipelines", "pipelines/create", "pipelines/x/versions", "experiments", "runs",
        "recurringruns", f"pipelines/{made}/versions", "runs/x:terminate")]
    calls += [("PATCH", f"{BASE}/pipelines/{made}"), ("POST", "/api/recurring")]
    for method, path in calls:
        for body in JUNK:
            status, _, answer = served.call(method, path, body,
                                            headers={"Content-Type": "application/json"})
            assert status < 500, (method, path, body, answer)
            assert isinstance(json.loads(answer), dict)
    kept = served.json("GET", f"{BASE}/pipelines/{made}")
    assert kept["display_name"] == "for junk" and kept["description"] == ""
