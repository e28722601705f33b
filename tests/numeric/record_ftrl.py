#!/usr/bin/env python3
"""tests/numeric/record_ftrl.py - ten steps of TensorFlow's own FTRL kernel, from given gradients

Writes fixtures/ftrl_tensorflow.json. Needs tensorflow-cpu, which is in no environment of ours
(make one with `python3 -m venv`); run once. make_fixtures.py holds its own FTRL against these
numbers, so the cases it records are TensorFlow's too.

[{lr, l1, l2, lr_power, initial_accumulator, weights, gradients (10 lists), after (10 lists)}, ...]
"""
import json
import os

import numpy as np
import tensorflow as tf

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")

CASES = [
    {"lr": 0.1, "l1": 0.0, "l2": 0.0, "lr_power": -0.5, "initial_accumulator": 0.1},
    {"lr": 0.1, "l1": 0.02, "l2": 0.1, "lr_power": -0.5, "initial_accumulator": 0.1},
    {"lr": 0.05, "l1": 0.1, "l2": 0.0, "lr_power": -0.5, "initial_accumulator": 0.1},
    {"lr": 0.1, "l1": 0.0, "l2": 0.01, "lr_power": -0.7, "initial_accumulator": 0.5},
]


def floats(x):
    return [float("%.9g" % v) for v in np.asarray(x)]


def main():
    rng = np.random.default_rng(0)
    for case in CASES:
        weights = rng.uniform(-1, 1, 8).astype(np.float32)
        gradients = (0.3 * rng.normal(size=(10, 8))).astype(np.float32)
        var, linear = tf.Variable(weights), tf.Variable(tf.zeros(8))
        accum = tf.Variable(tf.fill([8], tf.constant(case["initial_accumulator"], tf.float32)))
        after = []
        for g in gradients:
            tf.raw_ops.ResourceApplyFtrl(
                var=var.handle, accum=accum.handle, linear=linear.handle, grad=g, lr=case["lr"],
                l1=case["l1"], l2=case["l2"], lr_power=case["lr_power"])
            after.append(floats(var.numpy()))
        case.update(weights=floats(weights), gradients=[floats(g) for g in gradients], after=after)
    with open(os.path.join(HERE, "ftrl_tensorflow.json"), "w") as f:
        json.dump({"tensorflow": tf.__version__, "cases": CASES}, f)
        f.write("\n")


if __name__ == "__main__":
    main()
