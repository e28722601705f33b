"""Pipelines of every kind that kfp 2 compiles, run by its client; prints {name: run id} as JSON.

    kfp2_pipelines.py FOLDER BUCKET        (KF_PIPELINES_ENDPOINT says where the server is)

gs://BUCKET/given.txt is imported. What the runs gave, the test reads from the server.
"""
import json
import logging
import os
import sys
from typing import List, NamedTuple, Optional

from kfp import client as kfp_client
from kfp import compiler, dsl
from kfp.dsl import (HTML, ClassificationMetrics, Dataset, Input, Markdown, Metrics, Model, Output,
                     OutputPath)

FOLDER, BUCKET = sys.argv[1:3]
logging.disable(logging.CRITICAL)
sys.stdout, out = sys.stderr, sys.stdout
IMAGE = "python:3.11"


# ---------------------------------------------------------------- functions as components

@dsl.component(base_image=IMAGE)
def each_type(i: int, f: float, b: bool, s: str, l: list, d: dict, o: Optional[str] = None,
              g: float = 2.0) -> NamedTuple("Out", i=int, f=float, b=bool, s=str, l=list, d=dict):
    kinds = [type(x).__name__ for x in (i, f, b, s, l, d, o, g)]
    return i + 1, f * 2, not b, s + "!", l + kinds, {**d, "s": s}


@dsl.component(base_image=IMAGE)
def same_types(i: int, f: float, b: bool, s: str, l: list, d: dict) -> str:
    import json
    return json.dumps([i, f, b, s, l, d], sort_keys=True)


@dsl.component(base_image=IMAGE)
def make(text: str, data: Output[Dataset], model: Output[Model], numbers: Output[Metrics],
         classes: Output[ClassificationMetrics], page: Output[HTML], note: Output[Markdown]):
    import os
    with open(data.path, "w") as f:
        f.write(text)
    data.metadata["rows"] = 3
    os.makedirs(model.path)
    with open(os.path.join(model.path, "weights"), "w") as f:
        f.write("1 2 3")
    model.metadata["framework"] = "none"
    numbers.log_metric("accuracy", 0.75)
    classes.log_confusion_matrix(["a", "b"], [[1, 2], [3, 4]])
    with open(page.path, "w") as f:
        f.write("<b>hi</b>")
    with open(note.path, "w") as f:
        f.write("# hi")


@dsl.component(base_image=IMAGE)
def read(data: Input[Dataset], model: Input[Model], numbers: Input[Metrics],
         many: Input[List[Dataset]]) -> str:
    import json
    import os
    with open(os.path.join(model.path, "weights")) as f:
        weights = f.read()
    with open(data.path) as f:
        text = f.read()
    all_of_them = []
    for one in many:
        with open(one.path) as f:
            all_of_them.append(f.read().strip())
    return json.dumps([text, data.metadata, weights, model.metadata, numbers.metadata,
                       all_of_them])


@dsl.component(base_image=IMAGE)
def at_the_end(status: dsl.PipelineTaskFinalStatus, word: str) -> str:
    return f"{word} {status.state} {status.pipeline_task_name} {bool(status.error_message)}"


# ---------------------------------------------------------------- containers as components

@dsl.container_component
def say(text: str, out: OutputPath(str)):
    return dsl.ContainerSpec(image="alpine", command=["sh", "-c", 'printf %s "$0" > "$1"'],
                             args=[text, out])


@dsl.container_component
def twice(n: int, out: OutputPath(int)):
    return dsl.ContainerSpec(image="alpine", command=["sh", "-c", 'echo $((2 * $0)) > "$1"'],
                             args=[n, out])


@dsl.container_component
def numbers(n: int, out: OutputPath(list)):
    return dsl.ContainerSpec(image="alpine", command=["sh", "-c",
                                                      'echo "[$(seq -s, 1 $0)]" > "$1"'],
                             args=[n, out])


@dsl.container_component
def text_of(values: list, out: OutputPath(str)):
    return dsl.ContainerSpec(image="alpine", command=["sh", "-c", 'printf %s "$0" > "$1"'],
                             args=[values, out])


