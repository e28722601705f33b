"""Every call of the kfp 1.8 SDK against a server, in one process; prints what came back as JSON.

    kfp1_calls.py FOLDER FLAG        (KF_PIPELINES_ENDPOINT says where the server is)

FOLDER is for what is compiled; a step of one pipeline fails until the file FLAG is there.
"""
import base64
import contextlib
import io
import json
import logging
import os
import sys
import tarfile
import time

import kfp
import kfp_server_api
from kfp import components, dsl
from kfp.cli.cli import main
from kfp_common import bucket, recorded
from kubernetes.client import V1HostPathVolumeSource, V1Volume, V1VolumeMount

FOLDER, FLAG = sys.argv[1:]
METRICS = '{"metrics": [{"name": "loss", "numberValue": 0.25, "format": "RAW"}]}'
seen = {}
logging.disable(logging.CRITICAL)
# Text of links and progress of the SDK is not of interest.
sys.stdout, out = sys.stderr, sys.stdout
# It looks every five seconds whether a run has ended.
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.1))


def shell(name, text, *args, **outputs):
    op = dsl.ContainerOp(name=name, image="alpine:3", command=["sh", "-ec", text, *args],
                         file_outputs=outputs or None)
    op.execution_options.caching_strategy.max_cache_staleness = "P0D"
    return op


def numbers(n: int) -> str:
    import json
    return json.dumps([i * i for i in range(n)])


@dsl.pipeline(name="Every feature", description="What kfp 1.8 compiles")
def features(n: int = 3, word: str = "tails"):
    bye = shell("bye", "echo status $0", "{{workflow.status}}")
    with dsl.ExitHandler(bye):
        first = shell("first", 'echo "$0" > /tmp/word; echo large > /tmp/file; echo said $0',
                      word, word="/tmp/word", file="/tmp/file")
        with dsl.Condition(first.outputs["word"] == "heads", "if-heads"):
            shell("heads", "echo it was heads")
        with dsl.Condition(first.outputs["word"] != "heads", "if-not"):
            shell("never", "echo never")
        make = components.create_component_from_func(numbers, base_image="python:3")(n)
        make.execution_options.caching_strategy.max_cache_staleness = "P0D"
        with dsl.ParallelFor(make.output) as i:
            shell("square", "echo square $0", i)
        shell("read", "echo '%s' > /tmp/metrics; cat $0" % METRICS,
              dsl.InputArgumentPath(first.outputs["file"]),
              mlpipeline_metrics="/tmp/metrics").after(make)


@dsl.pipeline(name="flag")
def flag():
    volume = V1Volume(name="host", host_path=V1HostPathVolumeSource(path=os.path.dirname(FLAG)))
    before = shell("before", "date +%s%N > /tmp/when", when="/tmp/when")
    op = shell("needs flag", "ls /host; test -e /host/$0", os.path.basename(FLAG))
    op.add_volume(volume).add_volume_mount(V1VolumeMount(name="host", mount_path="/host"))
    op.after(before)


@dsl.pipeline(name="endless")
def endless():
    shell("sleep", "sleep 600")


@dsl.pipeline(name="short")
def short(word: str = "a"):
    shell("echo", "echo $0", word)


def package(func, end=".tar.gz"):
    path = os.path.join(FOLDER, func.__name__ + end)
    kfp.compiler.Compiler().compile(func, path)
    return path


def refused(call, *args, **kw):
    try:
        call(*args, **kw)
    except kfp_server_api.ApiException as e:
        return [e.status, json.loads(e.body)]
    return None


def until(client, run_id, wait=120):
    end = time.monotonic() + wait
    while True:
        got = client.get_run(run_id)
        if got.run.finished_at and got.run.status in ("Succeeded", "Failed", "Error"):
            return got
        if time.monotonic() > end:
            raise SystemExit(f"run {run_id} is still {got.run.status}")
        time.sleep(0.02)


def nodes(detail):
    return list(json.loads(detail.pipeline_runtime.workflow_manifest)["status"]["nodes"].values())


