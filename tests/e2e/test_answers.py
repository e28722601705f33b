"""predict gives one answer for each row, in order, in every format; what cannot be read has an empty
answer with the reason. evaluate says how many rows it left out."""
import csv
import io
import json
import struct

import pytest

HEAD = "id,colour,a,b,y\n"
SPEC = """name: t
data:
  train: {{csv: {folder}/rows.csv}}
  target: y
  task: {task}
  on_error: {policy}
  features:
    a: {{numeric: {{scale: standard}}}}
    b: {{numeric: {{scale: standard}}}}
    colour: {{vocabulary: auto}}
model: {{wide_and_deep: {{hidden: [4], embedding: 2}}}}
loss: {loss}
optimizer: {{sgd: {{lr: 0.001}}}}
batch: 8
epochs: 1
"""
COLOURS = ("red", "green", "blue")


def row(i, y=True):
    return f"r{i},{COLOURS[i % 3]},{i},{i % 7}" + (f",{2 * i}" if y else ",")


@pytest.fixture(scope="module")
def trained(muster, tmp_path_factory):
    made = {}

    def get(policy, task="regression"):
        if (policy, task) not in made:
            folder = tmp_path_factory.mktemp(policy)
            lines = [row(i) for i in range(60)]
            if task == "classification":
                lines = [f"r{i},{COLOURS[i % 3]},{i},{i % 7},{'yes' if i % 2 else 'no'}"
                         for i in range(60)]
            (folder / "rows.csv").write_text(HEAD + "\n".join(lines) + "\n")
            regression = task == "regression"
            (folder / "t.yaml").write_text(SPEC.format(
                folder=folder, policy=policy, task=task,
                loss="squared_error" if regression else "bce_with_logits"))
            muster("train", folder / "t.yaml", "--out", folder / "run", "--quiet")
            made[policy, task] = folder / "run"
        return made[policy, task]

    return get


# Rows from 0; those that cannot be read, and what their reason names.
BAD = {3: "fields", 4: "fields", 10: "is not a number", 40: "has no value", 99: "fields"}


@pytest.fixture
def bad_csv(tmp_path):
    lines = [row(i) for i in range(100)]
    lines[3] = "short,row"
    lines[4] = "r4,red,4,4,8,9,10,11"
    lines[10] = "r10,red,many,3,20"
    lines[40] = "r40,red,,3,80"
    lines[99] = "r99"
    (tmp_path / "bad.csv").write_text(HEAD + "\n".join(lines) + "\n")
    return tmp_path / "bad.csv"


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def check(rows, ids=True):
    """Rows as dictionaries with value, error and id."""
    assert len(rows) == 100
    for i, r in enumerate(rows):
        if i in BAD:
            assert not r.get("value") and BAD[i] in r["error"], (i, r)
        else:
            assert r["value"] not in (None, "") and not r.get("error"), (i, r)
        if ids:
            assert (r.get("id") or "") == ("" if "fields" in BAD.get(i, "") else f"r{i}"), (i, r)


def test_every_row_has_an_answer_in_csv_and_json(muster, trained, bad_csv, tmp_path):
    run = trained("skip")
    done = muster("predict", run, "--input", bad_csv, "--id", "id")
    check(read_csv(done.stdout))
    assert "5 of 100 rows" in done.stderr and "row 4" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    done = muster("predict", run, "--input", bad_csv, "--as", "json", "--id", "id", "--id", "colour",
                  "-o", tmp_path / "answers")
    lines = [json.loads(x) for x in (tmp_path / "answers").read_text().splitlines()]
    check(lines)
    assert [x["colour"] for x in lines[:3]] == list(COLOURS) and lines[3]["colour"] is None
    check(read_csv(muster("predict", run, "--input", bad_csv).stdout), ids=False)
    # Standard input, as a pipe.
    done = muster("predict", run, "--input", "-", "--format", "csv", "--id", "id",
                  input=bad_csv.read_text())
    check(read_csv(done.stdout))