@dsl.container_component
def write(text: str, data: Output[Dataset]):
    return dsl.ContainerSpec(image="alpine", command=["sh", "-c", 'printf %s "$0" > "$1"'],
                             args=[text, data.path])


@dsl.container_component
def words(first: str, data: Input[Dataset], out: OutputPath(str), second: Optional[str] = None,
          third: Optional[str] = None):
    return dsl.ContainerSpec(
        image="alpine",
        command=["sh", "-c", 'to="$0"; cat "$1" > "$to"; shift; echo "|$*" >> "$to"'],
        args=[out, data.path, dsl.ConcatPlaceholder(["<", first, ">"]),
              dsl.IfPresentPlaceholder(input_name="second", then=["--second", second]),
              dsl.IfPresentPlaceholder(input_name="third", then=["--third", third],
                                       else_=["none"])])


@dsl.container_component
def fail():
    return dsl.ContainerSpec(image="alpine", command=["sh", "-c", "exit 3"])


@dsl.container_component
def environment(out: OutputPath(str)):
    return dsl.ContainerSpec(image="alpine",
                             command=["sh", "-c", 'printf %s "$WORD" > "$0"', out])


# ---------------------------------------------------------------- pipelines

@dsl.pipeline(name="types")
def types(i: int = 1, f: float = 0.5, b: bool = True, s: str = "a", l: list = [1, "x"],
          d: dict = {"k": [1, 2.5]}) -> str:
    a = each_type(i=i, f=f, b=b, s=s, l=l, d=d)
    return same_types(i=a.outputs["i"], f=a.outputs["f"], b=a.outputs["b"], s=a.outputs["s"],
                      l=a.outputs["l"], d=a.outputs["d"]).output


@dsl.pipeline(name="artifacts")
def artifacts(text: str = "rows") -> str:
    m = make(text=text)
    with dsl.ParallelFor([1, 2]):
        with dsl.ParallelFor(["a", "b"]) as j:
            w = write(text=f"<{j}>")
    return read(data=m.outputs["data"], model=m.outputs["model"], numbers=m.outputs["numbers"],
                many=dsl.Collected(w.outputs["data"])).output


@dsl.pipeline(name="branches")
def branches(coin: str, n: int = 3) -> str:
    c = say(text=coin)
    with dsl.If(c.outputs["out"] == "heads"):
        a = say(text="it is heads")
    with dsl.Elif(c.outputs["out"] == "tails"):
        b = say(text="it is tails")
    with dsl.Else():
        e = say(text="it stands")
    with dsl.If(n > 2):
        say(text="more than two")
    return say(text=dsl.OneOf(a.outputs["out"], b.outputs["out"], e.outputs["out"])).outputs["out"]


@dsl.pipeline
def inner(n: int) -> int:
    return twice(n=twice(n=n).outputs["out"]).outputs["out"]


@dsl.pipeline(name="loops")
def loops(n: int = 3, pairs: list = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
          none: list = []):
    with dsl.ParallelFor(numbers(n=n).outputs["out"], parallelism=2) as i:
        t = twice(n=i)
        with dsl.ParallelFor([{"q": 10}, {"q": 20}]) as j:
            u = inner(n=j.q)
    with dsl.ParallelFor(pairs) as p:
        v = say(text=f"{p.a}{p.b}")
    with dsl.ParallelFor(none) as z:
        y = say(text=z)
    text_of(values=dsl.Collected(t.outputs["out"])).set_display_name("flat")
    text_of(values=dsl.Collected(u.output)).set_display_name("nested")
    text_of(values=dsl.Collected(v.outputs["out"])).set_display_name("pairs")
    text_of(values=[1, n, "x"]).set_display_name("constant")
    text_of(values=dsl.Collected(y.outputs["out"])).set_display_name("none")


@dsl.pipeline
def letters() -> NamedTuple("Letters", ds=List[Dataset]):
    with dsl.ParallelFor(["a", "b"]) as i:
        w = write(text=i)
    return NamedTuple("Letters", ds=List[Dataset])(ds=dsl.Collected(w.outputs["data"]))