def catalog(c):
    a = c.upload_pipeline(package(features), pipeline_name="features", description="by the SDK")
    b = c.upload_pipeline(package(short, ".yaml"))
    c.upload_pipeline(package(endless, ".zip"), pipeline_name="endless")
    v = c.upload_pipeline_version(package(short, ".yaml"), "second", pipeline_id=b.id)
    seen["upload"] = [a.name, a.description, {p.name: p.value for p in a.parameters},
                      a.default_version.name, b.name]
    seen["default"] = c.get_pipeline(b.id).default_version.id == v.id
    first = c.list_pipeline_versions(b.id, sort_by="created_at").versions[0]
    c.pipelines.update_pipeline_default_version(b.id, first.id)
    seen["default moved"] = c.get_pipeline(b.id).default_version.id == first.id
    seen["versions"] = [x.name for x in
                        c.list_pipeline_versions(b.id, sort_by="name desc").versions]
    seen["version"] = c.pipelines.get_pipeline_version(v.id).resource_references[0].key.id == b.id
    seen["template"] = "kind: Workflow" in c.pipelines.get_template(b.id).template
    seen["version template"] = "kind: Workflow" in \
        c.pipelines.get_pipeline_version_template(v.id).template
    seen["id by name"] = [c.get_pipeline_id("features") == a.id, c.get_pipeline_id("nobody")]
    pages, token = [], ""
    while True:
        page = c.list_pipelines(page_token=token, page_size=2, sort_by="name")
        pages.append([p.name for p in page.pipelines])
        token = page.next_page_token
        if not token:
            break
    seen["pages"] = [pages, page.total_size]
    seen["substring"] = [p.name for p in c.list_pipelines(filter=json.dumps({"predicates": [
        {"op": "IS_SUBSTRING", "key": "name", "string_value": "EATUR"}]})).pipelines]
    url = {"pipeline_url": bucket(package(short, ".yaml"))}
    stored = c.pipelines.create_pipeline({"name": "from a bucket", "url": url})
    again = c.pipelines.create_pipeline_version({
        "name": "again", "package_url": url, "resource_references": [
            {"key": {"type": "PIPELINE", "id": stored.id}, "relationship": "OWNER"}]})
    seen["from a bucket"] = [stored.name, again.name,
                             c.list_pipeline_versions(stored.id).total_size]
    c.delete_pipeline(stored.id)
    c.delete_pipeline_version(v.id)
    seen["version gone"] = refused(c.pipelines.get_pipeline_version, v.id)[0]
    c.delete_pipeline(b.id)
    seen["pipeline gone"] = refused(c.get_pipeline, b.id)
    seen["twice"] = refused(c.upload_pipeline, package(features), pipeline_name="features")
    bad = os.path.join(FOLDER, "bad.yaml")
    with open(bad, "w") as f:
        f.write("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: x}\nspec:\n"
                "  entrypoint: nowhere\n  templates: []\n")
    seen["bad"] = refused(c.upload_pipeline, bad)
    seen["bad filter"] = refused(c.list_pipelines, filter='{"predicates": [{"op": 1}]}')[0]
    seen["bad sort"] = refused(c.list_pipelines, sort_by="colour desc")[0]
    seen["bad token"] = refused(c.list_pipelines, page_token="zz")[0]
    return a


def experiments(c):
    e = c.create_experiment("first", description="of all")
    seen["same experiment"] = c.create_experiment("first").id == e.id
    seen["by name"] = c.get_experiment(experiment_name="first").id == e.id
    other = c.create_experiment("other")
    seen["experiments"] = [x.name for x in c.list_experiments(sort_by="name desc").experiments]
    c.archive_experiment(other.id)
    seen["archived"] = c.get_experiment(other.id).storage_state
    seen["not archived"] = [x.name for x in c.list_experiments(filter=json.dumps({"predicates": [
        {"op": "NOT_EQUALS", "key": "storage_state",
         "string_value": "STORAGESTATE_ARCHIVED"}]})).experiments]
    c.experiments.unarchive_experiment(other.id)
    seen["unarchived"] = c.get_experiment(other.id).storage_state
    c.delete_experiment(other.id)
    seen["experiment gone"] = refused(c.get_experiment, other.id)[0]
    return e


