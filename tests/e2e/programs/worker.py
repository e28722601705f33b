"""One worker that does what its arguments say: tell its environment, talk, die, sleep."""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

NAMES = """RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS MUSTER_RESTART_COUNT MUSTER_RUN
MUSTER_TOKEN OMP_NUM_THREADS""".split()

parser = argparse.ArgumentParser()
parser.add_argument("--env", action="store_true", help="print the environment as JSON")
parser.add_argument("--lines", type=int, default=0, help="print so many, in small pieces")
parser.add_argument("--bytes", help="written as they are, in hexadecimal")
parser.add_argument("--die", type=int, help="the worker that dies")
parser.add_argument("--starts", type=int, default=1, help="it dies in so many starts")
parser.add_argument("--signal", type=int, help="of what it dies; else of --exit")
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--sleep", type=float, default=0, help="seconds")
parser.add_argument("--child", action="store_true", help="with processes of its own")
parser.add_argument("--deaf", action="store_true", help="does not hear SIGTERM")
parser.add_argument("--tidy", action="store_true", help="says something on SIGTERM and ends with 0")
parser.add_argument("rest", nargs="*")
args = parser.parse_args()
rank, start = int(os.environ["RANK"]), int(os.environ["MUSTER_RESTART_COUNT"])


def on_term(*_):
    print("tidying up")
    sys.exit(0)


if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.tidy:
    signal.signal(signal.SIGTERM, on_term)
if args.env:
    print(json.dumps({name: os.environ.get(name) for name in NAMES} |
                     {"rest": args.rest, "cwd": os.getcwd()}))
for i in range(args.lines):
    for piece in (f"worker {rank} ", "says ", f"line {i}", "\n"):
        os.write(1 + i % 2, piece.encode())
if args.child:
    for away in (False, True):          # beside it, and in a session of its own
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=away)
print("ready")
if args.bytes:
    os.write(1, bytes.fromhex(args.bytes))
if rank == args.die and start < args.starts:
    if args.signal:
        os.kill(os.getpid(), args.signal)
    sys.exit(args.exit)
if args.die is not None and start < args.starts:
    time.sleep(600)             # as in a collective that never ends
time.sleep(args.sleep)