def test_every_line_of_json_and_record_of_tfrecord_has_an_answer(muster, trained, tmp_path):
    run = trained("skip")
    lines = []
    for i in range(100):
        if "fields" in BAD.get(i, ""):
            lines.append("{not json")
        else:
            a = {10: '"many"', 40: "null"}.get(i, str(i))
            lines.append(f'{{"id": "r{i}", "colour": "{COLOURS[i % 3]}", "a": {a}, "b": {i % 7}}}')
        if i % 10 == 0:
            lines.append("")            # blank lines are no rows
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    done = muster("predict", run, "--input", tmp_path / "rows.jsonl", "--id", "id")
    got = [json.loads(x) for x in done.stdout.splitlines()]
    assert [i for i, x in enumerate(got) if x["value"] is None] == sorted(BAD)
    assert [i for i, x in enumerate(got) if "error" in x] == sorted(BAD)
    assert all(x["id"] == f"r{i}" for i, x in enumerate(got) if "fields" not in BAD.get(i, ""))
    assert "line 4" in got[3]["error"] or "line 5" in got[3]["error"], got[3]

    answers = tmp_path / "answers.tfrecord"
    muster("predict", run, "--input", tmp_path / "rows.jsonl", "--id", "id", "--as", "tfrecord",
           "-o", answers)
    records = list(tfrecords(answers.read_bytes()))
    assert len(records) == 100
    for i, r in enumerate(records):
        assert (b"error" in r) == (i in BAD) and (b"\n\x05value" in r) == (i not in BAD)
        assert (f"r{i}".encode() in r) or "fields" in BAD.get(i, "")
    # Records in: these answers have no features of the model, and each gets its reason.
    done = muster("predict", run, "--input", answers, "--as", "csv", "--id", "id")
    rows = read_csv(done.stdout)
    assert len(rows) == 100 and all(r["error"] and not r["value"] for r in rows)
    assert rows[0]["id"] == "r0"


def tfrecords(data):
    at = 0
    while at < len(data):
        n = struct.unpack_from("<Q", data, at)[0]
        yield data[at + 12:at + 12 + n]
        at += 16 + n


def test_fill_answers_what_it_can_and_a_broken_row_has_its_reason(muster, trained, bad_csv):
    rows = read_csv(muster("predict", trained("fill"), "--input", bad_csv, "--id", "id").stdout)
    assert [i for i, r in enumerate(rows) if r["error"]] == [3, 4, 99]
    assert len(rows) == 100 and all(r["value"] for i, r in enumerate(rows) if i not in (3, 4, 99))


def test_the_policy_of_training_can_be_changed_for_predictions(muster, trained, bad_csv, tmp_path):
    stop = trained("stop")
    done = muster("predict", stop, "--input", bad_csv, "-o", tmp_path / "none", check=False)
    assert done.returncode == 2 and "row 4" in done.stderr and "--on-error" in done.stderr
    assert not (tmp_path / "none").exists()
    check(read_csv(muster("predict", stop, "--input", bad_csv, "--on-error", "skip", "--id",
                          "id").stdout))
    rows = read_csv(muster("predict", stop, "--input", bad_csv, "--on-error", "fill").stdout)
    assert len(rows) == 100 and [i for i, r in enumerate(rows) if r["error"]] == [3, 4, 99]
    done = muster("predict", trained("skip"), "--input", bad_csv, "--on-error", "stop", check=False)
    assert done.returncode == 2 and done.stdout == ""
    done = muster("predict", stop, "--input", bad_csv, "--on-error", "guess", check=False)
    assert done.returncode == 2 and "stop, skip or fill" in done.stderr


def test_a_model_that_stops_answers_in_the_columns_it_always_had(muster, trained, tmp_path):
    good = tmp_path / "good.csv"
    good.write_text("id,colour,a,b\n" + "\n".join(row(i, y=False)[:-1] for i in range(5)) + "\n")
    out = muster("predict", trained("stop"), "--input", good).stdout.splitlines()
    assert out[0] == "value" and len(out) == 6
    out = muster("predict", trained("stop"), "--input", good, "--id", "id", "--id", "a", "--id",
                 "id").stdout.splitlines()
    assert out[0] == "id,a,id,value" and out[3].startswith("r2,2,r2,")


