"""Jobs in their sandbox: what they cannot do, what they may not use, what they leave; no server needed."""
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import joblog
import pytest
from hosts import SLEEPS, sleeping, wait_for


class Attempt:
    """One attempt, as the server lays it out: DATA/jobs/N/1, run by a keeper of its own."""

    def __init__(self, muster, data, number, spec, packages=(), workers=1):
        self.dir = data / f"jobs/{number}/1"
        self.dir.mkdir(parents=True, mode=0o700)
        self.order = {"spec": spec, "data_dir": str(data), "workers": workers,
                      "packages": [str(p) for p in packages]}
        (self.dir / "order.json").write_text(json.dumps(self.order))
        self.keeper = subprocess.Popen([muster.path, "keeper", str(self.dir)],
                                       stderr=subprocess.PIPE, text=True)

    def wait(self, timeout=300):
        assert self.keeper.wait(timeout) == 0, self.keeper.stderr.read()
        self.exit = json.loads((self.dir / "exit.json").read_text())
        return self

    def wait_until_running(self):
        lock = self.dir / "lock"
        self.until(lambda: lock.exists() and "running" in lock.read_text())

    def until(self, what):
        """Waits for it while the job lives."""
        wait_for(lambda: what() or self.keeper.poll() is not None, why=self.text)
        assert self.keeper.poll() is None, self.text()

    @property
    def work(self):
        return self.dir / "work"

    def lines(self, streams="oem"):
        for _, stream, _, text in joblog.read(self.dir):
            if stream in streams:
                yield text

    def text(self, streams="oem"):
        return "\n".join(self.lines(streams))


@pytest.fixture
def data(tmp_path):
    """A server's data directory with what a job must not see."""
    d = tmp_path / "data"
    d.mkdir(mode=0o700)
    for name in ("token", "muster.db", "muster.db-wal"):
        (d / name).write_text(f"secret of {name}")
        (d / name).chmod(0o600)
    return d


@pytest.fixture
def job(muster, data):
    started = []

    def run(command=None, wait=True, **more):
        packages, workers = more.pop("packages", ()), more.pop("workers_now", 1)
        spec = {"kind": "command", "command": ["sh", "-c", command]} if command else {}
        a = Attempt(muster, data, len(started) + 1, {**spec, **more}, packages, workers)
        started.append(a)
        return a.wait() if wait else a

    yield run
    for a in started:
        if a.keeper.poll() is None:
            a.keeper.send_signal(signal.SIGKILL)
            a.keeper.wait()


# ---------------------------------------------------------------- what a job cannot do

def test_a_job_cannot_read_the_store_or_the_token(job, data):
    a = job(f"cat {data}/token {data}/muster.db {data}/jobs/1/1/order.json; ls -A {data} {data}/jobs; "
            "find / -xdev -path /usr -prune -o -name muster.db -print 2>/dev/null; echo done")
    assert "secret" not in a.text() and "data_dir" not in a.text()
    assert a.text("o").splitlines()[-1] == "done"
    assert "muster.db" not in a.text("o")


def test_a_job_cannot_read_the_environment_of_the_server(job):
    os.environ["SERVER_SECRET"] = "swordfish"
    try:
        a = job(f"env; cat /proc/{os.getpid()}/environ /proc/1/environ /proc/[0-9]*/environ | tr '\\0' '\\n'; "
                "ls /proc | grep -c '^[0-9]'")
    finally:
        del os.environ["SERVER_SECRET"]
    assert "swordfish" not in a.text()
    assert int(a.text("o").splitlines()[-1]) < 10


def test_a_job_cannot_read_another_jobs_work_directory(job):
    first = job("echo mine >private; chmod 666 private", wait=True)
    assert (first.work / "private").read_text() == "mine\n"
    second = job(f"cat {first.work}/private; ls {first.dir}")
    assert "mine" not in second.text() and second.exit["code"] != 0


def test_a_job_cannot_write_outside(job, tmp_path):
    a = job(f"for d in / /etc /usr/bin /var /home /root /sys /proc/sys/kernel /opt {tmp_path} "
            "/var/cache /lib; do touch $d/made-by-a-job 2>/dev/null && echo wrote $d; done; "
            "touch /tmp/own /var/tmp/own /dev/shm/own here && echo fine")
    wrote = [w for w in a.text("o").splitlines() if w.startswith("wrote")]
    # What lies on the way to its own directory is there, and is its own: empty and gone with it.
    assert all(str(tmp_path).startswith(w.split()[1]) or w.split()[1] == str(tmp_path) for w in wrote)
    assert "fine" in a.text("o") and (a.work / "here").exists()
    for d in ("/", "/etc", "/usr/bin", "/var", "/tmp", "/dev/shm", tmp_path):
        assert not (Path(d) / "made-by-a-job").exists() and not (Path(d) / "own").exists()


