"""Pipelines in the console, in a real browser. Pictures of what was seen stay in build/screens."""
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hosts import wait_for
from server import Server

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]
expect = playwright.expect
expect.set_options(timeout=60000)

UI = {"outputs": [
    {"type": "markdown", "storage": "inline",
     "source": "# Well done\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
     "<img src=x onerror=\"document.title='owned'\">"},
    {"type": "confusion_matrix", "format": "csv", "storage": "inline", "labels": ["cat", "dog"],
     "source": "cat,cat,7\ncat,dog,1\ndog,cat,2\ndog,dog,9\n"},
    {"type": "roc", "format": "csv", "storage": "inline", "source": "0,0,1\n0.1,0.8,0.5\n1,1,0\n",
     "schema": [{"name": "fpr"}, {"name": "tpr"}, {"name": "threshold"}]},
    {"type": "web-app", "storage": "inline",
     "source": "<b>inline page</b><script>top.document.title='owned'</script>"}]}
HTML = ("<!doctype html><body><h1 id=said>static</h1><script>"
        "document.getElementById('said').textContent = 'it ran';"
        " top.document.title = 'owned'; fetch('/api/jobs')</script>")
SHAPE = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: shape-}
spec:
  entrypoint: main
  onExit: bye
  arguments: {parameters: [{name: rate, value: '0.1'}, {name: pause, value: '0.3'}]}
  templates:
  - name: main
    dag:
      tasks:
      - {name: prepare, template: prepare}
      - {name: each, template: say, dependencies: [prepare], withItems: [red, green, blue],
         arguments: {parameters: [{name: m, value: '{{item}}'}]}}
      - {name: flaky, template: flaky, dependencies: [prepare]}
      - {name: never, template: prepare, dependencies: [prepare], when: '1 == 2'}
      - {name: report, template: report, dependencies: [each, flaky]}
  - name: prepare
    container: {image: alpine, command: [sh, -c],
                args: ['echo preparing; sleep {{workflow.parameters.pause}}']}
  - name: say
    inputs: {parameters: [{name: m}]}
    container: {image: alpine, command: [sh, -c], args: ['echo colour {{inputs.parameters.m}}']}
  - name: flaky
    retryStrategy: {limit: 3}
    container: {image: alpine, command: [sh, -c], args: ['test {{retries}} = 1']}
  - name: bye
    container: {image: alpine, command: [sh, -c], args: ['echo bye']}
  - name: report
    outputs:
      artifacts:
      - {name: mlpipeline-ui-metadata, path: /tmp/ui.json}
      - {name: mlpipeline-metrics, path: /tmp/metrics.json}
      - {name: table, path: /tmp/table.csv}
      - {name: page, path: /tmp/page.html}
      - {name: folder, path: /tmp/folder}
    script:
      image: alpine
      command: [sh]
      source: |
        echo 'the rate is {{workflow.parameters.rate}}'
        printf '{"metrics": [{"name": "accuracy", "numberValue": %s}]}' \\
          '{{workflow.parameters.rate}}' > /tmp/metrics.json
        printf 'name,number\\nada,1\\n' > /tmp/table.csv
        mkdir -p /tmp/folder/LONG
        head -c 100000 /dev/zero > /tmp/folder/LONG/big
        echo small > /tmp/folder/tail
        for i in 1 2 3 4; do echo "{\\"step\\": $i, \\"loss\\": $i}" >> /tmp/metrics.jsonl; done
        cat > /tmp/page.html <<'END'
        PAGE
        END
        cat > /tmp/ui.json <<'END'
        DOCUMENT
        END
""".replace("PAGE", HTML).replace("DOCUMENT", json.dumps(UI)).replace("LONG", "long" * 30)

TYPED = """
pipelineInfo: {name: typed}
schemaVersion: 2.1.0
sdkVersion: kfp-2.7.0
root:
  inputDefinitions:
    parameters:
      rows: {parameterType: NUMBER_INTEGER, defaultValue: 3}
      shuffle: {parameterType: BOOLEAN, defaultValue: true}
      layers: {parameterType: LIST, defaultValue: [8, 4]}
  dag:
    tasks:
      judge:
        taskInfo: {name: judge}
        componentRef: {name: comp-judge}
        inputs: {parameters: {rows: {componentInputParameter: rows}}}
