"""A size that was asked for holds for those, too, who were away when it was asked."""
import os
import signal

import pytest
from hosts import LENET, Alone, Job, chain

CHANGES = ["epochs=15", *LENET[1:]]


@pytest.fixture
def job(muster, root, tmp_path):
    job = Job(muster, root / "examples/fashion-lenet/train.yaml", tmp_path / "run", "1..3",
              changes=CHANGES, pace=40)
    yield job
    job.__exit__()


@pytest.fixture(scope="module")
def alone(muster, tmp_path_factory):
    return Alone(muster, tmp_path_factory.mktemp("alone"))


def check_two_stay(job, root, alone):
    job.wait_children(3)
    job.wait_team(2)
    lenet = root / "examples/fashion-lenet/train.yaml"
    assert job.digest() == alone(lenet, CHANGES)
    assert chain(job.out) == alone.chain(lenet, CHANGES)
    assert len(job.history("go")[-1]["workers"]) == 2


def test_a_worker_that_slept_through_it_goes(muster, root, job, alone):
    job.wait_team(3)
    pid = job.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    job.wait_event("lost")
    muster("resize", job.out, "1..2")
    os.kill(pid, signal.SIGCONT)
    check_two_stay(job, root, alone)


def test_workers_that_come_back_are_no_more_than_asked(muster, root, job, alone):
    job.wait_team(3)
    muster("resize", job.out, "1..3")
    os.kill(job.coordinator(), signal.SIGKILL)
    muster("resize", job.out, "1..2")   # heard by the next one, perhaps before they are back
    job.wait_event("start", 2)
    check_two_stay(job, root, alone)
