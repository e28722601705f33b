"""Workers on three hosts, of which packets are lost, delayed and cut off: one digest.

A host is a network namespace. The workers use TCP alone (--tcp): by their boot id they would find that
they are on one machine after all."""
import os
import shutil
import time

import pytest
from hosts import LENET, Hosts, Job, chain, wait_for

LONG = ["epochs=10", *LENET[1:]]
SLOW = 10               # steps a second: half a minute, unless the pace is lifted


@pytest.fixture
def hosts():
    for program, package in (("nft", "nftables"), ("ip", "iproute2"), ("unshare", "util-linux")):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            pytest.skip(f"no {program} here (apt-get install {package})")
    try:
        net = Hosts(3)
    except OSError as e:
        pytest.skip(f"no network namespaces here (they need root, or user namespaces): {e}")
    with net:
        yield net


def start(muster, spec, out, hosts, changes, pace, *words):
    """A job on host 1 that others may join, and a worker on each of the two other hosts."""
    job = Job(muster, spec, out, 1, "--listen", f"{hosts.address(1)}:0", *words, changes=changes,
              pace=pace, inside=hosts.on(1))
    for i in (2, 3):
        job.join("--tcp", inside=hosts.on(i))
    return job


def wait_all(job):
    """Until the last list has all three again."""
    wait_for(lambda: len(job.history("go")[-1]["workers"]) == 3, why=job.story)


def test_three_hosts_with_loss_and_delay(muster, lenet, alone, hosts, tmp_path):
    for i in (1, 2, 3):
        hosts.lose(i, 1)
    hosts.delay(3, 10)
    with start(muster, lenet, tmp_path / "run", hosts, LENET, 30) as job:
        job.wait_team(3)
        assert job.digest() == alone(lenet, LENET)
        assert chain(job.out) == alone.chain(lenet, LENET)
        assert [hand.end() for hand in job.hands] == [0, 0], [hand.said for hand in job.hands]
        addresses = {h["address"].split(":")[0] for h in job.history("join")}
        assert addresses == {hosts.address(i) for i in (1, 2, 3)}
    assert sum(hosts.lost(i) for i in (1, 2, 3)) > 0


def test_a_host_that_is_cut_off_comes_back(muster, lenet, alone, hosts, tmp_path):
    """By TLS, which must not hide it."""
    with start(muster, lenet, tmp_path / "run", hosts, LONG, SLOW, "--tls") as job:
        job.wait_team(3)
        joins = len(job.history("join"))
        hosts.cut(3)
        job.wait_event("lost")
        before = job.history("go")[-1]["step"]
        time.sleep(1)
        hosts.heal(3)
        back = job.wait_event("join", joins + 1)
        assert back["address"].startswith(f"tls:{hosts.address(3)}:")
        wait_for(lambda: job.history("go")[-1]["step"] > before, why=job.story)
        assert job.digest() == alone(lenet, LONG)
        assert chain(job.out) == alone.chain(lenet, LONG)
        assert [hand.end() for hand in job.hands] == [0, 0], [hand.said for hand in job.hands]
        assert job.history("go")[-1]["step"] > before, "it went on meanwhile"


def test_two_hosts_that_cannot_reach_each_other_do_not_stop_the_job(muster, lenet, alone, hosts,
                                                                     tmp_path):
    """Both reach the coordinator: one of the two is left out, and comes back when it can."""
    with start(muster, lenet, tmp_path / "run", hosts, LONG, SLOW) as job:
        job.wait_team(3)
        hosts.drop(2, f"ip saddr {hosts.address(3)}", "wall")
        job.wait_event("lost")
        wait_for(lambda: len(job.history("go")[-1]["workers"]) == 2, why=job.story)
        hosts.rules(2, "delete table inet wall")
        wait_all(job)
        assert job.digest() == alone(lenet, LONG)
        assert chain(job.out) == alone.chain(lenet, LONG)


def test_the_coordinators_host_is_cut_off_and_nothing_is_done_again(muster, lenet, alone, hosts,
                                                                     tmp_path):
    """The workers elsewhere lose it, and are the ones with the state when it is back."""
    with start(muster, lenet, tmp_path / "run", hosts, LONG, SLOW) as job:
        job.wait_team(3)
        hosts.cut(1)
        time.sleep(3)
        hosts.heal(1)
        wait_all(job)
        assert job.digest() == alone(lenet, LONG)
        assert chain(job.out) == alone.chain(lenet, LONG)
