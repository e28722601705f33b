"""bench/peers/kfp_local.py N - seconds a step of kfp.local's SubprocessRunner, for a chain of N steps

Run by the Python of kfp 2. The steps do nothing. Two numbers: of steps as kfp makes them, which ask pip
for kfp each time, and of steps that are told not to.
"""
import contextlib
import logging
import os
import sys
import tempfile
import time

from kfp import dsl, local

N = int(sys.argv[1])

logging.disable(logging.INFO)


def nothing():
    pass


def measure(**how):
    step = dsl.component(nothing, **how)

    @dsl.pipeline(name="chain")
    def chain():
        last = None
        for _ in range(N):
            task = step()
            if last:
                task.after(last)
            last = task

    begin = time.perf_counter()
    chain()
    return (time.perf_counter() - begin) / N


with tempfile.TemporaryDirectory() as d, contextlib.redirect_stdout(sys.stderr):
    os.chdir(d)
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=d)
    seconds = measure(), measure(install_kfp_package=False)
print(*seconds)
