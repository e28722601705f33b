"""Pipelines that kfp 2 compiles, run by its own client: what they give is what Python gives."""
import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import CACHE
from hosts import die_with_parent
from server import Server

PYTHON = CACHE / "kfp2-venv/bin/python"
PROGRAM = Path(__file__).parent / "programs/kfp2_pipelines.py"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no kfp 2 here (./setup.sh)")


@pytest.fixture(scope="module")
def served(muster, tmp_path_factory):
    with Server(muster, tmp_path_factory.mktemp("kfp2") / "data") as s:
        yield s


@pytest.fixture(scope="module")
def runs(muster, served, tmp_path_factory):
    """Name to {"state", and "nodes": by name}."""
    folder = tmp_path_factory.mktemp("client")
    served.json("POST", "/storage/v1/b?project=default", {"name": "given"})
    served.call("POST", "/upload/storage/v1/b/given/o?uploadType=media&name=given.txt", b"outside")
    muster("secret", "set", "hidden.word", input="open", env=served.env)
    muster("config", "set", "settings.number", input="7", env=served.env)
    env = {**os.environ, **served.client_env(), "HOME": str(folder), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([PYTHON, PROGRAM, folder, "given"], env=env, cwd=folder, text=True,
                          capture_output=True, timeout=500, preexec_fn=die_with_parent)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    found = {}
    for name, (run, state) in json.loads(done.stdout).items():
        nodes = served.json("GET", f"/api/runs/default/{run}/nodes")["nodes"]
        found[name] = {"state": state, "nodes": {n["name"]: n for n in nodes}}
    return found


def good(run):
    assert run["state"] == "SUCCEEDED", json.dumps(run, indent=1)
    return run["nodes"]


def output(run, node, name="Output"):
    return good(run)[node]["outputs"]["parameters"][name]


def shown(run):
    """What each step gave, by what it is called."""
    return {n["display"]: n["outputs"]["parameters"].get("out")
            for n in good(run).values() if n["kind"] == "Pod"}


def test_parameters_keep_their_types(runs):
    kinds = ["int", "float", "bool", "str", "list", "dict", "NoneType", "float"]
    assert json.loads(output(runs["types"], "root")) == [
        2, 1.0, False, "a!", [1, "x", *kinds], {"k": [1, 2.5], "s": "a"}]


def test_artifacts_and_what_is_said_of_them_reach_the_next_step(runs):
    text, about, weights, model, numbers, many = json.loads(output(runs["artifacts"], "root"))
    assert [text, about, weights, model] == ["rows", {"rows": 3}, "1 2 3", {"framework": "none"}]
    assert numbers == {"accuracy": 0.75}
    assert many == ["<a>", "<b>"] * 2
    made = good(runs["artifacts"])["root.make"]["outputs"]["artifacts"]
    assert made["model"]["dir"] and not made["data"]["dir"]
    assert {name: a["type"] for name, a in made.items()} == {
        "data": "system.Dataset", "model": "system.Model", "numbers": "system.Metrics",
        "classes": "system.ClassificationMetrics", "page": "system.HTML",
        "note": "system.Markdown"}
    matrix = made["classes"]["metadata"]["confusionMatrix"]
    assert [row["row"] for row in matrix["rows"]] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("coin, text", [("heads", "it is heads"), ("tails", "it is tails"),
                                        ("edge", "it stands")])
def test_one_branch_runs_and_its_output_goes_on(runs, coin, text):
    assert output(runs[coin], "root") == text
    taken = [n for n in good(runs[coin]).values() if n["kind"] == "Skipped"]
    assert len(taken) == (3 if coin == "tails" else 2)


def test_loops_are_nested_and_collected(runs):
    said = shown(runs["loops"])
    assert json.loads(said["flat"]) == [2, 4, 6]
    assert json.loads(said["nested"]) == [[40, 80]] * 3
    assert json.loads(said["pairs"]) == ["1x", "2y"]
    assert json.loads(said["none"]) == []
    assert json.loads(said["constant"]) == [1, 3, "x"]


def test_a_loop_may_be_over_artifacts(runs):
    given = {name: n["outputs"]["parameters"]["out"] for name, n in good(runs["files"]).items()
             if n["task"] == "words"}
    assert given == {"root.for-loop-1(0:data).words": "a|<f> none\n",
                     "root.for-loop-1(1:data).words": "b|<f> none\n"}


def test_an_exit_handler_hears_how_it_ended_after_all_attempts(runs):
    run = runs["ending"]
    nodes = run["nodes"]
    assert run["state"] == "FAILED"
    attempts = [n for n in nodes if n.startswith("root.exit-handler-1.fail(")]
    assert len(attempts) == 3
    assert nodes["root.exit-handler-1.say"]["phase"] == "Omitted"
    assert nodes["root.say-2"]["phase"] == "Succeeded"
    end = nodes["root.at-the-end"]
    assert end["outputs"]["parameters"]["Output"] == "so FAILED exit-handler-1 True"


def test_containers_get_words_files_and_environment(runs):
    said = shown(runs["containers"])
    assert said["words"] == "outside|<1> --second 2 none\n"
    assert said["environment"] == "from outside"
    assert said["name"].startswith("containers-")
    given = good(runs["containers"])["root.importer"]["outputs"]["artifacts"]["artifact"]
    assert given["metadata"] == {"from": "outside"} and given["uri"] == "gs://given/given.txt"


def test_what_was_run_before_is_taken_unless_it_says_not_to(runs):
    assert not any(n["cached"] for n in good(runs["cached"]).values())
    kept = {n["display"]: n["cached"] for n in good(runs["again"]).values() if n["kind"] == "Pod"}
    assert kept == {"kept": True, "anew": False}


def test_a_volume_outlives_its_steps(runs):
    if "volume" not in runs:
        pytest.skip("no kfp-kubernetes here")
    nodes = good(runs["volume"])
    name = nodes["root.createpvc"]["outputs"]["parameters"]["name"]
    assert name.startswith("volume-") and name.endswith("-data")
