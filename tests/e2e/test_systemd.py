"""The units under a real systemd: a manager of its own in namespaces of its own, with a journal;
nothing of the machine's is touched. Needs root, systemd's programs and a control group for it."""
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

MANAGER = "/lib/systemd/systemd"
JOURNAL = "/lib/systemd/systemd-journald"
UNITS = Path(__file__).resolve().parents[2] / "server"
LINK_UP = ("import fcntl, socket, struct; "
           "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))")
INSIDE = f"""
mount --make-rprivate / && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/log || exit 1
mkdir -p /run/systemd/system /run/log/journal "$XDG_RUNTIME_DIR" && chmod 700 "$XDG_RUNTIME_DIR"
"$PYTHON" -c "{LINK_UP}"
{JOURNAL} &
{MANAGER} --user --unit=basic.target
"""


def wait_until(what, seconds=120):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def groups():
    """Where a manager may have control groups of its own, for each hierarchy that it looks at."""
    top = Path("/sys/fs/cgroup")
    mounted = [top / name for name in ("systemd", "unified")]
    mounted = [d for d in mounted if (d / "cgroup.procs").exists()]
    return mounted or ([top] if (top / "cgroup.procs").exists() else [])


class Manager:
    def __init__(self, folder):
        self.units = folder / "config/systemd/user"
        self.units.mkdir(parents=True)
        self.env = {**os.environ, "PYTHON": sys.executable, "HOME": str(folder),
                    "XDG_RUNTIME_DIR": "/run/manager", "XDG_CONFIG_HOME": str(folder / "config"),
                    "XDG_DATA_HOME": str(folder),
                    "SYSTEMD_UNIT_PATH": f"{self.units}:/usr/lib/systemd/user"}
        for name in ("MUSTER_DATA_DIR", "MUSTER_SERVER", "MUSTER_TOKEN", "XDG_STATE_HOME"):
            self.env.pop(name, None)
        self.groups = [g / f"muster-test-{os.getpid()}" for g in groups()]
        self.process = None

    def __enter__(self):
        def join():
            for g in self.groups:
                g.mkdir()
                (g / "cgroup.procs").write_text("0")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", INSIDE], env=self.env, preexec_fn=join, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for g in self.groups:                   # what was in them is being ended
            def removed():
                for d in sorted([p for p in g.rglob("*") if p.is_dir()], reverse=True) + [g]:
                    try:
                        d.rmdir()
                    except OSError:
                        return False
                return True
            wait_until(removed)

    def run(self, *args):
        """Inside."""
        pid = self.process.pid
        inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        at = ["nsenter", "--target", inner[0], "--mount", "--pid", "--net"] if inner else ["false"]
        return subprocess.run([*at, *map(str, args)], env=self.env, text=True, timeout=120,
                              capture_output=True)

    def systemctl(self, *args):
        return self.run("systemctl", "--user", *args).stdout.strip()

    def is_up(self):
        """False: this machine does not let one run."""
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            if self.systemctl("is-active", "basic.target") == "active":
                return True
            time.sleep(0.02)
        return False

    def journal(self):
        lines = self.run("journalctl", "--output=json", "--identifier=muster").stdout.splitlines()
        return [json.loads(line)["MESSAGE"] for line in lines]


@pytest.mark.skipif(os.geteuid() != 0 or not groups(), reason="no root, or no control groups")
@pytest.mark.skipif(not all(map(os.path.exists, (MANAGER, JOURNAL))), reason="no systemd")
@pytest.mark.skipif(not all(map(shutil.which, ("unshare", "nsenter"))), reason="no util-linux")
def test_the_units_under_systemd(muster, tmp_path):
    with Manager(tmp_path) as m:
        service = (UNITS / "muster.service.in").read_text()
        (m.units / "muster.service").write_text(service.replace("@bindir@/muster", muster.path))
        (m.units / "muster.socket").write_text((UNITS / "muster.socket").read_text())
        if not m.is_up():
            pytest.skip("a systemd of its own does not run here")
        data = tmp_path / "muster"

        def jobs():
            done = m.run(muster.path, "jobs", "list", "--json")
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        # The socket alone: the first request starts the server, which says when it is ready.
        m.systemctl("start", "muster.socket")
        assert m.systemctl("is-active", "muster.socket") == "active"
        assert m.systemctl("is-active", "muster.service") == "inactive"
        ask = ("import urllib.request as u; "
               "print(u.urlopen('http://127.0.0.1:8470/healthz').read())")
        assert "ok" in m.run(sys.executable, "-c", ask).stdout
        wait_until(lambda: m.systemctl("is-active", "muster.service") == "active")

        # A restart leaves a job alone.
        (tmp_path / "job.yaml").write_text(
            "name: long\ncommand: [sh, -c, 'until [ -e go ]; do sleep 0.1; done']\n")
        assert m.run(muster.path, "submit", tmp_path / "job.yaml").returncode == 0
        wait_until(lambda: jobs()[0]["state"] == "running")
        before = m.systemctl("show", "--property=MainPID", "muster.service")
        m.systemctl("restart", "muster.service")
        after = m.systemctl("show", "--property=MainPID", "muster.service")
        assert after not in (before, "MainPID=0")
        assert jobs()[0]["state"] == "running"
        (data / f"jobs/{jobs()[0]['uid']}/1/work/go").touch()
        wait_until(lambda: jobs()[0]["state"] == "succeeded")
        assert jobs()[0]["attempt"] == 1

        # It ends when it is told to; its log is in the journal, its token is not.
        m.systemctl("stop", "muster.service")
        wait_until(lambda: m.systemctl("is-active", "muster.service") == "inactive")
        assert m.systemctl("show", "--property=Result", "muster.service") == "Result=success"
        wait_until(lambda: any("server.stopped" in line for line in m.journal()))
        said = [json.loads(line)["event"] for line in m.journal() if line.startswith("{")]
        assert said.count("server.started") == 2 and said.count("server.stopped") == 2
        assert (data / "token").read_text().strip() not in "\n".join(m.journal())

        # And starts again when somebody asks: muster's own commands find it, too.
        assert jobs()[0]["state"] == "succeeded"
