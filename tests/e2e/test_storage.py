"""Buckets with Google's own clients, and by hand where those never go."""
import base64
import hashlib
import http.client
import io
import json
import os
import random
import shutil
import subprocess
import threading
import time
import urllib.parse

import pytest
from buckets import Cutter, Session, SmallDisk, client, get, make, put
from hosts import wait_for
from server import Server

google = pytest.importorskip("google.cloud.storage")
import google_crc32c  # noqa: E402
from google.api_core import exceptions  # noqa: E402


@pytest.fixture(scope="module")
def here(muster, tmp_path_factory):
    """One server for the whole file; each test has a bucket of its own."""
    with Server(muster, tmp_path_factory.mktemp("buckets") / "data") as s:
        yield s


@pytest.fixture
def bucket(here, request):
    """A new bucket, as google-cloud-storage has it."""
    name = "b-" + hashlib.sha1(request.node.nodeid.encode()).hexdigest()[:20]
    return client(here).create_bucket(name)


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


def crc(data):
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


# ------------------------------------------------------------ google-cloud-storage


def test_buckets_are_made_listed_changed_and_deleted(here):
    c = client(here)
    b = c.create_bucket("life-of-a-bucket", location="EU")
    assert b.location == "EU" and c.bucket("life-of-a-bucket").exists()
    assert "life-of-a-bucket" in [x.name for x in c.list_buckets(prefix="life")]
    with pytest.raises(exceptions.Conflict):
        c.create_bucket("life-of-a-bucket")
    with pytest.raises(exceptions.BadRequest):
        c.create_bucket("Not_A_Name")
    b.labels = {"team": "taxi"}
    b.versioning_enabled = True
    b.patch()
    again = c.get_bucket("life-of-a-bucket")
    assert again.labels == {"team": "taxi"} and again.versioning_enabled
    assert again.metageneration == 2
    b.blob("x").upload_from_string("x")
    with pytest.raises(exceptions.Conflict):
        b.delete()
    b.versioning_enabled = False
    b.patch()
    b.delete(force=True)
    assert not c.bucket("life-of-a-bucket").exists()
    assert c.lookup_bucket("never-made") is None


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 300_000, 9 << 20])
def test_bytes_come_back_as_they_were(bucket, size):
    data = noise(size)
    blob = bucket.blob(f"some/folder/{size}.bin")
    blob.upload_from_string(data, content_type="application/x-noise", checksum="crc32c")
    assert blob.size == size and blob.crc32c == crc(data)
    assert blob.md5_hash == base64.b64encode(hashlib.md5(data).digest()).decode()
    back = bucket.get_blob(blob.name)
    assert back.content_type == "application/x-noise" and back.generation == blob.generation
    assert back.download_as_bytes() == data
    assert back.download_as_bytes(raw_download=True, checksum="md5") == data
    if size > 100:
        assert back.download_as_bytes(start=10, end=19) == data[10:20]
        assert back.download_as_bytes(start=size - 5) == data[-5:]


