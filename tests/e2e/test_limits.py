"""What jobs and projects may use: memory, processes, disk, and how long files of ended jobs stay."""
import json
import os
import shutil
import time

import pytest
from hosts import wait_for
from server import Server

MB = 1 << 20


def table(data, text):
    data.mkdir(parents=True, exist_ok=True)
    path = data / "runtimes.yaml"
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


@pytest.fixture
def limited(muster, tmp_path):
    """A server whose table says `text`."""
    made = []

    def start(text):
        table(tmp_path / "data", text)
        s = Server(muster, tmp_path / "data").start()
        made.append(s)
        return s

    yield start
    for s in made:
        s.stop()


def submit(s, name, script, project=None, status=201, **more):
    body = {"name": name, "spec": {"kind": "command", "command": ["sh", "-c", script], **more}}
    if project:
        body["project"] = project
    got, _, text = s.call("POST", "/api/jobs", body)
    doc = json.loads(text)
    assert got == status, (got, doc)
    return doc if got == 201 else doc["error"]["message"]


def has_groups():
    return os.access("/sys/fs/cgroup/memory", os.W_OK) or os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK)


needs_groups = pytest.mark.skipif(not has_groups(), reason="no control groups may be made here")


# ------------------------------------------------------------------ the table


def test_the_table_that_the_server_writes_names_every_limit_with_its_default(server):
    text = (server.data_dir / "runtimes.yaml").read_text()
    for line in ("limits:", "  job: {memory: 90%, processes: 4096, disk: 50%}",
                 "  job_max: {memory: 0, cpu: 0, processes: 32768, disk: 0}",
                 "  project: {memory: 0, cpu: 0, processes: 0, jobs: 0, disk: 0}",
                 "jobs: {days: 365, size: 50%}"):
        assert line in text.splitlines(), line


@pytest.mark.parametrize("text, said", [
    ("limits: {jobb: {}}\n", 'runtimes.yaml:1: "jobb": limits has no such key; did you mean "job"?'),
    ("limits:\n  job: {memoryy: 1Gi}\n", 'runtimes.yaml:2: "memoryy": limits.job has no such key; did you mean '
     '"memory"?'),
    ("limits:\n  job: {memory: 190%}\n", "runtimes.yaml:2: memory: takes a size (2Gi), or a share"),
    ("limits: {projects: {a: {jobs: many}}}\n", "runtimes.yaml:1: jobs: takes a number, 0 or more"),
    ("jobs: {weeks: 2}\n", 'runtimes.yaml:1: "weeks": jobs has no such key'),
])
def test_a_mistake_among_the_limits_is_told_with_its_line_before_the_server_starts(muster, tmp_path, text, said):
    table(tmp_path / "data", text)
    with pytest.raises(AssertionError) as e:
        Server(muster, tmp_path / "data").start()
    assert said in str(e.value)


def test_changed_limits_are_taken_up_while_the_server_runs_and_a_broken_table_changes_nothing(limited):
    s = limited("limits: {job_max: {memory: 1Gi}}\n")
    assert "limits.job_max" in submit(s, "a", "true", status=400, resources={"memory": "2Gi"})
    table(s.data_dir, "limits: {job_max: {memory: 4Gi}}\n")
    submit(s, "b", "true", resources={"memory": "2Gi"})
    table(s.data_dir, "limits: {job_max: {memory: [1]}}\n")
    submit(s, "c", "true", resources={"memory": "2Gi"})
    assert "limits.unread" in s.said()


# ------------------------------------------------------------------ memory and processes


@needs_groups
def test_a_job_that_names_no_memory_has_the_default_and_is_killed_beyond_it(limited):
    s = limited("limits: {job: {memory: 64Mi}}\n")
    submit(s, "hog", "python3 -c 'b = bytearray(200 << 20); print(len(b))'")
    job = s.reach("hog")
    assert job["state"] == "failed" and job["reason"] == "killed: needed more than its 64 MB of memory"
    submit(s, "asks", "python3 -c 'b = bytearray(200 << 20); print(len(b))'", resources={"memory": "400Mi"})
    assert s.reach("asks")["state"] == "succeeded"


