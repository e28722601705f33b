"""muster submit and muster jobs, serve --check and --backup: as a person types them."""
import json
import re
import zipfile

import pytest
from server import Server, edited

HELLO = """name: hello
command: [sh, -c, "echo one; echo two >&2; echo $MUSTER_JOB; exit ${CODE:-0}"]
resources: {cpu: 0.1, memory: 64Mi}
"""


@pytest.fixture
def hello(tmp_path):
    path = tmp_path / "hello.yaml"
    path.write_text(HELLO)
    return path


@pytest.fixture
def sleeper(tmp_path):
    path = tmp_path / "sleeper.yaml"
    path.write_text("name: sleeper\ncommand: [sleep, \"1000\"]\nresources: {cpu: 0.1}\n")
    return path


def test_a_job_is_submitted_followed_and_described(muster, server, hello):
    done = muster("submit", hello, "--follow", "--label", "team=a", env=server.env)
    name, *lines = done.stdout.splitlines()
    assert name.startswith("hello-") and lines == ["one", name]
    assert "two" in done.stderr and f"{name}: succeeded" in done.stderr
    assert muster("jobs", "logs", name, "--search", "TWO", env=server.env).stderr == "two\n"
    shown = muster("jobs", "describe", name, env=server.env).stdout
    assert "succeeded" in shown and "attempt.ended" in shown
    listed = muster("jobs", "list", "--label", "team=a", "--state", "succeeded", env=server.env)
    assert name in listed.stdout and len(listed.stdout.splitlines()) == 1
    assert muster("jobs", "list", "--label", "team=b", env=server.env).stdout == ""


def test_follow_ends_with_one_when_the_job_failed(muster, server, tmp_path):
    spec = tmp_path / "bad.yaml"
    spec.write_text("name: bad\ncommand: [sh, -c, \"echo oh; exit 3\"]\nresources: {cpu: 0.1}\n")
    done = muster("submit", spec, "--follow", "--name", "bad", env=server.env, check=False)
    assert done.returncode == 1 and "exit code 3" in done.stderr
    again = muster("jobs", "rerun", "bad", "--follow", env=server.env, check=False)
    assert again.returncode == 1 and again.stdout.startswith("bad-")


def test_a_cancelled_job_can_be_deleted_and_its_name_used_again(muster, server, sleeper):
    muster("submit", sleeper, "--name", "s", env=server.env)
    server.reach("s", "running")
    twice = muster("submit", sleeper, "--name", "s", env=server.env, check=False)
    assert twice.returncode == 5 and "already" in twice.stderr
    early = muster("jobs", "delete", "s", env=server.env, check=False)
    assert early.returncode == 5 and "cancel it first" in early.stderr
    muster("jobs", "cancel", "s", env=server.env)
    server.reach("s", "cancelled")
    muster("jobs", "delete", "s", env=server.env)
    gone = muster("jobs", "describe", "s", env=server.env, check=False)
    assert gone.returncode == 4
    muster("submit", sleeper, "--name", "s", env=server.env)
    muster("jobs", "cancel", "s", env=server.env)
    server.reach("s", "cancelled")


def test_what_cannot_be_is_said_in_a_sentence(muster, server, hello, tmp_path):
    wide = muster("submit", hello, "--set", "resources.cpu=9999", env=server.env, check=False)
    assert wide.returncode == 2 and "resources.cpu" in wide.stderr
    name = muster("submit", hello, "--set", "resources.cpu=4000", env=server.env).stdout.strip()
    job = server.reach(name, "failed")
    assert "it asks for 4000 cores, and the machine has" in job["reason"]
    bad = muster("jobs", "resize", name, "1..2", env=server.env, check=False)
    assert bad.returncode in (2, 5)
    nobody = muster("jobs", "list", env={"MUSTER_SERVER": "http://127.0.0.1:1", "MUSTER_TOKEN": "x"},
                    check=False)
    assert nobody.returncode == 6 and nobody.stderr.count("\n") == 1


def test_data_paths_of_a_spec_are_those_of_its_own_folder(muster, server, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "rows.csv").write_text("x,y\n" + "".join(f"{i},{2 * i}\n" for i in range(40)))
    (folder / "train.yaml").write_text(
        "name: line\ndata: {train: {csv: rows.csv}, split: {test: 0.2}, target: y, "
        "task: regression}\nmodel: [{linear: 1}]\nloss: squared_error\n"
        "optimizer: {sgd: {lr: 0.01}}\nbatch: 4\nepochs: 2\nresources: {cpu: 0.2}\n")
    done = muster("submit", folder / "train.yaml", "--follow", "--name", "line", env=server.env)
    assert "digest" in done.stdout
    alone = muster("train", folder / "train.yaml", "--out", tmp_path / "run").stdout
    digest = [line.split()[1] for line in alone.splitlines() if line.startswith("digest")]
    assert digest and digest[0] in done.stdout


