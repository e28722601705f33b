"""Who a job is outside its sandbox, and what it sees of the machine: under root and under another user."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import joblog
import pytest
from hosts import wait_for
from server import Server

FIRST, LAST = 0x70000000, 0x7fffffff
ORDINARY = 54321                # a number that nobody here has
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def submit(server, script, **more):
    """A script that ends in "; : WORD" is found by that word among the processes (job_process)."""
    script = re.sub(r"; : (\w+)$", rf"; : \1.{os.getpid()}", script)
    return server.json("POST", "/api/jobs", {"project": "default", "spec": {
        "kind": "command", "command": ["sh", "-c", script], "resources": {"cpu": 0.1}, **more}})


def said(server, job, attempt=1):
    folder = server.data_dir / f"jobs/{job['uid']}/{attempt}"
    return [text for _, stream, _, text in joblog.read(folder) if stream == "o"]


def run(server, script, **more):
    """Its output, once it has ended."""
    job = submit(server, script, **more)
    ended = server.reach(job["name"])
    return ended, "\n".join(said(server, job))


def processes(marker):
    """{pid: (user, group)} of all whose command line has the word."""
    found, marker = {}, f"{marker}.{os.getpid()}"
    for p in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (p / "cmdline").read_bytes():
                status = dict(line.split(":\t", 1) for line in (p / "status").read_text().splitlines()
                              if ":\t" in line)
                found[int(p.name)] = (int(status["Uid"].split()[0]), int(status["Gid"].split()[0]))
        except (OSError, KeyError):
            pass
    return found


def job_process(marker):
    """(pid, user, group) of the job with that word."""
    return wait_for(lambda: [(pid, *ids) for pid, ids in processes(marker).items() if ids[0] != 0])[0]


def as_user(user, *command):
    return subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
                           *map(str, command)], capture_output=True, text=True)


class Ordinary(Server):
    """A server that an ordinary user starts."""

    def start(self, *args, wait=120):
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        for d in [self.data_dir.parent, *self.data_dir.parent.parents]:
            if d.stat().st_uid == os.getuid() and str(d).startswith("/tmp/"):
                d.chmod(0o755)
        os.chown(self.data_dir.parent, ORDINARY, ORDINARY)
        real, self.binary = self.binary, str(self.data_dir.parent / "serve")
        Path(self.binary).write_text(
            f"#!/bin/sh\nexec setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups "
            f"--inh-caps=-all {real} \"$@\"\n")
        Path(self.binary).chmod(0o755)
        try:
            return super().start(*args, wait=wait)
        finally:
            self.binary = real


def end_jobs(s):
    """Jobs outlive their server."""
    for job in s.json("GET", "/api/jobs?state=active")["jobs"]:
        s.call("POST", f"/api/jobs/{job['project']}/{job['name']}/cancel")
    wait_for(lambda: not s.json("GET", "/api/jobs?state=active")["jobs"])


@pytest.fixture
def server(muster, tmp_path):
    with Server(muster, tmp_path / "data") as s:
        yield s
        end_jobs(s)


@pytest.fixture
def ordinary(muster, tmp_path):
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("no setpriv (util-linux)")
    home = tmp_path / "home"
    with (Ordinary if os.geteuid() == 0 else Server)(muster, home / "data",
                                                    env={"HOME": str(home)}) as s:
        yield s
        end_jobs(s)


# ---------------------------------------------------------------- under root: a user for each job

@ROOT_ONLY
def test_two_running_jobs_have_different_users_which_are_on_record(server):
    jobs = [submit(server, f"sleep 1000; : twin{i}") for i in (1, 2)]
    pids = [job_process(f"twin{i}") for i in (1, 2)]
    users = [server.reach(j["name"], "running")["user"] for j in jobs]
    assert [(u, g) for _, u, g in pids] == [(users[0],) * 2, (users[1],) * 2]
    assert users[0] != users[1] and all(FIRST <= u <= LAST for u in users)
    events = server.json("GET", f"/api/jobs/default/{jobs[0]['name']}/events")
    events = events.get("events", events) if isinstance(events, dict) else events
    assert [e["user"] for e in events if e["type"] == "job.preparing"] == [users[0]]


@ROOT_ONLY
def test_nobody_on_the_machine_cannot_read_or_kill_a_job(server):
    submit(server, "sleep 1000; : target", env={"KEY": "swordfish"})
    pid, user, _ = job_process("target")
    for who in (65534, ORDINARY):
        seen = as_user(who, "cat", f"/proc/{pid}/environ")
        assert seen.returncode != 0 and "swordfish" not in seen.stdout, seen
        assert "not permitted" in as_user(who, "kill", "-9", pid).stderr
    assert Path(f"/proc/{pid}").exists()
    # The test can fail: the job's own user may.
    assert as_user(user, "kill", "-0", pid).returncode == 0


@ROOT_ONLY
def test_a_job_that_is_seen_by_another_cannot_be_killed_read_or_traced_by_it(server):
    """As if the walls between their processes were not there: by the rights of the users alone."""
    for i in (1, 2):
        submit(server, f"sleep 1000; : pair{i}", env={"KEY": f"swordfish{i}"})
    (one, user, _), (other, _, _) = job_process("pair1"), job_process("pair2")
    assert "not permitted" in as_user(user, "kill", "-9", other).stderr
    assert as_user(user, "cat", f"/proc/{other}/environ").returncode != 0
    assert as_user(user, "cat", f"/proc/{other}/mem").returncode != 0
    assert as_user(user, "ls", f"/proc/{other}/root/").returncode != 0
    assert Path(f"/proc/{one}").exists() and Path(f"/proc/{other}").exists()


@ROOT_ONLY
def test_inside_a_job_is_nobody_and_its_files_are_nobodys_on_the_disk(server):
    job, text = run(server, "id -u; id -g; id -un; touch made; stat -c %u made /etc/passwd; "
                    "mkdir sub && touch sub/x && chmod 700 sub && ls sub")
    assert text.split() == ["65534", "65534", "nobody", "65534", "0", "x"]
    assert (server.work(job) / "made").stat().st_uid == 65534
    assert (server.work(job) / "sub").stat().st_gid == 65534


@ROOT_ONLY
def test_a_user_is_not_used_again_soon_also_after_a_kill_and_a_restart(server):
    users = []
    for _ in range(3):
        users += [run(server, "true")[0]["user"] for _ in range(3)]
        server.kill()
        server.start()
    assert len(set(users)) == len(users) and all(FIRST <= u <= LAST for u in users)


@ROOT_ONLY
def test_a_job_that_runs_keeps_its_user_when_the_server_is_killed(server):
    job = submit(server, "until [ -e go ]; do sleep 0.05; done; : adopted")
    pid, user, _ = job_process("adopted")
    server.kill()
    server.start()
    assert server.reach(job["name"], "running")["user"] == user
    _, other = run(server, "true")[0], submit(server, "sleep 1000; : later")
    assert job_process("later")[1] != user == processes("adopted")[pid][0]
    (server.work(job) / "go").touch()
    assert server.reach(job["name"])["state"] == "succeeded" and other


@ROOT_ONLY
def test_the_range_of_users_is_a_setting_and_a_full_one_makes_jobs_wait(server):
    (server.data_dir / "runtimes.yaml").write_text("users: {first: 70001, last: 70002}\n")
    jobs = [submit(server, f"until [ -e go ]; do sleep 0.05; done; : few{i}") for i in (1, 2)]
    assert {job_process(f"few{i}")[1] for i in (1, 2)} == {70001, 70002}
    third = submit(server, "id -u")
    wait_for(lambda: "the users 70001..70002 all run jobs" in server.said())
    assert server.json("GET", f"/api/jobs/default/{third['name']}")["state"] == "queued"
    (server.work(jobs[0]) / "go").touch()
    assert server.reach(third["name"])["state"] == "succeeded"
    (server.work(jobs[1]) / "go").touch()
    assert server.reach(jobs[1]["name"])["state"] == "succeeded"


@ROOT_ONLY
def test_two_servers_of_a_machine_never_have_jobs_of_the_same_user(server, muster, tmp_path):
    with Server(muster, tmp_path / "second") as second:
        for s in (server, second):
            (s.data_dir / "runtimes.yaml").write_text("users: {first: 70011, last: 70013}\n")
        for i, s in enumerate((server, second, server)):
            submit(s, f"sleep 1000; : of{i}end")
        assert {job_process(f"of{i}end")[1] for i in range(3)} == {70011, 70012, 70013}
        end_jobs(second)


@ROOT_ONLY
def test_a_volume_is_shared_by_jobs_of_different_users(server):
    volume = server.data_dir / "volumes/default/shared"
    (volume / "data").mkdir(parents=True)
    (volume / "lock").touch()
    os.chown(volume / "data", 65534, 65534)
    step = {"mounts": [{"path": "/shared", "from": "volume:shared"}]}
    first, _ = run(server, "umask 077; mkdir /shared/d; echo one >/shared/d/f", step=step)
    second, text = run(server, "cat /shared/d/f; echo two >>/shared/d/f; mv /shared/d/f /shared/g; "
                       "stat -c %U /shared/g", step=step)
    assert (second["state"], text) == ("succeeded", "one\nnobody")
    assert first["user"] != second["user"]


@pytest.mark.parametrize("text, why", [
    ("users: {first: 5, last: 4}", "not above the last"),
    ("users: {first: 65000, last: 66000}", "holds 65534"),
    ("users: {first: 0, last: 10}", "takes two numbers"), ("users: {frist: 7}", "did you mean"),
    ("expose: [srv]", "no path from the root"), ("expose: /srv", "takes a list")])
def test_a_wrong_setting_of_the_sandbox_is_named_with_its_line(muster, tmp_path, text, why):
    (tmp_path / "runtimes.yaml").write_text(f"tiers: {{}}\n{text}\n")
    done = muster("serve", "--data-dir", tmp_path, "--port", 0, check=False)
    assert done.returncode == 2 and why in done.stderr and "runtimes.yaml:2" in done.stderr


@pytest.fixture
def unmapped(tmp_path):
    """A folder on a file system that has no ID-mapped mounts."""
    for name in ("lower", "upper", "work", "at"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{n}dir={tmp_path / n}" for n in ("lower", "upper", "work"))
    done = subprocess.run(["mount", "-t", "overlay", "none", "-o", options, tmp_path / "at"],
                          capture_output=True)
    if done.returncode:
        pytest.skip("no overlay file system here")
    yield tmp_path / "at"
    subprocess.run(["umount", "--lazy", tmp_path / "at"], check=True)


@ROOT_ONLY
def test_on_a_file_system_without_mapped_mounts_jobs_run_as_before_and_it_is_said(muster, unmapped):
    with Server(muster, unmapped / "data") as s:
        job = submit(s, "touch made; until [ -e go ]; do sleep 0.05; done; : shared")
        assert job_process("shared")[1:] == (65534, 65534)
        (s.work(job) / "go").touch()
        ended = s.reach(job["name"])
        assert ended["state"] == "succeeded" and (s.work(job) / "made").stat().st_uid == 65534
        assert any("no ID-mapped mounts" in text for text in ended["not_kept"])
        log = [t for _, stream, _, t in joblog.read(s.data_dir / f"jobs/{job['uid']}/1") if stream == "m"]
        assert any("as other jobs do" in t for t in log)
    done = muster("serve", "--strict", "--data-dir", unmapped / "d", "--port", 0, check=False)
    assert done.returncode == 3 and "no ID-mapped mounts" in done.stderr


# ---------------------------------------------------------------- what a job sees of the machine

def check_what_is_seen(server, tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    (private / "notes").write_text("for my eyes")
    private.chmod(0o755)
    _, text = run(server, "ls /; ls -A /srv /mnt /media /var/lib /var/log /boot 2>/dev/null | "
                  f"grep -v : | xargs; cat {private}/notes; echo; ls /usr/bin/env /etc/passwd; "
                  "ls -d /sys/devices; python3 -c 'import ssl; print(ssl.OPENSSL_VERSION[:7])'")
    assert text.split("\n\n")[-1].split() == ["/etc/passwd", "/usr/bin/env", "/sys/devices", "OpenSSL"]
    assert "for my eyes" not in text
    usual = {"bin", "dev", "etc", "gnu", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt",
             "nix", "opt", "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var"}
    assert set(text.split("\n\n")[0].split()) <= usual


def test_a_job_sees_programs_and_settings_and_not_the_rest_of_the_machine(server, tmp_path):
    check_what_is_seen(server, tmp_path)


def test_a_job_of_an_ordinary_user_does_not_see_that_users_files(ordinary, tmp_path):
    check_what_is_seen(ordinary, tmp_path)
    own = tmp_path / "home/own"
    own.write_text("mine alone")
    if os.geteuid() == 0:
        os.chown(own, ORDINARY, ORDINARY)
    own.chmod(0o600)
    assert "mine alone" not in run(ordinary, f"cat {own}; cat ~/own")[1]


@pytest.mark.parametrize("who", ["root", "ordinary"])
def test_a_job_cannot_write_into_its_root(who, request):
    s = request.getfixturevalue("server" if who == "root" else "ordinary")
    _, text = run(s, "for d in / /var /home /srv /usr /etc /opt; do touch $d/made 2>/dev/null && "
                  "echo $d; done; mkdir /new 2>/dev/null && echo /new; echo end")
    assert text == "end"


def test_folders_of_the_setting_expose_are_seen_and_not_written(server, tmp_path):
    place = tmp_path / "srv/tools"
    place.mkdir(parents=True)
    (place / "list").write_text("what is kept elsewhere")
    for d in (tmp_path, tmp_path / "srv", place):
        d.chmod(0o755)
    script = f"cat {place}/list; touch {place}/made; ls {tmp_path}"
    tmp_path.parent.chmod(0o755)
    assert "kept elsewhere" not in run(server, script)[1]
    (server.data_dir / "runtimes.yaml").write_text(f"expose: [{place}, /not/there]\n")
    if os.geteuid() == 0:       # pytest's own folders are closed to others
        for d in tmp_path.parents:
            if str(d).startswith("/tmp/"):
                d.chmod(0o755)
    text = run(server, script)[1]
    assert "kept elsewhere" in text and "private" not in text and not (place / "made").exists()


def test_programs_on_the_servers_path_are_found_where_they_are(muster, tmp_path):
    tools = tmp_path / "tools/bin"
    tools.mkdir(parents=True)
    (tmp_path / "tools/lib").mkdir()
    (tmp_path / "tools/lib/word").write_text("beside it")
    (tools / "own-tool").write_text('#!/bin/sh\ncat "$(dirname "$0")/../lib/word"\n')
    (tools / "own-tool").chmod(0o755)
    for d in (tools, *tools.parents):
        if str(d).startswith("/tmp/"):
            d.chmod(0o755)
    with Server(muster, tmp_path / "data", env={"PATH": f"{os.environ['PATH']}:{tools}"}) as s:
        ended, text = run(s, "own-tool")
        assert (ended["state"], text) == ("succeeded", "beside it")


# ---------------------------------------------------------------- what cannot be kept is said

def has_groups():
    return os.geteuid() == 0 and os.access("/sys/fs/cgroup/memory", os.W_OK)


def not_kept(server):
    return [e for e in map(json.loads, (line for line in server.said().splitlines()
                                        if line.startswith("{"))) if e["event"] == "server.not_kept"]


def test_what_cannot_be_kept_for_an_ordinary_user_is_said_at_the_start_and_of_each_job(ordinary, muster):
    told = not_kept(ordinary)
    kinds = [e["what"] for e in told]
    assert "user" in kinds and len(set(kinds)) == len(kinds) and all(e["do"] for e in told)
    if os.geteuid() == 0:       # nothing was handed to that user
        assert [k for k in kinds if k != "network"] == ["memory", "cpu", "user"]
    plain, _ = run(ordinary, "true", resources={})
    asks, _ = run(ordinary, "true", resources={"cpu": 0.1, "memory": 1 << 28})
    texts = {e["what"]: e["text"] for e in told}
    assert plain["not_kept"] == [e["text"] for e in told if e["what"] not in ("memory", "cpu")]
    assert asks["not_kept"] == [e["text"] for e in told]
    shown = muster("jobs", "describe", asks["name"], env=ordinary.env).stdout
    assert all(f"not kept here: {text}\n" in shown for text in texts.values())


def test_without_groups_a_limit_of_memory_holds_for_each_process(ordinary):
    take = "python3 -c 'x = bytearray(300 << 20); print(len(x) >> 20)' || echo refused"
    assert run(ordinary, take, resources={"cpu": 0.1, "memory": 100 << 20})[1] == "refused"
    assert run(ordinary, take, resources={"cpu": 0.1, "memory": 1 << 30})[1] == "300"


@pytest.mark.skipif(not has_groups(), reason="no root, or no control groups")
def test_strict_starts_where_all_is_kept(muster, tmp_path):
    with Server(muster, tmp_path / "data", "--strict") as s:
        assert not_kept(s) == [] and run(s, "true")[0]["not_kept"] == []


def test_strict_refuses_to_start_where_something_cannot_be_kept(muster, tmp_path):
    done = muster("serve", "--strict", "--no-sandbox", "--data-dir", tmp_path / "d", "--port", 0,
                  check=False)
    assert done.returncode == 3 and "jobs run without a sandbox" in done.stderr.splitlines()[-1]
    assert "without --no-sandbox" in done.stderr


@ROOT_ONLY
def test_strict_refuses_an_ordinary_user_with_a_sentence_for_each_thing(muster, tmp_path):
    s = Ordinary(muster, tmp_path / "home/data", env={"HOME": str(tmp_path / "home")})
    with pytest.raises(AssertionError, match="exit 3"):
        s.start("--strict")
    last = s.said().splitlines()[-1]
    assert all(e["text"] in last for e in not_kept(s))
    assert {"memory", "cpu", "user"} <= {e["what"] for e in not_kept(s)}


# ---------------------------------------------------------------- user namespaces

MAKERS = """
import ctypes, errno, os, threading
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, SIGCHLD = 0x10000000, 17
def name(rc): return "made" if rc >= 0 else errno.errorcode[ctypes.get_errno()]
threading.Thread(target=print, args=("thread",), kwargs={"flush": True}).start()
print("clone3", name(libc.syscall(435, 0, 0)), flush=True)
pid = os.fork()
if pid == 0:
    print("unshare", name(libc.unshare(NEWUSER)), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
got = libc.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], NEWUSER | SIGCHLD, 0, 0, 0, 0)
if got == 0:
    os._exit(0)