def test_files_go_up_and_down(bucket, tmp_path):
    (tmp_path / "model.joblib").write_bytes(noise(100_000))
    bucket.blob("models/m.joblib").upload_from_filename(tmp_path / "model.joblib")
    bucket.blob("models/m.joblib").download_to_filename(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == noise(100_000)


def test_a_writer_of_unknown_length_and_a_reader_in_pieces(bucket):
    data = noise(3_000_000)
    with bucket.blob("stream").open("wb", chunk_size=512 << 10) as f:
        for i in range(0, len(data), 70_000):
            f.write(data[i:i + 70_000])
    with bucket.blob("stream").open("rb", chunk_size=700_000) as f:
        assert f.read(100) == data[:100]
        f.seek(2_000_000)
        assert f.read() == data[2_000_000:]


def test_metadata_is_set_patched_and_replaced(bucket):
    blob = bucket.blob("x")
    blob.metadata = {"a": "1", "b": "2"}
    blob.cache_control = "max-age=7"
    blob.upload_from_string("text", content_type="text/plain")
    blob.metadata = {"b": None, "c": "3"}
    blob.content_type = "text/markdown"
    blob.patch()
    back = bucket.get_blob("x")
    assert back.metadata == {"a": "1", "c": "3"} and back.content_type == "text/markdown"
    assert back.metageneration == 2 and back.generation == blob.generation
    assert back.cache_control == "max-age=7" and back.updated > back.time_created
    back.update()
    assert bucket.get_blob("x").metageneration == 3


def test_names_of_any_text(bucket, here):
    names = ["a b", "é/ü/€", "100%", "a?b#c&d=e+f", "../../etc/passwd", "..%2f..", "/", "a//b/", ".hidden",
             "日本語.txt", "tab\there", "x" * 1024, "a/compose", "o/b/c/rewriteTo/b/x/o/y"]
    for n in names:
        bucket.blob(n).upload_from_string(n)
    assert sorted(b.name for b in bucket.list_blobs()) == sorted(names, key=lambda s: s.encode())
    for n in names:
        assert bucket.get_blob(n).download_as_text() == n
        copy = bucket.copy_blob(bucket.blob(n), bucket, "copy of " + n[:500])
        assert copy.download_as_text() == n
        bucket.delete_blob(n)
    outside = [p for p in here.data_dir.rglob("*passwd*")]
    assert outside == []
    for bad in ["", "..", "line\nend", "y" * 1025]:
        status, doc = put(here, bucket.name, bad, b"x")
        assert status == 400 and doc["error"]["errors"][0]["reason"] == "invalid"


def test_lists_in_pages_and_folders(bucket):
    names = [f"data/{i:03}.csv" for i in range(25)] + ["readme", "models/a/1", "models/b"]
    for n in names:
        bucket.blob(n).upload_from_string(b"")
    assert [b.name for b in bucket.list_blobs(page_size=7)] == sorted(names)
    pages = list(bucket.list_blobs(prefix="data/", page_size=10).pages)
    assert [p.num_items for p in pages] == [10, 10, 5]
    it = bucket.list_blobs(delimiter="/")
    assert [b.name for b in it] == ["readme"] and it.prefixes == {"data/", "models/"}
    it = bucket.list_blobs(prefix="models/", delimiter="/")
    assert [b.name for b in it] == ["models/b"] and it.prefixes == {"models/a/"}
    assert [b.name for b in bucket.list_blobs(start_offset="data/023", end_offset="models/b")] == [
        "data/023.csv", "data/024.csv", "models/a/1"]
    assert [b.name for b in bucket.list_blobs(match_glob="**/[ab]*")] == ["models/b"]
    assert [b.name for b in bucket.list_blobs(match_glob="{mo,re}**")] == ["models/a/1", "models/b", "readme"]
    assert len(list(bucket.list_blobs(max_results=3))) == 3
    small = list(bucket.list_blobs(fields="items(name),nextPageToken"))
    assert len(small) == 28 and small[0].size is None


def test_generations_and_conditions(bucket):
    blob = bucket.blob("x")
    blob.upload_from_string("one", if_generation_match=0)
    first = blob.generation
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").upload_from_string("two", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").upload_from_string("two", if_generation_match=first + 1)
    bucket.blob("x").upload_from_string("two", if_generation_match=first)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.delete_blob("x", if_generation_match=first)
    now = bucket.get_blob("x")
    assert now.generation > first and now.download_as_bytes() == b"two"
    with pytest.raises(exceptions.NotFound):
        bucket.blob("x", generation=first).download_as_bytes()
    with pytest.raises(exceptions.PreconditionFailed):
        now.patch(if_metageneration_match=9)
    with pytest.raises(exceptions.NotModified):
        now.reload(if_generation_not_match=now.generation)
    with pytest.raises(exceptions.PreconditionFailed):      # in several requests, too
        big = bucket.blob("x", chunk_size=256 << 10)
        big.upload_from_string(noise(600_000), if_generation_match=0)
    assert bucket.get_blob("x").download_as_bytes() == b"two"


def test_old_generations_where_the_bucket_keeps_them(bucket):
    bucket.versioning_enabled = True
    bucket.patch()
    for text in ("one", "two", "three"):
        bucket.blob("x").upload_from_string(text)
    all_ = list(bucket.list_blobs(versions=True))
    assert [b.download_as_text() for b in all_] == ["one", "two", "three"]
    assert [b.time_deleted is None for b in all_] == [False, False, True]
    bucket.delete_blob("x")
    assert bucket.get_blob("x") is None and len(list(bucket.list_blobs(versions=True))) == 3
    bucket.delete_blob("x", generation=all_[0].generation)
    assert [b.generation for b in bucket.list_blobs(versions=True)] == [
        b.generation for b in all_[1:]]
    restored = bucket.copy_blob(bucket.blob("x"), bucket, source_generation=all_[1].generation)
    assert restored.download_as_text() == "two"


def test_copies_and_compositions(bucket, here):
    other = client(here).create_bucket(bucket.name + "-2")
    data = noise(200_000)
    bucket.blob("a").upload_from_string(data, content_type="x/y")
    copy = bucket.copy_blob(bucket.blob("a"), other, "copy")
    assert copy.content_type == "x/y" and copy.download_as_bytes() == data
    new = bucket.rename_blob(bucket.blob("a"), "b")
    assert bucket.get_blob("a") is None and new.download_as_bytes() == data
    target = other.blob("rewritten")
    assert target.rewrite(bucket.blob("b"))[1:] == (200_000, 200_000)
    bucket.blob("s").upload_from_string("tail")
    whole = bucket.blob("whole")
    whole.content_type = "text/whole"
    whole.compose([bucket.blob("b"), bucket.blob("s"), bucket.blob("s")])
    assert whole.download_as_bytes() == data + b"tailtail" and whole.crc32c == crc(data + b"tailtail")
    with pytest.raises(exceptions.NotFound):
        bucket.blob("w").compose([bucket.blob("none")])
    with pytest.raises(exceptions.NotFound):
        bucket.copy_blob(bucket.blob("none"), other, "x")


