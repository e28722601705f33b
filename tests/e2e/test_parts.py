"""A worker reads its own rows alone: from its files, by ranges of a URL, from the job. Whoever
reads what, the model is that of one process that read everything; other data is refused."""
import gzip
import os
import random
import signal
import struct

import pytest
from hosts import Job, settings, wait_for
from test_http_data import Server

ROWS, TESTS, SIDE = 92, 12, 320         # 100 KB a row
SLOW, CRAWL = 4, 1                      # steps a second, until the pace is lifted
SPEC = """name: parts
data:
  train: {{idx: [{at}train-images, {at}train-labels]}}
  test: {{idx: [{at}test-images, {at}test-labels]}}
  scale: {{mean: 0.5, std: 0.5}}
model: [{{avgpool: 8}}, flatten, {{linear: 64}}, relu, {{linear: 10}}]
loss: cross_entropy
optimizer: {{sgd: {{lr: 0.01, momentum: 0.9}}}}
batch: 8
seed: 3
test: {{every: 4 steps}}
"""
ONE, TEN = ["epochs=1"], ["epochs=10"]  # of 12 steps


def idx(dims, rows):
    return struct.pack(f">4B{len(dims)}I", 0, 0, 8, len(dims), *dims) + rows


def put(folder, files, at=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "spec.yaml").write_text(SPEC.format(at=at))
    return folder / "spec.yaml"


@pytest.fixture(scope="module")
def large():
    """Images of 100 KB, in files that are not packed."""
    r, files = random.Random(1), {}
    for part, n in (("train", ROWS), ("test", TESTS)):
        files[f"{part}-images"] = idx((n, SIDE, SIDE), r.randbytes(n * SIDE * SIDE))
        files[f"{part}-labels"] = idx((n,), bytes(r.randrange(10) for _ in range(n)))
    return files


@pytest.fixture(scope="module")
def spec(large, tmp_path_factory):
    return put(tmp_path_factory.mktemp("large"), large)


def parts_read(job):
    """Of the training file, by each worker that does not test, in the order of the list."""
    return [(w["to"] - w["from"], w["bytes_read"]) for w in job.status()["workers"][1:]]


def test_two_workers_read_half_each_from_their_files(muster, spec, alone, large, tmp_path):
    """What the last steps of the epoch want is there after the third one."""
    size = len(large["train-images"])
    with Job(muster, spec, tmp_path / "run", "2..2", changes=ONE, pace=CRAWL) as job:
        job.wait_team(2)
        wait_for(lambda: parts_read(job)[0][1] > 0.4 * size, why=job.story)
        (shards, read), = parts_read(job)
        assert shards == 4 and read < 0.6 * size
        assert job.digest() == alone(spec, ONE)


def test_kills_and_joins_change_no_bit(muster, spec, alone, large, tmp_path):
    """One of those who join has no files: its rows come from the job."""
    bare = put(tmp_path / "bare", {})
    with Job(muster, spec, tmp_path / "run", 2, changes=TEN, pace=SLOW) as job:
        job.wait_team(2)
        hand = job.join(bare, *settings(TEN), env={"MUSTER_DATA": str(tmp_path / "cache/data")})
        job.wait_team(3)
        os.kill(job.pids()[0], signal.SIGKILL)
        job.wait_event("join", 4)
        wait_for(lambda: [w for w in job.status()["workers"] if w["pid"] == hand.pid and
                          w["bytes_read"] > 3 * SIDE * SIDE], why=job.story)
        assert job.digest() == alone(spec, TEN)
        assert hand.end() == 0, hand.said
    fetched = {p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()}
    assert fetched == {"train-labels", "test-labels"}


def test_ranges_of_a_url_are_those_of_the_rows(muster, spec, alone, large, tmp_path):
    size = len(large["train-images"]) + len(large["test-images"])
    server = Server(large)
    url = put(tmp_path / "url", {}, f"{server.base}/good/")
    with Job(muster, url, tmp_path / "run", "2..2", changes=ONE) as job:
        assert job.digest() == alone(spec, ONE)
    server.shutdown()
    sent = sum(min(int(last), size) - int(first) + 1 for r in server.seen if "images" in r["path"]
               for first, last in [r["range"].removeprefix("bytes=").split("-")]
               if int(last) - int(first) + 1 < 4 << 20)     # the one who starts the job reads all
    assert 0.9 * size < sent < 1.5 * size
    assert all(r["if_range"] == '"one"' for r in server.seen if r["range"][:8] != "bytes=0-")


def test_small_rows_have_the_digest_that_they_have_packed(muster, lenet, data_dir, alone, tmp_path):
    names = {"train": "train", "test": "t10k"}
    files = {}
    for part, name in names.items():
        at = data_dir / "fashion-mnist"
        images = gzip.open(at / f"{name}-images-idx3-ubyte.gz").read(16 + 784 * 400)
        labels = gzip.open(at / f"{name}-labels-idx1-ubyte.gz").read(8 + 400)
        files[f"{part}-images"] = idx((400, 28, 28), images[16:])
        files[f"{part}-labels"] = idx((400,), labels[8:])
    put(tmp_path / "plain", files)
    changes = ["epochs=2", "limit=400", "data.test.limit=100", "batch=8"]
    where = [f"data.{part}.idx=[{tmp_path}/plain/{part}-images, {tmp_path}/plain/{part}-labels]"
             for part in names]
    with Job(muster, lenet, tmp_path / "run", "3..3", changes=[*changes, *where]) as job:
        assert job.digest() == alone(lenet, changes)


def test_who_has_other_rows_takes_no_part(muster, spec, alone, large, tmp_path):
    """The same length, other bytes: told by the first of them that is looked at."""
    images = large["train-images"]
    images = images[:16] + bytes(len(images) - 16)
    wrong = put(tmp_path / "wrong", {**large, "train-images": images})
    with Job(muster, spec, tmp_path / "run", 1, changes=TEN, pace=SLOW) as job:
        job.wait_team(1)
        hand = job.join(wrong, *settings(TEN))
        assert hand.end() and "are not those of the job's file" in hand.said
        assert len(hand.said.splitlines()) == 1, hand.said
        assert job.wait_event("unable")["why"] in hand.said
        assert job.digest() == alone(spec, TEN)


def test_a_file_that_changes_under_the_job_is_told_in_a_sentence(muster, large, tmp_path):
    """Whoever is left needs the rows of those who are not, and nobody has read them."""
    mine = put(tmp_path / "mine", large)
    with Job(muster, mine, tmp_path / "run", 2, changes=TEN, pace=SLOW) as job:
        job.wait_team(2)
        with open(tmp_path / "mine/train-images", "r+b") as f:
            f.seek(16)
            f.write(bytes(len(large["train-images"]) - 16))
        job.lift()
        assert job.end() != 0
        assert "train-images: its rows from " in job.said, job.said
        assert "(it was changed: put it back, or start the job again)" in job.said
