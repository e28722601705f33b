"""A job of many workers by TLS: the same digest, the same deaths, and nothing in the clear."""
import os
import signal
import socket
import threading

import pytest
from hosts import LENET, TOKEN, Caller, Job, chain, digest, wait_for

LONG = ["epochs=10", *LENET[1:]]
CRAWL = 20              # steps a second at most, until everything has happened


class Relay:
    """Somebody on the way, who writes down every byte in both directions."""

    def __init__(self, to):
        self.to, self.seen = to, bytearray()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"tls:127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                near = self.door.accept()[0]
            except OSError:
                return                  # the test is over
            try:
                far = socket.create_connection(self.to)
            except OSError:
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, a, b):
        try:
            while piece := a.recv(1 << 16):
                self.seen += piece
                b.sendall(piece)
            b.shutdown(socket.SHUT_WR)
        except OSError:                 # one side is gone: so is the other
            for s in (a, b):
                s.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.door.close()


def one_sentence(said):
    lines = [line for line in said.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("muster: "), said
    return lines[0]


def test_one_process_has_nobody_to_talk_to(lenet, alone):
    assert digest(alone.run(lenet, LENET, "--threads", "1", "--tls")) == alone(lenet, LENET)


def test_one_digest_whoever_dies_and_nothing_in_the_clear(muster, lenet, alone, tmp_path):
    with Job(muster, lenet, tmp_path / "run", 2, "--tls", changes=LONG, pace=CRAWL) as job:
        at = job.address()
        assert at.startswith("tls:127.0.0.1:")
        plain = at.removeprefix("tls:")
        with Relay(("127.0.0.1", int(plain.rsplit(":", 1)[1]))) as relay:
            hand = job.join("--tcp", address=relay.address)
            job.wait_team(3)
            workers = job.status()["workers"]
            assert all(w["address"].startswith("tls:127.0.0.1:") for w in workers)

            # Who does not know of TLS, or not the token, is told so; the job goes on.
            wrong = [job.join(address=plain),
                     job.join(env={"MUSTER_TOKEN": "another token, long enough"})]
            assert wrong[0].end() and f"{plain} uses TLS alone (call it as {at})" in \
                one_sentence(wrong[0].said)
            assert wrong[1].end() and "the token is not this job's" in one_sentence(wrong[1].said)
            with pytest.raises(PermissionError, match="uses TLS alone"):
                Caller(workers[0]["address"].removeprefix("tls:"))
            for address in (at, workers[0]["address"]):
                with Caller(address.removeprefix("tls:"), prove=False) as caller:
                    caller.socket.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert caller.closed()

            os.kill(job.coordinator(), signal.SIGKILL)
            job.wait_event("start", 2)
            wait_for(lambda: len(job.status()["workers"]) == 3, why=job.story)
            joins = len(job.history("join"))
            os.kill(next(w["pid"] for w in workers if w["pid"] != hand.pid), signal.SIGKILL)
            job.wait_event("join", joins + 1)
            muster("resize", job.out, "4")
            job.wait_team(4)
            assert job.digest() == alone(lenet, LONG)
            assert chain(job.out) == alone.chain(lenet, LONG)
            assert hand.end() == 0, hand.said
            assert len(relay.seen) > 1000
            for secret in (TOKEN.encode(), b"musW", b'"role"', b'"worker"'):
                assert secret not in relay.seen