@needs_groups
def test_a_fork_bomb_ends_at_the_default_of_processes_and_the_server_goes_on(limited):
    s = limited("limits: {job: {processes: 40}}\n")
    submit(s, "bomb", "f() { f | f & }; for i in 1 2 3; do f; done; sleep 0.5; exit 7")
    assert s.reach("bomb")["state"] == "failed"
    count = ("import os, signal\nn = 0\ntry:\n  for i in range(200):\n    if os.fork() == 0: signal.pause()\n    "
             "n += 1\nexcept OSError: pass\nprint(n)")
    for name, more, most in (("default", {}, 40), ("asks", {"processes": 90}, 90)):
        submit(s, name, f"exec python3 -c '{count}'", resources=more)
        s.reach(name)
        forked = int(s.call("GET", f"/api/jobs/default/{name}/logs?format=text")[2].split()[0])
        assert most - 10 < forked < most, (name, forked)


@pytest.mark.parametrize("resources, said", [
    ({"memory": "8Gi"}, "resources.memory: the job asks for 8 GB, and a job may have 4 GB (limits.job_max in "
     "runtimes.yaml)"),
    ({"cpu": 3}, "resources.cpu: the job asks for 3, and a job may have 2 (limits.job_max in runtimes.yaml)"),
    ({"processes": 101}, "resources.processes: the job asks for 101, and a job may have 100"),
    ({"disk": "2Gi"}, "resources.disk: the job asks for 2 GB, and a job may have 1 GB"),
])
def test_a_job_that_asks_for_more_than_the_most_is_refused_at_submit(limited, resources, said):
    s = limited("limits: {job_max: {memory: 4Gi, cpu: 2, processes: 100, disk: 1Gi}}\n")
    assert submit(s, "a", "true", status=400, resources=resources).startswith(said)


def test_a_job_that_its_project_can_never_hold_is_refused_at_submit(limited):
    s = limited("limits: {projects: {default: {memory: 1Gi}}}\n")
    said = submit(s, "a", "true", status=400, resources={"memory": "2Gi"})
    assert 'the jobs of project "default" together may have 1 GB (limits.project in runtimes.yaml)' in said


# ------------------------------------------------------------------ projects


@pytest.mark.parametrize("limit, resources, word", [
    ("jobs: 1", {}, "jobs"), ("cpu: 1", {"cpu": 0.6}, "cores"),
    ("memory: 512Mi", {"memory": "300Mi"}, "memory"), ("memory: 512Mi", {}, "memory"),
    ("processes: 100", {"processes": 60}, "processes"),
])
def test_a_job_beyond_its_projects_share_waits_says_why_and_runs_in_its_turn(limited, limit, resources, word):
    s = limited("limits: {projects: {default: {%s}}}\n" % limit)
    s.json("POST", "/api/projects", {"name": "other"})
    resources = {"cpu": 0.1, **resources}
    submit(s, "first", "while [ ! -e go ]; do sleep 0.02; done", resources=resources)
    first = s.reach("first", "running")
    submit(s, "second", "true", resources=resources)
    wait_for(lambda: "waits" in s.json("GET", "/api/jobs/default/second")["reason"])
    job = s.json("GET", "/api/jobs/default/second")
    assert job["state"] == "queued" and job["reason"] == (
        'waits: the jobs of project "default" that run have all the %s that it may use at once (limits in '
        'runtimes.yaml)' % word)
    submit(s, "third", "true", project="other", resources=resources)    # another project's goes on
    assert s.reach("third", project="other")["state"] == "succeeded"
    (s.work(first) / "go").touch()
    job = s.reach("second")
    assert job["state"] == "succeeded" and job["reason"] == ""


# ------------------------------------------------------------------ disk of a job

FILL = "i=0; while :; do head -c 4000000 /dev/zero >f$i; i=$((i+1)); done"


