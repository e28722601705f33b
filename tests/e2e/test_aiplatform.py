"""AI Platform's API with Google's own clients, and the two tutorials from their first command on.

The server's data directory is in the cache, since the environments in it cost downloads; all else
in it is removed at each start.
"""
import base64
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import CACHE, ROOT
from hosts import wait_for
from server import Server

google = pytest.importorskip("googleapiclient.discovery", reason="no google-api-python-client")
from google.auth.credentials import AnonymousCredentials  # noqa: E402
from google.cloud import storage  # noqa: E402
from googleapiclient.errors import HttpError  # noqa: E402

PROJECT = "default"
PARENT = f"projects/{PROJECT}"
BUCKET = "aiplatform-tests"
WHEEL = f"gs://{BUCKET}/packages/sleeper-1.0-py3-none-any.whl"
IMAGE = "gcr.io/cloud-ml-public/training/pytorch-cpu.1-4"
PYTHON_BIN = Path(sys.executable).parent        # python, uv, and what the tutorials import


def wheel(name, source, version="1.0"):
    """A wheel with one module and no requirements, as bytes."""
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(f"{name}.py", source)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
                                    "Tag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return out.getvalue()


SLEEPER = """
import os, sys, time
print("hello from", os.environ["CLOUD_ML_JOB_ID"], *sys.argv[1:], flush=True)
print("a complaint", file=sys.stderr, flush=True)
if "--fail" in sys.argv:
    sys.exit(3)
for i in range(int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 0):
    print("line", i, flush=True)
    time.sleep(0.05)
print("the end", flush=True)
"""


class Platform(Server):
    """A server, the environment of its clients, and what the tests ask of it again and again."""

    def prepare(self, tmp):
        names = {k: v for k, v in os.environ.items()
                 if not k.startswith(("CLOUDSDK_", "GOOGLE_", "MUSTER_"))}
        self.clients = {**names, **self.client_env(), "HOME": str(tmp), "XDG_CONFIG_HOME": str(tmp / "cfg"),
                        "XDG_CACHE_HOME": str(CACHE.parent)}
        self.bin = tmp / "bin"
        self.bin.mkdir()
        for name in ("gcloud", "muster"):
            (self.bin / name).symlink_to(self.binary)
        self.clients["PATH"] = f"{PYTHON_BIN}:{self.clients['PATH']}"
        os.environ["STORAGE_EMULATOR_HOST"] = self.clients["STORAGE_EMULATOR_HOST"]
        self.storage = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
        self.bucket = self.storage.create_bucket(BUCKET)
        self.bucket.blob("packages/sleeper-1.0-py3-none-any.whl").upload_from_string(wheel("sleeper", SLEEPER))
        self.ml = google.build("ml", "v1", credentials=AnonymousCredentials(), cache_discovery=False,
                               client_options={"api_endpoint": self.url})
        self.jobs = self.ml.projects().jobs()
        return self

    def run(self, *words, gcloud="ours", check=True, timeout=150, env=None, **kw):
        """gcloud's words, by muster under the name gcloud or by the real one."""
        program = self.bin / "gcloud" if gcloud == "ours" else shutil.which("gcloud")
        done = subprocess.run([str(program), *map(str, words)], text=True, capture_output=True,
                              timeout=timeout, env={**self.clients, **(env or {})}, **kw)
        if check:
            assert done.returncode == 0, f"gcloud {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, name, *args, **fields):
        job = {"jobId": name, **fields.pop("job", {}), "trainingInput": {
            "pythonModule": "sleeper", "packageUris": [WHEEL],
            "region": "local", "args": list(map(str, args)), **fields}}
        return self.jobs.create(parent=PARENT, body=job).execute()

    def get(self, name):
        return self.jobs.get(name=f"projects/{PROJECT}/jobs/{name}").execute()

    def ended(self, name, seconds=120):
        return wait_for(lambda: (j := self.get(name)).get("endTime") and j, seconds)

    def reaches(self, name, state):
        wait_for(lambda: self.get(name)["state"] == state, why=lambda: str(self.get(name)))

    def history(self, name):
        """All its lines: (task, text)."""
        body = {"resourceNames": [PARENT], "pageSize": 1000,
                "filter": f'resource.labels.job_id="{name}"'}
        entries = self.json("POST", "/v2/entries:list", body).get("entries", [])
        return [(e["resource"]["labels"]["task_name"], e["jsonPayload"]["message"]) for e in entries]

    def lines(self, name):
        return [text for task, text in self.history(name) if task != "service"]


