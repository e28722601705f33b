"""muster image: what a pipeline's container image is on this machine."""
import json
import tarfile
import tempfile

import pytest
from server import Server

DOCKERFILE = """# what people write
ARG BASE=python:3.9-slim
FROM ${BASE}
LABEL maintainer="somebody"
WORKDIR /workspace
COPY requirements.txt .
RUN pip install --upgrade pip && \\
    # a comment between lines
    pip3 install --no-cache-dir -r requirements.txt -i https://index.example/simple six
ENV MODE=train HOME2="/a b"
ENV OLD style value
COPY *.py lib /workspace/code/
EXPOSE 80
ENTRYPOINT ["python", "code/train.py"]
CMD --epochs 1
"""


@pytest.fixture(scope="module")
def image(muster, tmp_path_factory):
    """The command line of one server."""
    s = Server(muster, tmp_path_factory.mktemp("image") / "data").start()
    yield lambda *args, env={}, **kw: muster(*args, env={**s.env, **env}, **kw)
    s.stop()


@pytest.fixture
def code(tmp_path):
    (tmp_path / "lib/deep").mkdir(parents=True)
    (tmp_path / "lib/deep/x.txt").write_text("x")
    (tmp_path / "lib/skipped.bin").write_text("no")
    (tmp_path / "train.py").write_text("print('hi')\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / ".dockerignore").write_text("# not these\n**/*.bin\nlib/*.bin\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return tmp_path


def tree(image, doc, path):
    uri = next(d["object"] for d in doc["dirs"] if d["path"] == path)
    with tempfile.NamedTemporaryFile() as f:
        image("storage", "cp", uri, f.name)
        with tarfile.open(f.name) as t:
            return {m.name for m in t if m.isfile()}


def test_add_list_show_remove(image, code):
    name = "registry.example:5000/team/mnist:train"
    first = json.loads(image("image", "add", name, "--dir", f"{code}:/workspace", "--json", "-r",
                              code / "requirements.txt", "--python", "3.9", "-e", "A=b=c").stdout)
    assert first["cwd"] == "/workspace" and first["env"] == {"A": "b=c"}
    assert first["requirements"] == "numpy\n" and first["python"] == "3.9"
    assert "./train.py" in tree(image, first, "/workspace")
    again = json.loads(image("image", "add", name, "--dir", f"{code}:/workspace", "--json", "-r",
                              code / "requirements.txt", "--python", "3.9", "-e", "A=b=c").stdout)
    assert again["digest"] == first["digest"]
    assert name in image("image", "list").stdout
    assert json.loads(image("image", "show", name).stdout)["digest"] == first["digest"]
    image("image", "rm", name)
    gone = image("image", "show", name, check=False)
    assert gone.returncode and "muster image list" in gone.stderr
    for wrong, says in (((name, "--dir", f"{code}:/etc"), "/etc is the system's own"),
                        ((name, "--dir", f"{code}:/a/.."), "a path from the root"),
                        (("../x", "--dir", f"{code}:/workspace"), "is no name of an image"),
                        (("a//b", "--dir", f"{code}:/workspace"), "is no name of an image")):
        done = image("image", "add", *wrong, check=False)
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
    nowhere = image("image", "add", name, "--dir", f"{code}:/workspace", check=False,
                    env={"TMPDIR": "/nowhere"})
    assert nowhere.returncode and "/nowhere: No such file or directory (set TMPDIR)" in nowhere.stderr


def test_build_follows_a_dockerfile(image, code):
    doc = json.loads(image("image", "build", "-t", "mnist", code, "--json").stdout)
    assert doc["from"] == "python:3.9-slim" and doc["cwd"] == "/workspace"
    assert doc["requirements"].split() == ["numpy", "six"]
    assert doc["env"] == {"MODE": "train", "HOME2": "/a b", "OLD": "style value"}
    assert doc["command"] == ["python", "code/train.py"]
    assert doc["arguments"] == ["/bin/sh", "-c", "--epochs 1"]
    assert [d["path"] for d in doc["dirs"]] == ["/workspace"]
    assert tree(image, doc, "/workspace") == {"./requirements.txt", "./code/train.py",
                                               "./code/deep/x.txt"}


@pytest.mark.parametrize("text, says", [
    ("RUN true\n", ":1: RUN before FROM"),
    ("FROM a\nRUN apt-get install -y git\n", ":2: apt-get install -y git: has no meaning here"),
    ("FROM a\nFROM b\n", ":2: a second FROM"),
    ("FROM a\nCOPY ../x /y/\n", ":2: ../x: is outside"),
    ("FROM a\nCOPY nothing /y/\n", ":2: nothing: there is no such file"),
    ("FROM a\nCOPY train.py /\n", ":2: COPY to the root"),
    ("FROM a\nCOPY train.py /etc/\n", ":2: /etc/: /etc is the system's own"),
    ("FROM a\nONBUILD RUN x\n", ":2: ONBUILD: is no instruction"),
    ("FROM a\nRUN pip install git+https://x.example/y\n", ":2: pip install"),
    ("# empty\n", "there is no FROM"),
])
def test_what_is_not_followed_is_named_with_its_line(image, code, text, says):
    (code / "Dockerfile").write_text(text)
    done = image("image", "build", "-t", "bad", code, check=False)
    assert done.returncode and says in done.stderr and len(done.stderr.splitlines()) == 1
    assert "bad" not in image("image", "list").stdout


def test_lenient_leaves_out_and_says_so(image, code):
    (code / "Dockerfile").write_text("FROM a\nRUN apt-get update && pip install six\n")
    done = image("image", "build", "--lenient", "-t", "ok", code)
    assert "left out: apt-get update" in done.stderr
    assert json.loads(image("image", "show", "ok").stdout)["requirements"] == "six\n"
