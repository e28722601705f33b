"""Rights that the server's own token gives to what it begins: nobody else's code comes to them."""
import pytest
from hosts import wait_for
from server import Server

STEP = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{generateName: wf-}}
spec:
  entrypoint: main
  volumes: [{{name: v, hostPath: {{path: {path}}}}}]
  templates:
  - name: main
    container: {{image: alpine, command: [sh, -c, "cat /mnt/word; : {note}"],
                 volumeMounts: [{{name: v, mountPath: /mnt}}]}}
"""


@pytest.fixture
def server(muster, tmp_path):
    with Server(muster, tmp_path / "data") as s:
        s.json("POST", "/api/projects", {"name": "team"})
        s.team = s.json("POST", "/api/projects/team/tokens", {})["token"]
        yield s


def test_a_version_that_a_project_adds_to_the_owners_recurring_pipeline_sees_no_host_folder(server, tmp_path):
    host = tmp_path / "host"
    host.mkdir(mode=0o755)
    (host / "word").write_text("of the machine\n")
    made = server.json("POST", "/api/pipelines?name=nightly&project=team",
                       STEP.format(path=host, note="first").encode())
    server.json("POST", "/api/recurring", {"name": "often", "project": "team", "pipeline": made["id"],
                                           "trigger": {"interval_s": 1}, "no_cache": True})

    def runs(*states):
        return [r for r in server.json("GET", "/api/runs?project=team")["runs"] if r["state"] in states]

    wait_for(lambda: runs("succeeded", "error", "failed"))
    assert not runs("error", "failed"), runs("error", "failed")
    server.json("POST", f"/api/pipelines/team/{made['id']}/versions?name=second",
                STEP.format(path=host, note="second").encode(), token=server.team)
    refused = wait_for(lambda: runs("error"))
    assert all("server's own token" in r["message"] for r in refused), refused
    first = {r["version"] for r in runs("succeeded")}
    assert len(first) == 1 and not first & {r["version"] for r in refused}


def test_a_job_of_the_owners_that_a_project_runs_again_has_not_the_owners_rights(server):
    spec = {"kind": "command", "command": ["true"], "network": "host"}
    server.json("POST", "/api/jobs", {"name": "by-owner", "project": "team", "spec": spec})
    server.reach("by-owner", "succeeded", project="team")
    status, _, said = server.call("POST", "/api/jobs/team/by-owner/rerun", token=server.team)
    assert status == 403 and b"network: host" in said
    assert server.call("POST", "/api/jobs/team/by-owner/rerun")[0] == 201