@pytest.fixture(scope="module")
def platform(muster, tmp_path_factory):
    tmp = tmp_path_factory.mktemp("aip")
    data = CACHE / f"test-aiplatform{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    data.mkdir(parents=True, exist_ok=True)
    for old in data.iterdir():
        if old.name != "envs":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    envs = data / "envs"
    if envs.exists() and len(list(envs.iterdir())) > 60:        # of many versions of the packages
        shutil.rmtree(envs)
    # Debian's PyTorch stands for the image, so that none is downloaded.
    (data / "runtimes.yaml").write_text(
        "runtimes: {}\nimages:\n  gcr.io/cloud-ml-public/training/pytorch-: "
        "{python: /usr/bin/python3, system: true, requirements: ['numpy<2', 'pandas<2.3']}\n")
    server = Platform(muster, data, env={"PATH": f"{PYTHON_BIN}:{os.environ['PATH']}"})
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    with server:
        yield server.prepare(tmp)
    os.environ.pop("STORAGE_EMULATOR_HOST", None)
    if before:
        os.environ["STORAGE_EMULATOR_HOST"] = before


def refused(call):
    """(code, the error as Google's APIs give it)"""
    with pytest.raises(HttpError) as e:
        call.execute()
    error = json.loads(e.value.content)["error"]
    assert error["code"] == e.value.resp.status
    return error["code"], error


# ------------------------------------------------------------------ google-api-python-client

def test_a_job_is_created_runs_and_can_be_read(platform):
    made = platform.submit("first_job", "--colour", "red", jobDir=f"gs://{BUCKET}/dir", fromTomorrow=1)
    assert made["jobId"] == "first_job" and made["state"] in ("QUEUED", "PREPARING", "RUNNING")
    assert base64.b64decode(made["etag"], validate=True)
    job = platform.ended("first_job")
    assert job["state"] == "SUCCEEDED" and "errorMessage" not in job
    assert job["createTime"] <= job["startTime"] <= job["endTime"] and job["endTime"].endswith("Z")
    assert job["trainingInput"]["fromTomorrow"] == 1            # kept, and ignored
    (hello,) = [s for s in platform.lines("first_job") if s.startswith("hello")]
    assert re.fullmatch(rf"hello from first_job --colour red --job-dir[= ]gs://{BUCKET}/dir", hello)
    assert "the end" in platform.lines("first_job")


def test_several_workers_are_one_group_with_ranks(platform):
    blob = platform.bucket.blob("packages/ranks-1.0-py3-none-any.whl")
    blob.upload_from_string(wheel("ranks", """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:])
"""))
    platform.submit("group_job", "--n", "a b", pythonModule="ranks", packageUris=[f"gs://{BUCKET}/{blob.name}"],
                    scaleTier="CUSTOM", masterType="n1-standard-4", workerType="n1-standard-4", workerCount=2)
    assert platform.ended("group_job")["state"] == "SUCCEEDED", platform.history("group_job")
    said = platform.lines("group_job")
    assert {s for s in said if " of 3 " in s} == {f"[{i}] rank {i} of 3 --n a b" for i in range(3)}
    assert any("here each worker has" in text for _, text in platform.history("group_job"))


def test_a_job_that_fails_says_why(platform):
    platform.submit("failing_job", "--fail")
    job = platform.ended("failing_job")
    assert job["state"] == "FAILED" and "3" in job["errorMessage"]


def test_a_running_job_is_cancelled_and_an_ended_one_is_not(platform):
    platform.submit("cancelled_job", "9000")
    platform.reaches("cancelled_job", "RUNNING")
    name = f"projects/{PROJECT}/jobs/cancelled_job"
    assert platform.jobs.cancel(name=name, body={}).execute() == {}
    assert platform.ended("cancelled_job")["state"] == "CANCELLED"
    code, error = refused(platform.jobs.cancel(name=name, body={}))
    assert (code, error["status"]) == (400, "FAILED_PRECONDITION")