@dsl.pipeline(name="files")
def files():
    with dsl.ParallelFor(letters().outputs["ds"]) as d:
        words(first="f", data=d)


@dsl.pipeline(name="ending")
def ending(word: str = "so"):
    end = at_the_end(word=word)
    with dsl.ExitHandler(end, name="guarded"):
        f = fail().set_retry(num_retries=2, backoff_duration="0s", backoff_factor=1.0)
        say(text="never").after(f)
    say(text="beside").set_display_name("beside")


@dsl.pipeline(name="containers")
def containers(third: Optional[str] = None):
    given = dsl.importer(artifact_uri=f"gs://{BUCKET}/given.txt", artifact_class=dsl.Dataset,
                         metadata={"from": "outside"})
    words(first="1", second="2", third=third, data=given.output)
    e = environment().set_env_variable("WORD", "from outside").set_cpu_limit("500m")
    e.set_memory_limit("256Mi").set_display_name("environment")
    say(text=dsl.PIPELINE_JOB_NAME_PLACEHOLDER).set_display_name("name")


@dsl.pipeline(name="cached")
def cached(text: str):
    say(text=text).set_display_name("kept")
    say(text=text).set_caching_options(False).set_display_name("anew")


def with_volume():
    from kfp import kubernetes

    @dsl.container_component
    def shell(text: str):
        return dsl.ContainerSpec(image="alpine", command=["sh", "-ec", text])

    @dsl.pipeline(name="volume")
    def volume(settings: str = "settings"):
        v = kubernetes.CreatePVC(pvc_name_suffix="-data", access_modes=["ReadWriteOnce"],
                                 size="1Gi", storage_class_name="standard")
        a = shell(text="echo kept > /data/file").set_caching_options(False)
        kubernetes.mount_pvc(a, pvc_name=v.outputs["name"], mount_path="/data")
        b = shell(text="grep kept /data/file && [ $NODE ] && [ $WORD$NUMBER = open7 ] && "
                       "grep 7 /settings/number").set_caching_options(False).after(a)
        kubernetes.mount_pvc(b, pvc_name=v.outputs["name"], mount_path="/data")
        kubernetes.use_field_path_as_env(b, env_name="NODE", field_path="metadata.name")
        kubernetes.use_secret_as_env(b, secret_name="hidden", secret_key_to_env={"word": "WORD"})
        kubernetes.use_config_map_as_env(b, config_map_name="settings",
                                         config_map_key_to_env={"number": "NUMBER"})
        kubernetes.use_config_map_as_volume(b, config_map_name=settings, mount_path="/settings")
        kubernetes.DeletePVC(pvc_name=v.outputs["name"]).after(b)

    return volume


def main():
    c = kfp_client.Client(host=os.environ["KF_PIPELINES_ENDPOINT"],
                          existing_token=os.environ.get("KFP_TOKEN"))
    todo = [("types", types, {}), ("artifacts", artifacts, {}), ("loops", loops, {}),
            ("files", files, {}), ("ending", ending, {}), ("containers", containers, {}),
            ("heads", branches, {"coin": "heads"}), ("tails", branches, {"coin": "tails", "n": 2}),
            ("edge", branches, {"coin": "edge"}), ("cached", cached, {"text": "a"})]
    try:
        todo.append(("volume", with_volume(), {}))
    except ImportError:
        pass
    runs = {}
    for name, pipeline, given in todo:
        package = os.path.join(FOLDER, name + ".yaml")
        compiler.Compiler().compile(pipeline, package)
        run = c.create_run_from_pipeline_package(package, arguments=given, run_name=name)
        runs[name] = run.run_id
    for name in list(runs):
        done = c.wait_for_run_completion(runs[name], timeout=300, sleep_duration=0.2)
        runs[name] = [runs[name], done.state]
    again = c.create_run_from_pipeline_package(os.path.join(FOLDER, "cached.yaml"),
                                               arguments={"text": "a"}, run_name="again")
    done = c.wait_for_run_completion(again.run_id, timeout=300, sleep_duration=0.1)
    runs["again"] = [again.run_id, done.state]
    json.dump(runs, out)


main()
