"""What a job reaches: the world outside and its server, and nothing else of the machine that it runs on.

The machine is a network namespace with neighbours on its loopback; the world is another one, beside it. The server
runs there as root and as an ordinary user."""
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hosts import Hosts, alive, die_with_parent, free_port, wait_for
from server import Server

PROGRAMS = Path(__file__).parent / "programs"
USER = 12345

# Prints {what: how it went}.
PROBE = r"""
import json, os, socket, sys, time, urllib.request
port, name = int(sys.argv[1]), sys.argv[2]

def tcp(host, port, device=None, family=socket.AF_INET):
    s = socket.socket(family)
    s.settimeout(1.5)
    if device:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
    s.connect((host, port) if family != socket.AF_UNIX else host)
    return "reached " + s.recv(100).decode()

def udp(host, port, device):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
    s.sendto(b"by " + device, (host, port))
    return "sent"

def get(url):
    return urllib.request.urlopen(url, timeout=20).read().decode()

def own():
    with socket.create_server(("127.0.0.1", 0)) as s:
        socket.create_connection(s.getsockname()).close()
        return "fine"

probes = {
    "loopback": lambda: tcp("127.0.0.1", port),
    "loopback of IPv6": lambda: tcp("::1", port, family=socket.AF_INET6),
    "another loopback": lambda: tcp("127.0.0.53", port),
    "slirp4netns' name of the machine": lambda: tcp("10.0.2.2", port),
    "slirp4netns' resolver": lambda: tcp("10.0.2.3", port),
    "loopback by tap0": lambda: tcp("127.0.0.1", port, b"tap0"),
    "datagram to loopback by tap0": lambda: udp("127.0.0.1", port, b"tap0"),
    "abstract socket": lambda: tcp("\0" + name, 0, family=socket.AF_UNIX),
    "server": lambda: get(os.environ["MUSTER_SERVER"] + "/healthz"),
    "bucket": lambda: get(os.environ["STORAGE_EMULATOR_HOST"] + "/storage/v1/b/of-the-job/o/a%2Fb?alt=media"),
    "outside": lambda: get("http://10.77.0.2:8000/hello"),
    "outside by name": lambda: get("http://outside.test:8000/hello"),
    "IPv6 outside": lambda: tcp("2001:db8::1", 80, family=socket.AF_INET6),
    "own loopback": own,
}
said = {}
for what, probe in probes.items():
    if len(sys.argv) > 3 and what not in sys.argv[3:]:
        continue
    begin = time.time()
    try:
        said[what] = probe()
    except Exception as e:
        said[what] = "failed " + str(e)
    said[what + ": seconds"] = time.time() - begin
print(json.dumps(said))
"""


class Machine:
    """A server in network namespace 1, started as root or as somebody else, and its neighbours there."""

    def __init__(self, muster, hosts, folder, user):
        self.hosts, self.folder, self.user = hosts, folder, user
        self.port, self.name, self.log = free_port(), f"muster-test-{os.getpid()}-{user}", folder / "log"
        self.muster, self.data = folder / "muster", folder / "data"
        shutil.copy(muster.path, self.muster)
        (folder / "resolv.conf").write_text("nameserver 127.0.0.53\n")
        (folder / "hello").write_text("hello from outside")
        if user:
            shutil.chown(folder, user, user)
        self.processes = []
        self.start([*hosts.on(1), "python3", PROGRAMS / "neighbours.py", self.port, self.name, self.log], "ready")
        self.start([*hosts.on(2), "python3", "-u", "-m", "http.server", "8000", "--directory", folder], "Serving")
        # /dev/net/tun is for everybody on most systems.
        become = f"exec setpriv --reuid {user} --regid {user} --clear-groups" if user else "exec"
        prelude = (f"mount --bind {folder}/resolv.conf /etc/resolv.conf && mount -t tmpfs tmpfs /dev/net && "
                   f"mknod -m {666 if user else 600} /dev/net/tun c 10 200 && "
                   f"chmod {666 if user else 600} /dev/net/tun && "
                   f"{become} {self.muster} serve --data-dir {self.data} --port 0")
        env = {**os.environ, "HOME": str(folder)}
        self.server = self.start([*hosts.on(1), "sh", "-c", prelude], "stop ", env)
        self.said = (folder / f"said{len(self.processes)}").read_text()

    def start(self, words, until, env=None):
        said = self.folder / f"said{len(self.processes) + 1}"
        with open(said, "wb") as out:
            p = subprocess.Popen([*map(str, words)], stdout=out, stderr=subprocess.STDOUT,
                                 preexec_fn=die_with_parent, env=env)
        self.processes.append(p)
        wait_for(lambda: until in said.read_text() or p.poll() is not None, why=lambda: said.read_text())
        assert p.poll() is None, said.read_text()
        return p

    def call(self, *words, check=True, token=None):
        env = {**os.environ, "MUSTER_DATA_DIR": str(self.data), "HOME": str(self.folder)}
        if token:
            address = json.loads((self.data / "server.json").read_text())["address"]
            env |= {"MUSTER_SERVER": address, "MUSTER_TOKEN": token, "MUSTER_PROJECT": "theirs"}
        done = subprocess.run([*self.hosts.on(1), str(self.muster), *map(str, words)], text=True,
                              capture_output=True, env=env, timeout=120)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def run(self, command, *options, **more):
        """A job, submitted; its name."""
        spec = self.folder / "job.yaml"
        spec.write_text(json.dumps({"name": "j", "command": command, "resources": {"cpu": 0.1}, **more}))
        return self.call("submit", spec, *options).stdout.strip()

    def probe(self, *what, **more):
        name = self.run(["python3", "-c", PROBE, str(self.port), self.name, *what], "-f", **more)
        return json.loads(name.splitlines()[-1])

    def came(self):
        """Who came to a neighbour."""
        return self.log.read_text() if self.log.exists() else ""

    def stop(self):
        for p in reversed(self.processes):
            p.send_signal(signal.SIGTERM)
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