def test_labels_are_patched_by_who_has_seen_the_last(platform):
    platform.submit("labelled_job", job={"labels": {"team": "red"}})
    name = f"projects/{PROJECT}/jobs/labelled_job"
    old = platform.get("labelled_job")
    new = platform.jobs.patch(name=name, updateMask="labels", body={
        "labels": {"team": "blue", "n": "1"}, "etag": old["etag"]}).execute()
    assert new["labels"] == {"team": "blue", "n": "1"} and new["etag"] != old["etag"]
    code, error = refused(platform.jobs.patch(name=name, updateMask="labels", body={
        "labels": {}, "etag": old["etag"]}))
    assert (code, error["status"]) == (409, "ABORTED")
    code, error = refused(platform.jobs.patch(name=name, updateMask="state", body={"state": "FAILED"}))
    assert code == 400 and "updateMask" in error["message"]
    platform.ended("labelled_job")


def test_jobs_are_listed_by_filter_and_page_by_page(platform):
    for i in range(5):
        platform.submit(f"census_{i}", *(["--fail"] if i == 3 else []), job={"labels": {"n": str(i)}})
    for i in range(5):
        platform.ended(f"census_{i}")

    def ids(**kw):
        return [j["jobId"] for j in platform.jobs.list(parent=PARENT, **kw).execute().get("jobs", [])]

    assert ids(filter="jobId:census*") == [f"census_{i}" for i in (4, 3, 2, 1, 0)]
    assert ids(filter="jobId:census* AND state:FAILED") == ["census_3"]
    assert ids(filter='state="SUCCEEDED" labels.n=2') == ["census_2"]
    assert ids(filter="jobId:nothing*") == []
    got, token = [], None
    while True:
        page = platform.jobs.list(parent=PARENT, filter="jobId:census*", pageSize=2, pageToken=token).execute()
        got += [j["jobId"] for j in page.get("jobs", [])]
        token = page.get("nextPageToken")
        if not token:
            break
    assert got == [f"census_{i}" for i in (4, 3, 2, 1, 0)]
    code, error = refused(platform.jobs.list(parent=PARENT, filter="state="))
    assert code == 400 and "character" in error["message"]


@pytest.mark.parametrize("field, change", [
    ("trainingInput.scaleTier", {"scaleTier": "ENORMOUS"}),
    ("trainingInput.masterType", {"scaleTier": "CUSTOM"}),
    ("trainingInput.packageUris[0]", {"packageUris": ["http://127.0.0.1/x.whl"]}),
    ("trainingInput.packageUris[0]", {"packageUris": ["file:///etc/passwd.whl"]}),
    ("trainingInput.packageUris[0]", {"packageUris": [f"gs://{BUCKET}/not-there.whl"]}),
    ("trainingInput.pythonModule", {"pythonModule": "-c"}),
    ("trainingInput.args", {"args": "one"}),
    ("trainingInput.scheduling.maxRunningTime", {"scheduling": {"maxRunningTime": "soon"}}),
])
def test_a_wrong_field_is_named(platform, field, change):
    body = {"jobId": "wrong_job", "trainingInput": {"pythonModule": "sleeper", "packageUris": [
        WHEEL], **change}}
    code, error = refused(platform.jobs.create(parent=PARENT, body=body))
    assert (code, error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][0]["fieldViolations"][0]["field"] == field


def test_other_refusals_have_googles_form(platform):
    platform.submit("twice")
    body = {"jobId": "twice", "trainingInput": platform.get("twice")["trainingInput"]}
    assert refused(platform.jobs.create(parent=PARENT, body=body))[1]["status"] == "ALREADY_EXISTS"
    assert refused(platform.jobs.get(name=f"{PARENT}/jobs/nobody"))[1]["status"] == "NOT_FOUND"
    assert refused(platform.jobs.list(parent="projects/not-a-project"))[0] in (403, 404)
    tuning = {"jobId": "tuned", "trainingInput": {**body["trainingInput"], "hyperparameters": {
        "goal": "MINIMIZE", "params": []}}}
    code, error = refused(platform.jobs.create(parent=PARENT, body=tuning))
    assert (code, error["status"]) == (400, "UNIMPLEMENTED") and "Hyperparameter tuning" in error["message"]
    status, _, text = platform.call("GET", f"/v1/{PARENT}/jobs", token="wrong")
    assert status == 401 and json.loads(text)["error"]["status"] == "UNAUTHENTICATED"
    platform.ended("twice")


