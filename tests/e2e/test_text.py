"""Text is checked when it is read, and saving is tried before the first step: what can be found at
the start does not cost a trained model at the end."""
import json
import os
import struct
import subprocess

import pytest

SPEC = """name: t
data:
  train: {{{kind}: {file}}}
  target: x
  features:
    city: {{vocabulary: auto}}
model:
  wide_and_deep: {{hidden: [4], embedding: 2}}
loss: squared_error
optimizer: {{sgd: {{lr: 0.1}}}}
batch: 4
epochs: 1
{more}"""
ROWS = [("München", 1), ("Köln", 2)] * 20


def table(rows=ROWS, names="city,x"):
    return names + "\n" + "".join(f"{a},{b}\n" for a, b in rows)


def lines(rows=ROWS):
    return "".join(json.dumps({"city": a, "x": b}, ensure_ascii=False) + "\n" for a, b in rows)


@pytest.fixture
def train(muster, tmp_path):
    """train(bytes, kind) -> what was said, after a check of the exit code; the run's folder."""
    def go(data, kind="csv", code=2, more="", words=()):
        file = tmp_path / f"rows.{kind}"
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        (tmp_path / "t.yaml").write_text(SPEC.format(kind=kind, file=file, more=more))
        done = muster("train", tmp_path / "t.yaml", "--out", tmp_path / "run", "-q", *words, check=False)
        assert done.returncode == code, (done.returncode, done.stderr)
        assert len(done.stderr.splitlines()) == (code != 0), done.stderr
        assert code == 0 or not (tmp_path / "run/metrics.jsonl").exists()       # no step was done
        return done.stderr
    return go


def test_latin1_is_refused_before_the_first_step_with_file_line_column_and_the_way_out(train, tmp_path):
    said = train(table().encode("latin-1"))
    assert f'{tmp_path}/rows.csv: row 1 (line 2), column "city": "M\\xfcnchen" is not UTF-8' in said
    assert "iconv -f latin1 -t utf-8" in said
    said = train((table([("Bonn", 1)] * 30000) + 'x,1\n"a\nb\xe9",2\n').encode("latin-1"))
    assert "row 30,002 (line 30,003)" in said and "\\xe9" in said
    said = train(lines().encode("latin-1"), "json")
    assert "row 1" in said and '"city" is not UTF-8: byte 2 is 0xfc' in said
    said = train(table(names="stra\xdfe,x").encode("latin-1"))
    assert "rows.csv:1: the name of column 1 is not UTF-8: byte 5 is 0xdf" in said


def test_two_fields_do_not_make_one_character(train):
    """The halves of an ä at the end of one field and at the start of the next."""
    rows = "city,x\n" + "a,1\n" * 3
    assert "row 4" in train(rows.encode() + b"a\xc3,1\n\xa4b,2\n")


def test_a_column_that_nobody_reads_may_have_any_bytes(train):
    train(b"city,x,note\n" + b"a,1,\xfc\nb,2,\xff\xfe\n" * 20, code=0)