@pytest.mark.parametrize("script", [
    FILL, "exec dd if=/dev/zero of=one bs=1M", "mkdir -p a/b/c; cd a/b/c; " + FILL,
    "exec 3>gone; rm gone; exec cat /dev/zero >&3",         # a file without a name
    "trap '' TERM; " + FILL,
], ids=["files", "one-file", "deep", "without-a-name", "deaf"])
def test_a_job_that_fills_the_disk_is_ended_at_its_limit(limited, script):
    s = limited("limits: {job: {disk: 50M}}\n")
    before = shutil.disk_usage(s.data_dir).used
    submit(s, "filler", script)
    job = s.reach("filler")
    grown = shutil.disk_usage(s.data_dir).used - before
    assert job["state"] == "failed" and job["reason"].startswith("killed: wrote more than its 48 MB of disk")
    assert grown < 2500 * MB, f"{grown >> 20} MB were written"
    exit_ = json.loads((s.data_dir / f"jobs/{job['uid']}/1/exit.json").read_text())
    assert exit_["cause"] == "disk"


def test_a_job_within_its_disk_and_a_sparse_file_are_left_alone(limited):
    s = limited("limits: {job: {disk: 50M}}\n")
    submit(s, "fine", "truncate -s 10G sparse; head -c 20000000 /dev/zero >f; sleep 0.3; rm f; "
           "head -c 20000000 /dev/zero >f; sleep 0.3")
    assert s.reach("fine")["state"] == "succeeded"
    submit(s, "asks", "head -c 80000000 /dev/zero >f; sleep 0.3", resources={"disk": "200M"})
    assert s.reach("asks")["state"] == "succeeded"


def small_disk(tmp_path, size):
    at = tmp_path / "small"
    at.mkdir()
    if os.geteuid() or os.system(f"mount -t tmpfs -o size={size} tmpfs {at}"):
        pytest.skip("cannot mount a small disk here")
    return at


def test_one_who_fills_the_whole_disk_is_ended_and_one_who_writes_little_goes_on(muster, tmp_path):
    at = small_disk(tmp_path, "1100M")
    try:
        table(at / "data", "limits: {job: {disk: 0}}\n")
        with Server(muster, at / "data") as s:
            submit(s, "little", "while [ ! -e go ]; do date >>log; sleep 0.05; done", resources={"cpu": 0.1})
            little = s.reach("little", "running")
            # As fast as a disk: memory at full speed is full between two looks.
            submit(s, "filler", "while dd if=/dev/zero bs=1M count=1 2>/dev/null; do :; done >one")
            job = s.reach("filler")
            assert job["reason"].startswith("killed: the disk is full but for what the server keeps"), job
            assert shutil.disk_usage(at).free > 4 * MB
            (s.work(little) / "go").touch()
            assert s.reach("little")["state"] == "succeeded"
            s.json("DELETE", "/api/jobs/default/filler")
            submit(s, "next", "head -c 20000000 /dev/zero >f")
            assert s.reach("next")["state"] == "succeeded"
    finally:
        os.system(f"umount -l {at}")


# ------------------------------------------------------------------ disk of a project


def put(s, name, n, bucket="bucket"):
    return s.call("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", b"x" * n)


def test_uploads_beyond_a_projects_disk_are_answered_with_507_until_something_is_deleted(limited):
    s = limited("limits: {projects: {default: {disk: 10M}}}\n")
    s.json("POST", "/storage/v1/b?project=default", {"name": "bucket"})
    assert put(s, "a", 6 * MB)[0] == 200
    status, _, text = put(s, "big", 6 * MB)
    doc = json.loads(text)["error"]
    assert status == 507 and doc["code"] == 507 and doc["errors"][0]["reason"] == "insufficientStorage"
    assert doc["message"].startswith('the disk is full for project "default": its buckets, volumes and jobs take')
    assert put(s, "small", 1000)[0] == 200
    status, headers, _ = s.call("POST", "/upload/storage/v1/b/bucket/o?uploadType=resumable&name=r", {})
    assert status == 200
    path = headers["Location"].split(str(s.port), 1)[1]
    assert s.call("PUT", path, b"x" * 6 * MB)[0] == 507
    status, _, text = s.call("POST", "/storage/v1/b/bucket/o/a/copyTo/b/bucket/o/twin", {})
    assert status == 507, text
    assert s.call("DELETE", "/storage/v1/b/bucket/o/a")[0] == 204
    assert put(s, "again", 6 * MB)[0] == 200


