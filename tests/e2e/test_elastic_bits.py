"""One digest, whoever computes: any number of workers, any instruction set, over shared memory or
TCP, every example. What is compared is a run in one process with one thread."""
import json
import platform

import pytest
from hosts import LENET, TOKEN, Job, Process, chain, free_port, held

EXAMPLES = {
    "fit-a-line": ("examples/fit-a-line/train.yaml", ["epochs=3"], 3),
    "fashion-lenet": ("examples/fashion-lenet/train.yaml",
                      ["epochs=1", "limit=400", "data.test.limit=100"], 2),
    "fashion-convblock": ("examples/fashion-convblock/train.yaml",
                          ["epochs=1", "limit=416", "data.test.limit=80"], 3),
    "taxi-tabular": ("examples/taxi-tabular/train.yaml", ["epochs=2", "limit=1500"], 2),
    "dropout-batchnorm": ("tests/e2e/specs/dropout-batchnorm.yaml",
                          ["limit=250", "data.test.limit=50"], 3),
}
# Many steps, the last of them short, of a network of which a step is much work.
CONVBLOCK = ["epochs=1", "batch=32", "limit=1300", "data.test.limit=80"]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8])
def test_digest_does_not_depend_on_how_many_workers(workers, muster, lenet, alone, tmp_path):
    with Job(muster, lenet, tmp_path / "run", f"{workers}..{workers}", changes=LENET) as job:
        assert job.digest() == alone(lenet, LENET)
        assert chain(job.out) == alone.chain(lenet, LENET)
        assert len(job.history("go")[0]["workers"]) == workers


def test_workers_beyond_the_shards_stand_by(muster, lenet, alone, tmp_path):
    changes = LENET[:-1] + ["batch=4"]
    with Job(muster, lenet, tmp_path / "run", "6..6", changes=changes, pace=100) as job:
        job.wait_team(6)
        shards = [(w["from"], w["to"]) for w in job.status()["workers"]]
        assert shards == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4), (4, 4)]
        assert job.digest() == alone(lenet, changes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_one_digest(name, muster, root, alone, tmp_path):
    spec, changes, workers = EXAMPLES[name]
    with Job(muster, root / spec, tmp_path / "run", f"{workers}..{workers}", changes=changes) as job:
        assert job.digest() == alone(root / spec, changes)
        assert chain(job.out) == alone.chain(root / spec, changes)


def test_tests_and_losses_are_those_of_one_process(muster, root, tmp_path):
    """Every line of metrics.jsonl, but for the speed, and the chain that one process does not keep."""
    spec, changes, workers = EXAMPLES["dropout-batchnorm"]
    words = ["--log-every", "1"]
    muster("train", root / spec, "--out", tmp_path / "alone", "--quiet", *words,
           *(w for c in changes for w in ("--set", c)))

    def lines(out):
        return [{k: v for k, v in json.loads(line).items() if k not in ("samples_per_s", "chain")}
                for line in (out / "metrics.jsonl").read_text().splitlines()]

    with Job(muster, root / spec, tmp_path / "run", workers, *words, changes=changes) as job:
        assert job.end() == 0, job.said
    assert lines(tmp_path / "run") == lines(tmp_path / "alone")


def team_by_hand(muster, spec, out, hands, changes, env=None):
    """A job of one worker of its own, and others who wait for it before it is there: `hands` are
    (environment, words). Its few steps are slow until the caller asks for the digest."""
    address, until, pace = f"127.0.0.1:{free_port()}", out.with_name("lifted"), 4
    waiting = [Process(muster, "worker", "--join", address, "--listen", "127.0.0.1:0", spec,
                       *words, *(w for c in changes for w in ("--set", c)),
                       env={"MUSTER_TOKEN": TOKEN, **held(pace, until), **own})
               for own, words in hands]
    job = Job(muster, spec, out, 1, "--listen", address, changes=changes, pace=pace, until=until,
              env=env)
    job.hands += waiting
    return job


def isa_here(isa, muster, root, tmp_path):
    out = tmp_path / f"is-{isa}"
    muster("train", root / "examples/fit-a-line/train.yaml", "--out", out, "--quiet", "--set",
           "epochs=1", env={"MUSTER_ISA": isa})
    return json.loads((out / "run.json").read_text())["isa"] == isa


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86")
@pytest.mark.parametrize("name", ["fashion-lenet", "fashion-convblock", "dropout-batchnorm"])
def test_instruction_sets_mix_in_one_job(name, muster, root, alone, tmp_path):
    sets = [isa for isa in ("avx512", "avx2", "scalar") if isa_here(isa, muster, root, tmp_path)]
    if len(sets) < 2:
        pytest.skip(f"this machine has {sets} alone")
    spec = root / EXAMPLES[name][0]
    changes = {"fashion-lenet": LENET, "fashion-convblock": CONVBLOCK}.get(
        name, ["limit=480", "data.test.limit=50"])
    with team_by_hand(muster, spec, tmp_path / "run", [({"MUSTER_ISA": s}, []) for s in sets[1:]],
                      changes, {"MUSTER_ISA": sets[0]}) as job:
        job.wait_team(len(sets))
        assert job.digest() == alone(spec, changes)
        assert [hand.end() for hand in job.hands] == [0] * (len(sets) - 1)


@pytest.mark.parametrize("name, more", [("fashion-lenet", []), ("fashion-convblock", []),
                                        ("fashion-convblock", ["clip.norm=1"])])
def test_tcp_workers_beside_those_of_shared_memory(name, more, muster, root, alone, tmp_path):
    """ConvBlock has a layer that is split between workers; clipped, it sends all of its gradient,
    most of it while it still computes."""
    spec = root / EXAMPLES[name][0]
    changes = (LENET if name == "fashion-lenet" else CONVBLOCK) + more
    with team_by_hand(muster, spec, tmp_path / "run", [({}, ["--tcp"]), ({}, ["--tcp"]), ({}, [])],
                      changes) as job:
        job.wait_team(4)
        assert job.digest() == alone(spec, changes)
        assert [hand.end() for hand in job.hands] == [0, 0, 0], [h.said for h in job.hands]


def test_a_worker_takes_its_spec_from_the_job(muster, lenet, alone, tmp_path):
    with Job(muster, lenet, tmp_path / "run", 1, changes=LENET, pace=30) as job:
        hand = job.join()
        job.wait_team(2)
        assert job.digest() == alone(lenet, LENET)
        assert hand.end() == 0, hand.said