def test_a_job_cannot_kill_others(job):
    other = subprocess.Popen(["sleep", "1000"])
    a = job(f"kill -9 {other.pid}; kill -9 1; kill -9 -1; echo still here")
    assert other.poll() is None
    other.kill()
    other.wait()
    assert a.exit["code"] != 0 or "still here" in a.text()


def test_a_job_has_no_way_to_privileges(job, data):
    a = job("grep -E '^(Cap|NoNewPrivs)' /proc/self/status; id -u; "
            f"unshare -Urm sh -c 'umount {data}; cat {data}/token; mount --bind / /mnt'; "
            "mount -t tmpfs none /tmp; chroot / true; su -c id nobody </dev/null; echo end")
    text = a.text("o")
    assert "NoNewPrivs:\t1" in text and "CapEff:\t0000000000000000" in text
    assert "CapBnd:\t0000000000000000" in text and "65534" in text.split()
    assert "secret" not in a.text()


DOORS = """
import ctypes, errno, multiprocessing, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
doors = {"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
         "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425)}
for name, numbers in doors.items():
    libc.syscall(numbers[0] if x86 else numbers[1], 0, 0, 0, 0, 0)
    print(name, errno.errorcode[ctypes.get_errno()])
if x86:
    libc.syscall(0x40000000 + 250, 0, 0, 0, 0, 0)
    print("the other keyctl", errno.errorcode[ctypes.get_errno()])
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""


def test_a_job_finds_doors_of_the_kernel_closed_that_it_does_not_need(job):
    a = job('python3 -c "$DOORS"', env={"DOORS": DOORS})
    lines = list(a.lines("o"))
    assert len(lines) >= 8 and lines[-1] == "[1, 2]", a.text()
    assert all(line.endswith(" ENOSYS") for line in lines[:-1]), a.text()
    assert [line.split()[0] for line in lines[:3]] == ["add_key", "request_key", "keyctl"]


FAMILIES = """
import ctypes, errno, mmap, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
for name in ("UNIX", "INET", "INET6", "NETLINK", "VSOCK", "ALG", "BLUETOOTH", "CAN", "TIPC"):
    try:
        socket.socket(getattr(socket, "AF_" + name), socket.SOCK_RAW if name == "NETLINK" else socket.SOCK_DGRAM, 0)
        print(name, "made")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
if platform.machine() == "x86_64":      # the 32-bit calls, as any program may make them: int 0x80
    for name, number, first in ("socket", 359, 40), ("socketcall", 102, 1):
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\\x53\\xb8" + number.to_bytes(4, "little") + b"\\xbb" + first.to_bytes(4, "little") +
                   b"\\xb9\\x02\\0\\0\\0\\x31\\xd2\\xcd\\x80\\x5b\\xc3")
        call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        print("32-bit", name, errno.errorcode[-call()])