def test_jobs_of_a_project_without_disk_are_ended_or_refused_and_others_are_not(limited):
    s = limited("limits: {projects: {small: {disk: 20M}}}\n")
    s.json("POST", "/api/projects", {"name": "small"})
    submit(s, "idle", "while [ ! -e go ]; do sleep 0.02; done", project="small", resources={"cpu": 0.1})
    idle = s.reach("idle", "running", project="small")
    writes = "while :; do head -c 700000 /dev/zero >>f; sleep 0.1; done"
    for name in ("one", "two"):         # each has less than the project may have, both have more
        submit(s, name, writes, project="small", resources={"cpu": 0.1})
    jobs = [s.reach(name, project="small") for name in ("one", "two")]
    assert all(j["state"] == "failed" and j["reason"].startswith("killed: ") for j in jobs), jobs
    assert any('the disk is full for project "small": its buckets, volumes and jobs take' in j["reason"]
               for j in jobs), jobs
    wait_for(lambda: s.call("POST", "/api/jobs", {"name": "x", "project": "small", "spec": {
        "kind": "command", "command": ["true"]}})[0] == 507)
    assert 'the disk is full for project "small"' in submit(s, "no", "true", project="small", status=507)
    submit(s, "yes", "true")
    assert s.reach("yes")["state"] == "succeeded"
    (s.work(idle) / "go").touch()
    assert s.reach("idle", project="small")["state"] == "succeeded"
    s.json("DELETE", "/api/jobs/small/one")
    s.json("DELETE", "/api/jobs/small/two")
    wait_for(lambda: s.call("POST", "/api/jobs", {"name": "free", "project": "small", "spec": {
        "kind": "command", "command": ["true"]}})[0] == 201)


# ------------------------------------------------------------------ retention


def files_of(s, job):
    return s.data_dir / f"jobs/{job['uid']}"


def ended(s, name, script="head -c 3000000 /dev/zero >f; echo hello", **more):
    submit(s, name, script, **more)
    job = s.reach(name)
    assert job["state"] == "succeeded", job
    return job


def removed(s, name):
    return s.json("GET", f"/api/jobs/default/{name}").get("files_removed")


def test_the_oldest_files_go_when_ended_jobs_take_more_than_their_size_and_the_record_says_so(limited, muster):
    s = limited("jobs: {size: 7M}\n")
    a = ended(s, "a", labels={"keep": "true"})
    b = ended(s, "b")
    c = ended(s, "c")
    wait_for(lambda: removed(s, "b"))
    assert files_of(s, a).exists() and not files_of(s, b).exists() and files_of(s, c).exists()
    job = s.json("GET", "/api/jobs/default/b")
    assert job["state"] == "succeeded"
    assert "its files and its log were removed on 20" in job["files_removed"]
    assert "files of ended jobs took more than 6.7 MB (jobs in runtimes.yaml)" in job["files_removed"]
    last = s.json("GET", "/api/jobs/default/b/events")["events"][-1]
    assert last["type"] == "job.files_removed" and last["bytes"] > 3000000
    for path in ("/logs", "/logs?format=text", "/files", "/logs?follow=1"):
        status, _, text = s.call("GET", "/api/jobs/default/b" + path)
        assert status == 404 and "were removed on" in json.loads(text)["error"]["message"], path
    assert s.json("GET", "/api/jobs/default/b/scalars") == {}
    out = muster("jobs", "logs", "b", env=s.env, check=False)
    assert out.returncode == 4 and "were removed on" in out.stderr
    assert "were removed on" in muster("jobs", "describe", "b", env=s.env).stdout
    muster("jobs", "keep", "c", env=s.env)
    assert s.json("GET", "/api/jobs/default/c")["labels"] == {"keep": "true"}
    s.json("DELETE", "/api/jobs/default/b")
    assert s.stop() == 0
    assert muster("serve", "--data-dir", s.data_dir, "--check").returncode == 0