def test_many_calls_in_one(bucket, here):
    for i in range(20):
        bucket.blob(f"n/{i} é").upload_from_string("x")
    with client(here).batch() as batch:
        for i in range(10):
            batch._client.bucket(bucket.name).delete_blob(f"n/{i} é")
    assert len(list(bucket.list_blobs())) == 10
    with pytest.raises(exceptions.NotFound):
        with client(here).batch() as batch:
            batch._client.bucket(bucket.name).delete_blob("n/1 é")
            batch._client.bucket(bucket.name).delete_blob("n/11 é")
    assert len(list(bucket.list_blobs())) == 9         # the one after the failure was done all the same
    with client(here).batch() as batch:
        blob = batch._client.bucket(bucket.name).blob("n/12 é")
        blob.metadata = {"k": "v"}
        blob.patch()
    assert bucket.get_blob("n/12 é").metadata == {"k": "v"}


def test_20_mb_with_interruptions_arrive_whole(bucket, here, monkeypatch):
    data = noise(20 << 20)
    cutter = Cutter(here.port, [1_000_000, 5_000_000, 3_210_987])
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{cutter.address}/k/{here.token}")
    from google.cloud import storage
    blob = storage.Client().bucket(bucket.name).blob("big", chunk_size=4 << 20)
    blob.upload_from_file(io.BytesIO(data), size=len(data), checksum="crc32c")
    assert cutter.cuts == 3
    cutter.after = [7_000_000]
    assert blob.download_as_bytes() == data
    cutter.close()
    assert bucket.get_blob("big").crc32c == crc(data)


def test_threads_that_write_one_name(bucket, here):
    texts = [noise(n, n) for n in (100, 40_000, 17_000, 3)]
    stop, bad = threading.Event(), []

    def write(text):
        b = client(here).bucket(bucket.name)
        for _ in range(12):
            b.blob("one").upload_from_string(text)

    def read():
        b = client(here).bucket(bucket.name)
        last = 0
        while not stop.is_set():
            blob = b.get_blob("one")
            if blob is None:
                continue
            if blob.generation < last:
                bad.append("an older generation after a newer one")
            last = blob.generation
            data = b.blob("one").download_as_bytes()
            if data not in texts:
                bad.append(len(data))

    bucket.blob("one").upload_from_string(texts[0])
    writers = [threading.Thread(target=write, args=(t,)) for t in texts]
    reader = threading.Thread(target=read)
    for t in [*writers, reader]:
        t.start()
    for t in writers:
        t.join()
    stop.set()
    reader.join()
    assert bad == [] and bucket.get_blob("one").size in map(len, texts)


def test_only_one_of_many_creates(bucket, here):
    done = []

    def create(i):
        try:
            client(here).bucket(bucket.name).blob("lock").upload_from_string(str(i), if_generation_match=0)
            done.append(i)
        except exceptions.PreconditionFailed:
            pass

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(done) == 1 and bucket.get_blob("lock").download_as_text() == str(done[0])


# ------------------------------------------------------------ gcsfs and pandas


