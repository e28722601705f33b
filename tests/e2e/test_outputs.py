"""A path that a user names is written as it is: a regular file is replaced whole, a link stays, and
a device, FIFO, socket or descriptor gets the bytes."""
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

ROWS = "a,b,y\n" + "".join(f"{i},{i % 7},{2 * i + i % 7}\n" for i in range(40))
SPEC = """name: t
data:
  train: {{csv: {file}}}
  target: y
  task: regression
model:
  - linear: 1
loss: squared_error
optimizer: {{sgd: {{lr: 0.0001}}}}
batch: 8
epochs: 1
"""


@pytest.fixture(scope="module")
def model(muster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "rows.csv").write_text(ROWS)
    (folder / "t.yaml").write_text(SPEC.format(file=folder / "rows.csv"))
    muster("train", folder / "t.yaml", "--out", folder / "run", "--quiet")
    return folder / "run"


def predict(model, to):
    return "predict", model, "--input", model.parent / "rows.csv", "-o", to


def export(model, to):
    return "export", model, "--format", "torch", "-o", to


@pytest.fixture(params=["predict", "export-torch", "export-onnx", "export-safetensors",
                        "storage-cp", "storage-cp-r"])
def write(request, model, muster):
    """write(PATH) has a command write there; write.want is what it writes."""
    kind, env = request.param, None
    if kind.startswith("storage"):
        server = request.getfixturevalue("server")
        env = server.env
        source = model.parent / "object"
        source.write_bytes(os.urandom(100_000))
        muster("storage", "mb", "gs://bucket-of-outputs", env=env)
        muster("storage", "cp", source, "gs://bucket-of-outputs/folder/object", env=env)

    def call(to, **kw):
        if kind == "predict":
            words = predict(model, to)
        elif kind.startswith("export"):
            words = "export", model, "--format", kind[7:], "-o", to
        elif kind == "storage-cp" or not str(to).endswith("/object"):
            words = "storage", "cp", "gs://bucket-of-outputs/folder/object", to
        else:                   # DIR/folder/object by its folder
            words = "storage", "cp", "-r", "gs://bucket-of-outputs/folder", to.parent.parent
        return muster(*words, env=env, **kw)

    plain = model.parent / f"plain-{kind}"
    call(plain)
    call.want = plain.read_bytes()
    assert len(call.want) > 100
    return call


def device(folder, name, minor):
    """A device of the test's own, never the machine's: a fault of the program would replace it."""
    try:
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        open(folder / name, "wb").close()
    except OSError:
        pytest.skip("no device can be made here")
    return folder / name


def test_devices_and_links_are_never_replaced(write, tmp_path):
    null = device(tmp_path, "null", 3)
    write(null)
    assert stat.S_ISCHR(null.lstat().st_mode)

    folder = tmp_path / "folder"
    folder.mkdir()
    for name, leads_to in (("object", tmp_path / "elsewhere/file"), ("again", "../elsewhere/file")):
        link = folder / name
        link.symlink_to(leads_to)
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        (tmp_path / "elsewhere/file").unlink(missing_ok=True)
        for _ in range(2):      # a link to nothing yet, then to a file
            write(link)
            assert link.is_symlink() and link.read_bytes() == write.want
        assert os.listdir(tmp_path / "elsewhere") == ["file"]
    assert sorted(os.listdir(folder)) == ["again", "object"]
    (folder / "tonull").symlink_to(null)
    write(folder / "tonull")
    assert (folder / "tonull").is_symlink() and stat.S_ISCHR(null.lstat().st_mode)


def test_a_fifo_a_socket_and_a_descriptor_get_the_bytes(model, muster, tmp_path):
    (tmp_path / "want").unlink(missing_ok=True)
    muster(*export(model, tmp_path / "want"))
    want = (tmp_path / "want").read_bytes()

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    muster(*export(model, fifo))
    reader.join(60)
    assert got == [want] and stat.S_ISFIFO(fifo.lstat().st_mode)

    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "socket"))
        door.listen()
        muster(*export(model, tmp_path / "socket"))
        peer = door.accept()[0]
        with peer, peer.makefile("rb") as f:
            assert f.read() == want

    out, stdout = tmp_path / "out", tmp_path / "stdout"
    stdout.symlink_to("/proc/self/fd/1")    # as /dev/stdout is
    for to in (stdout, "/proc/self/fd/1", "/dev/fd/1", "-"):
        with open(out, "wb") as f:          # what a shell does with { head; muster ...; tail; } > out
            f.write(b"head")
            f.flush()
            subprocess.run([muster.path, *map(str, export(model, to))], stdout=f, check=True)
            subprocess.run(["printf", "tail"], stdout=f, check=True)
        assert out.read_bytes() == b"head" + want + b"tail", to
    piped = subprocess.run([muster.path, *map(str, predict(model, stdout))],
                           capture_output=True, check=True)
    assert piped.stdout.startswith(b"value\n") and piped.stdout.count(b"\n") == 41
    here, there = socket.socketpair()       # open() of /dev/stdout fails on a socket
    subprocess.run([muster.path, *map(str, export(model, stdout))], stdout=there, check=True)
    there.close()
    with here, here.makefile("rb") as f:
        assert f.read() == want


