#!/usr/bin/env python3
"""tests/numeric/make_fixtures.py - what PyTorch, scikit-learn and TensorFlow answer, written down

Run it by hand with the peers' environment (bench/setup.sh builds it) when a case is added:

    bench-venv/bin/python tests/numeric/make_fixtures.py            every case below
    bench-venv/bin/python tests/numeric/make_fixtures.py conv2d     those whose name begins so

It writes tests/numeric/fixtures/cases.json and one NAME.safetensors a case. `make test` only reads
them; it needs no Python package. The two image networks are recorded by record_networks.py beside
this file.

cases.json is {"torch": version, ..., "cases": [CASE, ...]}. A CASE says what to do in the words of
a spec and has a "kind":

"train": build `model`, load the tensors `init.*`, and train `steps` steps.
    name        of the case; the tensors are in NAME.safetensors, all F32 or I32, contiguous
    fields      the rows, as data/dataset.h has them: name, type (f32 | i32), h, w, c, ids, and the
                tensor that holds them, (rows, h, w, c), channels last; targets come last
    model       a list, or {"nodes": ..., "output": ...}
    loss, optimizer, clip   as in a spec; clip may be absent
    batch, steps, rows      step t reads rows (t * batch + i) % rows, i < batch
    tol         |got - want| <= tol * max(0.1, largest |want| of that tensor). At least 1e-5; more
                where PyTorch's own float32 differs from its float64 by more
  and in the file:
    in.FIELD    the rows
    init.NAME   initial weights and buffers: NAME is PyTorch's (conv1.weight, bn1.running_mean), the
                layout too: linear (out, in), conv2d (out, in / groups, kh, kw), embedding (rows, dim)
    out         (batch, values) what the model gives for step 0 in training, before that step's
                update; images are flattened in PyTorch's order, channels first
    grad.NAME   gradients of step 0, before clipping
    loss        (steps) the loss of every step, before its update
    final.NAME  weights and buffers after the last step
    eval        (batch, values) what the trained model gives for the first batch in evaluation
    out_logits, eval_logits     the same before the last op, where that is a (log-)softmax
  Every layer is preceded by one with weights, whose gradient is the judge of its input gradient.

"schedule": `schedule` as in a spec (with its warmup), base rate `lr`, `steps_per_epoch`, and `metric`,
    the test loss at the end of each epoch (plateau only). Wanted: `rate`, one number a step.

"metric": tensors `out` (rows, values) and `target` (rows), the loss that says what `out` means, and
    `want`, the metrics by name. Precision and recall of two classes are those of class 1 (of a
    single logit: at probability 0.5), of more classes the plain mean over the classes; AUC of more
    classes is one against the rest, plain mean.
"""
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import nn

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

# ---- from a model in the words of a spec to PyTorch ----------------------------------------------


def pair(v):
    return (v, v) if isinstance(v, int) else tuple(v)