def test_gcsfs_and_pandas(bucket, here, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import sys, gcsfs, pandas as pd
b = sys.argv[1]
fs = gcsfs.GCSFileSystem()
data = bytes(range(256)) * 50_000
with fs.open(f"{b}/dir/large.bin", "wb", block_size=1 << 20) as f:
    f.write(data)
assert fs.cat(f"{b}/dir/large.bin") == data
fs.pipe(f"{b}/dir/small", b"abc")
assert fs.cat(f"{b}/dir/small", start=1, end=2) == b"b"
assert sorted(fs.ls(f"{b}/dir")) == [f"{b}/dir/large.bin", f"{b}/dir/small"]
assert fs.info(f"{b}/dir/small")["size"] == 3 and fs.exists(f"{b}/dir") and not fs.exists(f"{b}/no")
fs.cp(f"{b}/dir/small", f"{b}/dir/copy")
fs.mv(f"{b}/dir/copy", f"{b}/dir/moved")
assert sorted(fs.find(b)) == [f"{b}/dir/large.bin", f"{b}/dir/moved", f"{b}/dir/small"]
assert fs.glob(f"{b}/dir/*.bin") == [f"{b}/dir/large.bin"]
fs.rm(f"{b}/dir", recursive=True)
assert fs.find(b) == []
frame = pd.DataFrame({"fare": [4.5, 9.0], "who": ["a", "b"]})
frame.to_csv(f"gs://{b}/data/train.csv", index=False)
assert pd.read_csv(f"gs://{b}/data/train.csv").equals(frame)
print("ok")
""")
    env = {**os.environ, "STORAGE_EMULATOR_HOST": here.url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    import sys
    done = subprocess.run([sys.executable, program, bucket.name], env=env, capture_output=True, text=True,
                          timeout=120)
    assert done.stdout == "ok\n", done.stderr


# ------------------------------------------------------------ gcloud


@pytest.mark.skipif(not shutil.which("gcloud"), reason="no gcloud here")
def test_gcloud_storage(bucket, here, tmp_path):
    env = {**os.environ, **here.client_env(), "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}

    def gcloud(*args):
        done = subprocess.run(["gcloud", "storage", *map(str, args)], env=env, text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "small.txt").write_text("hello from gcloud\n")
    (tmp_path / "large.bin").write_bytes(noise(12 << 20))
    gcloud("cp", tmp_path / "small.txt", tmp_path / "large.bin", f"gs://{bucket.name}/dir/")
    assert gcloud("ls", f"gs://{bucket.name}/dir/").split() == [
        f"gs://{bucket.name}/dir/large.bin", f"gs://{bucket.name}/dir/small.txt"]
    assert gcloud("cat", f"gs://{bucket.name}/dir/small.txt") == "hello from gcloud\n"
    gcloud("cp", f"gs://{bucket.name}/dir/large.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == noise(12 << 20)
    assert bucket.get_blob("dir/small.txt").download_as_text() == "hello from gcloud\n"


# ------------------------------------------------------------ by hand


def test_three_dialects_of_multipart(here, bucket):
    data = b"line one\r\n--not the boundary\nlast line\r\n"
    meta = json.dumps({"name": "d", "contentType": "text/own"})
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=multipart"
    dialects = [
        ('"==1=="', "\r\n", meta, "", ""),
        ('"==0=="', "\n", meta, "", ""),
        ("'==2=='", "\n", '{"size":"40"}', "&name=d", "MIME-Version: 1.0\nContent-Transfer-Encoding: binary\n"),
        ("bare", "\r\n", meta, "", ""),
    ]
    for boundary, end, doc, query, head in dialects:
        mark = boundary.strip("\"'")
        body = (f"--{mark}{end}Content-Type: application/json; charset=UTF-8{end}{head.replace(chr(10), end)}{end}"
                f"{doc}{end}--{mark}{end}Content-Type: text/part{end}{head.replace(chr(10), end)}{end}").encode()
        body += data + f"{end}--{mark}--{end}".encode()
        status, _, text = here.call("POST", path + query, body, headers={
            "Content-Type": f"multipart/related; boundary={boundary}"})
        assert status == 200, text
        assert json.loads(text)["contentType"] == ("text/part" if query else "text/own")
        assert get(here, bucket.name, "d")[2] == data
    for body in (b"", b"--x\r\n\r\n{}\r\n--x--", b"--x\r\n\r\n{\"name\":\"d\"}\r\n--x\r\n\r\ncut off"):
        status, _, text = here.call("POST", path, body, headers={
            "Content-Type": "multipart/related; boundary=x"})
        assert status == 400, text
    assert get(here, bucket.name, "d")[2] == data


def test_ranges(here, bucket):
    for name, data in (("small", noise(1000)), ("large", noise(100_000))):
        put(here, bucket.name, name, data)
        n = len(data)
        for ask, want in (("bytes=0-9", data[:10]), ("bytes=990-", data[990:]), ("bytes=-7", data[-7:]),
                          ("bytes=5-9999999", data[5:]), ("bytes=0-0", data[:1])):
            status, headers, got = get(here, bucket.name, name, headers={"Range": ask})
            assert (status, got) == (206, want)
            first = data.index(want)
            assert headers["Content-Range"] == f"bytes {first}-{first + len(want) - 1}/{n}"
            assert "X-Goog-Hash" not in headers
        status, headers, got = get(here, bucket.name, name, headers={"Range": f"bytes={n}-"})
        assert status == 416 and headers["Content-Range"] == f"bytes */{n}"
        for odd in ("bytes=9-3", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes="):
            status, headers, got = get(here, bucket.name, name, headers={"Range": odd})
            assert (status, got) == (200, data) and "crc32c=" in headers["X-Goog-Hash"]


def test_wrong_checksums_are_refused_and_the_old_object_stays(here, bucket):
    put(here, bucket.name, "x", b"old")
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType="
    for size in (5, 50_000):
        data = noise(size)
        for hash_ in ("crc32c=AAAAAA==", "md5=AAAAAAAAAAAAAAAAAAAAAA==", f"crc32c={crc(data)},md5=AAAA"):
            status, _, text = here.call("POST", path + "media&name=x", data, headers={"X-Goog-Hash": hash_})
            assert status == 400 and b"doesn't match" in text
        s = Session(here, bucket.name, "x", {"crc32c": crc(b"other")})
        status, _, text = s.send(here, data, 0, size)
        assert status == 400 and b"doesn't match" in text
    assert get(here, bucket.name, "x")[2] == b"old"
    assert list((here.data_dir / "uploads").glob("t-*")) == []


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_session_by_hand(here, bucket, method):
    data = noise(1_000_000)
    s = Session(here, bucket.name, "x", {"metadata": {"k": "v"}})
    status, headers, _ = s.send(here, b"", 0)
    assert status == 308 and "Range" not in headers
    status, headers, _ = s.send(here, data[:300_000], 0, method=method)
    assert status == 308 and headers["Range"] == "bytes=0-299999"
    status, headers, _ = s.send(here, data[500_000:600_000], 500_000, method=method)    # a gap: not taken
    assert status == 308 and headers["Range"] == "bytes=0-299999"
    status, headers, _ = s.send(here, data[200_000:400_000], 200_000, method=method)    # twice: once taken
    assert status == 308 and headers["Range"] == "bytes=0-399999"
    assert get(here, bucket.name, "x")[0] == 404
    status, _, text = s.send(here, data[400_000:], 400_000, 1_000_000, method=method)
    assert status == 200 and json.loads(text)["crc32c"] == crc(data)
    status, _, text = s.send(here, b"", 0, 1_000_000)      # the answer was lost: it is given again
    assert status == 200 and json.loads(text)["metadata"] == {"k": "v"}
    assert get(here, bucket.name, "x")[2] == data
    s = Session(here, bucket.name, "y")
    assert here.call("DELETE", s.path)[0] == 499
    assert s.send(here, b"abc", 0, 3)[0] == 404
    assert here.call("PUT", s.path.replace(bucket.name, "other-bucket"), b"abc")[0] == 404


def test_a_session_goes_on_after_a_cut_and_after_kill_9(muster, tmp_path):
    data = noise(2_000_000)
    with Server(muster, tmp_path / "data") as server:
        make(server, "bucket")
        s = Session(server, "bucket", "x")
        cutter = Cutter(server.port, [700_000])
        direct, server.address = server.address, cutter.address
        with pytest.raises(OSError):
            s.send(server, data[:1_000_000], 0)
        server.address = direct

        def have():
            status, headers, _ = s.send(server, b"", 0)
            assert status == 308
            return int(headers.get("Range", "bytes=0--1").rsplit("-", 1)[1]) + 1

        wait_for(lambda: have() > 600_000)  # what came before the cut is there, a moment later
        before = have()
        server.kill()
        server.start()
        have = have()
        assert before <= have < 700_000
        status, _, text = s.send(server, data[have:], have, len(data))
        assert status == 200, text
        assert get(server, "bucket", "x")[2] == data


def test_parts_of_an_answer(here, bucket):
    put(here, bucket.name, "x", b"abc")
    at = f"/storage/v1/b/{bucket.name}/o"
    assert here.json("GET", f"{at}/x?fields=name,size") == {"name": "x", "size": "3"}
    assert here.json("GET", f"{at}?fields=items/name") == {"items": [{"name": "x"}]}
    assert here.json("GET", f"{at}?fields=items(size,name),kind") == {
        "items": [{"size": "3", "name": "x"}], "kind": "storage#objects"}
    for bad in ("items(", "a,,b", ")", "a/"):
        assert here.call("GET", f"{at}?fields={urllib.parse.quote(bad)}")[0] == 400


def test_errors_have_googles_form(here, bucket):
    for method, path, want, reason in (
            ("GET", "/storage/v1/b/not-there", 404, "notFound"),
            ("GET", f"/storage/v1/b/{bucket.name}/o/none", 404, "notFound"),
            ("GET", f"/download/storage/v1/b/{bucket.name}/o/none?alt=media", 404, "notFound"),
            ("DELETE", f"/storage/v1/b/{bucket.name}/o/none", 404, "notFound"),
            ("POST", "/upload/storage/v1/b/not-there/o?uploadType=media&name=x", 404, "notFound"),
            ("POST", f"/upload/storage/v1/b/{bucket.name}/o?uploadType=odd", 400, "invalid"),
            ("GET", f"/storage/v1/b/{bucket.name}/o?pageToken=!!", 400, "invalid"),
            ("GET", f"/storage/v1/b/{bucket.name}/o?maxResults=many", 400, "invalid"),
            ("POST", f"/storage/v1/b/{bucket.name}/o/x/compose", 400, "invalid")):
        status, _, text = here.call(method, path, b"" if method == "POST" else None)
        error = json.loads(text)["error"]
        assert (status, error["code"], error["errors"][0]["reason"]) == (want, want, reason), path
        assert error["message"] and error["errors"][0]["domain"] == "global"


def test_documents_nested_without_end_are_refused(here, bucket):
    deep = '{"name": "x", "labels": ' + '{"a":' * 2000 + "1" + "}" * 2000 + "}"
    flat = '{"name": "x", "metadata": {"k": "' + "[{" * 200 + '"}}'
    up = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable"
    for method, path in (("PATCH", f"/storage/v1/b/{bucket.name}"), ("POST", up), ("POST", "/storage/v1/b"),
                         ("POST", f"/storage/v1/b/{bucket.name}/o/x/compose")):
        status, _, text = here.call(method, path, deep)
        assert status == 400 and b"nested" in text
    assert here.call("POST", up, flat)[0] == 200        # brackets in a text are none


def test_links_repeat_the_way_the_client_came(here, bucket):
    put(here, bucket.name, "a/b", b"abc")
    at = f"/storage/v1/b/{bucket.name}/o/a%2Fb"
    plain = here.json("GET", at)
    assert plain["mediaLink"].startswith(f"{here.address}/download/")
    for _ in range(2):
        keyed = json.loads(here.call("GET", f"/k/{here.token}{at}", token="")[2])
        assert keyed["mediaLink"].startswith(f"{here.url}/download/")
    assert here.json("GET", at)["selfLink"] == f"{here.address}{at}"


# ------------------------------------------------------------ who may


def test_another_projects_token_does_not_reach_a_bucket(here, muster, bucket):
    muster("project", "add", "others-project", env=here.env)
    out = muster("project", "token", "add", "--project", "others-project", "--json", env=here.env).stdout
    token = json.loads(out)["token"]
    put(here, bucket.name, "x", b"secret")
    other = client(here, token)
    assert [b.name for b in other.list_buckets()] == []
    theirs = other.bucket(bucket.name)
    for call in (lambda: theirs.get_blob("x"), lambda: theirs.blob("x").download_as_bytes(),
                 lambda: theirs.blob("y").upload_from_string("y"), lambda: list(theirs.list_blobs()),
                 lambda: theirs.delete_blob("x"), lambda: other.get_bucket(bucket.name),
                 lambda: theirs.blob("z", chunk_size=256 << 10).upload_from_string(noise(500_000))):
        with pytest.raises(exceptions.Forbidden):
            call()
    mine = other.create_bucket("of-the-others")
    with pytest.raises(exceptions.Forbidden):
        mine.copy_blob(other.bucket(bucket.name).blob("x"), mine, "stolen")
    s = Session(here, bucket.name, "session")
    assert s.send(here, b"abc", 0, 3, token=token)[0] == 404
    status, _, text = here.call("POST", "/batch/storage/v1", (
        f"--x\r\nContent-Type: application/http\r\n\r\nDELETE /k/{here.token}/storage/v1/b/{bucket.name}/o/x "
        "HTTP/1.1\r\n\r\n\r\n--x--\r\n").encode(), token=token,
        headers={"Content-Type": "multipart/mixed; boundary=x"})
    assert status == 200 and b"HTTP/1.1 403" in text
    assert get(here, bucket.name, "x")[2] == b"secret"
    for bad in ("", "muster_" + "x" * 40):
        for method, path in (("GET", f"/storage/v1/b/{bucket.name}/o/x"), ("GET", "/storage/v1/b"),
                             ("GET", f"/download/storage/v1/b/{bucket.name}/o/x"),
                             ("POST", f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"),
                             ("POST", "/batch/storage/v1")):
            assert here.call(method, path, token=bad)[0] == 401


# ------------------------------------------------------------ muster storage


def test_the_command(here, muster, tmp_path):
    def storage(*args, **kw):
        return muster("storage", *args, env=here.env, **kw)

    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a.csv").write_text("x,y\n1,2\n")
    (tree / "sub" / "big.bin").write_bytes(noise(20 << 20))
    (tree / "empty").write_bytes(b"")
    storage("mb", "gs://command")
    storage("cp", "-r", tree, "gs://command/")
    assert storage("ls", "gs://command").stdout == "gs://command/tree/\n"
    assert storage("ls", "-r", "gs://command").stdout.split() == [
        "gs://command/tree/a.csv", "gs://command/tree/empty", "gs://command/tree/sub/big.bin"]
    listed = [json.loads(line) for line in storage("ls", "--json", "gs://command/tree").stdout.splitlines()]
    assert [x.get("contentType") for x in listed] == [None, "text/csv", "application/octet-stream"]
    assert storage("cat", "gs://command/tree/a.csv").stdout == "x,y\n1,2\n"
    (tmp_path / "back").mkdir()
    storage("cp", "-r", "gs://command/tree", tmp_path / "back")
    assert (tmp_path / "back/tree/sub/big.bin").read_bytes() == noise(20 << 20)
    assert (tmp_path / "back/tree/empty").read_bytes() == b""
    storage("cp", "gs://command/tree/a.csv", "gs://command/other/name.csv")
    assert json.loads(storage("stat", "--json", "gs://command/other/name.csv").stdout)["size"] == "8"
    storage("rm", "gs://command/**.csv")
    assert storage("ls", "gs://command/**.csv", check=False).returncode == 4
    assert storage("rb", "gs://command", check=False).returncode == 5
    put(here, "command", "up/../../escaped", b"x")
    refused = storage("cp", "-r", "gs://command/up", tmp_path / "back", check=False)
    assert refused.returncode == 2 and not (tmp_path / "escaped").exists()
    assert "1 of 1 were not copied" in refused.stderr
    storage("rb", "-r", "gs://command")
    assert "gs://command/" not in storage("ls").stdout


def test_a_copy_of_many_goes_on_after_one_that_fails_and_names_it(here, muster, bucket, tmp_path):
    def storage(*args, **kw):
        return muster("storage", *args, env=here.env, check=False, **kw)

    at = f"gs://{bucket.name}"
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a", "two\nlines", "z", "\x1b[2J"):
        (tree / name).write_text(name)
    up = storage("cp", "-r", tree, f"{at}/")
    assert up.returncode == 2 and "2 of 4 were not copied" in up.stderr
    assert up.stderr.count("not copied: ") == 2 and "control characters" in up.stderr
    assert "tree/two?lines: " in up.stderr and "\x1b" not in up.stderr
    for name in ("tree/..", "tree/b//c"):
        put(here, bucket.name, name, b"x")
    (tmp_path / "back").mkdir()
    (tmp_path / "back/tree/a").mkdir(parents=True)      # in the way of a file
    down = storage("cp", "-r", f"{at}/tree", tmp_path / "back")
    assert down.returncode != 0 and "3 of 4 were not copied" in down.stderr
    for name in ("tree/..", "tree/b//c", "tree/a"):
        assert f"not copied: {at}/{name}: " in down.stderr
    assert (tmp_path / "back/tree/z").read_text() == "z"
    some = storage("cp", tree / "nobody", tree / "z", f"{at}/flat/")
    assert some.returncode == 4 and "1 of 2 were not copied" in some.stderr
    assert storage("cat", f"{at}/flat/z").stdout == "z"


def test_the_command_goes_on_when_the_connection_breaks(here, muster, bucket, tmp_path):
    data = noise(30 << 20)
    (tmp_path / "big").write_bytes(data)
    cutter = Cutter(here.port, [5_000_000, 9_000_000, 2_000_000])
    env = {**here.env, "MUSTER_SERVER": cutter.address}
    muster("storage", "cp", tmp_path / "big", f"gs://{bucket.name}/big", env=env)
    assert cutter.cuts == 3 and bucket.get_blob("big").crc32c == crc(data)
    cutter.close()


# ------------------------------------------------------------ faults


def workload(server, done):
    """Every kind of write; done[name] is what was acknowledged last, or what a write was begun with."""
    def writes(name, data, call):
        done[name] = (done.get(name, (None,))[0], data)
        assert call()[0] in (200, 204)
        done[name] = (data, data)

    make(server, "bucket")
    done["made"] = True
    small, large = b"small", noise(40_000)
    writes("small", small, lambda: put(server, "bucket", "small", small))
    writes("large", large, lambda: put(server, "bucket", "large", large))
    writes("large", small, lambda: put(server, "bucket", "large", small))
    data = noise(120_000, 2)
    s = Session(server, "bucket", "session")
    status, headers, _ = s.send(server, data[:50_000], 0)
    assert (status, headers["Range"]) == (308, "bytes=0-49999")
    done["half"] = s
    writes("session", data, lambda: s.send(server, data[50_000:], 50_000, len(data)))
    writes("copy", data, lambda: server.call(
        "POST", "/storage/v1/b/bucket/o/session/copyTo/b/bucket/o/copy", b""))
    writes("session", None, lambda: server.call("DELETE", "/storage/v1/b/bucket/o/session"))


def test_kill_9_at_every_point_keeps_what_was_acknowledged(muster, tmp_path):
    whole = Server(muster, tmp_path / "whole")
    whole.start()
    whole.stop()
    killed, alive = 0, False
    for n in range(1, 400):
        server = Server(muster, tmp_path / f"data{n}", env={"MUSTER_STORE_FAULT": str(n)})
        shutil.copytree(tmp_path / "whole", server.data_dir, ignore=shutil.ignore_patterns("way"))
        done = {}
        try:
            server.start()
        except AssertionError:
            continue            # killed while it started; the next number is later
        try:
            workload(server, done)
            alive = True
            server.stop()
        except (OSError, http.client.HTTPException):
            alive = False
            server.process.wait(120)
            server.kill()
        server.extra = {}
        server.start()
        for name, state in done.items():
            if name == "made" or name == "half":
                continue
            acknowledged, begun = state
            status, _, got = get(server, "bucket", name)
            have = None if status == 404 else got
            assert have in (acknowledged, begun), f"point {n}: {name}"
        if "half" in done:      # what was promised of an upload is there, or all of it, or it can begin anew
            status, headers, _ = done["half"].send(server, b"", 0, 120_000)
            assert status in (200, 308, 404), f"point {n}"
            if status == 308:
                assert headers.get("Range", "bytes=0-49999") == "bytes=0-49999", f"point {n}"
        if done.get("made"):    # and it works
            assert put(server, "bucket", "after", b"x")[0] == 200
        server.stop()
        muster("serve", "--check", "--data-dir", server.data_dir)
        if alive:
            break
        killed += 1
        shutil.rmtree(server.data_dir, ignore_errors=True)      # a child may be last
    assert alive and killed > 30


def small_disk(muster, tmp_path, size):
    """A server with a bucket on a disk of its own."""
    server = SmallDisk(muster, tmp_path / "disk", size)
    try:
        server.start()
    except OSError as e:
        pytest.skip(f"no file system of its own here: {e}")
    make(server, "bucket")
    return server


def test_a_full_disk_refuses_and_keeps_the_old_object(muster, tmp_path):
    with small_disk(muster, tmp_path, 6 << 20) as server:
        old = noise(1 << 20)
        assert put(server, "bucket", "x", old)[0] == 200
        for _ in range(3):
            status, doc = put(server, "bucket", "x", noise(8 << 20, 3))
            assert status == 507 and "disk is full" in doc["error"]["message"]
        assert get(server, "bucket", "x")[2] == old
        s = Session(server, "bucket", "x")
        assert s.send(server, noise(8 << 20, 4), 0, 8 << 20)[0] == 507
        server.call("DELETE", s.path)
        assert get(server, "bucket", "x")[2] == old
        n = 0
        while put(server, "bucket", f"small{n}", noise(16_000, n))[0] == 200:
            n += 1
            assert n < 2000
        assert get(server, "bucket", "x")[2] == old
        for i in range(n):
            assert get(server, "bucket", f"small{i}")[2] == noise(16_000, i)
        assert list((server.data_dir / "uploads").iterdir()) == []


@pytest.fixture
def tight(muster, tmp_path):
    """A server on a disk of 50 MB, of which 3 are the store's and 3 are not for buckets."""
    with small_disk(muster, tmp_path, 50 << 20) as server:
        yield server


def uploads(server):
    return {p.name: p.stat().st_size for p in (server.data_dir / "uploads").iterdir()}


def test_a_session_that_met_a_full_disk_gives_its_bytes_back_and_may_begin_anew(tight):
    whole = noise(12 << 20)
    s = Session(tight, "bucket", "x")
    assert s.send(tight, whole[:8 << 20], 0)[0] == 308
    assert put(tight, "bucket", "old", noise(35 << 20, 2))[0] == 200
    status, _, text = s.send(tight, whole[8 << 20:], 8 << 20)           # how much is to come is not said
    assert status == 507 and "disk is full" in json.loads(text)["error"]["message"]
    assert not any(uploads(tight).values())
    assert tight.call("DELETE", "/storage/v1/b/bucket/o/old")[0] == 204
    wait_for(lambda: s.send(tight, b"", 0, "*")[0] == 308 and
             not list((tight.data_dir / "blobs").glob("*/*")) and
             shutil.disk_usage(tight.data_dir).free > 40 << 20)     # which comes after the name is gone
    status, headers, _ = s.send(tight, b"", 0, "*")
    assert status == 308 and "Range" not in headers     # from the beginning
    assert s.send(tight, whole, 0, len(whole))[0] == 200
    assert get(tight, "bucket", "x")[2] == whole


def test_what_does_not_fit_is_refused_before_it_is_sent(tight):
    s = Session(tight, "bucket", "x")
    assert s.send(tight, noise(1 << 20), 0)[0] == 308
    assert s.send(tight, noise(1 << 20), 1 << 20, 60 << 20)[0] == 507
    assert not any(uploads(tight).values())


def test_uploads_left_alone_make_room_the_oldest_first_and_one_in_use_stays(tight):
    left = [Session(tight, "bucket", f"left{i}") for i in range(4)]
    for i, s in enumerate(left):
        assert s.send(tight, noise(8 << 20, i), 0)[0] == 308
        (mine,) = [p for p in (tight.data_dir / "uploads").iterdir() if s.path.endswith(p.name[2:])]
        age = 3600 * (4 - i) if i < 3 else 0            # the last one has just been sent to
        os.utime(mine, (time.time() - age,) * 2)
    assert put(tight, "bucket", "x", noise(26 << 20, 9))[0] == 200
    ranges = [s.send(tight, b"", 0, "*")[1].get("Range") for s in left]
    assert ranges == [None, None, "bytes=0-8388607", "bytes=0-8388607"]


def test_jobs_go_on_when_buckets_have_filled_the_disk(tight):
    n = 0
    while (answer := put(tight, "bucket", f"o{n}", noise(1 << 20, n)))[0] == 200:
        n += 1
    assert answer[0] == 507 and n > 30
    while (answer := put(tight, "bucket", f"s{n}", noise(16_000, n)))[0] == 200:
        n += 1
    assert answer[0] == 507 and "disk is full" in answer[1]["error"]["message"]
    for i in range(20):
        job = {"kind": "command", "command": ["sleep", "1000" if i else "0"], "resources": {"cpu": 0.01}}
        tight.json("POST", "/api/jobs", {"name": f"j{i}", "spec": job})
    for i in range(1, 20):
        tight.json("POST", f"/api/jobs/default/j{i}/cancel")
    wait_for(lambda: not tight.json("GET", "/api/jobs?state=active")["jobs"])
    assert tight.json("GET", "/api/jobs/default/j0")["state"] == "succeeded"
    assert tight.call("DELETE", "/storage/v1/b/bucket/o/o1")[0] == 204


def test_googles_client_sees_that_the_disk_is_full_and_gives_up(tight):
    for size in (50 << 20, 7 << 20):                    # in several requests, in one
        assert size < 8 << 20 or put(tight, "bucket", "old", noise(20 << 20, 2))[0] == 200
        with pytest.raises(exceptions.GoogleAPICallError, match="disk is full") as refused:
            client(tight).bucket("bucket").blob("x").upload_from_string(noise(size, size))
        assert refused.value.code == 507
        put(tight, "bucket", "more", noise(20 << 20, 3))