def fails(muster, code, *words, **kw):
    done = muster(*words, check=False, **kw)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_what_cannot_be_written_is_said_in_a_sentence_and_leaves_nothing(model, muster, tmp_path):
    nodes = tmp_path.with_name(tmp_path.name + "-nodes")
    nodes.mkdir()
    full = device(nodes, "full", 7)
    for words in (predict, export):
        assert str(full) in fails(muster, 7, *words(model, full))
        assert stat.S_ISCHR(full.lstat().st_mode)
        assert "is a directory" in fails(muster, 2, *words(model, tmp_path))
        link = tmp_path / "link"
        link.symlink_to("none/file")
        assert "none/file" in fails(muster, 4, *words(model, link))
        link.unlink()
        link.symlink_to("link")
        fails(muster, 7, *words(model, link))
        link.unlink()
        old = tmp_path / "old"
        old.write_text("old")
        link.symlink_to("old")
        for call in ("open", "write", "fsync", "rename"):
            said = fails(muster, 7, *words(model, link), env={"MUSTER_FAULT": f"{call}:1"})
            assert "disk is full" in said and str(link) in said
            assert old.read_text() == "old" and sorted(os.listdir(tmp_path)) == ["link", "old"]
        link.unlink()
        old.unlink()


def test_a_file_keeps_its_mode_and_owner(model, muster, tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    os.link(file, tmp_path / "other")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 4321)
    muster(*predict(model, file))
    now = file.stat()
    assert stat.S_IMODE(now.st_mode) == 0o640
    assert os.geteuid() or (now.st_uid, now.st_gid) == (1234, 4321)
    assert (tmp_path / "other").read_text() == "old"


@pytest.fixture
def open_path():
    """A directory that every user reaches; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="muster-outputs-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is asked for")
def test_a_user_replaces_what_he_may_and_is_told_where_not(model, muster, open_path):
    """As nobody, in directories of root's."""
    shutil.copytree(model.parent, open_path / "model")
    (open_path / "model").chmod(0o755)
    shutil.copy(muster.path, open_path / "muster")

    def as_nobody(to):
        return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                               open_path / "muster", *map(str, predict(open_path / "model/run", to))],
                              capture_output=True, text=True)
    closed, drop = open_path / "closed", open_path / "drop"
    closed.mkdir()
    (closed / "file").write_text("old")
    (closed / "file").chmod(0o666)
    (open_path / "link").symlink_to("closed/file")
    done = as_nobody(open_path / "link")
    assert done.returncode == 3 and "takes no new file" in done.stderr, done.stderr
    assert (closed / "file").read_text() == "old"
    drop.mkdir()
    drop.chmod(0o733)           # may be written, not listed
    done = as_nobody(drop / "answers")
    assert done.returncode == 0, done.stderr
    assert (drop / "answers").stat().st_uid == 65534
    (drop / "locked").write_text("old")
    (drop / "locked").chmod(0o644)
    done = as_nobody(drop / "locked")
    assert done.returncode == 3 and (drop / "locked").read_text() == "old", done.stderr
    assert sorted(os.listdir(drop)) == ["answers", "locked"]


def test_a_run_goes_into_a_directory_that_is_linked(muster, model, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    muster("train", model.parent / "t.yaml", "--out", tmp_path / "run", "--quiet")
    assert (tmp_path / "run").is_symlink() and (tmp_path / "disk/run.json").exists()
    (tmp_path / "lost").symlink_to("none")
    said = fails(muster, 4, "train", model.parent / "t.yaml", "--out", tmp_path / "lost", "--quiet")
    assert "symbolic link" in said


def test_a_linked_configuration_stays_a_link(muster, tmp_path):
    config = tmp_path / "config/muster"
    config.mkdir(parents=True)
    (tmp_path / "dotfiles").mkdir()
    (config / "gcloud.json").symlink_to(tmp_path / "dotfiles/gcloud.json")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    (tmp_path / "gcloud").symlink_to(muster.path)
    subprocess.run([tmp_path / "gcloud", "config", "set", "ai_platform/region", "europe-west1"],
                   env={**os.environ, **env}, check=True)
    assert (config / "gcloud.json").is_symlink()
    assert "europe-west1" in (tmp_path / "dotfiles/gcloud.json").read_text()


@pytest.mark.skipif(Path("/proc/sys/fs/protected_symlinks").read_text().strip() == "0" or os.getuid() != 0,
                    reason="the kernel lets root follow any link here (fs.protected_symlinks)")
def test_a_link_that_another_user_put_into_a_shared_folder_is_not_followed(muster, model, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    (tmp_path / "own").write_text("mine")
    (folder / "out").symlink_to(tmp_path / "own")
    os.chown(folder / "out", 1234, 1234, follow_symlinks=False)
    done = muster(*predict(model, folder / "out"), check=False)
    assert done.returncode and "Permission denied" in done.stderr
    assert (tmp_path / "own").read_text() == "mine"
