"""The end of a job of many workers: each of them hears of it, whatever the network does at that moment,
and nobody waits for one who was never in."""
import os
import signal
import socket
import struct
import threading
from pathlib import Path

import pytest
from hosts import LENET, Job, wait_for


class Between:
    """A proxy before a job's coordinator. Nothing that it sends when its model is on disk comes through on
    the connections that there are then: they are reset, or fall silent. Later ones are let through."""

    def __init__(self, job, harm):
        self.to, self.harm, self.ended = job.address().rsplit(":", 1), harm, job.out / "run.json"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = [self.listener]
        threading.Thread(target=self.serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for s in self.open:
            s.close()

    def serve(self):
        try:
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection((self.to[0], int(self.to[1])), timeout=60)
                except OSError:
                    near.close()            # as if this were its own port
                    continue
                early = not self.ended.exists()
                self.open += [near, far]
                threading.Thread(target=self.pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self.pump, args=(far, near, early), daemon=True).start()
        except OSError:
            pass                            # the test is over

    def pump(self, a, b, guarded):
        try:
            a.settimeout(None)
            while piece := a.recv(1 << 16):
                if guarded and self.ended.exists():
                    if self.harm == "silence":
                        a.recv(1 << 20, socket.MSG_WAITALL)     # until the coordinator closes
                        return
                    for s in (a, b):
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                b.sendall(piece)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass                        # it is gone already
            s.close()


@pytest.mark.parametrize("harm", ["reset", "silence"])
def test_a_worker_that_misses_the_end_asks_again_and_hears_it(harm, muster, lenet, alone, tmp_path):
    with Job(muster, lenet, tmp_path / "run", 1, changes=LENET, pace=40) as job, \
            Between(job, harm) as proxy:
        hand = job.join(address=proxy.address)
        job.wait_team(2)
        assert job.digest() == alone(lenet, LENET)
        assert hand.end() == 0, hand.said


def test_workers_stay_for_a_coordinator_that_dies_before_it_has_written_the_end(muster, lenet, alone,
                                                                                tmp_path):
    """The last step is made and told to one who never reads it: the next one needs them all."""
    def worked(pid):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11]

    with Job(muster, lenet, tmp_path / "run", 1, changes=LENET, pace=40) as job:
        hand = job.join()
        job.wait_team(2)
        coordinator = job.coordinator()
        os.kill(coordinator, signal.SIGSTOP)
        job.lift()
        seen = []

        def idle():                         # for a while: the steps are made
            seen.append(worked(hand.pid))
            return len(seen) >= 8 and len(set(seen[-8:])) == 1
        wait_for(idle, why=job.story)
        assert not job.read("run.json") and hand.poll() is None
        os.kill(coordinator, signal.SIGKILL)
        assert job.digest() == alone(lenet, LENET)
        assert len(job.history("start")) == 2
        assert hand.end() == 0, hand.said
