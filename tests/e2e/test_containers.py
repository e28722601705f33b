"""Jobs in containers of their own image, by podman; it is made of this machine's own files."""
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from hosts import wait_for
from server import Server
from test_driver import Attempt

IMAGE = "localhost/muster-test:1"
TOOLS = ["sh", "cat", "env", "id", "ls", "sleep", "head", "tail", "touch"]

pytestmark = pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")


def needs(program):
    """Of the program: itself and its libraries, links and what they lead to."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    yield from {str(program), *re.findall(r"(/\S+) \(0x", said)}


def rootfs(tar, programs, trees=()):
    """Files of this machine at their own paths, as the archive that podman imports."""
    there = set()
    for link, to in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
        info = tarfile.TarInfo(link)
        info.type, info.linkname = tarfile.SYMTYPE, to
        tar.addfile(info)
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "tmp", "etc", "app"):
        info = tarfile.TarInfo(folder)
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
        tar.addfile(info)
    for program in programs:
        for path in needs(shutil.which(program)):
            name = re.sub(r"^/(bin|lib|lib64)/", r"/usr/\1/", path)
            if name not in there:
                there.add(name)
                tar.add(os.path.realpath(path), name.lstrip("/"))
    for tree in trees:
        tar.add(tree, str(tree).lstrip("/"), filter=lambda i: None if re.search(
            r"/(test|tests|idlelib|__pycache__|lib2to3|tkinter|config-[^/]*)(/|$)", i.name) else i)


class Podman:
    """With a store of its own: nothing of this machine's is touched."""

    def __init__(self, tmp):
        self.conf = tmp / "storage.conf"
        self.conf.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp}/store"\n'
                             f'runroot = "{tmp}/run"\n')
        os.environ["CONTAINERS_STORAGE_CONF"] = str(self.conf)

    def __call__(self, *args, **more):
        return subprocess.run(["podman", *args], capture_output=True, text=True, timeout=300,
                              **more)

    def names(self):
        return self("ps", "--all", "--format", "{{.Names}}").stdout.split()

    def add(self, name, tmp, programs, trees=(), changes=()):
        with tarfile.open(tmp / "rootfs.tar", "w") as tar:
            rootfs(tar, programs, trees)
        words = [w for c in changes for w in ("--change", c)]
        made = self("import", *words, str(tmp / "rootfs.tar"), name)
        (tmp / "rootfs.tar").unlink()
        assert made.returncode == 0, made.stderr


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("podman")
    before = os.environ.get("CONTAINERS_STORAGE_CONF")
    p = Podman(tmp)
    p.add(IMAGE, tmp, TOOLS, changes=['ENTRYPOINT ["/bin/sh", "-c"]', "ENV FROM_IMAGE=yes"])
    yield p
    p("rm", "--all", "--force", "--time", "0")
    p("rmi", "--all", "--force")
    os.environ.pop("CONTAINERS_STORAGE_CONF")
    if before:
        os.environ["CONTAINERS_STORAGE_CONF"] = before


@pytest.fixture
def data(tmp_path):
    d = tmp_path / "data"
    d.mkdir(mode=0o700)
    (d / "token").write_text("secret of token")
    return d


@pytest.fixture
def job(muster, data, podman):
    started = []

    def run(command=None, wait=True, **more):
        packages = more.pop("packages", ())
        spec = {"kind": "command", "image": IMAGE}
        if command:
            spec["command"] = ["sh", "-c", command] if isinstance(command, str) else command
        a = Attempt(muster, data, len(started) + 1, {**spec, **more}, packages)
        started.append(a)
        return a.wait() if wait else a

    yield run
    for a in started:
        if a.keeper.poll() is None:
            a.keeper.kill()
            a.keeper.wait()
    wait_for(lambda: podman.names() == [])


def processes(word):
    """Those whose command line ends in it, wherever they are."""
    found = []
    for p in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if p.read_bytes().rstrip(b"\0").endswith(word.encode()):
                found.append(p.parent.name)
        except OSError:
            pass
    return found


# ---------------------------------------------------------------- what is inside