"""


@pytest.mark.parametrize("namespaces", [False, True])
def test_a_job_makes_no_socket_that_its_network_does_not_hold(job, namespaces):
    a = job('python3 -c "$FAMILIES"', env={"FAMILIES": FAMILIES}, user_namespaces=namespaces)
    said = dict(line.rsplit(" ", 1) for line in a.lines("o"))
    assert {n for n, how in said.items() if how == "made"} == {"UNIX", "INET", "INET6", "NETLINK"}, a.text()
    assert said["VSOCK"] == said["ALG"] == said["BLUETOOTH"] == "EAFNOSUPPORT", a.text()
    assert said.get("32-bit socket", "EAFNOSUPPORT") in ("EAFNOSUPPORT", "ENOSYS"), a.text()
    assert said.get("32-bit socketcall", "ENOSYS") == "ENOSYS", a.text()


def test_without_network_there_is_loopback_alone(job):
    listing = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '"
    assert job(listing, network=False).text("o") == "lo"
    assert job("python3 - <<'E'\nimport socket\ns = socket.create_server(('127.0.0.1', 0))\n"
               "socket.create_connection(s.getsockname())\nprint('fine')\nE", network=False).exit["code"] == 0
    assert "lo" in job(listing).text("o").split()


def test_the_environment_is_built_from_nothing(job):
    a = job("env", env={"OWN": "1"})
    names = {line.split("=")[0] for line in a.lines("o")}
    extra = names - {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "PWD", "OWN", "SHLVL", "_"}
    assert all(n.startswith(("SSL_CERT", "REQUESTS_CA", "http", "no_proxy")) for n in extra), extra
    assert f"HOME={a.work}" in a.text("o").splitlines() and a.text("o").count("OWN=1") == 1


def test_a_symlink_in_its_work_directory_does_not_lead_the_server_out(job, data):
    """The keeper itself writes beside the work directory, never through it (the reader: unit tests)."""
    a = job(f"ln -s {data}/token run; ln -s / up; mkdir -p x; echo fine")
    assert a.exit["code"] == 0 and (data / "token").read_text() == "secret of token"


# ---------------------------------------------------------------- what it may use

def cgroups():
    return os.access("/sys/fs/cgroup/pids", os.W_OK) or os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK)


@pytest.mark.skipif(not cgroups(), reason="no control groups may be made here")
def test_a_fork_bomb_stays_inside(job):
    a = job("f() { f | f & }; for i in 1 2 3 4 5; do f; done; sleep 1; exit 7", resources={"processes": 64},
            time_limit_s=20)
    assert a.exit["ended"] - a.exit["started"] < 100
    assert not [g for g in Path("/sys/fs/cgroup").glob(f"*/muster-*-{a.keeper.pid}")]


@pytest.mark.skipif(not cgroups(), reason="no control groups may be made here")
def test_a_job_gets_the_processors_that_it_asked_for(job):
    a = job("timeout 2 sh -c 'while :; do :; done'", resources={"cpu": 0.2})
    assert a.exit["cpu_s"] < 0.3 * (a.exit["ended"] - a.exit["started"]) + 0.4


@pytest.mark.skipif(not cgroups(), reason="no control groups may be made here")
def test_too_much_memory_is_named(job):
    a = job("python3 -c 'x = bytearray(300 << 20)'", resources={"memory": 64 << 20})
    assert a.exit["reason"] == "killed: needed more than its 64 MB of memory"
    assert a.exit["cause"] == "memory" and a.text("m") == a.exit["reason"]


def test_a_time_limit_is_named(job):
    a = job("sleep 100", time_limit_s=0.3)
    assert a.exit["reason"] == "ran longer than its limit of 0.3 s" and a.exit["cause"] == "time"


def test_200_mb_of_output_neither_fill_memory_nor_stall(job):
    a = job("yes 'a line of the usual length that says nothing in particular at all' | head -n 3000000",
            wait=False)
    peak = 0
    while a.keeper.poll() is None:
        try:
            status = Path(f"/proc/{a.keeper.pid}/status").read_text()
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", status)[1]))
        except (OSError, TypeError):
            pass
        time.sleep(0.02)
    a.wait()
    assert a.exit["code"] == 0 and a.exit["lines"] == 3000000 and a.exit["lines_dropped"] == 0
    assert 0 < peak < 20000, f"{peak} kB"
    assert sum(f.read_bytes().count(b" nothing in particular at all\n")
               for f in joblog.numbered(a.dir)) == 3000000
    assert len(list(a.dir.glob("log.*"))) > 10


# ---------------------------------------------------------------- how it ends

def test_a_killed_keeper_takes_all_processes_with_it(job):
    seconds = SLEEPS + 1
    a = job(f"(setsid sleep {seconds} &); sleep {seconds}", wait=False)
    a.until(lambda: sleeping(seconds) == 2)
    a.keeper.kill()
    a.keeper.wait()
    wait_for(lambda: sleeping(seconds) == 0)
    assert not (a.dir / "exit.json").exists()


def test_a_stop_reaches_every_process(job):
    seconds = SLEEPS + 2
    a = job(f"trap 'echo asked; exit 0' TERM; (setsid sleep {seconds} &); "
            "while :; do sleep 0.05; done", wait=False)
    a.until(lambda: sleeping(seconds) == 1)     # what comes after the trap
    (a.dir / "stop").write_text('{"grace_ms": 60000}')
    a.keeper.send_signal(signal.SIGTERM)
    a.wait()
    assert a.exit["cause"] == "stopped" and "asked" in a.text("o")
    assert sleeping(seconds) == 0


# ---------------------------------------------------------------- packages

def sdist(path, members):
    with tarfile.open(path, "w:gz") as t:
        for name, content, kind, link in members:
            m = tarfile.TarInfo(name)
            m.size, m.type, m.linkname = len(content), kind, link
            t.addfile(m, io.BytesIO(content))
    return path


FILE = tarfile.REGTYPE
BAD = {
    "climbs": ([("p-1/../../../etc/x", b"x", FILE, "")], "climbs out of the archive"),
    "absolute": ([("/etc/cron.d/x", b"x", FILE, "")], "has an absolute path"),
    "symlink": ([("p-1/a", b"", tarfile.SYMTYPE, "/etc")], "is a link"),
    "hardlink": ([("p-1/a", b"", tarfile.LNKTYPE, "p-1/b")], "is a link"),
    "device": ([("p-1/a", b"", tarfile.CHRTYPE, "")], "neither a file nor a folder"),
    "many": ([(f"p-1/{i}", b"", FILE, "") for i in range(20002)], "more than 20000 members"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_package_is_refused_that(name, job, tmp_path):
    members, why = BAD[name]
    a = job(kind="python", python={"module": "p"}, packages=[sdist(tmp_path / "p-1.tar.gz", members)])
    assert why in a.exit["reason"] and a.exit["reason"].startswith("package refused: p-1.tar.gz")
    assert a.exit["cause"] == "set-up"


def test_a_gzip_bomb_is_refused(job, tmp_path):
    bomb = tmp_path / "p-1.tar.gz"
    with gzip.open(bomb, "wb") as z:
        m = tarfile.TarInfo("p-1/zeros")
        m.size = 300 << 20
        z.write(m.tobuf())
        for _ in range(300):
            z.write(bytes(1 << 20))
    a = job(kind="python", python={"module": "p"}, packages=[bomb])
    assert "a bomb" in a.exit["reason"]


def test_a_zip_bomb_is_refused(job, tmp_path):
    with zipfile.ZipFile(tmp_path / "p-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as z:
        for i in range(30):
            z.writestr(f"p/{i}.py", bytes(10 << 20))
    a = job(kind="python", python={"module": "p"}, packages=[tmp_path / "p-1-py3-none-any.whl"])
    assert "a bomb" in a.exit["reason"]


def test_what_is_no_archive_is_refused(job, tmp_path):
    (tmp_path / "p-1.tar.gz").write_bytes(b"#!/bin/sh\necho hello\n" * 50)
    a = job(kind="python", python={"module": "p"}, packages=[tmp_path / "p-1.tar.gz"])
    assert a.exit["reason"].startswith("package refused: p-1.tar.gz: is")


@pytest.mark.parametrize("text", ["p @ http://169.254.169.254/x.tar.gz", "--index-url http://127.0.0.1/",
                                  "http://127.0.0.1/x.whl", "-r /etc/passwd", "./p"])
def test_a_requirement_that_is_an_address_is_refused(text, job):
    a = job(kind="python", python={"module": "p", "requirements": text})
    assert "requirement" in a.exit["reason"] and a.exit["cause"] == "set-up"


def package(path, line="print('ran', sys.argv[1:])"):
    """An sdist as setuptools makes it, without needing setuptools here."""
    setup = b"from setuptools import setup\nsetup(name='tiny', version='1.0', packages=['tiny'])\n"
    info = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    return sdist(path, [("tiny-1.0/setup.py", setup, FILE, ""),
                        ("tiny-1.0/PKG-INFO", info, FILE, ""),
                        ("tiny-1.0/tiny/__init__.py", b"", FILE, ""),
                        ("tiny-1.0/tiny/task.py", f"import sys\n{line}\n".encode(), FILE, "")])


def test_a_package_is_installed_once_and_run_as_a_module(job, data, tmp_path):
    spec = {"kind": "python", "job_dir": "gs://b/dir",
            "python": {"module": "tiny.task", "args": ["--x", "1 2"], "runtime": "1.15", "python": "2.99"}}
    tiny = package(tmp_path / "tiny-1.0.tar.gz")
    both = [job(packages=[tiny], wait=False, **spec) for _ in range(2)]
    for a in both:
        a.wait(400)
        assert a.exit["code"] == 0, a.text()
        assert "ran ['--x', '1 2', '--job-dir=gs://b/dir']" in a.text("o")
        assert re.search(r"asked for runtime 1.15, Python 2.99; Python 3\.\d+ of this machine", a.text("m"))
    envs = [e for e in (data / "envs").iterdir() if e.is_dir()]
    assert len(envs) == 2                               # a base and a top, each once
    assert sum(a.text("m").count("built") for a in both) == 2
    changed = job(packages=[package(tmp_path / "tiny-1.1.tar.gz", "sys.exit(9)")], **spec)
    assert changed.exit["reason"] == "exit code 9"
    assert changed.text("m").count("built") == 1        # its own layer alone


def test_a_build_that_fails_is_a_sentence(job, tmp_path):
    setup = b"raise SystemExit('this cannot be built')\n"
    bad = sdist(tmp_path / "bad-1.tar.gz", [("bad-1/setup.py", setup, FILE, ""),
                                            ("bad-1/PKG-INFO", b"Metadata-Version: 2.1\nName: bad\n", FILE, "")])
    a = job(kind="python", python={"module": "bad"}, packages=[bad])
    assert a.exit["reason"].startswith("its environment could not be built: installing its packages")
    assert "this cannot be built" in a.text("oe")
    assert not list((a.dir.parents[2] / "envs").glob("*.tmp"))


def test_the_table_of_runtimes_is_written_and_may_be_edited(job, data):
    job(kind="python", python={"module": "p", "requirements": "./p"})
    table = data / "runtimes.yaml"
    assert "pytorch" in table.read_text()
    table.write_text('runtimes: {"1.15": {python: python-of-nowhere}}\n')
    a = job(kind="python", python={"module": "p", "runtime": "1.15"})
    assert "there is no python-of-nowhere here" in a.exit["reason"]


# ---------------------------------------------------------------- native training

def test_a_native_spec_is_trained_resized_and_stopped_with_a_checkpoint(job, lenet, data_dir):
    if not (data_dir / "fashion-mnist").exists():
        pytest.skip("no Fashion-MNIST here")
    a = job(kind="train", train={"spec": lenet.read_text(), "dir": str(lenet.parent)},
            workers={"min": 1, "max": 2}, wait=False)
    a.wait_until_running()
    (a.dir / "resize").write_text('{"min": 1, "max": 2}')
    a.keeper.send_signal(signal.SIGUSR1)
    roster, history = a.work / "run/roster.json", a.work / "run/roster.jsonl"
    a.until(lambda: roster.exists() and len(json.loads(roster.read_text())["workers"]) == 2
            and '"event":"step"' in history.read_text().replace(" ", ""))
    (a.dir / "stop").write_text('{"grace_ms": 120000}')
    a.keeper.send_signal(signal.SIGTERM)
    a.wait()
    assert a.exit["cause"] == "stopped" and list((a.work / "run/checkpoints").iterdir())


# ---------------------------------------------------------------- memory that looks like a disk

def test_what_a_job_writes_to_tmp_is_bounded_by_its_memory(job):
    a = job("dd if=/dev/zero of=/tmp/big bs=1M count=60; stat -fc '%b %S' /tmp /dev/shm",
            resources={"memory": 64 << 20})
    assert "No space left on device" in a.text("e")
    sizes = [int(x) * int(y) for x, y in (line.split() for line in a.lines("o"))]
    assert sizes == [48 << 20, 16 << 20]


def test_what_a_job_without_a_limit_writes_to_tmp_is_bounded_by_the_machine(job):
    a = job("stat -fc '%b %S' /tmp /dev/shm")
    sizes = [int(x) * int(y) for x, y in (line.split() for line in a.lines("o"))]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    assert 0 < sum(sizes) <= total // 2 + 8192          # whole pages


# ---------------------------------------------------------------- a power cut

@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_how_it_ended_is_on_the_disk_before_anybody_is_told(muster, data, tmp_path):
    trace = tmp_path / "trace"
    watched = tmp_path / "watched"
    watched.write_text(f"#!/bin/sh\nexec strace -o {trace} -y -e trace=fsync,rename,pwrite64 "
                       f"{muster.path} \"$@\"\n")
    watched.chmod(0o755)
    muster = type("Watched", (), {"path": str(watched)})
    a = Attempt(muster, data, 1, {"kind": "command", "command": ["sh", "-c", "exit 3"]})
    if a.keeper.wait(300) != 0 or "fsync" not in trace.read_text():
        pytest.skip("strace may not trace here")
    calls = trace.read_text().splitlines()
    at = lambda *words: next(i for i, c in enumerate(calls) if all(w in c for w in words))
    ended = at("pwrite64", "/lock", "ended  ")
    renamed = at("rename", '"exit.json"')
    assert at("fsync", "exit.json.tmp") < renamed < ended
    way = [c for c in calls[renamed:ended] if c.startswith("fsync")]
    assert [c.split("<")[1].split(">")[0] for c in way] == [str(a.dir), str(a.dir.parent),
                                                            str(a.dir.parent.parent)]
    assert at("pwrite64", "/lock", "running  ") < at("fsync", "/lock") < at("fsync", "exit.json.tmp")
