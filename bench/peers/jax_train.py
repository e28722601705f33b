"""bench/peers/jax_train.py NETWORK - JAX's side of bench/train.py: a scanned slice of an epoch, jitted

The whole slice (drawing its rows included) is one compiled call, so no Python runs between steps.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jax                      # noqa: E402
import jax.numpy as jnp         # noqa: E402
from jax import lax             # noqa: E402

import nets                     # noqa: E402
from serve import serve         # noqa: E402

SLICE = {"lenet": 2000, "convblock": 320}


def conv(x, p, stride=1, pad=0):
    out = lax.conv_general_dilated(x, p["w"], (stride, stride), ((pad, pad), (pad, pad)),
                                   dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out + p["b"]


def dense(x, p):
    return x @ p["w"] + p["b"]


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def init(key, fan_in, shape):
    kw, kb = jax.random.split(key)
    bound = fan_in ** -0.5
    return {"w": jax.random.uniform(kw, shape, minval=-bound, maxval=bound),
            "b": jax.random.uniform(kb, shape[-1:], minval=-bound, maxval=bound)}


def cross_entropy(logits, y):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


def lenet_params(key):
    k = jax.random.split(key, 5)
    return {"c1": init(k[0], 25, (5, 5, 1, 6)), "c2": init(k[1], 150, (5, 5, 6, 16)),
            "f1": init(k[2], 256, (256, 120)), "f2": init(k[3], 120, (120, 84)),
            "f3": init(k[4], 84, (84, 10))}


def lenet_loss(p, stats, x, y):
    x = pool(jax.nn.relu(conv(x, p["c1"])))
    x = pool(jax.nn.relu(conv(x, p["c2"])))
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(dense(x, p["f1"]))
    x = jax.nn.relu(dense(x, p["f2"]))
    return cross_entropy(dense(x, p["f3"]), y), stats


def norm_params(c):
    return {"g": jnp.ones(c), "b": jnp.zeros(c)}


def convblock_params(key):
    k = jax.random.split(key, 5)
    return {"c1": init(k[0], 9, (3, 3, 1, 16)), "n1": norm_params(16),
            "c2": init(k[1], 144, (3, 3, 16, 32)), "n2": norm_params(32),
            "c3": init(k[2], 32, (1, 1, 32, 64)), "n3": norm_params(64),
            "f1": init(k[3], 3136, (3136, 512)), "f2": init(k[4], 512, (512, 10))}


def batch_norm(x, p, running):
    mean = x.mean((0, 1, 2))
    var = jnp.square(x - mean).mean((0, 1, 2))
    n = x.size // x.shape[-1]
    running = {"m": 0.9 * running["m"] + 0.1 * lax.stop_gradient(mean),
               "v": 0.9 * running["v"] + 0.1 * lax.stop_gradient(var) * n / (n - 1)}
    return (x - mean) * lax.rsqrt(var + 1e-5) * p["g"] + p["b"], running


def convblock_loss(p, stats, x, y):
    new = {}
    for i, (stride, pad) in enumerate(((2, 1), (1, 1), (1, 0)), 1):
        x = conv(x, p[f"c{i}"], stride, pad)
        x, new[f"n{i}"] = batch_norm(x, p[f"n{i}"], stats[f"n{i}"])
        x = jax.nn.relu(x)
    x = pool(x).reshape(len(x), -1)
    return cross_entropy(dense(dense(x, p["f1"]), p["f2"]), y), new


def running(c):
    return {"m": jnp.zeros(c), "v": jnp.ones(c)}


NETWORKS = {
    "lenet": (lenet_params, lenet_loss, {}),
    "convblock": (convblock_params, convblock_loss,
                  {"n1": running(16), "n2": running(32), "n3": running(64)}),
}


def main(name):
    cfg = nets.NETWORKS[name]
    make, loss, stats = NETWORKS[name]
    batch, n = cfg["batch"], SLICE[name]
    lr, momentum = cfg["sgd"]["lr"], cfg["sgd"]["momentum"]
    x, y = nets.fashion("train", cfg["mean"], cfg["std"])
    x = jnp.asarray(x.permute(0, 2, 3, 1).contiguous().numpy())
    y = jnp.asarray(y.numpy().astype("int32"))
    params = make(jax.random.PRNGKey(0))
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)

    def step(state, rows):
        params, velocity, stats = state
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, stats, x[rows],
                                                                       y[rows])
        velocity = jax.tree_util.tree_map(lambda v, g: momentum * v + g, velocity, grads)
        params = jax.tree_util.tree_map(lambda p, v: p - lr * v, params, velocity)
        return (params, velocity, stats), value

    @jax.jit
    def scanned(state, key):
        rows = jax.random.randint(key, (n // batch, batch), 0, len(x))
        return lax.scan(step, state, rows)

    state, key = (params, velocity, stats), jax.random.PRNGKey(1)

    def slice_of_an_epoch():
        nonlocal state, key
        key, use = jax.random.split(key)
        state, losses = scanned(state, use)
        jax.block_until_ready(losses)
    serve(slice_of_an_epoch, n)


if __name__ == "__main__":
    main(sys.argv[1])
