"""The calls of the kfp 2 SDK against a server, in one process; prints what came back as JSON.

    kfp2_calls.py FOLDER        (KF_PIPELINES_ENDPOINT says where the server is)

FOLDER has hello.yaml, loop.yaml and endless.yaml, each a Workflow of Argo.
"""
import json
import logging
import os
import sys
import time

import kfp_server_api
from kfp import client as kfp_client
from kfp import compiler, dsl
from kfp_common import bucket, recorded

FOLDER = sys.argv[1]
seen = {}
logging.disable(logging.CRITICAL)
sys.stdout, out = sys.stderr, sys.stdout


def refused(call, *args, **kw):
    try:
        call(*args, **kw)
    except kfp_server_api.ApiException as e:
        return [e.status, json.loads(e.body)]
    return None


def only(key, text, operation="EQUALS"):
    return json.dumps({"predicates": [{"operation": operation, "key": key, "string_value": text}]})


def file(name):
    return os.path.join(FOLDER, name + ".yaml")


def catalog(c):
    a = c.upload_pipeline(file("hello"), "hello", description="by the SDK")
    b = c.upload_pipeline(file("loop"), "loop")
    e = c.upload_pipeline(file("endless"), "endless")
    v = c.upload_pipeline_version(file("hello"), "second", pipeline_id=a.pipeline_id)
    seen["upload"] = [a.name, a.display_name, a.description, a.namespace, v.name,
                      v.pipeline_id == a.pipeline_id]
    versions = c.list_pipeline_versions(a.pipeline_id, sort_by="created_at desc")
    seen["versions"] = [x.display_name for x in versions.pipeline_versions]
    got = c.get_pipeline_version(a.pipeline_id, v.pipeline_version_id)
    seen["spec"] = got.pipeline_spec["kind"]
    seen["other's version"] = refused(c.get_pipeline_version, b.pipeline_id,
                                      v.pipeline_version_id)[0]
    seen["id by name"] = [c.get_pipeline_id("hello") == a.pipeline_id, c.get_pipeline_id("nobody")]
    pages, token = [], ""
    while True:
        page = c.list_pipelines(page_token=token, page_size=2, sort_by="display_name desc")
        pages.append([p.display_name for p in page.pipelines])
        token = page.next_page_token
        if not token:
            break
    seen["pages"] = [pages, page.total_size]
    seen["filtered"] = [p.name for p in c.list_pipelines(
        filter=only("display_name", "LO", "IS_SUBSTRING"), sort_by="name").pipelines]
    seen["get"] = c.get_pipeline(a.pipeline_id).display_name
    c.delete_pipeline_version(a.pipeline_id, v.pipeline_version_id)
    seen["version gone"] = refused(c.get_pipeline_version, a.pipeline_id,
                                   v.pipeline_version_id)[0]
    gone = c.upload_pipeline(file("hello"), "short-lived")
    c.delete_pipeline(gone.pipeline_id)
    seen["pipeline gone"] = refused(c.get_pipeline, gone.pipeline_id)
    seen["twice"] = refused(c.upload_pipeline, file("hello"), "hello")[0]
    seen["namespace"] = refused(c.list_pipelines, namespace="nobodys")[0]

    def first_version(p):
        listed = c.list_pipeline_versions(p.pipeline_id).pipeline_versions
        return p.pipeline_id, listed[0].pipeline_version_id
    return first_version(a), first_version(b), first_version(e)


def experiments(c):
    e = c.create_experiment("first", description="of all")
    seen["same experiment"] = c.create_experiment("first").experiment_id == e.experiment_id
    seen["by name"] = c.get_experiment(experiment_name="first").experiment_id == e.experiment_id
    other = c.create_experiment("other")
    seen["experiments"] = [x.display_name for x in
                           c.list_experiments(sort_by="display_name desc").experiments]
    c.archive_experiment(other.experiment_id)
    seen["archived"] = c.get_experiment(other.experiment_id).storage_state
    seen["not archived"] = [x.display_name for x in c.list_experiments(
        filter=only("storage_state", "ARCHIVED", "NOT_EQUALS")).experiments]
    c.unarchive_experiment(other.experiment_id)
    seen["unarchived"] = c.get_experiment(other.experiment_id).storage_state
    c.delete_experiment(other.experiment_id)
    seen["experiment gone"] = refused(c.get_experiment, other.experiment_id)[0]
    return e.experiment_id