def test_a_job_runs_in_its_image(job, data):
    a = job("echo out; echo err >&2; id; pwd; echo it=$FROM_IMAGE mine=$MINE; ls /; touch made; "
            "exit 7", env={"MINE": 'a "b" = c'})
    assert a.exit["code"] == 7 and a.exit["reason"] == "exit code 7", a.text()
    assert a.text("m").splitlines()[0] == f"image {IMAGE} runs as a container (podman)"
    said = a.text("o").splitlines()
    assert said[0] == "out" and said[2] == "/job"
    user, group = map(int, re.match(r"uid=(\d+)\S* gid=(\d+)", said[1]).groups())
    assert user == group and 0x70000000 <= user <= 0x7fffffff if os.getuid() == 0 else user > 0
    assert said[3] == 'it=yes mine=a "b" = c'
    assert "app" in said and "home" not in said and "root" not in said    # nothing of this machine
    assert a.text("e") == "err"
    assert (a.work / "made").stat().st_uid == (os.getuid() or 65534)


def test_an_image_sees_neither_the_server_nor_its_environment(job, data, monkeypatch):
    monkeypatch.setenv("SERVER_SECRET", "swordfish")
    monkeypatch.setenv("https_proxy", "http://u:swordfish@127.0.0.1:9")     # podman hands on what it has
    a = job(f"env; cat {data}/token; ls {data}; cat /proc/[0-9]*/environ; echo done")
    assert "done" in a.text("o") and "swordfish" not in a.text() and "secret of" not in a.text()


def test_without_network_there_is_only_loopback(job):
    a = job("tail -n +3 /proc/net/dev | head -5", network=False)
    assert [line.split(":")[0].strip() for line in a.text("o").splitlines()] == ["lo"]


def test_the_words_of_entrypoint_are_for_the_images_own_program(job):
    a = job(["echo its own $0", "x"], entrypoint=True)
    assert a.text("o") == "its own x" and a.exit["code"] == 0, a.text()


def test_a_program_that_is_not_in_the_image_is_told(job):
    a = job(["/bin/nothing"])
    assert a.exit["cause"] == "set-up" and "container could not be made" in a.exit["reason"]
    assert "/bin/nothing" in a.text("e")


def test_a_job_that_prints_much_loses_nothing(job):
    a = job("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done")
    assert list(a.lines("o")) == [f"line {i}" for i in range(20000)]


# ---------------------------------------------------------------- how it ends

@pytest.mark.skipif(os.getuid() != 0, reason="limits of another's podman may not be enforced")
def test_an_image_gets_no_more_memory_than_it_asked_for(job):
    a = job("head -c 200000000 /dev/zero | tail -c 190000000", resources={"memory": 64 << 20})
    assert a.exit["reason"] == "killed: needed more than its 64 MB of memory", (a.exit, a.text())
    assert a.exit["cause"] == "memory" and a.exit["memory_peak"] > 60 << 20
    assert list(Path("/sys/fs/cgroup").glob(f"*/muster-1-1-{a.keeper.pid}")) == []


def test_a_job_is_stopped_whole(job, podman):
    a = job("sleep 4471 & trap 'echo stopping; exit 3' TERM; echo ready; "
            "while :; do sleep 0.1; done", wait=False)
    wait_for(lambda: "ready" in a.text("o"))
    wait_for(lambda: len(processes("sleep\0004471")) == 1)      # forked, and then it became that
    assert len(podman.names()) == 1
    a.keeper.send_signal(signal.SIGTERM)
    a.wait()
    assert a.exit["cause"] == "stopped" and "stopping" in a.text("o")
    assert processes("sleep\0004471") == [] and podman.names() == []


def test_one_that_does_not_listen_is_killed(job, podman):
    a = job("trap '' TERM; echo ready; while :; do sleep 0.2; done", wait=False)
    wait_for(lambda: "ready" in a.text("o"))
    (a.dir / "stop").write_text('{"grace_ms": 300}')
    a.keeper.send_signal(signal.SIGTERM)
    a.wait()
    assert a.exit["cause"] == "stopped" and podman.names() == []


def test_a_time_limit_ends_it(job, podman):
    a = job("echo ready; sleep 4472", time_limit_s=1.5)
    assert a.exit["reason"] == "ran longer than its limit of 1.5 s", a.text()
    assert processes("sleep\0004472") == [] and podman.names() == []


def test_a_container_ends_with_its_keeper(job, podman):
    a = job("echo ready; sleep 4473", wait=False)
    wait_for(lambda: "ready" in a.text("o"))
    a.keeper.kill()
    a.keeper.wait()
    wait_for(lambda: processes("sleep\0004473") == [] and podman.names() == [])
    assert not (a.dir / "exit.json").exists()