@pytest.fixture(scope="module")
def hosts():
    if os.geteuid() != 0:
        pytest.skip("a machine with neighbours is made by root")
    for program, package in (("ip", "iproute2"), ("setpriv", "util-linux"), ("slirp4netns", "slirp4netns")):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            pytest.skip(f"no {program} here (apt-get install {package})")
    with Hosts(2) as net:
        yield net


@pytest.fixture(scope="module", params=[0, USER], ids=["root", "user"])
def machine(request, muster, hosts):
    folder = Path(tempfile.mkdtemp(prefix="muster-net-", dir="/tmp"))
    folder.chmod(0o755)
    m = Machine(muster, hosts, folder, request.param)
    try:
        yield m
    finally:
        m.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def reached(machine):
    """What a job with the default network says of all probes."""
    machine.call("storage", "mb", "gs://of-the-job")
    file = machine.folder / "object"
    file.write_text("from the bucket")
    machine.call("storage", "cp", file, "gs://of-the-job/a/b")
    return machine.probe()


# ---------------------------------------------------------------- by default

@pytest.mark.parametrize("what", ["loopback", "loopback of IPv6", "another loopback",
                                  "slirp4netns' name of the machine", "slirp4netns' resolver", "loopback by tap0",
                                  "abstract socket"])
def test_a_job_does_not_reach_a_listener_on_its_machines_loopback(reached, what):
    assert reached[what].startswith("failed"), reached


def test_no_packet_of_a_job_comes_to_a_neighbour(machine, reached):
    assert "datagram to loopback by tap0" in reached and machine.came() == ""


def test_a_job_reaches_the_server_and_its_bucket(reached):
    assert json.loads(reached["server"])["status"] == "ok"
    assert reached["bucket"] == "from the bucket"


def test_a_job_reaches_the_world_outside(reached):
    assert reached["outside"] == "hello from outside"


def test_names_are_found_by_a_resolver_that_is_on_the_machines_loopback(reached):
    assert reached["outside by name"] == "hello from outside"


def test_what_cannot_be_reached_is_told_at_once(reached):
    assert reached["IPv6 outside"].startswith("failed") and reached["IPv6 outside: seconds"] < 2, reached
    assert reached["loopback: seconds"] < 2


def test_processes_of_a_job_talk_to_each_other_on_loopback(reached):
    assert reached["own loopback"] == "fine"


# ---------------------------------------------------------------- the other words

def test_without_network_a_job_reaches_its_own_loopback_alone(machine):
    said = machine.probe("loopback", "abstract socket", "server", "outside", "own loopback", network="none")
    assert said["own loopback"] == "fine"
    assert all(said[what].startswith("failed") for what in ("loopback", "abstract socket", "server", "outside"))


def test_a_job_of_the_owner_may_have_the_machines_network(machine):
    said = machine.probe("loopback", "server", "outside", network="host")
    assert said["loopback"] == "reached neighbour" and said["outside"] == "hello from outside"
    assert json.loads(said["server"])["status"] == "ok"
    machine.log.write_text("")


def test_a_projects_job_has_the_machines_network_where_the_table_says_so(machine):
    machine.call("project", "add", "theirs")
    token = machine.call("project", "token", "add", "--project", "theirs", "--label", "t").stdout.split()[-1]
    spec = machine.folder / "theirs.yaml"
    spec.write_text('{"name": "j", "command": ["true"], "network": "host"}')
    said = machine.call("submit", spec, token=token, check=False)
    assert said.returncode == 3 and "network: host is for" in said.stderr and "runtimes.yaml" in said.stderr, said
    table = machine.data / "runtimes.yaml"
    before = table.read_text()
    assert "network: {host: owner}" in before
    try:
        table.write_text(before.replace("{host: owner}", "{host: anyone}"))
        machine.call("submit", spec, "-f", token=token)
        table.write_text(before.replace("{host: owner}", "{host: nobody}"))
        said = machine.call("submit", spec, check=False)
        assert said.returncode == 3 and "is for no job" in said.stderr, said
    finally:
        table.write_text(before)