def test_classes_have_empty_answers_too(muster, trained, bad_csv):
    run = trained("skip", "classification")
    rows = read_csv(muster("predict", run, "--input", bad_csv).stdout)
    assert list(rows[0]) == ["label", "probability", "p_no", "p_yes", "error"]
    for i, r in enumerate(rows):
        assert (r["label"] in ("yes", "no")) == (i not in BAD)
        assert (r["error"] == "") == (i not in BAD)
        assert i not in BAD or not (r["probability"] or r["p_no"] or r["p_yes"])
    lines = [json.loads(x) for x in muster("predict", run, "--input", bad_csv, "--as",
                                           "json").stdout.splitlines()]
    assert len(lines) == 100
    assert all((x["label"] is None) == ("error" in x) == (i in BAD) for i, x in enumerate(lines))


def test_images_that_cannot_be_read_have_empty_answers(muster, data_dir, tmp_path):
    base = data_dir / "fashion-mnist"
    (tmp_path / "t.yaml").write_text(f"""name: t
data:
  train: {{idx: [{base}/t10k-images-idx3-ubyte.gz, {base}/t10k-labels-idx1-ubyte.gz], limit: 64}}
  on_error: skip
model:
  - flatten
  - linear: 10
loss: cross_entropy
optimizer: {{sgd: {{lr: 0.01}}}}
batch: 4
epochs: 1
""")
    muster("train", tmp_path / "t.yaml", "--out", tmp_path / "run", "--quiet")
    rows = [{"n": f"i{i}", "image": [i] * 784} for i in range(6)]
    rows[1]["image"] = [300] * 784
    rows[2]["image"] = [1, 2]
    del rows[4]["image"]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\nnone\n")
    done = muster("predict", tmp_path / "run", "--input", tmp_path / "x.jsonl", "--id", "n")
    got = [json.loads(x) for x in done.stdout.splitlines()]
    assert [x["n"] for x in got] == ["i0", "i1", "i2", "i3", "i4", "i5", None]
    assert [x["label"] is None for x in got] == [False, True, True, False, True, False, True]
    assert "4 of 7 rows" in done.stderr
    done = muster("predict", tmp_path / "run", "--input", f"{base}/t10k-images-idx3-ubyte.gz", "--id",
                  "n", check=False)
    assert done.returncode == 2 and "--id" in done.stderr


def test_a_wrong_id_is_named(muster, trained, bad_csv):
    done = muster("predict", trained("skip"), "--input", bad_csv, "--id", "none", check=False)
    assert done.returncode == 4 and "none" in done.stderr
    bad_csv.write_text(bad_csv.read_text().replace("id,", "error,", 1))
    done = muster("predict", trained("skip"), "--input", bad_csv, "--id", "error", check=False)
    assert done.returncode == 2 and "rename" in done.stderr


def test_evaluate_says_how_many_rows_it_left_out(muster, trained, bad_csv):
    done = muster("evaluate", trained("skip"), "--data", bad_csv)
    assert "samples    95" in done.stdout and "left out   5" in done.stdout
    doc = json.loads(muster("evaluate", trained("skip"), "--data", bad_csv, "--json").stdout)
    assert (doc["samples"], doc["left_out"]) == (95, 5)


def test_evaluate_counts_what_the_test_set_left_out(muster, trained, bad_csv, tmp_path):
    spec = (trained("skip").parent / "t.yaml").read_text().replace(
        "  target: y", f"  test: {{csv: {bad_csv}}}\n  target: y")
    (tmp_path / "t.yaml").write_text(spec)
    muster("train", tmp_path / "t.yaml", "--out", tmp_path / "run", "--quiet")
    doc = json.loads(muster("evaluate", tmp_path / "run", "--json").stdout)
    assert (doc["samples"], doc["left_out"]) == (95, 5)


def test_a_large_file_has_as_many_answers_in_the_same_order(muster, trained, tmp_path):
    """Many blocks of rows, with wrong ones at the ends of blocks too."""
    n = 60_000
    with open(tmp_path / "large.csv", "w") as f:
        f.write(HEAD)
        for i in range(n):
            f.write(row(i) + "\n" if i % 97 else "short\n")
    done = muster("predict", trained("skip"), "--input", tmp_path / "large.csv", "--id", "id")
    rows = read_csv(done.stdout)
    assert len(rows) == n
    assert all(r["id"] == (f"r{i}" if i % 97 else "") for i, r in enumerate(rows))
    assert all(bool(r["error"]) != bool(r["value"]) for r in rows)
    assert all(f"row {i + 1:,} " in r["error"] or f"row {i + 1} " in r["error"]
               for i, r in enumerate(rows) if r["error"])
