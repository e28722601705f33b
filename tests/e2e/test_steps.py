"""Steps of pipelines in their sandbox: files in place, volumes at any path; no server needed."""
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from test_driver import cgroups, data, job  # noqa: F401 (fixtures)


@pytest.fixture
def volume(data):  # noqa: F811
    d = data / "volumes/default/v"
    (d / "data").mkdir(parents=True)
    (d / "lock").touch()
    (d / "data").chmod(0o777)
    if os.geteuid() == 0:
        os.chown(d / "data", 65534, 65534)
    return d


def test_inputs_are_in_place_and_outputs_stay(job):  # noqa: F811
    a = job("cat /tmp/inputs/x/data /conf/one /etc2/deep/two; echo y >/tmp/outputs/y/data; "
            "echo z >/results/z; touch /conf/one 2>/dev/null || echo read-only; pwd",
            step={"files": [{"path": "/tmp/inputs/x/data", "text": "X\n"},
                            {"path": "/conf/one", "text": "1\n"},
                            {"path": "/etc2/deep/two", "text": "2\n"}],
                  "outputs": [{"path": "/tmp/outputs/y/data"}, {"path": "/results/z"}]})
    assert a.text("o").splitlines() == ["X", "1", "2", "read-only", "/tmp"], a.text()
    assert (a.work / "tmp/outputs/y/data").read_text() == "y\n"
    assert (a.work / "out/1/z").read_text() == "z\n"


def test_a_volume_is_where_the_machine_has_nothing(job, volume):  # noqa: F811
    mounts = [{"path": "/workspace", "from": "volume:v"},
              {"path": "/mnt/deep/er", "from": "volume:v", "sub": "a/b"},
              {"path": "/scratch", "from": "empty:e"}]
    a = job("pwd; echo 1 >one; echo 2 >/mnt/deep/er/two; echo 3 >/scratch/3; ls /usr/bin/env; "
            "touch /here 2>/dev/null || echo read-only", step={"mounts": mounts, "cwd": "/workspace"})
    assert a.text("o").splitlines() == ["/workspace", "/usr/bin/env", "read-only"], a.text()
    assert (volume / "data/one").read_text() == "1\n"
    assert (volume / "data/a/b/two").read_text() == "2\n"
    b = job("cat one; echo x >one || echo read-only",
            step={"mounts": [{**mounts[0], "read_only": True}], "cwd": "/workspace"})
    assert b.text("o").splitlines() == ["1", "read-only"], b.text()


def test_a_volume_that_is_not_there_is_named(job, volume):  # noqa: F811
    a = job("true", step={"mounts": [{"path": "/w", "from": "volume:other"}]})
    assert a.exit["code"] == 125 and "volume" in a.exit["reason"]
    (volume / "deleted").touch()
    b = job("true", step={"mounts": [{"path": "/w", "from": "volume:v"}]})
    assert "deleted" in b.exit["reason"]


def test_a_link_on_a_volume_leads_nowhere(job, volume):  # noqa: F811
    (volume / "data/out").symlink_to("/etc")
    a = job("ls /w", step={"mounts": [{"path": "/w", "from": "volume:v", "sub": "out"}]})
    assert a.exit["code"] == 125 and "passwd" not in a.text()


def test_directories_of_the_machine_are_for_its_owner(job, tmp_path):  # noqa: F811
    own = tmp_path / "own"
    own.mkdir()
    (own / "f").write_text("here\n")
    mount = {"mounts": [{"path": "/w", "from": f"host:{own}", "read_only": True}]}
    assert "does not see" in job("cat /w/f", step=mount).exit["reason"]
    assert "here" in job("cat /w/f", step=mount, host_files=True).text("o")


def test_programs_before_and_beside_it(job):  # noqa: F811
    a = job("cat /e/before; while ! test -s /e/beside; do sleep 0.01; done; cat /e/beside",
            step={"mounts": [{"path": "/e", "from": "empty:e"}],
                  "init": [{"name": "i", "command": ["sh", "-c", "echo before >/e/before"]}],
                  "sidecars": [{"name": "s", "env": {"A": "it's"},
                                "command": ["sh", "-c", "echo $A beside >/e/b; mv /e/b /e/beside; "
                                            "sleep 1000"]}]})
    assert a.text("o").splitlines() == ["before", "it's beside"], a.text()
    b = job("echo no", step={"init": [{"name": "bad", "command": ["false"]}]})
    assert "init container bad ended with exit code 1" in b.exit["reason"]
    assert "no" not in b.text("o").splitlines()


def test_an_output_over_the_systems_files_is_refused(job):  # noqa: F811
    a = job("true", step={"outputs": [{"path": "/etc/passwd"}]})
    assert a.exit["code"] == 125 and "/etc/passwd: this machine has" in a.exit["reason"]


def test_a_directory_is_unpacked_and_a_new_volume_begins_with_it(job, data, volume, tmp_path):  # noqa: F811
    (tmp_path / "code/sub").mkdir(parents=True)
    (tmp_path / "code/sub/f").write_text("code\n")
    step = {"files": [{"path": p, "object": "gs://b/o", "dir": True} for p in ("/workspace", "/opt2/in")],
            "mounts": [{"path": "/workspace", "from": "volume:v"}], "cwd": "/workspace"}
    (volume / "fresh").touch()
    for n in (1, 2):
        inputs = data / f"jobs/{n}/inputs"
        inputs.mkdir(parents=True)
        for k in ("0", "1"):
            subprocess.run(["tar", "-cf", inputs / k, "-C", tmp_path / "code", "."], check=True)
            (inputs / k).chmod(0o644)
    a = job("cat sub/f /opt2/in/sub/f; echo changed >sub/f; echo mine >/opt2/in/g", step=step)
    assert a.text("o").splitlines() == ["code", "code"], a.text()
    assert not (volume / "fresh").exists()
    b = job("cat sub/f; ls /opt2/in", step=step)
    assert b.text("o").splitlines() == ["changed", "sub"], b.text()