print("clone", name(got))
print("setns", name(libc.setns(os.open("/proc/self/ns/user", os.O_RDONLY), 0)))
"""


@ROOT_ONLY
def test_an_ordinary_user_stops_their_own_server_and_nobody_elses(muster, tmp_path):
    with Ordinary(muster, tmp_path / "home/data", env={"HOME": str(tmp_path / "home")}) as s:
        stop = (muster.path, "serve", "--stop", "--data-dir", s.data_dir)
        other = as_user(ORDINARY + 1, *stop)
        assert other.returncode and "has stopped" not in other.stdout, other
        assert s.call("GET", "/healthz")[0] == 200
        done = as_user(ORDINARY, *stop)
        assert done.returncode == 0 and "has stopped" in done.stdout, done


@pytest.mark.parametrize("who", ["root", "ordinary"])
def test_a_job_makes_no_user_namespaces_unless_it_asks(who, request):
    s = request.getfixturevalue("server" if who == "root" else "ordinary")
    script = 'python3 -c "$MAKERS"'
    _, text = run(s, script, env={"MAKERS": MAKERS})
    assert text.splitlines() == ["thread", "clone3 ENOSYS", "unshare EPERM", "clone EPERM",
                                 "setns EINVAL"], text
    _, text = run(s, script, env={"MAKERS": MAKERS}, user_namespaces=True)
    assert {"clone3 EINVAL", "unshare made", "clone made"} <= set(text.splitlines()), text