def wait(c, run_id):
    return c.wait_for_run_completion(run_id, 240, sleep_duration=0.05)


def runs(c, e, hello, loop, endless):
    made = c.run_pipeline(e, "greets", pipeline_id=hello[0], version_id=hello[1],
                          params={"n": 3, "who": "you", "wide": True, "list": [1, 2]})
    done = wait(c, made.run_id)
    tasks = done.run_details.task_details
    seen["run"] = [done.state, done.display_name, done.experiment_id == e,
                   done.runtime_config.parameters, done.storage_state,
                   done.pipeline_version_reference.pipeline_version_id == hello[1],
                   [s.state for s in done.state_history]]
    seen["tasks"] = [[t.display_name, t.state, t.run_id == made.run_id] for t in tasks]
    made = c.run_pipeline(e, "loops", pipeline_id=loop[0], version_id=loop[1])
    tasks = wait(c, made.run_id).run_details.task_details
    ids = {t.task_id for t in tasks}
    seen["loop"] = [sorted(t.display_name for t in tasks),
                    all(t.parent_task_id in ids for t in tasks[1:]),
                    all(x.task_id in ids for t in tasks for x in t.child_tasks or []),
                    all(t.start_time <= t.end_time for t in tasks if t.state == "SUCCEEDED")]
    long = c.run_pipeline(e, "endless", pipeline_id=endless[0], version_id=endless[1])
    while c.get_run(long.run_id).state != "RUNNING":
        time.sleep(0.01)
    c.terminate_run(long.run_id)
    done = wait(c, long.run_id)
    seen["terminated"] = [done.state, done.error.code, done.error.message]
    seen["terminated twice"] = refused(c.terminate_run, long.run_id)[0]
    c._run_api.run_service_retry_run(long.run_id)
    while c.get_run(long.run_id).state != "RUNNING":
        time.sleep(0.01)
    c.terminate_run(long.run_id)
    seen["retried"] = wait(c, long.run_id).state
    c.archive_run(made.run_id)
    seen["run archived"] = c.get_run(made.run_id).storage_state
    seen["archived runs"] = [r.display_name for r in c.list_runs(
        filter=only("storage_state", "ARCHIVED")).runs]
    c.unarchive_run(made.run_id)
    seen["runs"] = [r.display_name for r in c.list_runs(experiment_id=e,
                                                        sort_by="created_at desc").runs]
    seen["failed runs"] = [r.display_name for r in c.list_runs(filter=only("state", "FAILED")).runs]
    c.delete_run(long.run_id)
    seen["run gone"] = refused(c.get_run, long.run_id)[0]
    seen["bad parameter"] = refused(c.run_pipeline, e, "x", pipeline_id=hello[0],
                                    version_id=hello[1], params={"nobody": 1})


@dsl.container_component
def say(word: str, n: int, said: dsl.OutputPath(str)):
    text = 'mkdir -p "$(dirname "$2")"; echo "$0 $1" > "$2"'
    return dsl.ContainerSpec(image="alpine", command=["sh", "-ec", text], args=[word, n, said])


@dsl.pipeline(name="compiled", description="by kfp 2")
def compiled(word: str = "hi", n: int = 2, loud: bool = True):
    first = say(word=word, n=n)
    with dsl.If(loud == True):  # noqa: E712 (a condition of the pipeline)
        say(word=first.outputs["said"], n=3)


def packages(c, e):
    """What needs a pipeline that this SDK compiled."""
    p = c.upload_pipeline_from_pipeline_func(compiled, "compiled", description="a function")
    v = c.upload_pipeline_version_from_pipeline_func(compiled, "again", pipeline_id=p.pipeline_id)
    seen["compiled"] = [p.description, v.pipeline_spec["pipelineInfo"]["name"],
                        v.pipeline_spec["root"]["inputDefinitions"]["parameters"]["n"]]
    made = c.run_pipeline(e, "typed", pipeline_id=p.pipeline_id, version_id=v.pipeline_version_id,
                          params={"word": "yo", "n": 5, "loud": False})
    done = wait(c, made.run_id)
    seen["typed"] = [done.state, done.runtime_config.parameters,
                     {t.display_name: t.state for t in done.run_details.task_details
                      if t.parent_task_id}]
    seen["wrong type"] = refused(c.run_pipeline, e, "x", pipeline_id=p.pipeline_id,
                                 version_id=v.pipeline_version_id, params={"n": "three"})[0]
    sent = c.create_run_from_pipeline_func(compiled, arguments={"n": 7}, experiment_name="first")
    done = wait(c, sent.run_id)
    seen["function"] = [done.state, done.pipeline_spec["pipelineInfo"]["name"],
                        {t.display_name: t.state for t in done.run_details.task_details}["say-2"],
                        sent.run_id]
    path = os.path.join(FOLDER, "compiled.yaml")
    compiler.Compiler().compile(compiled, path)
    sent = c.create_run_from_pipeline_package(path, experiment_name="first", enable_caching=False)
    seen["package"] = wait(c, sent.run_id).state
    seen["own name"] = refused(c.upload_pipeline, path)[0]      # "compiled": it is taken