def artifact(c, run, node, name):
    data = base64.b64decode(c.runs.read_artifact(run, node, name).data)
    if name == "main-logs":
        return data.decode()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.extractfile(tar.getmembers()[0]).read().decode()


def runs(c, e, pipeline):
    made = c.run_pipeline(e.id, "all of it", pipeline_id=pipeline.id,
                          params={"n": 4, "word": "heads"})
    done = c.wait_for_run_completion(made.id, 240)
    workflow = json.loads(done.pipeline_runtime.workflow_manifest)
    by_name = {n["displayName"]: n for n in nodes(done)}
    ids = {n["id"] for n in nodes(done)}
    first = by_name["first"]
    seen["run"] = {
        "status": done.run.status, "name": done.run.name,
        "parameters": {p.name: p.value for p in done.run.pipeline_spec.parameters},
        "pipeline": done.run.pipeline_spec.pipeline_id == pipeline.id,
        "experiment": [r.name for r in done.run.resource_references
                       if r.key.type == "EXPERIMENT"],
        "arguments": workflow["spec"]["arguments"]["parameters"],
        "phases": {n["displayName"]: n["phase"] for n in nodes(done)},
        "types": {n["displayName"]: n["type"] for n in nodes(done)},
        "edges": all(child in ids for n in nodes(done) for child in n.get("children", [])),
        "boundaries": all(n.get("boundaryID") in ids for n in nodes(done)
                          if n["id"] != workflow["metadata"]["name"]
                          and n["displayName"] != "bye" and "onExit" not in n["name"]),
        "times": all(n["startedAt"] <= n["finishedAt"] for n in nodes(done) if "startedAt" in n),
        "first": {p["name"]: p["value"] for p in first["outputs"]["parameters"]},
        "squares": sorted(artifact(c, made.id, n["id"], "main-logs") for n in nodes(done)
                          if n["displayName"] == "square"),
        "file": artifact(c, made.id, first["id"], "first-file"),
        "log": artifact(c, made.id, first["id"], "main-logs"),
        "read": artifact(c, made.id, by_name["read"]["id"], "main-logs"),
        "exit": [artifact(c, made.id, n["id"], "main-logs") for n in nodes(done)
                 if n["templateName"] == "bye"],
        "missing": [refused(c.runs.read_artifact, made.id, first["id"], "nothing")[0],
                    refused(c.runs.read_artifact, made.id, "nobody", "first-file")[0]],
    }
    seen["metrics"] = [[r.status, r.metric_name] for r in c.runs.report_run_metrics(made.id, {
        "metrics": [{"name": "accuracy", "node_id": first["id"], "number_value": 0.5,
                     "format": "PERCENTAGE"},
                    {"name": "Bad Name", "node_id": first["id"], "number_value": 1}]}).results]
    seen["metrics again"] = [r.status for r in c.runs.report_run_metrics(made.id, {
        "metrics": [{"name": "accuracy", "node_id": first["id"], "number_value": 0.7}]}).results]
    seen["metric"] = [[m.name, m.number_value, m.format] for m in c.get_run(made.id).run.metrics]
    c.runs.archive_run(made.id)
    seen["run archived"] = c.get_run(made.id).run.storage_state
    c.runs.unarchive_run(made.id)
    seen["run unarchived"] = c.get_run(made.id).run.storage_state
    return made


