"""Runs of pipelines: steps are jobs, outputs reach who needs them, what was done is not done again."""
import json
import os
import pty
import subprocess

import pytest
from hosts import wait_for

ENDED = ("succeeded", "failed", "error", "terminated")


def workflow(*templates, name="generateName: wf-", spec=""):
    """A Workflow of templates, each a block of YAML lines."""
    lines = ["apiVersion: argoproj.io/v1alpha1", "kind: Workflow", f"metadata: {{{name}}}", "spec:",
             "  entrypoint: main"]
    lines += ["  " + line for line in spec.splitlines()]
    lines += ["  templates:"]
    for t in templates:
        for i, line in enumerate(t.strip("\n").splitlines()):
            lines.append(("  - " if i == 0 else "    ") + line)
    return "\n".join(lines) + "\n"


def sh(name, script, inputs="", outputs="", more=""):
    """A container template that runs a shell script."""
    text = f"name: {name}\n"
    if inputs:
        text += f"inputs: {inputs}\n"
    if outputs:
        text += f"outputs: {outputs}\n"
    text += "container:\n  image: alpine\n  command: [sh, -c]\n  args:\n  - |\n"
    text += "".join(f"    {line}\n" for line in script.splitlines())
    return text + more


def begin(server, text, **more):
    return server.json("POST", "/api/runs", {"text": text, **more})


def wait(server, run, states=ENDED, seconds=240):
    def look():
        return server.json("GET", f"/api/runs/default/{run['id']}")

    return wait_for(lambda: (doc := look())["state"] in states and doc, seconds, lambda: (
        f"the run is stuck: {look()}\n{json.dumps(nodes(server, run), indent=1)}"))


def nodes(server, run):
    found = server.json("GET", f"/api/runs/default/{run['id']}/nodes")["nodes"]
    return {n["name"]: n for n in found}


def phases(server, run):
    return {name: n["phase"] for name, n in nodes(server, run).items()}


def done(server, text, state="succeeded", **more):
    run = wait(server, begin(server, text, **more))
    assert run["state"] == state, f"{run}\n{json.dumps(nodes(server, run), indent=1)}"
    return run


def output(server, run, node, name):
    return nodes(server, run)[node]["outputs"]["parameters"][name]


SAY = sh("say", "printf '%s!' '{{inputs.parameters.m}}' > /tmp/out",
         "{parameters: [{name: m}]}", "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")


def chain(*tasks):
    lines = ["name: main", "dag:", "  tasks:"]
    return "\n".join(lines + [f"  - {t}" for t in tasks])