def test_a_python_spec_brings_its_package_along(muster, server, tmp_path):
    """A folder of modules, a wheel, and one that is in a bucket already."""
    folder = tmp_path / "fit"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts/__init__.py").write_text("WORD = 'of a package'\n")
    (folder / "task.py").write_text("import sys, parts\nprint(parts.WORD, *sys.argv[1:])\n")
    spec = folder / "fit.yaml"
    spec.write_text("name: fit.it\npython: {module: task, args: [--n, a b]}\n")
    done = muster("submit", spec, "--follow", env=server.env, check=False)
    assert done.returncode == 0 and "of a package --n a b" in done.stdout, done.stderr
    name = done.stdout.splitlines()[0]
    (uri,) = server.json("GET", f"/api/jobs/default/{name}")["spec"]["python"]["packages"]
    assert re.fullmatch(r"gs://muster-packages-default/[0-9a-f]{64}/fit[-._]it-0.0.0.tar.gz", uri)
    assert not (folder / "setup.py").exists()

    with zipfile.ZipFile(tmp_path / "one-1.0-py3-none-any.whl", "w") as z:
        z.writestr("one.py", "print('out of a wheel')\n")
        z.writestr("one-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
        z.writestr("one-1.0.dist-info/WHEEL",
                   "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("one-1.0.dist-info/RECORD", "")
    spec = tmp_path / "one.yaml"
    spec.write_text("name: one\npython: {package: one-1.0-py3-none-any.whl, module: one}\n")
    muster("storage", "mb", "gs://mine-all-mine", env=server.env)
    done = muster("submit", spec, "--follow", "--staging-bucket", "gs://mine-all-mine/sub",
                  env=server.env, check=False)
    assert done.returncode == 0 and "out of a wheel" in done.stdout, done.stderr
    name = done.stdout.splitlines()[0]
    (uri,) = server.json("GET", f"/api/jobs/default/{name}")["spec"]["python"]["packages"]
    assert uri.startswith("gs://mine-all-mine/sub/") and uri.endswith("/one-1.0-py3-none-any.whl")
    done = muster("submit", spec, "--set", f"python.package={uri}", "--follow", env=server.env)
    assert "out of a wheel" in done.stdout
    checked = muster("serve", "--data-dir", server.data_dir, "--check").stdout
    assert re.search(r" [34] environments \(\d", checked), checked    # a Python, with and without setuptools


@pytest.mark.parametrize("package, said", [
    ("nothing.whl", "python.package: "), ("https://example.org/a.whl", "in a bucket (gs://...)")])
def test_a_package_that_is_not_there_is_told(muster, server, tmp_path, package, said):
    spec = tmp_path / "fit.yaml"
    spec.write_text(f"name: fit\npython: {{package: '{package}', module: fit}}\n")
    done = muster("submit", spec, env=server.env, check=False)
    assert done.returncode == 4 and said in done.stderr and done.stdout == ""


def test_a_higher_priority_and_the_project_that_used_least_go_first(muster, server, hello):
    whole = ["--set", f"resources.cpu={server.json('GET', '/api/machine')['cpu']['total']}"]
    block = muster("submit", hello, *whole, "--set",
                   "command=[sh, -c, until test -e go; do sleep 0.05; done]", "--name", "block",
                   env=server.env)
    assert block.stdout == "block\n"
    go = server.work(server.reach("block", "running")) / "go"
    server.json("POST", "/api/projects", {"name": "other"})
    for name, more in (("a1", []), ("a2", []), ("urgent", ["--priority", "5"]),
                       ("b1", ["--project", "other"])):
        muster("submit", hello, *whole, "--name", name, *more, env=server.env)
    go.touch()
    for name in ("a1", "a2", "urgent"):
        server.reach(name, "succeeded")
    rows = server.json("GET", "/api/jobs?limit=10")["jobs"]
    order = [r["name"] for r in sorted(rows, key=lambda r: r["started"])]
    assert order == ["block", "urgent", "b1", "a1", "a2"]


def test_check_finds_a_row_that_is_not_what_its_events_say(muster, server, hello):
    muster("submit", hello, "--follow", "--name", "h", env=server.env)
    assert "is sound" in muster("serve", "--data-dir", server.data_dir, "--check").stdout
    server.stop()
    with edited(server.data_dir) as db:
        db.execute("UPDATE jobs SET attempt = 7")
    done = muster("serve", "--data-dir", server.data_dir, "--check", check=False)
    assert done.returncode == 7 and '"h"' in done.stdout


def test_a_backup_of_a_running_server_works_as_a_data_directory(muster, server, hello, tmp_path):
    server.json("POST", "/storage/v1/b?project=default", {"name": "bucket"})
    big = b"x" * 100_000
    status, *_ = server.call("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=big", big)
    assert status == 200
    muster("submit", hello, "--follow", "--name", "h", env=server.env)
    copy = tmp_path / "copy"
    muster("serve", "--data-dir", server.data_dir, "--backup", copy)
    server.call("DELETE", "/storage/v1/b/bucket/o/big")
    assert "1 contents" in muster("serve", "--data-dir", copy, "--check").stdout
    again = muster("serve", "--data-dir", server.data_dir, "--backup", copy, check=False)
    assert again.returncode == 5 and "not empty" in again.stderr
    with Server(muster, copy) as other:
        assert other.call("GET", "/storage/v1/b/bucket/o/big?alt=media")[2] == big
        assert "one\n" in muster("jobs", "logs", "h", env=other.env).stdout
        assert json.loads(muster("jobs", "list", "--json", env=other.env).stdout)[0]["name"] == "h"