@pytest.mark.parametrize("by", ["the next", "the server"])
def test_what_a_killed_init_left_is_removed(job, podman, muster, tmp_path, by):
    a = job("echo ready; sleep 4474", wait=False)
    wait_for(lambda: "ready" in a.text("o") and processes("sleep\0004474"))
    children = Path(f"/proc/{a.keeper.pid}/task/{a.keeper.pid}/children").read_text().split()
    a.keeper.send_signal(signal.SIGSTOP)        # or it would clean up after its init
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)
    a.keeper.kill()
    a.keeper.wait()
    assert processes("sleep\0004474") and podman.names()
    if by == "the next":
        assert job("echo next").text("o") == "next"
    else:
        Server(muster, tmp_path / "other").start().stop()
    wait_for(lambda: processes("sleep\0004474") == [] and podman.names() == [])


# ---------------------------------------------------------------- steps of pipelines

def test_a_step_in_a_container_has_its_files_and_volumes(job, tmp_path):
    own = tmp_path / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    step = {"files": [{"path": "/tmp/in/x", "text": "X\n"}, {"path": "/conf/y", "text": "Y\n"}],
            "outputs": [{"path": "/tmp/out/z"}, {"path": "/results/r"}],
            "mounts": [{"path": "/workspace", "from": f"host:{own}"}], "cwd": "/workspace"}
    a = job("cat /tmp/in/x /conf/y; echo z >/tmp/out/z; echo r >/results/r; echo here >f",
            image=IMAGE, host_files=True, step=step)
    assert a.text("o").splitlines()[:2] == ["X", "Y"], a.text()
    assert (a.work / "tmp/out/z").read_text() == "z\n"
    assert (a.work / "out/1/r").read_text() == "r\n"
    assert (own / "f").read_text() == "here\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
def test_a_folder_of_a_volume_is_what_was_opened_whatever_is_put_in_its_place(job, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o777)
    step = {"mounts": [{"path": "/workspace", "from": f"host:{own}"}], "cwd": "/workspace"}
    a = job("until [ -e go ]; do sleep 0.05; done; cat go; echo here >f", image=IMAGE, host_files=True,
            step=step, wait=False)
    place = f"/run/muster-mounts/{a.keeper.pid}-"

    def mounted():
        return place in Path("/proc/self/mountinfo").read_text()

    wait_for(mounted)                           # podman is given this path, not that of the volume
    own.rename(tmp_path / "elsewhere")
    own.symlink_to("/etc")
    (tmp_path / "elsewhere/go").write_text("went\n")
    a.wait()
    assert a.text("o") == "went" and (tmp_path / "elsewhere/f").exists(), a.text()
    assert not mounted() and not list(Path("/run/muster-mounts").glob(f"{a.keeper.pid}-*"))


# ---------------------------------------------------------------- the table

def test_an_image_that_is_nowhere_is_one_sentence(job):
    a = job("true", image="registry.example/nothing:1")
    assert a.exit["code"] == 125 and a.exit["reason"] == (
        "image registry.example/nothing:1 is neither on this machine (fetch it: podman pull) nor "
        "described (muster image add) nor has it a row in the table runtimes.yaml that says what to "
        "run in its place")


@pytest.mark.parametrize("image", ["-v/etc:/job", "oci:/etc", "a b", "docker://x", "dir:/", ""])
def test_a_name_that_is_none_is_refused(job, image):
    a = job("true", image=image)
    assert "is no name of an image" in a.exit["reason"]


def test_a_row_stands_for_an_image_that_is_not_here(job, data):
    (data / "runtimes.yaml").write_text(
        f"images:\n  registry.example/: {{}}\n  {IMAGE}: {{container: false}}\n")
    a = job("echo here; ls -d /root", image="registry.example/fit:3")
    assert a.text("m").splitlines()[0] == (
        "image registry.example/fit:3 is not run as a container, since it is not on this machine: "
        "its row in runtimes.yaml says what is used")
    assert a.text("o").splitlines()[0] == "here" and a.exit["code"] == 0
    a = job("ls -d /usr/share")                 # of this machine
    assert a.exit["code"] == 0 and "(runtimes.yaml)" in a.text("m").splitlines()[0]