def test_a_public_image_is_this_machine_and_the_log_says_so_first(job):  # noqa: F811
    a = job("echo hi", image="docker.io/library/alpine:3.7", step={})
    said = a.text().splitlines()
    assert said[1] == "hi" and "alpine:3.7 is not here; this machine" in said[0]


def test_an_image_of_python_has_one_on_its_path(job):  # noqa: F811
    command = "python -c 'import sys; print(sys.prefix != sys.base_prefix)'; touch $VIRTUAL_ENV/x"
    a = job(command, image="python:3.7", step={})
    assert a.text("o").splitlines()[-1] == "True", a.text()
    assert "python:3.7" in a.text().splitlines()[0] and a.exit["code"] != 0


def test_muster_is_on_its_path(job):  # noqa: F811
    assert job("muster --version", step={}).text("o").startswith("muster ")


@pytest.mark.skipif(not cgroups(), reason="no control groups may be made here")
def test_what_it_did_not_ask_for_is_no_limit(job):  # noqa: F811
    def limits(**more):
        """Of its control group: what Linux calls no limit is -1, or max."""
        a = job("sleep 1000", resources={"cpu": 0.02}, wait=False, **more)
        a.wait_until_running()
        groups = list(Path("/sys/fs/cgroup").rglob(f"muster-*-{a.keeper.pid}"))
        files = [f for g in groups for n in ("cpu.cfs_quota_us", "cpu.max") if (f := g / n).exists()]
        return {f.read_text().split()[0] for f in files}

    assert limits(step={"share": True}) <= {"-1", "max"}
    assert not limits() & {"-1", "max"}


# ---------------------------------------------------------------- what a step could do to the machine

def staged(data, number, *trees):
    """Archives as the server puts them beside a job, from folders."""
    inputs = data / f"jobs/{number}/inputs"
    inputs.mkdir(parents=True)
    for k, folder in enumerate(trees):
        subprocess.run(["tar", "-cf", inputs / str(k), "-C", folder, "."], check=True)
        (inputs / str(k)).chmod(0o644)


def test_an_input_does_not_go_through_a_link_in_another(job, data, tmp_path):  # noqa: F811
    target = tmp_path / "target"
    (target / "private").mkdir(parents=True, mode=0o700)
    (target / "exist").write_text("mine")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/l").symlink_to(target)
    was = (target / "exist").stat()
    for n, second in enumerate([{"path": "/tmp/in/l/exist", "text": "theirs"},
                                {"path": "/tmp/in/l/new", "text": "theirs"},
                                {"path": "/tmp/in/l/private", "object": "gs://b/o", "dir": True}]):
        staged(data, n + 1, tmp_path / "tree", tmp_path / "tree")
        a = job("true", step={"files": [{"path": "/tmp/in", "object": "gs://b/o", "dir": True}, second]})
        assert a.exit["code"] == 125 and "link" in a.exit["reason"], a.exit
    now = (target / "exist").stat()
    assert (target / "exist").read_text() == "mine" and (was.st_uid, was.st_mode) == (now.st_uid, now.st_mode)
    assert sorted(p.name for p in target.iterdir()) == ["exist", "private"]
    assert (target / "private").stat().st_uid == os.geteuid()


def test_a_mount_does_not_go_through_a_link_on_a_volume(job, volume):  # noqa: F811
    # Not below /tmp, where the sandbox is put together.
    target = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (volume / "data/l").symlink_to(target)
    for step in ({"mounts": [{"path": "/v", "from": "volume:v"}, {"path": "/v/l/made", "from": "empty:e"}]},
                 {"mounts": [{"path": "/v", "from": "volume:v"}], "files": [{"path": "/v/l/made", "text": ""}]},
                 {"mounts": [{"path": "/v", "from": "volume:v"}, {"path": "/v/l", "from": "empty:e"}]}):
        a = job("touch /v/l/x", step=step)
        assert a.exit["code"] == 125, a.text()
    assert list(target.iterdir()) == []
    target.rmdir()


def test_a_secrets_file_goes_with_the_program(muster, data, tmp_path):  # noqa: F811
    # Secrets come to the keeper by memory, which the server fills: through it, then.
    from server import Server
    s = Server(muster, tmp_path / "served").start()
    try:
        muster("secret", "set", "key", input="s3cr3t", env=s.env)
        spec = {"kind": "command", "command": ["sh", "-c", "cat /s/key /tmp/key | tr a-z A-Z"],
                "step": {"files": [{"path": "/s/key", "secret": "key"}, {"path": "/tmp/key", "secret": "key"}]}}
        name = s.json("POST", "/api/jobs", {"spec": spec, "name": "reads"})["name"]
        s.reach(name, "succeeded")
        assert "S3CR3TS3CR3T" in muster("jobs", "logs", name, env=s.env).stdout
    finally:
        s.stop()
    left = subprocess.run(["grep", "-rl", "s3cr3t", tmp_path / "served/jobs"], capture_output=True, text=True)
    assert left.stdout == ""