class Layer:
    """One op: a PyTorch module or function, with the name its weights are stored under."""

    PREFIX = {"conv2d": "conv", "linear": "fc", "batchnorm": "bn", "layernorm": "ln",
              "embedding": "emb"}

    def __init__(self, op, arg, name, shape):
        """shape: of one sample, (C, H, W) or (features,)."""
        self.op, self.arg, self.name, self.module = op, arg, name, None
        make = getattr(self, "make_" + op, None)
        if make:
            self.module = make(shape)
        self.shape = self.out_shape(shape)

    def make_conv2d(self, shape):
        a = self.arg
        return nn.Conv2d(shape[0], a["out"], pair(a["kernel"]), pair(a["stride"]),
                         pair(a["padding"]), pair(a["dilation"]), a["groups"], a["bias"])

    def make_linear(self, shape):
        return nn.Linear(shape[0], self.arg["out"], self.arg["bias"])

    def make_batchnorm(self, shape):
        kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
        return kind(shape[0], eps=self.arg["eps"], momentum=self.arg["momentum"])

    def make_layernorm(self, shape):
        return nn.LayerNorm(shape[0], eps=self.arg["eps"])

    def make_embedding(self, shape):
        return nn.Embedding(self.arg["rows"], self.arg["dim"])

    def out_shape(self, shape):
        if self.op == "embedding":
            return (self.arg["dim"],)
        x = torch.zeros((2,) + tuple(shape))
        if self.module:
            self.module.eval()
        return tuple(self.run(x).shape[1:])

    def run(self, x):
        a = self.arg
        if self.op == "layernorm" and x.dim() == 4:     # over the channels of each pixel
            return self.module(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.module:
            return self.module(x)
        return {
            "relu": lambda: F.relu(x),
            "leaky_relu": lambda: F.leaky_relu(x, a["slope"]),
            "gelu": lambda: F.gelu(x, approximate=a["approximate"]),
            "sigmoid": lambda: torch.sigmoid(x),
            "tanh": lambda: torch.tanh(x),
            "softmax": lambda: F.softmax(x, 1),
            "log_softmax": lambda: F.log_softmax(x, 1),
            "flatten": lambda: torch.flatten(x, 1),
            "identity": lambda: x,
            "maxpool": lambda: F.max_pool2d(x, pair(a["kernel"]), pair(a["stride"]),
                                            pair(a["padding"])),
            "avgpool": lambda: F.avg_pool2d(x, pair(a["kernel"]), pair(a["stride"]),
                                            pair(a["padding"])),
        }[self.op]()


DEFAULTS = {
    "conv2d": {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": True},
    "linear": {"bias": True},
    "batchnorm": {"eps": 1e-5, "momentum": 0.1, "per_shard": False},
    "layernorm": {"eps": 1e-5},
    "maxpool": {"padding": [0, 0]},
    "avgpool": {"padding": [0, 0]},
}
PAIRS = ("kernel", "stride", "padding", "dilation")


def normal(op, arg):
    """Every default filled in and every size a pair, as spec/ hands it to the engine."""
    arg = dict(DEFAULTS.get(op, {}), **arg)
    for key in PAIRS:
        if key in arg:
            arg[key] = list(pair(arg[key]))
    if op in ("maxpool", "avgpool"):
        arg.setdefault("stride", arg["kernel"])
    return arg


class Net:
    """A sequential model or a graph, with weights by the spec's names."""

    def __init__(self, model, fields):
        self.inputs = [f for f in fields if f["name"] != "target"]
        self.layers, self.edges = {}, {}
        shapes = {f["name"]: (f["c"], f["h"], f["w"]) if f["h"] * f["w"] > 1 else (f["c"],)
                  for f in self.inputs}
        count = {}
        if isinstance(model, list):
            previous = self.inputs[0]["name"]
            for i, item in enumerate(model):
                (op, arg), = item.items()
                count[op] = count.get(op, 0) + 1
                name = arg.get("name", Layer.PREFIX.get(op, op) + str(count[op]))
                node = "%d" % i
                self.add(node, Layer(op, arg, name, shapes[previous]), [previous], shapes)
                previous = node
            self.output = previous
        else:
            for node, item in model["nodes"].items():
                sources = item.get("from", [])
                (op, arg), = [(k, v) for k, v in item.items() if k != "from"]
                if op == "embedding":
                    sources = [arg["of"]]
                if op in ("concat", "add"):
                    layer = Layer("identity", {}, node, shapes[sources[0]])
                    layer.op = op
                    if op == "concat":
                        layer.shape = (sum(shapes[s][0] for s in sources),) + shapes[sources[0]][1:]
                else:
                    layer = Layer(op, arg, node, shapes[sources[0]])
                self.add(node, layer, sources, shapes)
            self.output = model["output"]

    def add(self, node, layer, sources, shapes):
        self.layers[node], self.edges[node], shapes[node] = layer, sources, layer.shape

    def logits(self):
        """The node before a last (log-)softmax, or None."""
        last = self.layers[self.output]
        return self.edges[self.output][0] if last.op in ("softmax", "log_softmax") else None

    def run(self, batch):
        """Every node's value. Only the embeddings read ids; every other input is F32."""
        value = dict(batch)
        for node, layer in self.layers.items():
            x = [value[s] for s in self.edges[node]]
            if layer.op == "concat":
                value[node] = torch.cat(x, 1)
            elif layer.op == "add":
                value[node] = sum(x[1:], x[0])
            elif layer.op == "embedding":
                value[node] = layer.run(x[0].reshape(-1))
            else:
                value[node] = layer.run(x[0])
        return value

    def modules(self):
        return [(l.name, l.module) for l in self.layers.values() if l.module]

    def train(self, on):
        for _, m in self.modules():
            m.train(on)

    def double(self):
        for _, m in self.modules():
            m.double()

    def params(self):
        return {f"{n}.{k}": p for n, m in self.modules() for k, p in m.named_parameters()}

    def state(self):
        return {f"{n}.{k}": v.detach().clone() for n, m in self.modules()
                for k, v in m.state_dict().items() if k != "num_batches_tracked"}


def loss_of(spec, out, target):
    (name, arg), = spec.items()
    if name in ("cross_entropy", "nll"):
        return {"cross_entropy": F.cross_entropy, "nll": F.nll_loss}[name](
            out, target.reshape(-1).long())
    target = target.reshape(out.shape).to(out.dtype)
    if name == "huber":
        return F.huber_loss(out, target, delta=arg["delta"])
    return {"squared_error": F.mse_loss, "l1": F.l1_loss,
            "bce_with_logits": F.binary_cross_entropy_with_logits}[name](out, target)


class Ftrl(torch.optim.Optimizer):
    """TensorFlow's rule (its ApplyFtrl); check_ftrl holds it against what that answered."""

    def __init__(self, params, lr, l1, l2, lr_power, initial_accumulator):
        super().__init__(params, dict(lr=lr, l1=l1, l2=l2, p=lr_power, a0=initial_accumulator))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            lr, l1, l2, power = g["lr"], g["l1"], g["l2"], g["p"]
            for w in g["params"]:
                s = self.state[w]
                if not s:
                    s["n"] = torch.full_like(w, g["a0"])
                    s["z"] = torch.zeros_like(w)
                n = s["n"] + w.grad * w.grad
                s["z"] += w.grad - (n ** -power - s["n"] ** -power) / lr * w
                s["n"] = n
                quadratic = n ** -power / lr + 2 * l2
                w.copy_(torch.where(s["z"].abs() > l1,
                                    (torch.sign(s["z"]) * l1 - s["z"]) / quadratic,
                                    torch.zeros_like(w)))


def check_ftrl():
    with open(os.path.join(HERE, "ftrl_tensorflow.json")) as f:
        cases = json.load(f)["cases"]
    for c in cases:
        w = nn.Parameter(torch.tensor(c["weights"]))
        optimizer = Ftrl([w], c["lr"], c["l1"], c["l2"], c["lr_power"], c["initial_accumulator"])
        for gradient, after in zip(c["gradients"], c["after"]):
            w.grad = torch.tensor(gradient)
            optimizer.step()
            torch.testing.assert_close(w.detach(), torch.tensor(after), rtol=1e-6, atol=1e-6)


def optimizer_of(spec, params):
    (name, a), = spec.items()
    if name == "sgd":
        return torch.optim.SGD(params, a["lr"], a["momentum"], 0, a["weight_decay"], a["nesterov"])
    if name in ("adam", "adamw"):
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
        return kind(params, a["lr"], tuple(a["betas"]), a["eps"], a["weight_decay"])
    if name == "adagrad":
        return torch.optim.Adagrad(params, a["lr"], a["lr_decay"], a["weight_decay"],
                                   a["initial_accumulator"], a["eps"])
    if name == "rmsprop":
        return torch.optim.RMSprop(params, a["lr"], a["alpha"], a["eps"], a["weight_decay"],
                                   a["momentum"], a["centered"])
    return Ftrl(params, **a)


OPTIMIZERS = {
    "sgd": {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "adam": {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    "adagrad": {"lr": 0.05, "lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0,
                "initial_accumulator": 0.0},
    "rmsprop": {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False,
                "weight_decay": 0.0},
    "ftrl": {"lr": 0.1, "l1": 0.0, "l2": 0.0, "lr_power": -0.5, "initial_accumulator": 0.1},
}


def opt(name, **over):
    return {name: dict(OPTIMIZERS[name], **over)}


# ---- running a case ------------------------------------------------------------------------------


def tensors(case, rows):
    """Fields as torch tensors in PyTorch's layout."""
    result = {}
    for f in case["fields"]:
        x = torch.from_numpy(rows[f["name"]])
        flat = f["h"] * f["w"] == 1
        result[f["name"]] = x.reshape(len(x), f["c"]) if flat else x.permute(0, 3, 1, 2)
    return result


def batch_of(data, case, t, dtype):
    at = [(t * case["batch"] + i) % case["rows"] for i in range(case["batch"])]
    return {k: v[at].to(dtype) if v.is_floating_point() else v[at] for k, v in data.items()}


def flat(x):
    return x.detach().reshape(len(x), -1).clone()


def outputs(net, value, name):
    got = {name: flat(value[net.output])}
    if net.logits():
        got[name + "_logits"] = flat(value[net.logits()])
    return got


def train(case, data, init, dtype):
    net = Net(case["model"], case["fields"])
    for name, m in net.modules():
        m.load_state_dict({k[len(name) + 1:]: v for k, v in init.items()
                           if k.rsplit(".", 1)[0] == name}, strict=False)
    if dtype == torch.float64:
        net.double()
    net.train(True)
    params = net.params()
    optimizer = optimizer_of(case["optimizer"], list(params.values()))
    got = {"loss": []}
    for t in range(case["steps"]):
        batch = batch_of(data, case, t, dtype)
        value = net.run(batch)
        out = value[net.output]
        loss = loss_of(case["loss"], out, batch["target"])
        optimizer.zero_grad()
        loss.backward()
        got["loss"].append(loss.item())
        if t == 0:
            got.update(outputs(net, value, "out"))
            got.update({"grad." + k: p.grad.clone() for k, p in params.items()})
        clip = case.get("clip", {})
        if "norm" in clip:
            nn.utils.clip_grad_norm_(params.values(), clip["norm"])
        if "value" in clip:
            nn.utils.clip_grad_value_(params.values(), clip["value"])
        optimizer.step()
    got["loss"] = torch.tensor(got["loss"], dtype=dtype)
    got.update({"final." + k: v for k, v in net.state().items()})
    net.train(False)
    with torch.no_grad():
        got.update(outputs(net, net.run(batch_of(data, case, 0, dtype)), "eval"))
    return got


def write_tensors(name, arrays):
    path = os.path.join(HERE, name + ".safetensors")
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)
    os.chmod(path, 0o644)               # the library makes it readable by its owner alone


def record_train(case, rows):
    data = tensors(case, rows)
    torch.manual_seed(sum(map(ord, case["name"])))
    net = Net(case["model"], case["fields"])
    for name, m in net.modules():       # weights and biases of norms that are not 1 and 0
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.uniform_(m.bias, -0.5, 0.5)
    init = net.state()
    want = train(case, data, init, torch.float32)
    exact = train(case, data, init, torch.float64)
    worst = 0.0
    for k, v in want.items():
        scale = max(0.1, v.abs().max().item())
        worst = max(worst, (v.double() - exact[k]).abs().max().item() / scale)
    case["tol"] = max(1e-5, float("%.1e" % (4 * worst)))
    if case["tol"] > 1e-4:
        raise SystemExit(f"{case['name']}: PyTorch itself is only good to {worst}: choose better rows")
    file = {"in." + k: v for k, v in rows.items()}
    file.update({"init." + k: v.numpy() for k, v in init.items()})
    file.update({k: v.numpy() for k, v in want.items()})
    write_tensors(case["name"], file)
    return case


# ---- the cases -----------------------------------------------------------------------------------

MSE = {"squared_error": {}}
SGD = opt("sgd", lr=0.05)


def image(h, w, c):
    return {"name": "image", "type": "f32", "h": h, "w": w, "c": c, "ids": 0, "tensor": "in.image"}


def numeric(c):
    return {"name": "numeric", "type": "f32", "h": 1, "w": 1, "c": c, "ids": 0,
            "tensor": "in.numeric"}


def ids(name, n):
    return {"name": name, "type": "i32", "h": 1, "w": 1, "c": 1, "ids": n, "tensor": "in." + name}


def case_of(name, fields, model, loss=None, classes=0, optimizer=None, steps=3, batch=4, rows=6,
            clip=None, low=-1.0, high=1.0):
    """`classes`: the target is one of them; else it has the shape of the output. The rows are drawn
    from a generator of the case's own, so that a new case changes no other."""
    rng = np.random.default_rng([ord(c) for c in name])
    loss = loss or MSE
    case = {"name": name, "kind": "train", "fields": fields, "model": model, "loss": loss,
            "optimizer": optimizer or SGD, "batch": batch, "steps": steps, "rows": rows}
    if clip:
        case["clip"] = clip
    data = {}
    for f in fields:
        shape = (rows, f["h"], f["w"], f["c"])
        if f["ids"]:
            data[f["name"]] = rng.integers(0, f["ids"], shape).astype(np.int32)
        else:
            data[f["name"]] = rng.uniform(low, high, shape).astype(np.float32)
    if classes:
        target = ids("target", classes)
        data["target"] = rng.integers(0, classes, (rows, 1, 1, 1)).astype(np.int32)
    else:
        net = Net(model, fields)
        width = int(np.prod(net.layers[net.output].shape))
        target = dict(numeric(width), name="target", tensor="in.target")
        if "bce_with_logits" in loss:
            data["target"] = rng.integers(0, 2, (rows, 1, 1, width)).astype(np.float32)
        else:
            data["target"] = rng.uniform(-1, 1, (rows, 1, 1, width)).astype(np.float32)
    case["fields"] = fields + [target]
    return case, data


def seq(*ops):
    """seq(("conv2d", {...}), "relu", ...) -> a model, normalised."""
    return [{o: {}} if isinstance(o, str) else {o[0]: normal(o[0], o[1])} for o in ops]


def conv(out, kernel, **more):
    return ("conv2d", dict(more, out=out, kernel=kernel))


def fc(out, **more):
    return ("linear", dict(more, out=out))


def layer_cases():
    yield case_of("linear", [numeric(7)], seq(fc(5), fc(3)))
    yield case_of("linear_no_bias", [numeric(7)], seq(fc(5, bias=False), fc(3, bias=False)))
    yield case_of("linear_wide", [numeric(37)], seq(fc(65), fc(19)), batch=9, rows=10)
    yield case_of("linear_batch_1", [numeric(7)], seq(fc(5), fc(3)), batch=1)
    yield case_of("linear_batch_17", [numeric(7)], seq(fc(5), fc(3)), batch=17, rows=40)
    convs = {
        "conv2d_1x1": conv(5, 1),
        "conv2d_3x3": conv(5, 3),
        "conv2d_3x3_pad": conv(16, 3, padding=1),
        "conv2d_5x5": conv(6, 5),
        "conv2d_no_bias": conv(5, 3, bias=False),
        "conv2d_stride": conv(5, 3, stride=2),
        "conv2d_stride_pad": conv(5, 3, stride=2, padding=1),
        "conv2d_uneven": conv(5, [3, 2], stride=[1, 2], padding=[2, 1]),
        "conv2d_dilation": conv(5, 3, dilation=2, padding=1),
        "conv2d_dilation_stride": conv(5, [2, 3], dilation=[3, 2], stride=[2, 1], padding=[1, 2]),
        "conv2d_groups": conv(6, 3, groups=2, padding=1),
        "conv2d_depthwise": conv(4, 3, groups=4, padding=1),
        "conv2d_depthwise_x2": conv(8, 3, groups=4, stride=2, padding=1),
        "conv2d_groups_dilation": conv(6, 3, groups=2, dilation=2, stride=2, padding=2),
    }
    for name, c in convs.items():
        yield case_of(name, [image(9, 8, 3)], seq(conv(4, 1), c, "flatten"))
    yield case_of("conv2d_first", [image(9, 8, 1)], seq(conv(6, 3), "flatten", fc(3)))
    yield case_of("conv2d_first_rgb", [image(9, 8, 3)], seq(conv(20, 3, padding=1), "relu",
                                                            "flatten", fc(3)))
    yield case_of("conv2d_then_linear", [image(6, 5, 2)],
                  seq(conv(5, 3), "flatten", fc(7), fc(3)))
    yield case_of("conv2d_batch_9", [image(9, 8, 2)],
                  seq(conv(17, 3, padding=1), conv(5, 3), "flatten"), batch=9, rows=9, steps=2)
    pools = {
        "maxpool_2": ("maxpool", {"kernel": 2}),
        "maxpool_3_stride_2": ("maxpool", {"kernel": 3, "stride": 2}),
        "maxpool_pad": ("maxpool", {"kernel": 3, "stride": 2, "padding": 1}),
        "maxpool_overlap": ("maxpool", {"kernel": [2, 3], "stride": 1}),
        "avgpool_2": ("avgpool", {"kernel": 2}),
        "avgpool_3_stride_2": ("avgpool", {"kernel": 3, "stride": 2}),
        "avgpool_pad": ("avgpool", {"kernel": 3, "stride": 2, "padding": 1}),
        "avgpool_uneven": ("avgpool", {"kernel": [2, 3], "stride": [2, 1], "padding": [1, 0]}),
    }
    for name, p in pools.items():
        yield case_of(name, [image(9, 8, 3)], seq(conv(4, 1), p, "flatten"))
    yield case_of("conv_relu_pool", [image(9, 8, 3)],
                  seq(conv(6, 3), "relu", ("maxpool", {"kernel": 2}), "flatten"))
    yield case_of("batchnorm_2d", [image(5, 4, 3)],
                  seq(conv(4, 1), ("batchnorm", {}), "flatten"), steps=5)
    yield case_of("batchnorm_2d_momentum", [image(5, 4, 3)],
                  seq(conv(4, 1), ("batchnorm", {"momentum": 0.3, "eps": 1e-3}), "flatten"), steps=5)
    yield case_of("batchnorm_1d", [numeric(5)],
                  seq(fc(4), ("batchnorm", {}), fc(2)), steps=5, batch=8, rows=11)
    yield case_of("conv_bn_relu_pool", [image(9, 8, 3)],
                  seq(conv(6, 3, padding=1), ("batchnorm", {}), "relu", ("maxpool", {"kernel": 2}),
                      "flatten"))
    yield case_of("layernorm_1d", [numeric(5)], seq(fc(6), ("layernorm", {}), fc(2)), steps=5)
    yield case_of("layernorm_2d", [image(5, 4, 3)],
                  seq(conv(6, 1), ("layernorm", {"eps": 1e-3}), "flatten"), steps=3)
    activations = {
        "relu": "relu", "leaky_relu": ("leaky_relu", {"slope": 0.01}),
        "leaky_relu_slope": ("leaky_relu", {"slope": 0.3}), "gelu": ("gelu", {"approximate": "none"}),
        "gelu_tanh": ("gelu", {"approximate": "tanh"}), "sigmoid": "sigmoid", "tanh": "tanh",
        "softmax": "softmax", "log_softmax": "log_softmax", "identity": "identity",
    }
    for name, a in activations.items():
        yield case_of(name, [numeric(5)], seq(fc(19), a), low=-6, high=6)
    for name in ("gelu", "tanh", "sigmoid", "leaky_relu"):
        yield case_of(name + "_2d", [image(5, 4, 3)], seq(conv(4, 1), activations[name], "flatten"),
                      low=-3, high=3)
    yield case_of("embedding", [ids("a", 6)], {
        "nodes": {"e": {"embedding": {"rows": 6, "dim": 5, "of": "a"}},
                  "y": {"linear": normal("linear", {"out": 3}), "from": ["e"]}}, "output": "y"},
        batch=16, rows=20)
    yield case_of("embedding_repeated", [ids("a", 2)], {
        "nodes": {"e": {"embedding": {"rows": 2, "dim": 17, "of": "a"}}}, "output": "e"},
        batch=16, rows=20)
    yield case_of("concat", [numeric(4), ids("a", 3)], {
        "nodes": {"p": {"linear": normal("linear", {"out": 3}), "from": ["numeric"]},
                  "e": {"embedding": {"rows": 3, "dim": 2, "of": "a"}},
                  "q": {"tanh": {}, "from": ["p"]},
                  "x": {"concat": {}, "from": ["q", "e", "numeric", "p"]},
                  "y": {"linear": normal("linear", {"out": 2}), "from": ["x"]}}, "output": "y"})
    yield case_of("add", [numeric(4)], {
        "nodes": {"p": {"linear": normal("linear", {"out": 3}), "from": ["numeric"]},
                  "q": {"linear": normal("linear", {"out": 3}), "from": ["numeric"]},
                  "r": {"relu": {}, "from": ["q"]},
                  "s": {"add": {}, "from": ["p", "r", "q"]},
                  "y": {"linear": normal("linear", {"out": 2}), "from": ["s"]}}, "output": "y"})
    yield case_of("residual_2d", [image(5, 4, 3)], {
        "nodes": {"a": {"conv2d": normal("conv2d", {"out": 4, "kernel": 1}), "from": ["image"]},
                  "b": {"conv2d": normal("conv2d", {"out": 4, "kernel": 3, "padding": 1}),
                        "from": ["a"]},
                  "c": {"add": {}, "from": ["a", "b"]},
                  "d": {"concat": {}, "from": ["c", "image"]},
                  "r": {"relu": {}, "from": ["d"]},
                  "f": {"flatten": {}, "from": ["r"]},
                  "y": {"linear": normal("linear", {"out": 2}), "from": ["f"]}}, "output": "y"})


def loss_cases():
    net = seq(fc(6), "tanh", fc(3))
    yield case_of("loss_squared_error", [numeric(5)], net, MSE)
    yield case_of("loss_l1", [numeric(5)], net, {"l1": {}})
    yield case_of("loss_huber", [numeric(5)], net, {"huber": {"delta": 1.0}}, low=-4, high=4)
    yield case_of("loss_huber_delta", [numeric(5)], net, {"huber": {"delta": 0.2}})
    yield case_of("loss_cross_entropy", [numeric(5)], net, {"cross_entropy": {}}, classes=3)
    yield case_of("loss_cross_entropy_large", [numeric(5)], seq(fc(10)), {"cross_entropy": {}},
                  classes=10, low=-80, high=80, optimizer=opt("sgd", lr=0.001), batch=7, rows=7)
    yield case_of("loss_nll", [numeric(5)], seq(fc(6), "tanh", fc(4), "log_softmax"), {"nll": {}},
                  classes=4)
    yield case_of("loss_bce_with_logits", [numeric(5)], seq(fc(6), "tanh", fc(1)),
                  {"bce_with_logits": {}})
    yield case_of("loss_bce_with_logits_large", [numeric(5)], seq(fc(3)), {"bce_with_logits": {}},
                  low=-60, high=60, optimizer=opt("sgd", lr=0.001))


def optimizer_cases():
    variants = {
        "sgd": opt("sgd"),
        "sgd_momentum": opt("sgd", momentum=0.9),
        "sgd_nesterov": opt("sgd", momentum=0.9, nesterov=True),
        "sgd_weight_decay": opt("sgd", weight_decay=0.1),
        "sgd_all": opt("sgd", momentum=0.8, nesterov=True, weight_decay=0.05),
        "adam": opt("adam"),
        "adam_betas": opt("adam", betas=[0.7, 0.9], eps=1e-3),
        "adam_weight_decay": opt("adam", weight_decay=0.1),
        "adamw": opt("adamw"),
        "adamw_weight_decay": opt("adamw", lr=0.02, weight_decay=0.3),
        "adagrad": opt("adagrad"),
        "adagrad_all": opt("adagrad", lr_decay=0.1, weight_decay=0.05, initial_accumulator=0.2,
                           eps=1e-6),
        "rmsprop": opt("rmsprop"),
        "rmsprop_momentum": opt("rmsprop", momentum=0.9, alpha=0.9),
        "rmsprop_centered": opt("rmsprop", centered=True, alpha=0.9, eps=1e-4),
        "rmsprop_all": opt("rmsprop", centered=True, momentum=0.5, weight_decay=0.1, eps=1e-4),
        "ftrl": opt("ftrl"),
        "ftrl_l1": opt("ftrl", l1=0.02, l2=0.1),
        "ftrl_power": opt("ftrl", lr_power=-0.7, l2=0.01, initial_accumulator=0.5),
    }
    net = seq(fc(6), "tanh", fc(3))
    for name, o in variants.items():
        yield case_of("optim_" + name, [numeric(5)], net, MSE, optimizer=o, steps=10, rows=13)
    yield case_of("clip_norm", [numeric(5)], net, MSE, steps=10, rows=13, clip={"norm": 0.3})
    yield case_of("clip_norm_unused", [numeric(5)], net, MSE, steps=10, rows=13,
                  clip={"norm": 100.0})
    yield case_of("clip_value", [numeric(5)], net, MSE, steps=10, rows=13, clip={"value": 0.05})


def network_cases():
    def lin(out, *source):
        return {"linear": normal("linear", {"out": out}), "from": list(source)}

    def emb(of, n, dim):
        return {"embedding": {"rows": n, "dim": dim, "of": of}}

    yield case_of("net_wide_and_deep", [numeric(4), ids("a", 5), ids("b", 7), ids("ab", 20)], {
        "nodes": {"deep_a": emb("a", 5, 3), "deep_b": emb("b", 7, 3),
                  "x": {"concat": {}, "from": ["numeric", "deep_a", "deep_b"]},
                  "h1": lin(16, "x"), "r1": {"relu": {}, "from": ["h1"]},
                  "h2": lin(8, "r1"), "r2": {"relu": {}, "from": ["h2"]},
                  "deep": lin(1, "r2"),
                  "wide_x": lin(1, "numeric"), "wide_a": emb("a", 5, 1), "wide_ab": emb("ab", 20, 1),
                  "logit": {"add": {}, "from": ["deep", "wide_x", "wide_a", "wide_ab"]}},
        "output": "logit"}, {"bce_with_logits": {}}, optimizer=opt("adagrad"), steps=10, batch=12,
        rows=50)
    yield case_of("net_mlp", [numeric(13)],
                  seq(fc(32), ("layernorm", {}), ("gelu", {"approximate": "none"}), fc(16), "tanh", fc(1)),
                  MSE, optimizer=opt("adam"), steps=10, batch=10, rows=33)
    yield case_of("net_conv_bn", [image(12, 12, 1)],
                  seq(conv(8, 3, stride=2, padding=1), ("batchnorm", {}), "relu",
                      conv(16, 3, padding=1), ("batchnorm", {}), "relu", ("maxpool", {"kernel": 2}),
                      "flatten", fc(12), fc(10), "log_softmax"),
                  {"nll": {}}, classes=10, optimizer=opt("sgd", lr=0.01, momentum=0.5), steps=10,
                  batch=16, rows=40)
    yield case_of("net_lenet_small", [image(16, 16, 1)],
                  seq(conv(6, 5), "relu", ("maxpool", {"kernel": 2}), conv(16, 3), "relu",
                      ("maxpool", {"kernel": 2}), "flatten", fc(12), "relu", fc(10)),
                  {"cross_entropy": {}}, classes=10, optimizer=opt("sgd", lr=0.01, momentum=0.9),
                  steps=10, batch=4, rows=37)


def schedule_cases():
    """Rates as PyTorch's schedulers give them, one a step; schedulers step at the end of an epoch."""
    def run(name, schedule, make, epochs=8, per_epoch=3, lr=0.1, metric=None, warmup=0):
        w = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=lr)
        scheduler = make(optimizer) if make else None
        # Warm-up multiplies: (t + 1) / steps at step t, as LinearLR from 1 / steps has it.
        factor = torch.zeros(1, requires_grad=True)
        warm_opt = torch.optim.SGD([factor], lr=1.0)
        warm = torch.optim.lr_scheduler.LinearLR(warm_opt, 1 / warmup, 1.0, warmup - 1) \
            if warmup else None
        rates = []
        for e in range(epochs):
            for _ in range(per_epoch):
                rates.append(optimizer.param_groups[0]["lr"] * warm_opt.param_groups[0]["lr"])
                optimizer.step()
                warm_opt.step()
                if warm:
                    warm.step()
            if scheduler:
                scheduler.step(*([metric[e]] if metric else []))
        schedule = dict(schedule, **({"warmup": {"steps": warmup}} if warmup else {}))
        case = {"name": name, "kind": "schedule", "schedule": schedule, "lr": lr, "epochs": epochs,
                "steps_per_epoch": per_epoch, "tol": 1e-6, "rate": [float("%.9g" % r) for r in rates]}
        if metric:
            case["metric"] = metric
        return case

    S = torch.optim.lr_scheduler
    step = {"step": {"every": 3, "gamma": 0.1}}
    yield run("schedule_step", step, lambda o: S.StepLR(o, 3, 0.1))
    yield run("schedule_step_half", {"step": {"every": 2, "gamma": 0.5}},
              lambda o: S.StepLR(o, 2, 0.5))
    yield run("schedule_cosine", {"cosine": {"epochs": 8, "min": 0.0}},
              lambda o: S.CosineAnnealingLR(o, 8))
    yield run("schedule_cosine_min", {"cosine": {"epochs": 8, "min": 0.01}},
              lambda o: S.CosineAnnealingLR(o, 8, 0.01))
    metric = [3.0, 2.0, 2.1, 2.05, 2.0, 1.99999, 1.5, 1.6, 1.6, 1.6, 1.6, 1.4, 1.45, 1.5, 1.5, 1.5]
    yield run("schedule_plateau",
              {"plateau": {"patience": 2, "factor": 0.1, "metric": "test_loss"}},
              lambda o: S.ReduceLROnPlateau(o, factor=0.1, patience=2), 16, 2, metric=metric)
    yield run("schedule_plateau_0",
              {"plateau": {"patience": 0, "factor": 0.5, "metric": "test_loss"}},
              lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=0), 16, 1, metric=metric)
    yield run("schedule_warmup", {}, None, 4, 5, warmup=8)
    yield run("schedule_warmup_step", step, lambda o: S.StepLR(o, 3, 0.1), 8, 3, warmup=5)


def metric_cases():
    from sklearn import metrics as sk
    rng = np.random.default_rng(7)

    def write(name, loss, out, target, want, rows):
        target = target.astype(np.float32 if target.dtype.kind == "f" else np.int32)
        write_tensors(name, {"out": out.astype(np.float32), "target": target})
        return {"name": name, "kind": "metric", "loss": {loss: {}}, "rows": rows, "tol": 1e-6,
                "want": {k: float(v) for k, v in want.items()}}

    def binary(name, loss, out, y, score):
        p = 1 / (1 + np.exp(-score.astype(np.float64)))
        hit = (p > 0.5).astype(int)
        return write(name, loss, out, y, {
            "accuracy": sk.accuracy_score(y, hit), "precision": sk.precision_score(y, hit),
            "recall": sk.recall_score(y, hit), "auc": sk.roc_auc_score(y, score)}, len(y))

    n = 500
    y = rng.integers(0, 2, n)
    score = (rng.normal(size=n) + y).astype(np.float32)
    yield binary("metric_binary", "bce_with_logits", score[:, None], y, score)
    tied = np.round(score * 2) / 2 + np.float32(0.125)
    yield binary("metric_binary_ties", "bce_with_logits", tied[:, None], y, tied)
    rare = (rng.uniform(size=n) < 0.04).astype(int)
    weak = (rng.normal(size=n) + rare - 0.5).astype(np.float32)
    yield binary("metric_binary_rare", "bce_with_logits", weak[:, None], rare, weak)
    two = np.stack([-score / 2, score - score / 2], 1)
    yield binary("metric_two_classes", "cross_entropy", two, y, two[:, 1] - two[:, 0])

    y = rng.integers(0, 7, n)
    out = rng.normal(size=(n, 7)).astype(np.float32)
    out[np.arange(n), y] += 0.7
    p = np.exp(out.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    hit = out.argmax(1)
    yield write("metric_classes", "cross_entropy", out, y, {
        "loss": sk.log_loss(y, p), "accuracy": sk.accuracy_score(y, hit),
        "top_2": sk.top_k_accuracy_score(y, out, k=2),
        "top_5": sk.top_k_accuracy_score(y, out, k=5),
        "precision": sk.precision_score(y, hit, average="macro"),
        "recall": sk.recall_score(y, hit, average="macro"),
        "auc": sk.roc_auc_score(y, p, multi_class="ovr")}, n)

    t = rng.normal(3, 2, n).astype(np.float32)
    out = (t + rng.normal(0, 1, n)).astype(np.float32)
    yield write("metric_regression", "squared_error", out[:, None], t, {
        "loss": sk.mean_squared_error(t, out), "mae": sk.mean_absolute_error(t, out),
        "rmse": math.sqrt(sk.mean_squared_error(t, out)), "r2": sk.r2_score(t, out)}, n)


def main(prefix):
    import sklearn
    check_ftrl()
    index = os.path.join(HERE, "cases.json")
    cases = {}
    if prefix and os.path.exists(index):
        with open(index) as f:
            cases = {c["name"]: c for c in json.load(f)["cases"]}
    for group in (layer_cases, loss_cases, optimizer_cases, network_cases):
        for case, rows in group():
            if case["name"].startswith(prefix):
                cases[case["name"]] = record_train(case, rows)
    for group in (schedule_cases, metric_cases):
        for case in group():
            if case["name"].startswith(prefix):
                cases[case["name"]] = case
    with open(index, "w") as f:
        f.write('{"torch": "%s", "sklearn": "%s", "numpy": "%s",\n "cases": [\n'
                % (torch.__version__.split("+")[0], sklearn.__version__, np.__version__))
        f.write(",\n".join(json.dumps(c) for c in cases.values()))
        f.write("\n]}\n")
    size = sum(os.path.getsize(os.path.join(HERE, f)) for f in os.listdir(HERE))
    print(f"{len(cases)} cases, {size / 1e6:.2f} MB in all", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