def recurring(c, e, hello):
    often = c.create_recurring_run(e, "often", interval_second=1, pipeline_id=hello[0],
                                   version_id=hello[1], params={"who": "tick"})
    cron = c.create_recurring_run(e, "cron", cron_expression="0 0 9 * * *", enabled=False,
                                  pipeline_id=hello[0], version_id=hello[1], max_concurrency=3)
    end = time.monotonic() + 120
    fired = []
    while not fired and time.monotonic() < end:
        time.sleep(0.1)
        fired = c.list_runs(filter=only("recurring_run_id", often.recurring_run_id)).runs or []
    c.disable_recurring_run(often.recurring_run_id)
    got = c.get_recurring_run(often.recurring_run_id)
    seen["recurring"] = [wait(c, fired[0].run_id).state, got.status, got.mode,
                         got.trigger.periodic_schedule.interval_second, got.experiment_id == e]
    c.enable_recurring_run(cron.recurring_run_id)
    got = c.get_recurring_run(cron.recurring_run_id)
    seen["cron"] = [got.status, got.trigger.cron_schedule.cron, got.max_concurrency]
    raw = c._recurring_run_api.recurring_run_service_list_recurring_runs(sort_by="display_name")
    seen["recurring list"] = [r.display_name for r in raw.recurring_runs]
    seen["total"] = c.list_recurring_runs(experiment_id=e).total_size
    c.delete_recurring_run(often.recurring_run_id)
    c.delete_recurring_run(cron.recurring_run_id)
    seen["recurring gone"] = refused(c.get_recurring_run, cron.recurring_run_id)[0]


def services(c):
    """Calls that the API's client has and the SDK does not use, or under older names."""
    api, url = c._pipelines_api, {"pipeline_url": bucket(file("hello"))}
    empty = api.pipeline_service_create_pipeline({"display_name": "in parts"})
    changed = api.pipeline_service_update_pipeline(empty.pipeline_id, {
        "display_name": "in parts", "description": "not for long"})
    v = api.pipeline_service_create_pipeline_version(
        empty.pipeline_id, {"display_name": "one", "package_url": url})
    renamed = api.pipeline_service_update_pipeline_version(
        empty.pipeline_id, v.pipeline_version_id, {"display_name": "One", "description": "better"})
    both = api.pipeline_service_create_pipeline_and_version({
        "pipeline": {"display_name": "both"}, "pipeline_version": {"package_url": url}})
    found = api.pipeline_service_get_pipeline_by_name(both.name)
    seen["services"] = [changed.description, v.pipeline_spec["kind"], renamed.display_name,
                        renamed.description, found.pipeline_id == both.pipeline_id]
    first = c.get_experiment(experiment_name="first").experiment_id
    job = c.create_recurring_run(first, "old names", cron_expression="0 0 9 * * *",
                                 pipeline_id=empty.pipeline_id,
                                 version_id=v.pipeline_version_id).recurring_run_id
    modes = []
    for change in (c.disable_job, c.enable_job):
        change(job)
        modes.append(c.get_recurring_run(job).mode)
    c.delete_job(job)
    seen["old names"] = [*modes, refused(c.get_recurring_run, job)[0]]


known, made = recorded()
client = kfp_client.Client()
seen["healthz"] = client.get_kfp_healthz().multi_user
first, second, third = catalog(client)
experiment = experiments(client)
runs(client, experiment, first, second, third)
recurring(client, experiment, first)
packages(client, experiment)
services(client)
seen["never called"] = sorted(known - made)
json.dump(seen, out, default=str)