def test_files_go_after_so_many_days_also_those_of_a_time_before_the_server(limited):
    s = limited("jobs: {days: 0}\n")
    a = ended(s, "a")
    s.stop()
    table(s.data_dir, "jobs: {days: 0.000001}\n")
    time.sleep(0.1)
    s.start()
    wait_for(lambda: removed(s, "a"))
    assert "it had ended more than 1e-06 days before" in removed(s, "a")
    wait_for(lambda: not files_of(s, a).exists())


@pytest.mark.parametrize("point", ["retention.record", "retention.recorded", "retention.rename", "retention.renamed"])
def test_a_server_killed_in_the_middle_of_retention_goes_on_at_its_next_start(muster, tmp_path, point):
    table(tmp_path / "data", "jobs: {size: 0}\n")
    s = Server(muster, tmp_path / "data").start()
    jobs = [ended(s, n) for n in ("a", "b", "c")]
    s.stop()
    table(s.data_dir, "jobs: {size: 1}\n")
    s.extra = {"MUSTER_STORE_FAULT": f"{point}:2"}
    try:
        s.start()
        assert s.process.wait(60) == -9
    except AssertionError as e:
        assert "exit -9" in str(e)
    s.extra = {}
    s.start()
    for name in "abc":
        wait_for(lambda: removed(s, name))
    wait_for(lambda: not any(files_of(s, j).exists() for j in jobs))
    wait_for(lambda: not list((s.data_dir / "jobs").glob("*.gone")))
    for name in "abc":
        types = [e["type"] for e in s.json("GET", f"/api/jobs/default/{name}/events")["events"]]
        assert types.count("job.files_removed") == 1
    s.stop()


STEPS = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: keeps-}
spec:
  entrypoint: main
  templates:
  - name: make
    container: {image: alpine, command: [sh, -c, "head -c 3000000 /dev/zero >/tmp/out"]}
    outputs: {artifacts: [{name: out, path: /tmp/out}]}
  - name: wait
    container: {image: alpine, command: [sh, -c, "sleep 1.5"]}
  - name: read
    inputs: {artifacts: [{name: in, path: /tmp/in}]}
    container: {image: alpine, command: [sh, -c, "wc -c </tmp/in"]}
  - name: main
    dag:
      tasks:
      - {name: make, template: make}
      - {name: wait, template: wait, dependencies: [make]}
      - name: read
        template: read
        dependencies: [wait]
        arguments: {artifacts: [{name: in, from: "{{tasks.make.outputs.artifacts.out}}"}]}
"""


def test_the_files_of_a_step_stay_while_its_run_goes_on_and_go_after_it(limited, muster, tmp_path):
    s = limited("jobs: {size: 1}\nimages: {alpine: {plain: true}}\n")
    (tmp_path / "w.yaml").write_text(STEPS)
    muster("apply", "-f", tmp_path / "w.yaml", env=s.env)
    wait_for(lambda: len(jobs := s.json("GET", "/api/jobs")["jobs"]) == 2 and
             all(j["state"] in ("succeeded", "running") for j in jobs))
    time.sleep(0.8)             # a pass of retention has been made since the first step ended
    assert not any(j.get("files_removed") for j in s.json("GET", "/api/jobs")["jobs"])
    wait_for(lambda: [j["state"] for j in s.json("GET", "/api/jobs")["jobs"]] == ["succeeded"] * 3)
    ended(s, "later", "true")   # whatever ends is the next time to look
    wait_for(lambda: all(j.get("files_removed") for j in s.json("GET", "/api/jobs")["jobs"]))
