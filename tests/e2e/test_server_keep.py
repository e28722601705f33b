"""What a server keeps for a project: copied by a backup, in the way of removing the project."""

import pytest
from server import ENDED, Server, edited

VOLUME = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: keeps-}
spec:
  entrypoint: main
  templates:
  - name: make
    resource:
      action: create
      manifest: |
        apiVersion: v1
        kind: PersistentVolumeClaim
        metadata: {name: kept}
        spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  - name: write
    container: {image: alpine, command: [sh, -c, "mkdir /v/d && echo kept >/v/d/f"],
                volumeMounts: [{name: v, mountPath: /v}]}
    volumes: [{name: v, persistentVolumeClaim: {claimName: kept}}]
  - name: main
    dag:
      tasks:
      - {name: make, template: make}
      - {name: write, template: write, dependencies: [make]}
"""


@pytest.fixture
def server(muster, tmp_path):
    s = Server(muster, tmp_path / "data").start()
    yield s
    s.stop()


def test_a_backup_has_the_volumes_and_goes_on_as_a_server(muster, server, tmp_path):
    (tmp_path / "w.yaml").write_text(VOLUME)
    muster("apply", "-f", tmp_path / "w.yaml", "--wait", env=server.env)
    copy = tmp_path / "copy"
    muster("serve", "--backup", copy, "--data-dir", server.data_dir)
    assert (copy / "volumes/default/kept/data/d/f").read_text() == "kept\n"
    was, now = ((d / "volumes/default/kept/data").stat() for d in (server.data_dir, copy))
    assert (was.st_uid, was.st_mode) == (now.st_uid, now.st_mode)
    other = Server(muster, copy).start()
    try:
        reads = VOLUME.replace("mkdir /v/d && echo kept >/v/d/f", "cat /v/d/f && echo more >>/v/d/f")
        reads = reads.replace("      - {name: make, template: make}\n", "").replace(", dependencies: [make]", "")
        (tmp_path / "r.yaml").write_text(reads)
        muster("apply", "-f", tmp_path / "r.yaml", "--wait", env=other.env)
    finally:
        other.stop()


def test_volumes_are_listed_and_deleted(muster, server, tmp_path):
    (tmp_path / "w.yaml").write_text(VOLUME)
    muster("apply", "-f", tmp_path / "w.yaml", "--wait", env=server.env)
    assert "kept" in muster("volumes", "list", env=server.env).stdout
    muster("project", "add", "other", env=server.env)
    other = {**server.env, "MUSTER_PROJECT": "other"}
    assert muster("volumes", "list", env=other).stdout == ""
    assert muster("volumes", "delete", "kept", env=other, check=False).returncode
    muster("volumes", "delete", "kept", env=server.env)
    assert muster("volumes", "list", env=server.env).stdout == ""
    gone = muster("volumes", "delete", "kept", env=server.env, check=False)
    assert gone.returncode and "no volume kept" in gone.stderr


def test_a_project_goes_when_nothing_is_kept_for_it(muster, server, tmp_path):
    for name, leave in (("buckets", ["storage", "mb", "gs://some-bucket-of-it"]),
                        ("pipelines", ["pipelines", "upload", tmp_path / "w.yaml"])):
        (tmp_path / "w.yaml").write_text(VOLUME)
        muster("project", "add", name, env=server.env)
        muster(*leave, env={**server.env, "MUSTER_PROJECT": name})
        kept = muster("project", "remove", name, env=server.env, check=False)
        assert kept.returncode and "first" in kept.stderr, (name, kept)
    muster("project", "add", "empty", env=server.env)
    muster("project", "remove", "empty", env=server.env)


def test_nobody_takes_the_name_of_a_projects_own_bucket(muster, server):
    muster("project", "add", "alpha", env=server.env)
    env = {**server.env, "MUSTER_PROJECT": "alpha"}
    for name in ("artifacts-beta", "images-default", "muster-packages-gamma"):
        refused = muster("storage", "mb", f"gs://{name}", env=env, check=False)
        assert refused.returncode and "take another name" in refused.stderr
    muster("storage", "mb", "gs://artifacts-alpha", env=env)


def test_secrets_are_encrypted_on_the_disk_and_a_backup_has_no_key(muster, server, tmp_path):
    secret = "swordfish-of-the-deep"
    muster("secret", "set", "pass", env=server.env, input=secret + "\n")
    copy = tmp_path / "copy"
    muster("serve", "--backup", copy, "--data-dir", server.data_dir)
    for folder in (server.data_dir, copy):
        for file in folder.rglob("*"):
            assert not file.is_file() or secret.encode() not in file.read_bytes(), file
    key = server.data_dir / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600 and not (copy / "secrets.key").exists()
    assert copy.stat().st_mode & 0o777 == 0o700
    assert (copy / "muster.db").stat().st_mode & 0o777 == 0o600
    other = Server(muster, copy).start()
    spec = {"name": "reads", "spec": {"kind": "command", "secrets": {"PASS": "pass"},
                                      "command": ["sh", "-c", "echo ${#PASS} long"]}}
    try:
        other.json("POST", "/api/jobs", spec)
        job = other.reach("reads", *ENDED)
        assert job["state"] == "failed" and "secrets.key" in job["reason"], job
        (copy / "secrets.key").write_bytes(key.read_bytes())
        other.json("POST", "/api/jobs", {**spec, "name": "again"})
        assert other.reach("again", *ENDED)["state"] == "succeeded"
        assert f"{len(secret)} long" in muster("jobs", "logs", "again", env=other.env).stdout
    finally:
        other.stop()


def test_secrets_of_an_older_data_directory_are_encrypted_at_the_start(muster, server):
    muster("secret", "set", "pass", env=server.env, input="x\n")
    server.stop()
    with edited(server.data_dir) as db:
        db.execute("UPDATE project_values SET value = 'plain-swordfish' WHERE name = 'pass'")
    server.start()
    server.json("POST", "/api/jobs", {"name": "reads", "spec": {
        "kind": "command", "secrets": {"PASS": "pass"},
        "command": ["sh", "-c", "test ${#PASS} = 15"]}})
    assert server.reach("reads", *ENDED)["state"] == "succeeded"
    server.stop()
    assert b"plain-swordfish" not in (server.data_dir / "muster.db").read_bytes()