components:
  comp-judge:
    executorLabel: exec-judge
    inputDefinitions: {parameters: {rows: {parameterType: NUMBER_INTEGER}}}
    outputDefinitions:
      artifacts:
        verdict: {artifactType: {schemaTitle: system.ClassificationMetrics, schemaVersion: 0.0.1}}
        notes: {artifactType: {schemaTitle: system.Markdown, schemaVersion: 0.0.1}}
deploymentSpec:
  executors:
    exec-judge:
      container:
        image: alpine
        command: [python3, -c]
        args:
        - |
          import json, os, sys
          outputs = json.loads(sys.argv[1])["outputs"]
          verdict = outputs["artifacts"]["verdict"]["artifacts"][0]
          verdict["metadata"] = json.loads(sys.argv[3])
          said = json.dumps({"artifacts": {"verdict": {"artifacts": [verdict]}}})
          for path, text in ((sys.argv[2], "# Typed notes"), (outputs["outputFile"], said)):
              os.makedirs(os.path.dirname(path), exist_ok=True)
              open(path, "w").write(text)
        - "{{$}}"
        - "{{$.outputs.artifacts['notes'].path}}"
        - 'SAID'
""".replace("SAID", json.dumps({
    "confidenceMetrics": [{"confidenceThreshold": t, "falsePositiveRate": 1 - t,
                           "recall": 1 - t * t} for t in (0, 0.5, 1)],
    "confusionMatrix": {"annotationSpecs": [{"displayName": "yes"}, {"displayName": "no"}],
                        "rows": [{"row": [41, 2]}, {"row": [3, 17]}]}}))


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(muster, tmp_path_factory):
    with Server(muster, tmp_path_factory.mktemp("console") / "data") as s:
        yield s


@pytest.fixture
def screens(root):
    folder = Path(os.environ.get("MUSTER_SCREENS", root / "build/screens"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def opened(browser, server, **how):
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **how})
    page = context.new_page()
    page.thrown = []
    page.on("pageerror", lambda e: page.thrown.append(str(e)))
    page.goto(f"{server.address}/#token={server.token}")
    page.wait_for_selector("h1:has-text('Jobs')")
    page.set_default_timeout(60000)
    return page


@pytest.fixture
def page(browser, server):
    page = opened(browser, server)
    yield page
    page.context.close()
    assert not page.thrown


def begin(server, text, wait=True, **more):
    run = server.json("POST", "/api/runs", {"text": text, **more})
    at = f"/api/runs/default/{run['id']}"
    return wait_for(lambda: (r := server.json("GET", at))["ended"] and r) if wait else run


def box(page, name):
    return page.locator(f"g.box[data-key='{name}']")


def has_phase(page, name, phase):
    expect(box(page, name)).to_have_class(re.compile(rf"\b{phase}\b"))


def test_from_the_upload_to_green_and_two_runs_compared(page, server, screens, tmp_path):
    package = tmp_path / "shape.yaml"
    package.write_text(SHAPE)
    page.click("nav >> text=Experiments")
    page.fill("input[aria-label='Name of a new experiment']", "colours")
    page.click("button:has-text('Make')")
    page.wait_for_selector("a:has-text('colours')")
    page.click("nav >> text=Pipelines")
    page.set_input_files("input[type=file]", package)
    page.wait_for_selector("h1:has-text('shape')")
    has_phase(page, "main.report", "Waiting")           # the graph of what would run
    box(page, "main.each").click()
    expect(box(page, "main.each()")).to_contain_text("each of each")
    page.screenshot(path=screens / "pipeline.png")

    page.click("header >> text=Create run")
    page.fill("#run-name", "first")
    page.fill("#run-experiment", "colours")
    expect(page.locator("#p-rate")).to_have_value("0.1")
    page.fill("#p-pause", "4")                          # long enough to be seen
    page.screenshot(path=screens / "create-run.png")
    page.click("button:has-text('Start')")
    has_phase(page, "main.prepare", "Running")
    assert "report: not begun" in box(page, "main.report").get_attribute("aria-label")
    page.screenshot(path=screens / "run-live.png")
    for name in ("prepare", "each", "flaky", "report"):
        has_phase(page, f"main.{name}", "Succeeded")
    has_phase(page, "main.never", "Skipped")
    has_phase(page, "main.onExit", "Succeeded")
    page.wait_for_selector("header .state.succeeded")
    page.screenshot(path=screens / "run.png", full_page=True)

    box(page, "main.prepare").click()
    page.wait_for_selector(".panel .log >> text=preparing")
    page.screenshot(path=screens / "node-log.png")

    page.click("header >> text=Run again")
    page.wait_for_selector("h1:has-text('Run again')")
    expect(page.locator("#p-pause")).to_have_value("4")
    expect(page.locator("#run-experiment")).to_have_value("colours")
    page.fill("#run-name", "second")
    page.fill("#p-rate", "0.7")
    page.fill("#p-pause", "0")
    page.click("button:has-text('Start')")
    page.wait_for_selector("h1:has-text('second')")
    page.wait_for_selector("header .state.succeeded")
    page.click("nav >> text=Runs")
    for name in ("first", "second"):
        page.check(f"input[aria-label='pick {name}']")
    page.screenshot(path=screens / "runs.png")
    page.click("text=Compare 2")
    expect(page.locator("tr.differs", has_text="rate")).to_contain_text("0.7")
    expect(page.locator("tr", has_text="accuracy")).to_contain_text("0.1")
    page.wait_for_selector(".u-legend:has-text('second')")
    page.screenshot(path=screens / "compare-runs.png", full_page=True)
    recur(page, server, screens)


def recur(page, server, screens):
    """The same pipeline by the clock: made in the form, switched off and on, removed."""
    page.click("nav >> text=Pipelines")
    page.click("td >> text=Create run")
    page.fill("#run-name", "mornings")
    page.select_option("#run-when", "period")
    page.fill("#run-period", "soon")
    page.click("button:has-text('Start')")
    page.wait_for_selector(".trouble:has-text('soon')")
    page.select_option("#run-when", "cron")
    page.fill("#run-cron", "0 0 9 1 1 *")
    page.fill("#run-most", "2")
    page.uncheck("#run-catchup")
    page.screenshot(path=screens / "create-recurring.png", full_page=True)
    page.click("button:has-text('Start')")
    page.wait_for_selector("h1:has-text('Recurring runs')")
    row = page.locator("tr", has_text="mornings")
    for part in ("0 0 9 1 1 *", "left out"):
        expect(row).to_contain_text(part)
    expect(row.locator(".state")).to_have_text("enabled")
    (made,) = server.json("GET", "/api/recurring")["recurring"]
    assert (made["max_concurrency"], made["no_catchup"], made["next"] > 0) == (2, True, True)
    page.screenshot(path=screens / "recurring.png")
    row.get_by_role("button", name="disable mornings").click()
    expect(row.locator(".state")).to_have_text("disabled")
    row.get_by_role("button", name="enable mornings").click()
    expect(row.locator(".state")).to_have_text("enabled")
    page.once("dialog", lambda d: d.accept())
    row.get_by_role("button", name="delete mornings").click()
    expect(row).to_have_count(0)
    assert not server.json("GET", "/api/recurring")["recurring"]


def test_loops_and_retries_unfold_and_keys_move(page, server, screens):
    run = begin(server, SHAPE, parameters={"pause": "0"})
    page.goto(f"{server.address}/#/runs/default/{run['id']}")
    each = box(page, "main.each")
    expect(each).to_contain_text("×3")
    expect(box(page, "main.each(0:red)")).to_have_count(0)
    each.click()
    has_phase(page, "main.each(2:blue)", "Succeeded")
    expect(page.locator(".panel")).to_contain_text("3 of 3")
    box(page, "main.flaky").click()
    has_phase(page, "main.flaky(0)", "Failed")
    has_phase(page, "main.flaky(1)", "Succeeded")
    box(page, "main.flaky(0)").click()
    page.wait_for_selector(".panel .reason:has-text('exit code 1')")
    page.screenshot(path=screens / "run-unfolded.png", full_page=True)
    box(page, "main.each").click()
    expect(box(page, "main.each(0:red)")).to_have_count(0)
    box(page, "main.prepare").focus()
    page.keyboard.press("Tab")
    box(page, "main.prepare").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator(".panel")).not_to_contain_text("main.prepare")
    page.keyboard.press("Escape")
    expect(page.locator(".panel")).to_have_count(0)


def test_what_a_step_left_is_shown_and_its_scripts_do_not_run(page, server, screens):
    run = begin(server, SHAPE, parameters={"pause": "0"})
    said = []
    page.on("console", lambda m: said.append(m.text))
    page.on("request", lambda r: said.append(r.url) if r.url.endswith("/api/jobs") else None)
    page.goto(f"{server.address}/#/runs/default/{run['id']}/main.report")
    page.wait_for_selector(".matrix td:has-text('9')")
    page.wait_for_selector(".roc .curve")
    page.wait_for_selector(".markdown h3:has-text('Well done')")
    page.wait_for_selector(".csv td:has-text('ada')")
    inside = page.locator(".members tr")                # what a directory holds, by its headers
    expect(inside).to_have_count(2)
    expect(inside.filter(has_text="long" * 30 + "/big")).to_contain_text("100.0 kB")
    expect(inside.filter(has_text="tail")).to_contain_text("6 B")
    page.wait_for_selector("td:has-text('accuracy')")
    page.wait_for_selector(".panel .plot canvas")       # the numbers that it left in its files
    frame = page.frame_locator("iframe[title=page]")
    expect(frame.locator("#said")).to_have_text("static")
    inline = page.frame_locator("iframe[title='page of the step']")
    expect(inline.locator("b")).to_have_text("inline page")
    assert page.title() == "muster" and not page.locator(".markdown img").count()
    assert not [s for s in said if s.endswith("/api/jobs")]
    for f in page.locator("iframe").all():
        assert f.get_attribute("sandbox") == ""
    page.screenshot(path=screens / "artifacts.png", full_page=True)
    page.locator("iframe[title=page]").scroll_into_view_if_needed()
    page.wait_for_timeout(300)      # a frame is painted later than it is there
    page.screenshot(path=screens / "page-in-a-frame.png")
    node = next(n for n in server.json("GET", f"/api/runs/default/{run['id']}/nodes")["nodes"]
                if n["name"] == "main.report")
    at = f"/api/runs/default/{run['id']}/nodes/{node['id']}"
    _, headers, body = server.call("GET", f"{at}/pages/page")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and policy.endswith("sandbox") and b"<script>" in body
    assert server.call("GET", f"{at}/pages/page", token="")[0] == 401
    page.goto(server.address + page.get_attribute("iframe[title=page]", "src"))     # also when it is opened by itself
    expect(page.locator("#said")).to_have_text("static")


def terminate(page):
    with page.expect_response(lambda r: r.url.endswith("/terminate")) as answer:
        page.click("button:has-text('Terminate')")
    assert answer.value.ok, answer.value.text()
    page.wait_for_selector("header .state.terminated")


def test_a_run_is_terminated_and_what_failed_is_retried(page, server):
    run = begin(server, SHAPE, wait=False, parameters={"pause": "600"})
    page.goto(f"{server.address}/#/runs/default/{run['id']}")
    has_phase(page, "main.prepare", "Running")
    terminate(page)
    page.click("button:has-text('Retry what failed')")
    has_phase(page, "main.prepare", "Running")
    terminate(page)
    page.once("dialog", lambda d: d.accept())
    page.click("button:has-text('Delete')")
    page.wait_for_selector("h1:has-text('Runs')")


def test_what_cannot_run_is_told_where_it_was_uploaded(page, server, tmp_path):
    package = tmp_path / "wrong.yaml"
    package.write_text(SHAPE.replace("template: flaky", "template: nobody"))
    page.goto(f"{server.address}/#/pipelines")
    page.set_input_files("input[type=file]", package)
    page.wait_for_selector(".trouble:has-text('wrong.yaml:')")
    expect(page.locator(".trouble")).to_contain_text("nobody")


def test_numbers_on_a_volume_are_those_of_the_step_that_mounts_it(server):
    text = SHAPE.split("  templates:")[0].replace("  onExit: bye\n", "") + """
  volumeClaimTemplates:
  - metadata: {name: work}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  templates:
  - name: main
    container:
      image: alpine
      command: [sh, -c]
      args:
      - |
        mkdir /mnt/logs
        echo '{"step": 1, "loss": 2.5}' > /mnt/logs/metrics.jsonl
        sleep 600
      volumeMounts: [{name: work, mountPath: /mnt}]