def test_an_unknown_word_is_told_with_the_nearest_one(machine):
    spec = machine.folder / "wrong.yaml"
    spec.write_text('{"name": "j", "command": ["true"], "network": "outsid"}')
    said = machine.call("submit", spec, check=False)
    assert said.returncode and "outside" in said.stderr, said.stderr
    spec.write_text('{"name": "j", "command": ["true"]}')
    said = machine.call("submit", spec, "--network", "hosts", check=False)
    assert said.returncode and 'did you mean "host"' in said.stderr, said.stderr


# ---------------------------------------------------------------- where it cannot be had

def test_a_machine_without_slirp4netns_says_so_and_strict_refuses(muster, tmp_path):
    env = {"PATH": str(tmp_path)}           # no slirp4netns there, nor anything else
    with Server(muster, tmp_path / "data", env=env) as s:
        assert "slirp4netns is not installed" in s.said()
        job = submit(s, "told", ["/bin/cat", "/proc/net/dev"])
        s.reach("told", "succeeded")
        said = log_of(s, "told")
        assert "slirp4netns is not installed" in said[0] and not [t for t in said if "tap0" in t]
        assert "slirp4netns" in json.dumps(s.json("GET", "/api/jobs/default/told")), job
        submit(s, "alone", ["/bin/cat", "/proc/net/dev"], network="none")
        s.reach("alone", "succeeded")
        assert "slirp4netns" not in "".join(log_of(s, "alone"))
    refused = muster("serve", "--data-dir", tmp_path / "data", "--port", "0", "--strict", env=env, check=False)
    assert refused.returncode and "slirp4netns" in refused.stderr, refused


# ---------------------------------------------------------------- nothing is left

def slirps(keeper):
    """slirp4netns processes of a keeper, or of all."""
    found = []
    for p in Path("/proc").glob("[0-9]*"):
        try:
            if (p / "comm").read_text() == "slirp4netns\n" and alive(int(p.name)):
                found.append((int(p.name), int((p / "stat").read_text().rsplit(")", 1)[1].split()[1])))
        except OSError:
            pass
    return [pid for pid, parent in found if parent == keeper]


def test_kill_9_of_a_keeper_leaves_no_slirp4netns(machine):
    name = machine.run(["sleep", "1000"])
    job = json.loads(machine.call("jobs", "describe", name, "--json").stdout)
    lock = machine.data / f"jobs/{job['uid']}/1/lock"
    wait_for(lambda: lock.exists() and "running" in lock.read_text())
    keeper = int(lock.read_text().split()[0])
    helper = wait_for(lambda: slirps(keeper))
    assert len(helper) == 1
    status = Path(f"/proc/{helper[0]}/status").read_text()
    assert f"Uid:\t{machine.user or 1870000000 + keeper}\t" in status, status     # never root
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not alive(helper[0]), seconds=10, why="slirp4netns is still there")


# ---------------------------------------------------------------- the server's way in

WAITS = """
import os, time, urllib.request
open("began", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print(urllib.request.urlopen(os.environ["MUSTER_SERVER"] + "/healthz", timeout=60).read().decode())
"""


def outside_here(server):
    if "share this machine's network" in server.said():
        pytest.skip(server.said())


def submit(server, name, command, **more):
    return server.json("POST", "/api/jobs", {"name": name, "spec": {
        "kind": "command", "command": command, "resources": {"cpu": 0.1}, **more}})


def log_of(server, name):
    lines = server.json("GET", f"/api/jobs/default/{name}/logs")["lines"]
    return [line["text"] for line in lines]


def test_a_job_reaches_a_server_that_came_back_on_another_port(server):
    outside_here(server)
    before = server.port
    job = submit(server, "waits", ["python3", "-c", WAITS])
    wait_for(lambda: (server.work(job) / "began").exists())
    server.kill()
    (server.work(job) / "go").touch()           # it connects while there is no server at all
    time.sleep(0.3)
    server.start()
    assert server.port != before and (server.data_dir / "way").is_socket()
    server.reach("waits", "succeeded")
    assert '"status":"ok"' in log_of(server, "waits")[-1]
    server.stop()
    assert not (server.data_dir / "way").exists()       # what is copied then holds no socket


def test_a_job_reaches_a_server_with_tls_by_its_name(muster, tmp_path):
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                           "/CN=localhost", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
                          capture_output=True) if shutil.which("openssl") else None
    if not made or made.returncode:
        pytest.skip("no openssl to make a certificate with")
    code = ("import os, ssl, urllib.request\n"
            "print(urllib.request.urlopen(os.environ['MUSTER_SERVER'] + '/healthz', timeout=60, "
            "context=ssl._create_unverified_context()).read().decode())")
    with Server(muster, tmp_path / "data", "--listen", "0.0.0.0", "--name", "localhost", "--tls-cert",
                tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem") as s:
        outside_here(s)
        assert s.address.startswith("https://localhost:")
        s.call = unverified(s.call)
        submit(s, "tls", ["python3", "-c", code])
        s.reach("tls", "succeeded")
        assert '"status":"ok"' in log_of(s, "tls")[-1]


def unverified(call):
    def inner(*args, **kw):
        context, ssl._create_default_https_context = ssl._create_default_https_context, ssl._create_unverified_context
        try:
            return call(*args, **kw)
        finally:
            ssl._create_default_https_context = context
    return inner
