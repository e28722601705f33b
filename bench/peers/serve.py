"""bench/peers/serve.py - a peer as a process that waits: started and warmed once, timed in turns

The benchmark writes "SECONDS\\n"; the peer trains for about so long and answers with samples a
second. So compiling and loading are outside the timing, and rounds can alternate between peers.
"""
import sys
import time


def serve(epoch_slice, samples):
    """epoch_slice() trains on `samples` samples and returns when they are done."""
    epoch_slice()               # compiles, and warms caches
    start = time.perf_counter()
    epoch_slice()
    once = time.perf_counter() - start
    print("ready", flush=True)
    for line in sys.stdin:
        rounds = max(1, round(float(line) / once))
        start = time.perf_counter()
        for _ in range(rounds):
            epoch_slice()
        print(rounds * samples / (time.perf_counter() - start), flush=True)