def ends(c, e):
    """Runs from a function and from packages that fail, are retried, terminated, deleted."""
    sent = c.create_run_from_pipeline_func(short, arguments={"word": "direct"},
                                           experiment_name="first")
    seen["direct"] = until(c, sent.run_id).run.status
    sent = c.create_run_from_pipeline_package(package(short), {"word": "packed"},
                                              experiment_name="first")
    seen["packed"] = until(c, sent.run_id).run.status
    failing = c.run_pipeline(e.id, "fails", pipeline_package_path=package(flag))
    done = until(c, failing.id)
    before = [n for n in nodes(done) if n["displayName"] == "before"][0]
    kept = artifact(c, failing.id, before["id"], "before-when")
    seen["failed"] = [done.run.status, bool(done.run.error),
                      [n["phase"] for n in nodes(done) if n["displayName"] == "needs-flag"]]
    with open(FLAG, "w"):
        pass
    c.runs.retry_run(failing.id)
    done = until(c, failing.id)
    seen["retried"] = [done.run.status,
                       kept == artifact(c, failing.id, before["id"], "before-when")]
    seen["retry of what succeeded"] = refused(c.runs.retry_run, failing.id)[0]
    long = c.run_pipeline(e.id, "endless", pipeline_id=c.get_pipeline_id("endless"))
    while c.get_run(long.id).run.status != "Running":
        time.sleep(0.01)
    c.runs.terminate_run(long.id)
    seen["terminated"] = until(c, long.id).run.status
    seen["terminated twice"] = refused(c.runs.terminate_run, long.id)[0]
    c.runs.delete_run(long.id)
    seen["run gone"] = refused(c.get_run, long.id)[0]
    seen["runs"] = [r.name for r in c.list_runs(experiment_id=e.id, sort_by="created_at desc",
                                                page_size=50).runs][-2:]
    seen["failed runs"] = c.list_runs(filter=json.dumps({"predicates": [
        {"op": 1, "key": "status", "string_value": "Failed"}]})).runs
    seen["bad parameter"] = refused(c.run_pipeline, e.id, "x", params={"nobody": "1"},
                                    pipeline_package_path=package(short))
    seen["no pipeline"] = refused(c.run_pipeline, e.id, "x", pipeline_id="nobody")[0]


def recurring(c, e):
    often = c.create_recurring_run(e.id, "often", interval_second=1, max_concurrency=2,
                                   pipeline_package_path=package(short), params={"word": "tick"})
    cron = c.create_recurring_run(e.id, "cron", cron_expression="0 0 9 * * *", enabled=False,
                                  pipeline_id=c.get_pipeline_id("features"))
    end = time.monotonic() + 120
    while time.monotonic() < end:
        fired = [r for r in c.list_runs(experiment_id=e.id, page_size=100).runs
                 if any(x.key.type == "JOB" and x.key.id == often.id
                        for x in r.resource_references)]
        if len(fired) >= 2:
            break
        time.sleep(0.1)
    c.disable_job(often.id)
    got = c.get_recurring_run(often.id)
    seen["recurring"] = [len(fired) >= 2, until(c, fired[0].id).run.status, got.enabled,
                         got.trigger.periodic_schedule.interval_second]
    c.jobs.enable_job(cron.id)
    got = c.get_recurring_run(cron.id)
    seen["cron"] = [got.enabled, got.trigger.cron_schedule.cron, got.status]
    seen["jobs"] = [j.name for j in c.list_recurring_runs(experiment_id=e.id, sort_by="name").jobs]
    c.delete_job(often.id)
    c.delete_job(cron.id)
    seen["job gone"] = refused(c.get_recurring_run, cron.id)[0]


def commands(c):
    """Those of the command line that talk to a server."""
    def kfp(*words):
        sys.argv = ["kfp", "--endpoint", os.environ["KF_PIPELINES_ENDPOINT"], *words]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                main()
            except SystemExit as e:
                if e.code:
                    raise SystemExit(f"kfp {words}: exit {e.code}: {said.getvalue()}") from e
        return said.getvalue()
    text = kfp("pipeline", "upload", "-p", "by hand", package(short, ".yaml"))
    p = c.get_pipeline_id("by hand")
    kfp("experiment", "create", "of the command line")
    kfp("run", "submit", "-e", "of the command line", "-r", "submitted", "-p", p, "word=typed")
    (run,) = [r for r in c.list_runs(page_size=100, sort_by="created_at desc").runs
              if r.name == "submitted"]
    seen["commands"] = [p in text, p in kfp("pipeline", "list"),
                        "of the command line" in kfp("experiment", "list"),
                        until(c, run.id).run.status, run.id in kfp("run", "list"),
                        run.id in kfp("run", "get", run.id)]


known, made = recorded()
client = kfp.Client()
seen["healthz"] = client.get_kfp_healthz().multi_user
pipeline = catalog(client)
experiment = experiments(client)
runs(client, experiment, pipeline)
ends(client, experiment)
recurring(client, experiment)
commands(client)
seen["never called"] = sorted(known - made)
json.dump(seen, out, default=str)