"""
    run = begin(server, text, wait=False)
    at = f"/api/runs/default/{run['id']}"

    def look():                                         # while it runs: a claim goes with its run
        nodes = server.json("GET", f"{at}/nodes?brief=1")["nodes"]
        found = nodes and server.json("GET", f"{at}/nodes/{nodes[0]['id']}/scalars")
        return found and (nodes[0], found)

    node, found = wait_for(look)
    assert [p[1:] for p in found["logs/loss"]] == [[1, 2.5]] and "outputs" not in node
    server.json("POST", f"{at}/terminate")


def test_three_hundred_nodes_do_not_overlap_and_fit_a_phone_in_the_dark(browser, server, screens):
    tasks = [{"name": "t0", "template": "t"}]
    for i in range(1, 300):
        tasks.append({"name": f"t{i}", "template": "t",
                      "dependencies": [f"t{i // 3}", f"t{i // 7}"]})
    wide = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "wide"},
            "spec": {"entrypoint": "main", "templates": [
                {"name": "main", "dag": {"tasks": tasks}}, {"name": "t", "suspend": {}}]}}
    run = begin(server, json.dumps(wide), wait=False)
    page = opened(browser, server, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.goto(f"{server.address}/#/runs/default/{run['id']}")
    expect(page.locator("g.box")).to_have_count(300)
    has_phase(page, "main.t0", "Running")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    places = page.evaluate("[...document.querySelectorAll('g.box')].map(g => "
                           "g.getAttribute('transform').match(/[\\d.]+/g).map(Number))")
    places.sort()
    for i, (x, y) in enumerate(places):
        for x2, y2 in places[i + 1:]:
            if x2 - x >= 168:
                break
            assert abs(y - y2) >= 34, (x, y, x2, y2)
    page.screenshot(path=screens / "run-phone.png")
    page.set_viewport_size({"width": 1280, "height": 860})
    page.screenshot(path=screens / "run-300.png")
    server.json("POST", f"/api/runs/default/{run['id']}/terminate")
    page.context.close()
    assert not page.thrown


def test_typed_parameters_and_the_metrics_of_a_classifier(page, server, screens, tmp_path):
    package = tmp_path / "typed.yaml"
    package.write_text(TYPED)
    page.goto(f"{server.address}/#/pipelines")
    page.set_input_files("input[type=file]", package)
    page.click("header >> text=Create run")
    expect(page.locator("#p-layers")).to_have_value("[8,4]")
    expect(page.locator("#p-shuffle")).to_have_value("true")
    page.fill("#p-rows", "many")
    page.click("button:has-text('Start')")
    page.wait_for_selector(".trouble:has-text('rows')")
    page.fill("#p-rows", "5")
    page.select_option("#p-shuffle", "false")
    page.click("button:has-text('Start')")
    page.wait_for_selector("header .state.succeeded")
    page.locator("g.box", has_text="judge").click()
    page.wait_for_selector(".matrix td:has-text('41')")
    page.wait_for_selector(".roc .curve")
    page.wait_for_selector(".markdown h3:has-text('Typed notes')")
    page.screenshot(path=screens / "classifier.png")
    run = server.json("GET", "/api/runs?text=typed")["runs"][0]
    assert run["parameters"] == {"rows": 5, "shuffle": False, "layers": [8, 4]}


def test_a_project_sees_and_changes_its_own_alone(server):
    server.json("POST", "/api/projects", {"name": "other"})
    token = server.json("POST", "/api/projects/other/tokens", {})["token"]
    mine = server.json("POST", "/api/pipelines?name=mine", SHAPE)
    theirs = server.json("POST", "/api/pipelines?name=theirs", SHAPE, token=token)
    assert theirs["project"] == "other" and mine["project"] == "default"
    seen = server.json("GET", "/api/pipelines", token=token)["pipelines"]
    assert [p["name"] for p in seen] == ["theirs"]
    run = begin(server, SHAPE, parameters={"pause": "0"})
    at = f"/api/pipelines/default/{mine['id']}"
    for method, path in (("GET", at), ("DELETE", at), ("GET", f"{at}/versions"),
                         ("GET", "/api/pipelines?project=default"),
                         ("GET", "/api/experiments?project=default"),
                         ("GET", f"/api/runs/default/{run['id']}/watch"),
                         ("GET", f"/api/runs/default/{run['id']}/flow"),
                         ("GET", f"/api/runs/default/{run['id']}/nodes/main.report/pages/page")):
        assert server.call(method, path, token=token)[0] == 403, path
    other = f"/api/pipelines/other/{mine['id']}"        # the right project, what is of another
    for method, path in (("GET", other), ("DELETE", other),
                         ("DELETE", f"{other}/versions/{mine['version']['id']}"),
                         ("GET", f"/api/runs/other/{run['id']}/watch")):
        assert server.call(method, path, token=token)[0] == 404, path
    server.json("GET", at)


def test_a_step_is_read_on_a_phone(browser, server, screens):
    run = begin(server, SHAPE, parameters={"pause": "0"})
    page = opened(browser, server, viewport={"width": 390, "height": 800})
    page.goto(f"{server.address}/#/runs/default/{run['id']}/main.report")
    page.wait_for_selector(".panel .log >> text=the rate is")
    page.wait_for_selector(".matrix td")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=screens / "step-phone.png", full_page=True)
    page.context.close()
    assert not page.thrown