def test_a_dag_runs_to_its_end_and_values_go_from_step_to_step(muster, server, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(workflow(SAY, chain(
        "{name: a, template: say, arguments: {parameters: [{name: m, value: '{{workflow.parameters.x}}'}]}}",
        "{name: b, template: say, dependencies: [a], arguments: {parameters: [{name: m, "
        "value: '{{tasks.a.outputs.parameters.out}}'}]}}"),
        spec="arguments: {parameters: [{name: x, value: hello}]}"))
    out = muster("apply", "-f", file, "--wait", env=server.env).stdout
    name, run, state = out.split()
    assert state == "succeeded" and name.startswith("wf-")
    assert output(server, {"id": run}, "main.b", "out") == "hello!!"
    out = muster("apply", "-f", file, "--wait", "--param", "x=bye", "--json", env=server.env).stdout
    doc = json.loads(out)
    assert output(server, doc, "main.b", "out") == "bye!!" and doc["parameters"] == {"x": "bye"}
    wrong = muster("apply", "-f", file, "--param", "y=1", env=server.env, check=False)
    assert wrong.returncode and 'no parameter "y"' in wrong.stderr
    assert doc["done"] == doc["nodes"] == 3


def test_what_cannot_run_is_refused_before_anything_begins(muster, server, tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(workflow(SAY, chain("{name: a, template: nobody}")))
    said = muster("apply", "-f", file, env=server.env, check=False).stderr
    assert "wrong.yaml:" in said and "nobody" in said
    status, _, body = server.call("POST", "/api/runs", {"text": workflow(SAY, chain(
        "{name: a, template: say, arguments: {parameters: [{name: m, value: '{{workflow.parameters.x}}'}]}}"),
        spec="arguments: {parameters: [{name: x}]}")})
    assert status == 400 and b"x" in body
    assert server.json("GET", "/api/runs")["total"] == 0


def test_a_run_is_archived_when_its_ttl_is_over(server):
    kept = done(server, workflow(sh("main", "true"), spec="ttlStrategy: {secondsAfterFailure: 0}"))
    run = done(server, workflow(sh("main", "true"), spec="ttlStrategy: {secondsAfterSuccess: 0, "
                                                         "secondsAfterCompletion: 100000}"))
    wait_for(lambda: server.json("GET", f"/api/runs/default/{run['id']}")["archived"])
    assert not server.json("GET", f"/api/runs/default/{kept['id']}")["archived"]


def test_outputs_may_be_beside_files_of_the_machine(server):
    make = sh("make", "echo one > result.txt; echo two > /etc/of-a-step; test -s /etc/passwd; "
              "mkdir -p /results; echo three > /results/f", outputs="""
  artifacts: [{name: d, path: /results}, {name: none, path: /opt/none, optional: true}]
  parameters:
  - {name: a, valueFrom: {path: /result.txt}}
  - {name: b, valueFrom: {path: /etc/of-a-step}}
  - {name: c, valueFrom: {path: /etc/none, default: nothing}}""")
    run = done(server, workflow(make, chain("{name: a, template: make}")))
    assert nodes(server, run)["main.a"]["outputs"]["parameters"] == {"a": "one", "b": "two",
                                                                     "c": "nothing"}
    artifacts = nodes(server, run)["main.a"]["outputs"]["artifacts"]
    assert artifacts["d"]["dir"] and "none" not in artifacts
    over = sh("over", "true", outputs="{artifacts: [{name: p, path: /etc/passwd}]}")
    run = done(server, workflow(over, chain("{name: a, template: over}")), "failed")
    assert "this machine has something there" in nodes(server, run)["main.a"]["message"]


def test_an_input_has_the_rights_that_it_asks_for(server):
    make = sh("make", "printf '#!/bin/sh\\necho ran\\n' > /tmp/p",
              outputs="{artifacts: [{name: p, path: /tmp/p}]}")
    use = sh("use", "test ! -x /tmp/plain; /opt/prog > /tmp/out; stat -c %a /tmp/raw >> /tmp/out",
             "{artifacts: [{name: p, path: /opt/prog, mode: 0755}, {name: q, path: /tmp/plain}, "
             "{name: r, path: /tmp/raw, mode: 256, raw: {data: x}}]}",
             "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")
    art = "from: '{{tasks.a.outputs.artifacts.p}}'"
    run = done(server, workflow(make, use, chain(
        "{name: a, template: make}",
        f"{{name: b, template: use, dependencies: [a], arguments: {{artifacts: [{{name: p, {art}}}, "
        f"{{name: q, {art}}}]}}}}")))
    assert output(server, run, "main.b", "out") == "ran\n400"


def test_a_log_does_nothing_to_a_terminal_but_colour_it(muster, server):
    run = done(server, workflow(sh("main", r"printf 'a\033[2Jb \033[31mred\033[0m\n'")))
    job = nodes(server, run)["main"]["job"]
    for words in (("runs", "logs", run["workflow"]), ("jobs", "logs", job)):
        assert "a\033[2Jb \033[31mred\033[0m\n" in muster(*words, env=server.env).stdout
        ours, theirs = pty.openpty()
        with subprocess.Popen([muster.path, *words], stdout=theirs,
                              env={**os.environ, **server.env}) as printing:
            os.close(theirs)
            shown, part = b"", b"-"
            while part:
                try:
                    part = os.read(ours, 4096)
                except OSError:         # nobody has the other end any more
                    part = b""
                shown += part
            assert printing.wait(240) == 0
        os.close(ours)
        assert b"a^[[2Jb \033[31mred\033[0m\r\n" in shown, words


def test_artifacts_are_objects_files_and_directories(server):
    make = sh("make", "mkdir -p /tmp/d/sub; echo one > /tmp/d/sub/f; echo two > /tmp/file",
              outputs="{artifacts: [{name: d, path: /tmp/d}, {name: f, path: /tmp/file}, "
                      "{name: maybe, path: /tmp/none, optional: true}]}")
    use = sh("use", "cat /in/d/sub/f /in/f | tr -d '\\n' > /tmp/out",
             "{artifacts: [{name: d, path: /in/d}, {name: f, path: /in/f}]}",
             "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")
    run = done(server, workflow(make, use, chain(
        "{name: make, template: make}",
        "{name: use, template: use, dependencies: [make], arguments: {artifacts: "
        "[{name: d, from: '{{tasks.make.outputs.artifacts.d}}'}, "
        "{name: f, from: '{{tasks.make.outputs.artifacts.f}}'}]}}")))
    assert output(server, run, "main.use", "out") == "onetwo"
    art = nodes(server, run)["main.make"]["outputs"]["artifacts"]
    assert art["d"]["dir"] and not art["f"]["dir"] and "maybe" not in art
    assert art["f"]["uri"].startswith(f"gs://artifacts-default/{run['id']}/")
    node = nodes(server, run)["main.make"]["id"]
    _, headers, body = server.call("GET", f"/api/runs/default/{run['id']}/nodes/{node}/artifacts/f")
    assert body == b"two\n" and headers["Content-Disposition"] == "attachment"


def test_a_page_with_scripts_and_names_that_climb_get_nowhere(server):
    page = sh("page", "echo '<script>top.x = 1</script>' > /tmp/page",
              outputs="{artifacts: [{name: page, path: /tmp/page}]}")
    run = done(server, workflow(page, chain("{name: a, template: page}")))
    at = f"/api/runs/default/{run['id']}/nodes/main.a"
    _, headers, body = server.call("GET", at + "/artifacts/page")
    assert headers["Content-Disposition"] == "attachment" and b"script" in body
    assert headers["Content-Type"] == "application/octet-stream"
    _, headers, _ = server.call("GET", at + "/pages/page")
    policy = [part.strip() for part in headers["Content-Security-Policy"].split(";")]
    assert "default-src 'none'" in policy and policy[-1] == "sandbox" and "script" not in str(policy)
    assert headers["X-Content-Type-Options"] == "nosniff"
    for name in ("../page", "..%2F..%2Ftoken", "%2e%2e%2ftoken", "page/../../token", "/etc/passwd"):
        assert server.call("GET", f"{at}/artifacts/{name}")[0] in (400, 404), name
        assert server.call("GET", f"{at}/pages/{name}")[0] in (400, 404), name


def test_a_link_out_of_the_step_is_no_output(server):
    leave = sh("leave", "ln -s /etc/passwd /tmp/out; ln -s /etc /tmp/dir",
               outputs="{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")
    run = done(server, workflow(leave, chain("{name: a, template: leave}")), "error")
    assert "link" in nodes(server, run)["main.a"]["message"]


def test_an_output_that_a_step_did_not_leave_is_named(server):
    run = done(server, workflow(sh("none", "true", outputs="{artifacts: [{name: model, path: /tmp/m}]}"),
                                chain("{name: a, template: none}")), "error")
    assert "model" in nodes(server, run)["main.a"]["message"]


def test_a_loop_over_a_list_that_a_step_made_and_a_join(server):
    make = sh("make", "echo '[1, 2, 3]' > /tmp/out",
              outputs="{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")
    join = sh("join", "echo '{{inputs.parameters.m}}'; printf '%s' '{{inputs.parameters.m}}' > /tmp/out",
              "{parameters: [{name: m}]}",
              "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")
    run = done(server, workflow(make, SAY, join, chain(
        "{name: make, template: make}",
        "{name: each, template: say, dependencies: [make], "
        "withParam: '{{tasks.make.outputs.parameters.out}}', "
        "arguments: {parameters: [{name: m, value: '{{item}}'}]}}",
        "{name: join, template: join, dependencies: [each], arguments: {parameters: "
        "[{name: m, value: '{{tasks.each.outputs.parameters.out}}'}]}}")))
    assert json.loads(output(server, run, "main.join", "out")) == ["1!", "2!", "3!"]


def test_scripts_their_result_and_conditions(server):
    script = "name: flip\nscript:\n  image: alpine\n  command: [python3]\n  source: |\n" \
             "    print('heads')\n"
    run = done(server, workflow(script, SAY, chain(
        "{name: flip, template: flip}",
        "{name: yes, template: say, dependencies: [flip], when: \"{{tasks.flip.outputs.result}} == heads\", "
        "arguments: {parameters: [{name: m, value: '{{tasks.flip.outputs.result}}'}]}}",
        "{name: no, template: say, dependencies: [flip], when: \"{{tasks.flip.outputs.result}} == tails\", "
        "arguments: {parameters: [{name: m, value: x}]}}")))
    assert output(server, run, "main.yes", "out") == "heads!"
    assert phases(server, run)["main.no"] == "Skipped"


def test_retries_run_until_one_is_good(server):
    text = sh("once", "test {{retries}} = 2", more="retryStrategy: {limit: 3}\n")
    run = done(server, workflow(text, chain("{name: a, template: once}")))
    found = phases(server, run)
    assert [found[f"main.a({i})"] for i in range(3)] == ["Failed", "Failed", "Succeeded"]
    assert "main.a(3)" not in found


def test_a_failed_run_is_retried_from_what_failed(server, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)         # steps are nobody on this machine
    count = sh("count", "echo x >> /mnt/count; echo ok", more=f"""
volumes: [{{name: v, hostPath: {{path: {shared}}}}}]
""").replace("  image: alpine", "  image: alpine\n  volumeMounts: [{name: v, mountPath: /mnt}]")
    fail = sh("fail", "test -e /mnt/flag", more=f"""
volumes: [{{name: v, hostPath: {{path: {shared}}}}}]
""").replace("  image: alpine", "  image: alpine\n  volumeMounts: [{name: v, mountPath: /mnt}]")
    run = done(server, workflow(count, fail, chain("{name: a, template: count}",
               "{name: b, template: fail, dependencies: [a]}")), "failed")
    assert run["message"].endswith("b: exit code 1")
    assert phases(server, run)["main.b"] == "Failed"
    assert server.call("POST", f"/api/runs/default/{run['id']}/terminate")[0] == 409
    (shared / "flag").touch()
    server.json("POST", f"/api/runs/default/{run['id']}/retry")
    assert wait(server, run)["state"] == "succeeded"
    assert phases(server, run)["main.b"] == "Succeeded"
    assert (shared / "count").read_text() == "x\n"
    assert server.call("POST", f"/api/runs/default/{run['id']}/retry")[0] == 409


def wait_for_job(server, name):
    """Nothing of it runs any more."""
    return wait_for(lambda: (job := server.json("GET", f"/api/jobs/default/{name}"))["ended"] and job)


def test_a_terminated_run_stops_its_steps(server):
    run = begin(server, workflow(sh("sleep", "sleep 600"), SAY, chain(
        "{name: a, template: sleep}",
        "{name: b, template: say, dependencies: [a], arguments: {parameters: [{name: m, value: x}]}}")))
    wait_for(lambda: phases(server, run).get("main.a") == "Running")
    server.json("POST", f"/api/runs/default/{run['id']}/terminate")
    assert wait(server, run)["state"] == "terminated"
    found = phases(server, run)
    assert found["main.a"] == "Failed" and found["main.b"] in ("Omitted", "Failed", "Skipped")
    assert nodes(server, run)["main.a"]["message"] == "terminated"
    assert wait_for_job(server, nodes(server, run)["main.a"]["job"])["state"] == "cancelled"


def test_a_step_and_a_run_that_never_end_are_ended(server):
    limit, one = "activeDeadlineSeconds: 1", chain("{name: a, template: sleep}")
    begun = [(begin(server, text), *said) for text, *said in [
        (workflow(sh("sleep", "sleep 600", more=limit + "\n"), one),
         "main.a: ran longer than its limit of 1 s", "ran longer than its limit of 1 s"),
        (workflow(sh("sleep", "sleep 600"), one.replace("dag:", limit + "\ndag:")),
         "it took longer than its template's deadline", "terminated"),
        (workflow(sh("sleep", "sleep 600"), one, spec=limit),
         "the run took longer than its deadline", "terminated")]]
    for run, of_run, of_step in begun:
        run = wait(server, run)
        step = nodes(server, run)["main.a"]
        assert (run["state"], run["message"]) == ("failed", of_run)
        if step["job"]:         # on a busy machine it may not have begun
            assert (step["phase"], step["message"]) == ("Failed", of_step)
            wait_for_job(server, step["job"])


def test_a_suspended_step_waits_for_a_word_or_for_its_time(server):
    text = workflow("name: wait\nsuspend: {}", "name: nap\nsuspend: {duration: '0.1'}", SAY, chain(
        "{name: nap, template: nap}", "{name: wait, template: wait, dependencies: [nap]}",
        "{name: a, template: say, dependencies: [wait], arguments: {parameters: [{name: m, value: x}]}}"))
    text = text.replace("'0.1'", "1")
    run = begin(server, text)
    wait_for(lambda: phases(server, run).get("main.wait") == "Running")
    server.json("POST", f"/api/runs/default/{run['id']}/resume?node=main.wait")
    assert wait(server, run)["state"] == "succeeded"
    assert phases(server, run)["main.nap"] == "Succeeded"


VOLUME = """name: volume
resource:
  action: create
  manifest: |
    apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: "{{workflow.name}}-data"}
    spec:
      accessModes: [ReadWriteMany]
      resources: {requests: {storage: 3Gi}}
outputs:
  parameters:
  - {name: manifest, valueFrom: {jsonPath: '{}'}}
  - {name: name, valueFrom: {jsonPath: '{.metadata.name}'}}
  - {name: size, valueFrom: {jsonPath: '{.status.capacity.storage}'}}"""


def on_volume(name, script):
    return sh(name, script, "{parameters: [{name: v}]}",
              "{parameters: [{name: out, valueFrom: {path: /data/f, default: none}}]}",
              "volumes: [{name: d, persistentVolumeClaim: {claimName: '{{inputs.parameters.v}}'}}]\n") \
        .replace("  image: alpine", "  image: alpine\n  volumeMounts: [{name: d, mountPath: /data}]")


def test_a_volume_is_made_shared_and_deleted_by_steps(server):
    given = "arguments: {parameters: [{name: v, value: '{{tasks.volume.outputs.parameters.name}}'}]}"
    drop = "name: drop\ninputs: {parameters: [{name: v}]}\ncontainer:\n  image: gcr.io/cloud-builders/kubectl\n" \
           "  command: [kubectl, delete, PersistentVolumeClaim, '{{inputs.parameters.v}}', " \
           "--ignore-not-found, --output, name, --wait=false]\n"
    run = done(server, workflow(VOLUME, on_volume("write", "echo kept > /data/f"),
                                on_volume("read", "cat /data/f"), drop, chain(
        "{name: volume, template: volume}",
        f"{{name: write, template: write, dependencies: [volume], {given}}}",
        f"{{name: read, template: read, dependencies: [write], {given}}}",
        f"{{name: drop, template: drop, dependencies: [read], {given}}}")))
    assert output(server, run, "main.volume", "size") == "3Gi"
    assert json.loads(output(server, run, "main.volume", "manifest"))["status"]["phase"] == "Bound"
    assert output(server, run, "main.read", "out") == "kept"
    assert not list((server.data_dir / "volumes" / "default").glob("*-data"))


def test_a_file_of_volumes_and_config_maps_is_applied_and_steps_read_and_patch_them(muster, server,
                                                                                     tmp_path):
    file = tmp_path / "kept.yaml"
    file.write_text("""apiVersion: v1
kind: ConfigMap
metadata: {name: simple}
data: {msg: hello}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}
""")
    inputs = "{parameters: [{name: own, valueFrom: {configMapKeyRef: {name: simple, key: msg}}}]}"
    say = sh("say", "echo {{workflow.parameters.top}} {{inputs.parameters.own}} > /tmp/out", inputs,
             "{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}")

    def patch(name, kind, what):
        return f"name: {name}\nresource:\n  action: patch\n  manifest: |\n" \
               f"    {{apiVersion: v1, kind: {kind}, metadata: {{name: {what}}}}}\n"

    grow = patch("grow", "PersistentVolumeClaim",
                 "disk, labels: {a: b}}, spec: {resources: {requests: {storage: 3Gi}}")
    mode = patch("mode", "PersistentVolumeClaim", "disk}, spec: {accessModes: [ReadWriteMany]")
    text = workflow(say, patch("change", "ConfigMap", "simple}, data: {msg: changed"), grow + "outputs: "
                    "{parameters: [{name: size, valueFrom: {jsonPath: '{.status.capacity.storage}'}}]}",
                    mode, chain("{name: a, template: say}", "{name: grow, template: grow}",
                                "{name: mode, template: mode, continueOn: {failed: true}}",
                                "{name: change, template: change, dependencies: [a]}",
                                "{name: b, template: say, dependencies: [change]}"),
                    spec="arguments: {parameters: [{name: top, valueFrom: {configMapKeyRef: "
                         "{name: simple, key: msg}}}]}")
    status, _, body = server.call("POST", "/api/runs", {"text": text})
    assert status == 400 and b'config map \\"simple\\" has no' in body
    told = muster("apply", "-f", file, env=server.env)
    assert told.stdout == "ConfigMap/simple created\nPersistentVolumeClaim/disk created\n"
    again = muster("apply", "-f", file, env=server.env)
    assert again.stdout == "ConfigMap/simple unchanged\nPersistentVolumeClaim/disk unchanged\n"
    run = done(server, text)
    assert output(server, run, "main.a", "out") == "hello hello"
    assert output(server, run, "main.b", "out") == "hello changed"
    assert output(server, run, "main.grow", "size") == "3Gi"
    assert "spec.accessModes: of a PersistentVolumeClaim" in nodes(server, run)["main.mode"]["message"]
    file.write_text("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n")
    wrong = muster("apply", "-f", file, env=server.env, check=False)
    assert wrong.returncode == 2 and "kept.yaml:1: metadata.name" in wrong.stderr


def resource(name, action, kind, data, outputs=""):
    return f"name: {name}\nresource:\n  action: {action}\n  manifest: |\n    apiVersion: v1\n    " \
           f"kind: {kind}\n    metadata: {{name: settings}}\n    {data}\n{outputs}"


def test_config_maps_and_secrets_are_made_read_and_removed(muster, server):
    use = sh("use", 'printf "%s %s %s %s" ${#A} $B $(cat /etc-c/b) $ALL_b > /tmp/out',
             outputs="{parameters: [{name: out, valueFrom: {path: /tmp/out}}]}",
             more="volumes: [{name: c, configMap: {name: settings}}]\n").replace(
        "  image: alpine", """  image: alpine
  volumeMounts: [{name: c, mountPath: /etc-c}]
  envFrom: [{configMapRef: {name: settings}, prefix: ALL_}]
  env:
  - {name: A, valueFrom: {secretKeyRef: {name: settings, key: a}}}
  - {name: B, valueFrom: {configMapKeyRef: {name: settings, key: b}}}
  - {name: C, valueFrom: {configMapKeyRef: {name: settings, key: no, optional: true}}}""")
    run = done(server, workflow(resource("c", "create", "ConfigMap", 'data: {b: two}'),
                                resource("s", "create", "Secret", 'stringData: {a: hunter22}'), use,
                                resource("d", "delete", "Secret", ""), chain(
        "{name: c, template: c}", "{name: s, template: s}",
        "{name: use, template: use, dependencies: [c, s]}",
        "{name: d, template: d, dependencies: [use]}")))
    assert output(server, run, "main.use", "out") == "8 two two two"
    assert "settings.a" not in muster("secret", "list", env=server.env).stdout
    assert "settings.b" in muster("config", "list", env=server.env).stdout
    job = nodes(server, run)["main.use"]["job"]
    for path in (f"/api/runs/default/{run['id']}/events", f"/api/jobs/default/{job}"):
        assert b"hunter22" not in server.call("GET", path)[2]
    run = done(server, workflow(resource("c", "create", "ConfigMap", 'data: {b: other}'),
                                chain("{name: c, template: c}")), "failed")
    assert "already" in nodes(server, run)["main.c"]["message"]


def test_a_training_job_is_a_job_that_its_step_waits_for(server):
    def train(entry):
        return """name: train
resource:
  action: create
  successCondition: status.phase == Succeed
  manifest: |
    apiVersion: paddlepaddle.org/v1
    kind: TrainingJob
    metadata: {name: example}
    spec:
      image: alpine
      trainer: {entrypoint: "%s", workspace: /tmp, min-instance: 2, max-instance: 6,
                resources: {requests: {cpu: 200m, memory: 64Mi}}}
outputs: {parameters: [{name: phase, valueFrom: {jsonPath: '{.status.phase}'}}]}""" % entry

    run = done(server, workflow(train("echo trained"), chain("{name: a, template: train}")))
    node = nodes(server, run)["main.a"]
    assert node["outputs"]["parameters"] == {"phase": "Succeed"}
    job = server.json("GET", f"/api/jobs/default/{node['job']}")
    assert job["spec"]["resources"] == {"cpu": 0.2, "memory": 64 << 20}
    log = server.call("GET", f"/api/runs/default/{run['id']}/nodes/main.a/artifacts/main-logs")[2]
    assert b"trained" in log and b"one trainer runs" in log
    patches = ["{name: example, labels: {team: red}}",
               "{name: example}\n    spec: {trainer: {min-instance: 2, max-instance: 3}}",
               "{name: example}\n    spec: {image: other}"]
    run = done(server, workflow(
        *(f"name: p{i}\nresource:\n  action: patch\n  manifest: |\n    kind: TrainingJob\n"
          f"    metadata: {p}" for i, p in enumerate(patches)),
        chain(*(f"{{name: p{i}, template: p{i}}}" for i in range(3))).replace(
            "dag:", "dag:\n  failFast: false")), "failed")
    said = nodes(server, run)
    assert said["main.p0"]["phase"] == "Succeeded"
    assert server.json("GET", f"/api/jobs/default/{node['job']}")["labels"]["team"] == "red"
    assert "has ended" in said["main.p1"]["message"]
    assert "spec.image: of a TrainingJob labels and the workers" in said["main.p2"]["message"]
    run = done(server, workflow(train("exit 3"), chain("{name: a, template: train}")), "failed")
    assert "exit code 3" in nodes(server, run)["main.a"]["message"]


CACHED = "metadata: {labels: {pipelines.kubeflow.org/enable_caching: 'true'}}\n"


def explained(server, run):
    return {s["name"]: s for s in
            server.json("GET", f"/api/runs/default/{run['id']}/explain")["steps"]}


def test_a_step_that_was_run_is_not_run_again_while_its_outputs_are_there(server):
    text = workflow(sh("make", "date +%N > /tmp/out; date +%N > /tmp/art", "{parameters: [{name: m}]}",
                       "{parameters: [{name: out, valueFrom: {path: /tmp/out}}], "
                       "artifacts: [{name: art, path: /tmp/art}]}", CACHED),
                    chain("{name: a, template: make, arguments: {parameters: "
                          "[{name: m, value: '{{workflow.parameters.m}}'}]}}"),
                    spec="arguments: {parameters: [{name: m, value: x}]}")
    first = done(server, text)
    again = done(server, text)
    assert output(server, again, "main.a", "out") == output(server, first, "main.a", "out")
    why = explained(server, again)["main.a"]
    assert why["cached"] and why["run"] == first["id"]
    assert not explained(server, first)["main.a"]["cached"]
    other = done(server, text, parameters={"m": "y"})
    assert not explained(server, other)["main.a"]["cached"]
    assert not explained(server, done(server, text, no_cache=True))["main.a"]["cached"]
    # What the first left goes with it; what was taken from it stays.
    assert server.call("DELETE", f"/api/runs/default/{first['id']}")[0] == 204
    assert server.call("GET", f"/api/runs/default/{first['id']}/nodes")[0] == 404
    art = f"/api/runs/default/{again['id']}/nodes/main.a/artifacts/art"
    assert server.call("GET", art)[0] == 200
    third = done(server, text)
    uri = nodes(server, third)["main.a"]["outputs"]["artifacts"]["art"]["uri"]
    bucket, name = uri[5:].split("/", 1)
    path = f"/storage/v1/b/{bucket}/o/{name.replace('/', '%2F')}"
    assert server.call("DELETE", path)[0] == 204
    fourth = done(server, text)
    assert not explained(server, fourth)["main.a"]["cached"]
    assert "not there any more" in explained(server, fourth)["main.a"]["why"]


def test_a_step_that_may_write_to_a_volume_is_never_cached(server):
    text = workflow(VOLUME, on_volume("write", "echo x >> /data/f") + CACHED, chain(
        "{name: volume, template: volume}",
        "{name: write, template: write, dependencies: [volume], arguments: {parameters: "
        "[{name: v, value: '{{tasks.volume.outputs.parameters.name}}'}]}}"))
    run = done(server, text)
    assert "volume" in explained(server, run)["main.write"]["why"]


def test_a_deleted_run_leaves_nothing(server):
    run = begin(server, workflow(sh("sleep", "echo x > /tmp/a; sleep 600"), chain(
        "{name: a, template: sleep}")))
    wait_for(lambda: phases(server, run).get("main.a") == "Running")
    assert server.call("DELETE", f"/api/runs/default/{run['id']}")[0] == 204
    wait_for(lambda: server.call("GET", f"/api/runs/default/{run['id']}")[0] == 404)
    assert server.json("GET", "/api/jobs")["jobs"] == []


def test_runs_of_a_project_are_its_own(muster, server):
    server.json("POST", "/api/projects", {"name": "other"})
    token = server.json("POST", "/api/projects/other/tokens", {})["token"]
    run = done(server, workflow(sh("a", "true"), chain("{name: a, template: a}")))
    assert server.call("GET", f"/api/runs/default/{run['id']}", token=token)[0] == 403
    assert server.json("GET", "/api/runs", token=token)["runs"] == []
    made = server.json("POST", "/api/runs", {"text": workflow(sh("a", "true"), chain(
        "{name: a, template: a}"))}, token=token)
    assert made["project"] == "other"
    host = workflow(sh("a", "true", more="volumes: [{name: v, hostPath: {path: /etc}}]\n").replace(
        "  image: alpine", "  image: alpine\n  volumeMounts: [{name: v, mountPath: /mnt}]"),
        chain("{name: a, template: a}"))
    made = server.json("POST", "/api/runs", {"text": host}, token=token)
    doc = wait_for(lambda: (d := server.json("GET", f"/api/runs/other/{made['id']}", token=token))
                   ["state"] in ENDED and d)
    assert doc["state"] == "error" and "server's own token" in doc["message"] + json.dumps(
        server.json("GET", f"/api/runs/other/{made['id']}/nodes", token=token))


@pytest.mark.parametrize("wide", [True, False])
def test_hundreds_of_steps(server, wide):
    tasks = [f"{{name: s{i}, template: t" + ("" if wide or not i else f", dependencies: [s{i - 1}]") + "}"
             for i in range(200 if wide else 60)]
    run = done(server, workflow("name: t\ncontainer: {image: alpine, command: ['true']}",
                                chain(*tasks)))
    assert run["done"] == len(tasks) + 1