def test_a_token_of_one_project_opens_no_other(platform, muster):
    for name in ("theirs", "ours-too"):
        muster("project", "add", name, env=platform.env)
    token = muster("project", "token", "add", "--project", "theirs", env=platform.env).stdout
    token = re.search(r"muster_[a-z0-9]+", token)[0]
    platform.submit("private_job")
    body = {"jobId": "stolen", "trainingInput": platform.get("private_job")["trainingInput"]}
    ask = {"resourceNames": [PARENT], "filter": 'resource.labels.job_id="private_job"'}
    for method, path, doc in (("GET", f"/v1/{PARENT}/jobs/private_job", None),
                              ("GET", f"/v1/{PARENT}/jobs", None),
                              ("POST", f"/v1/{PARENT}/jobs/private_job:cancel", {}),
                              ("GET", f"/v1/{PARENT}/models", None),
                              ("POST", "/v2/entries:list", ask),
                              ("POST", "/v2/entries:write", {
                                  "logName": f"projects/{PROJECT}/logs/x", "entries": [{"textPayload": "x"}]}),
                              ("POST", "/v1/projects/ours-too/jobs", body)):
        status, _, text = platform.call(method, path, doc, token=token)
        assert status == 403 and json.loads(text)["error"]["status"] == "PERMISSION_DENIED", path
    # its own project is open, but not with a package out of somebody else's bucket
    status, _, text = platform.call("POST", "/v1/projects/theirs/jobs", body, token=token)
    assert status == 400 and "another project's" in json.loads(text)["error"]["message"]
    assert platform.json("GET", "/v1/projects/theirs/jobs", token=token) == {}
    platform.ended("private_job")


def test_the_key_of_a_developer_is_a_token(platform):
    ml = google.build("ml", "v1", developerKey=platform.token, cache_discovery=False,
                      client_options={"api_endpoint": platform.address})
    assert "jobs" in ml.projects().jobs().list(parent=PARENT).execute()
    assert ml.projects().getConfig(name=PARENT).execute()["serviceAccount"]
    assert ml.projects().locations().list(parent=PARENT).execute()["locations"]


def test_models_versions_and_operations_are_kept(platform):
    models = platform.ml.projects().models()
    made = models.create(parent=PARENT, body={"name": "taxi", "description": "fares"}).execute()
    assert made["name"] == f"{PARENT}/models/taxi"
    assert refused(models.create(parent=PARENT, body={"name": "taxi"}))[1]["status"] == "ALREADY_EXISTS"
    for v in ("v1", "v2"):
        op = models.versions().create(parent=made["name"], body={
            "name": v, "deploymentUri": f"gs://{BUCKET}/models/{v}"}).execute()
        assert op["done"] and op["metadata"]["operationType"] == "CREATE_VERSION"
        assert platform.ml.projects().operations().get(name=op["name"]).execute() == op
    assert models.get(name=made["name"]).execute()["defaultVersion"]["name"].endswith("/v1")
    assert models.versions().setDefault(name=f"{made['name']}/versions/v2", body={}).execute()["isDefault"]
    page = models.versions().list(parent=made["name"], pageSize=1).execute()
    assert len(page["versions"]) == 1 and not page["versions"][0].get("isDefault")
    (second,) = models.versions().list(parent=made["name"], pageToken=page["nextPageToken"]).execute()["versions"]
    assert second["isDefault"] and second["state"] == "READY"
    models.patch(name=made["name"], updateMask="description", body={"description": "tips"}).execute()
    assert models.list(parent=PARENT).execute()["models"][0]["description"] == "tips"
    assert "versions" in refused(models.delete(name=made["name"]))[1]["message"]
    for v in ("v1", "v2"):
        models.versions().delete(name=f"{made['name']}/versions/{v}").execute()
    assert models.delete(name=made["name"]).execute()["done"]
    assert models.list(parent=PARENT).execute() == {}
    assert refused(models.get(name=made["name"]))[1]["status"] == "NOT_FOUND"
    assert len(platform.ml.projects().operations().list(name=PARENT).execute()["operations"]) == 6
    predict = platform.ml.projects().predict(name=f"{PARENT}/models/taxi", body={"instances": []})
    assert refused(predict)[1]["status"] == "UNIMPLEMENTED"