def test_utf16_and_utf32_are_named(train):
    for encoding, name in (("utf-16", "UTF-16LE"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"),
                           ("utf-32", "UTF-32LE")):
        assert f"is {name}; only UTF-8 is read (iconv -f {name}" in train(table().encode(encoding))
        if encoding != "utf-32":
            assert f"is {name}" in train(lines().encode(encoding), "json")


def test_a_utf8_byte_order_mark_is_no_part_of_the_first_name(train, tmp_path):
    train(b"\xef\xbb\xbf" + table().encode(), code=0)
    assert "München" in (tmp_path / "run/model.json").read_text()


def test_zero_bytes_and_half_surrogates_are_no_text(train):
    assert "has a zero byte at byte 2" in train(b"city,x\na\0b,1\nc,2\n")
    assert "zero byte" in train('{"city": "a\\u0000", "x": 1}\n' * 9, "json")
    assert "half of a surrogate pair" in train('{"city": "a\\ud83d", "x": 1}\n' * 9, "json")
    train('{"city": "a\\ud83d\\ude00", "x": 1}\n{"city": "b", "x": 2}\n' * 9, "json", code=0)


def test_bytes_of_a_tf_example_that_are_used_as_text_are_checked(muster, train, tmp_path):
    """A record with the features city (bytes) and x (float), by hand."""
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    def record(city):
        kinds = {b"city": field(1, field(1, city)), b"x": field(2, field(1, struct.pack("<f", 1)))}
        features = b"".join(field(1, field(1, k) + field(2, v)) for k, v in kinds.items())
        return field(1, features)

    table_ = [0] * 256
    for i in range(256):
        c = i
        for _ in range(8):
            c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
        table_[i] = c

    def crc(data):
        c = 0xffffffff
        for byte in data:
            c = table_[(c ^ byte) & 255] ^ c >> 8
        c ^= 0xffffffff
        return struct.pack("<I", ((c >> 15 | c << 17) + 0xa282ead8) & 0xffffffff)

    def frame(data):
        head = struct.pack("<Q", len(data))
        return head + crc(head) + data + crc(data)

    good, bad = record("Köln".encode()), record("Köln".encode("latin-1"))
    said = train(frame(good) * 5 + frame(bad), "tfrecord")
    assert "row 6" in said and '"city" is not UTF-8: byte 2 is 0xf6' in said


def test_a_spec_in_another_encoding_is_named(muster, tmp_path):
    text = SPEC.format(kind="csv", file="rows.csv", more="labels: [ä]\n")
    for encoding, words in (("latin-1", "iconv -f latin1"), ("utf-16", "It is UTF-16LE")):
        (tmp_path / "t.yaml").write_bytes(text.encode(encoding))
        done = muster("train", tmp_path / "t.yaml", check=False)
        assert done.returncode == 2 and "not UTF-8" in done.stderr and words in done.stderr


def test_a_folder_whose_name_is_not_utf8_is_found_before_the_first_step(muster, tmp_path):
    folder = os.fsencode(tmp_path) + b"/verz\xfc"
    os.mkdir(folder)
    with open(folder + b"/rows.csv", "w") as f:
        f.write(table())
    with open(folder + b"/t.yaml", "w") as f:
        f.write(SPEC.format(kind="csv", file="rows.csv", more=""))
    done = subprocess.run([muster.path, "train", folder + b"/t.yaml", "--out", tmp_path / "run", "-q"],
                          capture_output=True)
    assert done.returncode == 2 and b"not UTF-8 (rename it)" in done.stderr
    assert not (tmp_path / "run/weights.safetensors").exists()


# ------------------------------------------------------------------ saving, tried before


@pytest.fixture
def disk(tmp_path):
    """A file system of 1 MB, where root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "muster", folder],
                      capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", folder])


BIG = SPEC.replace("hidden: [4]", "hidden: [200, 200]")


def test_a_disk_without_room_for_the_run_is_said_before_the_first_step(muster, disk, tmp_path):
    (tmp_path / "rows.csv").write_text(table())
    (tmp_path / "t.yaml").write_text(BIG.format(kind="csv", file=tmp_path / "rows.csv", more=""))
    (disk / "fill").write_bytes(bytes(600 << 10))
    for words in ([], ["--workers", "2"]):
        done = muster("train", tmp_path / "t.yaml", "--out", disk / f"run{len(words)}", "-q", *words,
                      check=False)
        assert done.returncode == 7 and "the disk is full" in done.stderr
        assert "bytes are free" in done.stderr and "checkpoint.keep=1" in done.stderr
        assert not (disk / f"run{len(words)}/metrics.jsonl").read_text()
    muster("train", tmp_path / "t.yaml", "--out", disk / "run", "-q", "--set", "checkpoint=never")


def test_a_disk_that_fills_during_the_run_costs_no_step(muster, disk, tmp_path):
    """The room for a checkpoint is held from the start: what others write meanwhile does not take it."""
    (tmp_path / "rows.csv").write_text(table())
    (tmp_path / "t.yaml").write_text(BIG.format(kind="csv", file=tmp_path / "rows.csv",
                                                more="checkpoint: never\n"))
    words = [muster.path, "train", tmp_path / "t.yaml", "--out", disk / "run", "--json", "--log-every",
             "1", "--set", "epochs=100000", "--set", "checkpoint=never"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()           # it trains
    with pytest.raises(OSError):
        (disk / "fill").write_bytes(bytes(1 << 20))
    out, said = process.communicate(timeout=120)
    assert process.returncode == 7 and "the disk is full" in said and "--resume" in said, said
    step = int(said.split("stopped at step ")[1].split(";")[0])
    assert (disk / f"run/checkpoints/step-{step}.safetensors").exists()
    (disk / "fill").unlink()
    muster("train", tmp_path / "t.yaml", "--out", disk / "run", "--resume", "-q", "--set",
           f"epochs={step // 10 + 1}")


def test_a_model_that_cannot_be_written_at_the_end_is_kept_and_the_way_on_is_said(muster, tmp_path):
    """Something is in the way of model.json: everything else can be written."""
    (tmp_path / "rows.csv").write_text(table())
    (tmp_path / "t.yaml").write_text(SPEC.format(kind="csv", file=tmp_path / "rows.csv",
                                                 more="checkpoint: never\n"))
    (tmp_path / "run/model.json/in-the-way").mkdir(parents=True)
    done = muster("train", tmp_path / "t.yaml", "--out", tmp_path / "run", "-q", check=False)
    assert done.returncode == 7 and "the trained parameters are in" in done.stderr, done.stderr
    assert "--resume" in done.stderr
    (tmp_path / "run/model.json/in-the-way").rmdir()
    (tmp_path / "run/model.json").rmdir()
    muster("train", tmp_path / "t.yaml", "--out", tmp_path / "run", "-q", "--resume")
    muster("train", tmp_path / "t.yaml", "--out", tmp_path / "other", "-q")
    assert "equal" in muster("verify", tmp_path / "run", tmp_path / "other").stdout