@pytest.mark.skipif(os.getuid() != 0, reason="root inside is the server's user")
def test_a_row_lets_an_image_be_its_own_user(job, data):
    (data / "runtimes.yaml").write_text(f"images:\n  {IMAGE}: {{user: image}}\n")
    a = job("id; touch made")
    assert "uid=0" in a.text("o") and (a.work / "made").exists()


# ---------------------------------------------------------------- with a server

def test_a_container_outlives_the_server_and_is_cancelled(server, podman, muster, tmp_path):
    spec = tmp_path / "fit.yaml"
    spec.write_text(f"name: fit\nimage: {IMAGE}\n"
                    "command: [sh, -c, 'echo begun; while [ ! -e go ]; do sleep 0.1; done; echo end']\n")
    name = muster("submit", spec, env=server.env).stdout.strip()
    job = f"/api/jobs/default/{name}"

    def said():
        return [line["text"] for line in server.json("GET", job + "/logs")["lines"]]

    wait_for(lambda: "begun" in said())
    server.kill()
    assert len(podman.names()) == 1
    server.start()
    wait_for(lambda: server.json("GET", job)["state"] == "running")
    (work,) = server.data_dir.glob("jobs/*/1/work")
    (work / "go").touch()
    wait_for(lambda: server.json("GET", job)["state"] == "succeeded")
    assert said()[-1] == "end" and podman.names() == []

    name = muster("submit", spec, env=server.env).stdout.strip()
    job = f"/api/jobs/default/{name}"
    wait_for(lambda: "begun" in said())
    server.json("POST", job + "/cancel", {})
    wait_for(lambda: server.json("GET", job)["state"] == "cancelled")
    assert podman.names() == []


def test_ai_platform_runs_the_images_own_program(server, podman):
    made = server.json("POST", "/v1/projects/default/jobs", {"jobId": "own_program", "trainingInput": {
        "region": "local", "scaleTier": "BASIC", "masterConfig": {
            "imageUri": IMAGE, "containerArgs": ["echo $CLOUD_ML_JOB_ID in $container"]}}})
    assert made["jobId"] == "own_program"
    job = "/api/jobs/default/own_program"
    wait_for(lambda: server.json("GET", job)["state"] in ("succeeded", "failed"))
    said = [line["text"] for line in server.json("GET", job + "/logs")["lines"]]
    assert said == [f"image {IMAGE} runs as a container (podman)",
                    "scale tier BASIC: 1 worker here (runtimes.yaml)", "own_program in podman"]


# ---------------------------------------------------------------- Python

@pytest.mark.skipif(not Path("/usr/lib/python3/dist-packages/pip").is_dir(),
                    reason="no pip of this machine's to put into an image")
def test_packages_are_installed_into_the_container(job, podman, tmp_path):
    version = ".".join(subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True)
                       .stdout.split()[1].split(".")[:2])
    own = "/usr/lib/python3/dist-packages"
    trees = [f"/usr/lib/python{version}", f"{own}/pip", f"{own}/setuptools",
             f"{own}/pkg_resources"]
    trees = [t for t in trees if Path(t).exists()]
    path, os.environ["PATH"] = os.environ["PATH"], "/usr/bin:/bin"
    try:
        podman.add("localhost/muster-python:1", tmp_path, [*TOOLS, "python3"], trees)
    finally:
        os.environ["PATH"] = path
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("fit/__init__.py", "")
        z.writestr("fit/task.py", "import os, sys\nprint(sys.argv[1:], os.getcwd(), __file__)\n")
        z.writestr("fit-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fit\nVersion: 1.0\n")
        z.writestr("fit-1.0.dist-info/WHEEL",
                   "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("fit-1.0.dist-info/RECORD", "")
    file = tmp_path / "fit-1.0-py3-none-any.whl"
    file.write_bytes(wheel.getvalue())
    file.chmod(0o644)
    a = job(kind="python", image="localhost/muster-python:1", packages=[file], network=False,
            job_dir="gs://b/dir", python={"module": "fit.task", "args": ["--n", "a b"]})
    assert a.exit["code"] == 0, a.text()
    assert a.text("o").splitlines()[-1].startswith(
        "['--n', 'a b', '--job-dir=gs://b/dir'] /job /tmp/")