# ------------------------------------------------------------------ logs

def test_entries_keep_to_their_bounds_order_and_pages(platform):
    platform.submit("chatty_job", "30")
    platform.ended("chatty_job")

    def ask(text="", **kw):
        body = {"resourceNames": [PARENT], "filter": 'resource.labels.job_id="chatty_job" ' + text,
                **kw}
        return platform.json("POST", "/v2/entries:list", body)

    every = ask(pageSize=1000)["entries"]
    lines = [e for e in every if e["jsonPayload"]["message"].startswith("line ")]
    assert [e["jsonPayload"]["message"] for e in lines] == [f"line {i}" for i in range(30)]
    assert all(a["timestamp"] <= b["timestamp"] for a, b in zip(every, every[1:]))
    assert all(a["insertId"] < b["insertId"] for a, b in zip(every, every[1:]))
    assert {e["resource"]["labels"]["task_name"] for e in lines} == {"master-replica-0"}

    lo, hi = lines[10]["timestamp"], lines[20]["timestamp"]
    some = ask(f'timestamp>="{lo}" timestamp<"{hi}"', pageSize=1000)["entries"]
    assert some == [e for e in every if lo <= e["timestamp"] < hi] and some
    assert [e["jsonPayload"]["message"] for e in ask("severity>=WARNING")["entries"]] == ["a complaint"]
    assert ask('timestamp>"2200-01-01T00:00:00Z"') == {}

    for order, want in (("timestamp asc", every), ("timestamp desc", every[::-1])):
        got, token = [], ""
        while True:
            page = ask(orderBy=order, pageSize=7, pageToken=token)
            got += page.get("entries", [])
            token = page.get("nextPageToken")
            if not token:
                break
        assert got == want, order
    assert platform.json("POST", "/v2/entries:list", {
        "resourceNames": [PARENT], "filter": 'resource.labels.job_id="nobody"'}) == {}
    status, _, text = platform.call("POST", "/v2/entries:list", {
        "resourceNames": [PARENT], "filter": "a=~b"})
    assert status == 400 and json.loads(text)["error"]["status"] == "INVALID_ARGUMENT"


def test_entries_that_are_written_are_kept(platform):
    entries = [{"severity": s, "jsonPayload": {"message": f"note {i}"},
                "timestamp": f"2026-01-01T00:00:0{i}Z"} for i, s in enumerate(("INFO", "ERROR", "DEBUG"))]
    platform.json("POST", "/v2/entries:write", {"logName": f"projects/{PROJECT}/logs/notes", "entries": entries})
    ask = {"resourceNames": [PARENT], "filter": f'logName="projects/{PROJECT}/logs/notes"'}
    got = platform.json("POST", "/v2/entries:list", ask)["entries"]
    assert [e["jsonPayload"]["message"] for e in got] == ["note 0", "note 1", "note 2"]
    ask["filter"] += " severity>=INFO timestamp>=2026-01-01T00:00:01Z"
    (one,) = platform.json("POST", "/v2/entries:list", ask)["entries"]
    assert one["jsonPayload"]["message"] == "note 1"


# ------------------------------------------------------------------ gcloud, both of them

REAL = pytest.param("real", marks=pytest.mark.skipif(not shutil.which("gcloud"), reason="no gcloud here"))


@pytest.fixture
def package(tmp_path):
    """A folder as the tutorials have them: PROJECT/trainer/task.py, here without a setup.py."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").write_text("")
    (tmp_path / "trainer/task.py").write_text(SLEEPER)
    return tmp_path


@pytest.mark.parametrize("gcloud", ["ours", REAL])
def test_submit_describe_list_and_cancel(platform, package, gcloud):
    (package / "config.yaml").write_text(
        "trainingInput:\n  scaleTier: CUSTOM\n  masterType: n1-standard-4\n  scheduling: {maxRunningTime: 600s}\n")
    name = f"by_{gcloud}"
    done = platform.run(
        "ai-platform", "jobs", "submit", "training", name, "--region=local", "--staging-bucket",
        f"gs://{BUCKET}", "--package-path", "trainer", "--module-name=trainer.task", "--config", "config.yaml",
        "--labels=a=b,c=d", "--", "9000", "--job-dir=own", "--x", gcloud=gcloud, cwd=package)
    assert f"Job [{name}] submitted successfully." in done.stderr
    assert "jobs stream-logs" in done.stderr
    assert f"jobId: {name}\n" in done.stdout and "state: " in done.stdout
    job = platform.get(name)
    sent = job["trainingInput"]
    assert sent["args"] == ["9000", "--job-dir=own", "--x"] and sent["scaleTier"] == "CUSTOM"
    assert sent["enableWebAccess"] is False and job["labels"] == {"a": "b", "c": "d"}
    assert re.fullmatch(rf"gs://{BUCKET}/{name}/[0-9a-f]{{64}}/trainer-0\.0\.0\.tar\.gz", sent["packageUris"][0])
    assert {p.name for p in package.iterdir()} == {"trainer", "config.yaml"} or gcloud == "real"

    assert f"jobId: {name}" in platform.run("ai-platform", "jobs", "describe", name, gcloud=gcloud).stdout
    said = json.loads(platform.run("ai-platform", "jobs", "describe", name, "--format=json",
                                   gcloud=gcloud).stdout)
    assert said["trainingInput"] == sent
    table = platform.run("ai-platform", "jobs", "list", gcloud=gcloud).stdout
    assert table.split()[:3] == ["JOB_ID", "STATUS", "CREATED"] and f"\n{name} " in table
    if gcloud == "real":
        platform.run("ai-platform", "jobs", "update", name, "--update-labels=a=z", gcloud=gcloud)
        assert platform.get(name)["labels"] == {"a": "z", "c": "d"}
    platform.reaches(name, "RUNNING")
    platform.run("ai-platform", "jobs", "cancel", name, gcloud=gcloud)
    assert platform.ended(name)["state"] == "CANCELLED"
    bad = platform.run("ai-platform", "jobs", "describe", "nobody", gcloud=gcloud, check=False)
    assert bad.returncode == 1 and "ERROR: (gcloud.ai-platform.jobs.describe)" in bad.stderr


def test_our_gcloud_takes_what_is_needed_and_refuses_the_rest(platform, package):
    (package / "dist").mkdir()
    built = package / "dist/sleeper-1.0-py3-none-any.whl"
    built.write_bytes(wheel("sleeper", SLEEPER))
    done = platform.run("ai-platform", "jobs", "submit", "training", "prebuilt", "--job-dir",
                        f"gs://{BUCKET}/x/", "--packages", built, "--module-name", "sleeper", "--stream-logs")
    lines = [line.split("\t") for line in done.stderr.splitlines() if "\t" in line]
    assert ["INFO", "master-replica-0", "", "the end"] in [[*x[:1], *x[2:]] for x in lines]
    assert ["ERROR", "master-replica-0", "", "a complaint"] in [[*x[:1], *x[2:]] for x in lines]
    assert "state: SUCCEEDED" in done.stdout
    assert platform.get("prebuilt")["trainingInput"]["packageUris"][0].startswith(f"gs://{BUCKET}/x/packages/")
    streamed = platform.run("ai-platform", "jobs", "stream-logs", "prebuilt").stdout
    assert "the end" in streamed

    failed = platform.run("ai-platform", "jobs", "submit", "training", "prebuilt_fails", "--job-dir",
                          f"gs://{BUCKET}/x", "--packages", built, "--module-name=sleeper", "--stream-logs",
                          "--", "--fail", check=False)
    assert failed.returncode == 1 and "state: FAILED" in failed.stdout
    again = platform.run("ai-platform", "jobs", "submit", "training", "prebuilt", "--packages",
                         WHEEL, "--module-name", "sleeper",
                         check=False)
    assert again.returncode == 1 and "already exists" in again.stderr

    for words, says in (
            (["compute", "instances", "list"], "does not know"),
            (["ai-platform", "jobs", "submit", "training"], "usage"),
            (["ai-platform", "jobs", "submit", "training", "x", "--no-such-flag"], "no-such-flag"),
            (["ai-platform", "local", "train"], "usage")):
        wrong = platform.run(*words, check=False)
        assert wrong.returncode == 2 and says in wrong.stderr, words
    assert "--stream-logs" in platform.run("ai-platform", "jobs", "submit", "training", "--help").stdout
    assert "ai-platform jobs list" in platform.run("help").stdout
    none = platform.run("ai-platform", "jobs", "submit", "training", "x", "--package-path", "dist",
                        "--module-name", "m", "--job-dir", f"gs://{BUCKET}/x", check=False, cwd=package)
    assert none.returncode == 1 and "__init__.py" in none.stderr
    nowhere = platform.run("ai-platform", "jobs", "submit", "training", "x", "--package-path", "trainer",
                           "--module-name", "m", check=False, cwd=package)
    assert nowhere.returncode == 1 and "--staging-bucket" in nowhere.stderr


def test_ctrl_c_ends_the_printing_and_not_the_job(platform):
    client = subprocess.Popen([platform.bin / "gcloud", "ai-platform", "jobs", "submit", "training", "interrupted",
                               f"--packages={WHEEL}",
                               "--module-name=sleeper", "--stream-logs", "--", "9000"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=platform.clients)
    for line in client.stderr:
        if line.endswith("\tline 3\n"):
            break
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=60)
    assert "Received keyboard interrupt." in err and "stream-logs interrupted" in err
    assert client.returncode == 1 and "jobId: interrupted" in out
    platform.reaches("interrupted", "RUNNING")      # its lines may come before the store has that
    platform.run("ai-platform", "jobs", "cancel", "interrupted")
    platform.ended("interrupted")


def test_our_gcloud_trains_locally_and_keeps_properties(platform, package):
    done = platform.run("ai-platform", "local", "train", "--package-path=trainer", "--module-name", "trainer.task",
                        "--job-dir", "/tmp/x", "--", "0", cwd=package, env={"CLOUD_ML_JOB_ID": "me"})
    assert done.stdout.startswith("hello from me 0 --job-dir /tmp/x\n")
    env = {k: "" for k in platform.clients if k.startswith("CLOUDSDK_CORE")}
    platform.run("config", "set", "project", "my-project", env=env)
    assert platform.run("config", "get-value", "project", env=env).stdout == "my-project\n"
    assert platform.run("config", "get-value", "project",
                        env={"CLOUDSDK_CORE_PROJECT": "other-one"}).stdout == "other-one\n"
    assert "project = my-project" in platform.run("config", "list", env=env).stdout
    platform.run("config", "unset", "project", env=env)
    assert platform.run("config", "get-value", "project", env=env).stderr == "(unset)\n"


def test_muster_submit_training_is_the_same_command(platform, muster):
    muster("submit", "training", "by_muster", "--packages",
           WHEEL, "--module-name", "sleeper", "--", "1",
           env=platform.env)
    assert platform.ended("by_muster")["state"] == "SUCCEEDED"


# ------------------------------------------------------------------ the tutorials

def follow_readme(platform, here):
    """Types the commands of its README that put the data into the bucket."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (here / "README.md").read_text(), re.M | re.S)
    (block,) = [b for b in blocks if "muster storage mb" in b]
    lines = [line for line in block.splitlines() if not line.startswith(("eval", "./scripts/train"))]
    env = {**platform.clients, "PATH": f"{platform.bin}:{platform.clients['PATH']}"}
    subprocess.run(["bash", "-euxc", "\n".join(lines)], cwd=here, env=env, check=True)


@pytest.fixture(scope="module")
def taxi_fare(platform, tmp_path_factory):
    """examples/simple-taxi-fare as a user has it, with its data in its bucket."""
    here = tmp_path_factory.mktemp("taxi") / "SimpleTaxiFareProject"
    shutil.copytree(ROOT / "examples/simple-taxi-fare", here, ignore=shutil.ignore_patterns("__pycache__"))
    follow_readme(platform, here)
    data = platform.storage.bucket("simple-taxi-fare").blob("data/train_1k.csv").download_as_bytes()
    assert data.count(b"\n") == 1001 and data.startswith(b"key,fare_amount,pickup_datetime,")
    return here


def model_of(platform):
    import joblib
    blob = platform.storage.bucket("simple-taxi-fare").blob("models/simpletaxifare/model.joblib")
    reg = joblib.load(io.BytesIO(blob.download_as_bytes()))
    blob.delete()
    return float(reg.coef_[0])


def test_simple_taxi_fare_runs_locally(platform, taxi_fare):
    done = subprocess.run(["make", "run_locally"], cwd=taxi_fare, env=platform.clients, text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (taxi_fare / "model.joblib").exists()
    assert 1 < model_of(platform) < 5               # dollars a kilometre
    platform.coefficient = re.search(r"= ([\d.]+) \* distance", done.stdout)[1]


@pytest.mark.parametrize("gcloud", ["ours", REAL])
def test_simple_taxi_fare_is_submitted_and_followed_to_its_end(platform, taxi_fare, gcloud):
    env = dict(platform.clients)
    if gcloud == "ours":
        env["PATH"] = f"{platform.bin}:{env['PATH']}"
    done = subprocess.run(["make", "gcp_submit_training", f"JOB_NAME=taxi_fare_{gcloud}"], cwd=taxi_fare, env=env,
                          text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"Job [taxi_fare_{gcloud}] submitted successfully." in done.stderr
    assert "fare_amount = " in done.stderr and "state: SUCCEEDED" in done.stdout
    (uri,) = platform.get(f"taxi_fare_{gcloud}")["trainingInput"]["packageUris"]
    assert re.fullmatch(r"gs://simple-taxi-fare/trainings/packages/[0-9a-f]{64}/[Ss]imple[Tt]axi[Ff]are-1\.0\.tar\.gz",
                        uri)
    assert 1 < model_of(platform) < 5
    assert any("1.15" in text for task, text in platform.history(f"taxi_fare_{gcloud}") if task == "service")


def test_a_killed_client_does_no_harm_to_its_job(platform, taxi_fare):
    env = {**platform.clients, "PATH": f"{platform.bin}:{platform.clients['PATH']}"}
    client = subprocess.Popen(["make", "gcp_submit_training", "JOB_NAME=taxi_fare_killed"], cwd=taxi_fare, env=env,
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
    for line in client.stderr:
        if "submitted successfully" in line:
            break
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    assert platform.ended("taxi_fare_killed", 240)["state"] == "SUCCEEDED"
    assert 1 < model_of(platform) < 5


@pytest.fixture(scope="module")
def torch_environment():
    """Debian's Python and PyTorch, with the tutorial's other packages beside them."""
    if not Path("/usr/bin/python3").exists() or subprocess.run(
            ["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("no PyTorch for /usr/bin/python3 (apt-get install python3-torch)")
    venv = CACHE / "torch-venv"
    if subprocess.run([venv / "bin/python", "-c", "import torch, pandas, google.cloud.storage"],
                      capture_output=True).returncode if venv.exists() else True:
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--system-site-packages", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", "--disable-pip-version-check", "numpy<1.25",
                        "pandas<2.3", "google-cloud-storage"], check=True)
    return venv


@pytest.fixture
def taxi_pytorch(tmp_path):
    here = tmp_path / "taxi-pytorch"
    shutil.copytree(ROOT / "examples/taxi-pytorch", here, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return here


def test_taxi_pytorch_trains_locally(platform, torch_environment, taxi_pytorch):
    env = {**platform.clients, "PATH": f"{torch_environment}/bin:{platform.clients['PATH']}"}
    done = subprocess.run(["bash", "-c", "source ./scripts/train-local.sh"], cwd=taxi_pytorch, text=True,
                          capture_output=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"eval accuracy ([\d.]+)", done.stdout)[-1]) > 0.85
    assert (taxi_pytorch / "runs/local/model/model.pt").stat().st_size > 10000


def test_taxi_pytorch_trains_as_a_job(platform, torch_environment, taxi_pytorch):
    follow_readme(platform, taxi_pytorch)
    bucket = platform.storage.bucket("taxi-pytorch")
    env = {**platform.clients, "PATH": f"{platform.bin}:{platform.clients['PATH']}", "JOB_NAME": "taxi_pytorch_1"}
    done = subprocess.run(["sh", "scripts/train-cloud.sh", "--num-epochs", "1"], cwd=taxi_pytorch, text=True,
                          capture_output=True, env=env, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "eval accuracy" in done.stderr and "state: SUCCEEDED" in done.stdout
    said = platform.history("taxi_pytorch_1")
    assert any(task == "service" and IMAGE in text for task, text in said), said
    result = json.loads(bucket.blob("models/taxi_pytorch_1/model/result.json").download_as_bytes())
    assert result["accuracy"] > 0.8
    assert bucket.blob("models/taxi_pytorch_1/model/model.pt").download_as_bytes()[:2] == b"PK"
