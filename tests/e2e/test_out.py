"""Models out of muster: predictions in every format, and exports that the real PyTorch and
onnxruntime take, with the seeds' own Net classes."""
import csv
import gzip
import io
import json
import struct
import subprocess

import pytest

LENET = """
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
"""
CONVBLOCK = """
import torch.nn as nn
import torch.nn.functional as F

class ConvBlock(nn.Module):
    def __init__(self, i, o, kernel, stride, padding):
        super().__init__()
        self.conv = nn.Conv2d(i, o, kernel, stride, padding)
        self.bn = nn.BatchNorm2d(o)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = ConvBlock(1, 16, 3, 2, 1)
        self.conv2 = ConvBlock(16, 32, 3, 1, 1)
        self.conv3 = ConvBlock(32, 64, 1, 1, 0)
        self.max_pool2d = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        x = self.max_pool2d(self.conv3(self.conv2(self.conv1(x))))
        x = x.view(-1, 64 * 7 * 7)
        return F.log_softmax(self.fc2(self.fc1(x)), dim=1)
"""
CHECK = """
import json, sys
import torch
state = torch.load(sys.argv[1], weights_only=True)
net = Net()
net.load_state_dict(state)
net.eval()
x = torch.tensor(json.load(open(sys.argv[2])), dtype=torch.float32)
print(json.dumps(net(x).tolist()))
"""
# name, scaling, the class that its state dict loads into
NETS = [("fashion-lenet", 0.5, 0.5, LENET), ("fashion-convblock", 0.1307, 0.3081, CONVBLOCK)]
IMAGES = 20


@pytest.fixture(scope="module")
def trained(muster, root, tmp_path_factory):
    made = {}

    def get(name, *more):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            muster("train", root / f"examples/{name}/train.yaml", "--out", made[name], "--quiet",
                   "--set", "epochs=1", *more)
        return made[name]

    return get


@pytest.fixture(scope="module")
def images(data_dir):
    np = pytest.importorskip("numpy")
    raw = gzip.open(data_dir / "fashion-mnist/t10k-images-idx3-ubyte.gz").read()
    return np.frombuffer(raw[16:16 + IMAGES * 784], dtype=np.uint8).reshape(IMAGES, 1, 28, 28)


def write_idx(path, images):
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, len(images), 28, 28) + images.tobytes())


def probabilities(muster, run, file):
    rows = list(csv.reader(io.StringIO(muster("predict", run, "--input", file).stdout)))
    end = len(rows[0]) - (rows[0][-1] == "error")       # models that skip or fill wrong rows
    return (rows[0], [[float(v) for v in row[2:end]] for row in rows[1:]],
            [row[0] for row in rows[1:]])


@pytest.mark.parametrize("name,mean,std,net", NETS, ids=[n[0] for n in NETS])
def test_exports_answer_as_muster_does(name, mean, std, net, muster, trained, images, tmp_path,
                                       torch_python):
    np = pytest.importorskip("numpy")
    run = trained(name, "--set", "limit=1280", "--set", "data.test.limit=100")
    file = tmp_path / "images.idx"
    write_idx(file, images)
    _, ours, _ = probabilities(muster, run, file)
    x = (images.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)

    muster("export", run, "--format", "torch", "-o", tmp_path / "net.pt")
    (tmp_path / "x.json").write_text(json.dumps(x.tolist()))
    (tmp_path / "check.py").write_text(net + CHECK)
    done = subprocess.run([torch_python, tmp_path / "check.py", tmp_path / "net.pt",
                           tmp_path / "x.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = np.array(json.loads(done.stdout))
    theirs = np.exp(theirs) / np.exp(theirs).sum(1, keepdims=True)
    assert np.abs(theirs - np.array(ours)).max() < 2e-6

    muster("export", run, "--format", "onnx", "-o", tmp_path / "net.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "net.onnx"))
    theirs = session.run(None, {"image": x})[0]
    theirs = np.exp(theirs) / np.exp(theirs).sum(1, keepdims=True)
    assert np.abs(theirs - np.array(ours)).max() < 2e-6

    muster("export", run, "--format", "safetensors", "-o", tmp_path / "net.safetensors")
    tensors = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "net.safetensors")
    assert tensors["fc1.weight"].shape[0] in (120, 512)


def test_onnx_of_every_layer(muster, tmp_path, data_dir, images):
    """One of each layer that the image networks do not have; the checker and onnxruntime agree."""
    np = pytest.importorskip("numpy")
    onnx = pytest.importorskip("onnx")
    spec = tmp_path / "t.yaml"
    base = data_dir / "fashion-mnist"
    spec.write_text(f"""name: t
data:
  train: {{idx: [{base}/t10k-images-idx3-ubyte.gz, {base}/t10k-labels-idx1-ubyte.gz], limit: 96}}
model:
  nodes:
    a: {{conv2d: {{out: 8, kernel: 3, stride: 2, padding: 1}}}}
    b: {{batchnorm: {{}}}}
    c: {{leaky_relu: 0.1}}
    d: {{conv2d: {{out: 8, kernel: 3, padding: 2, dilation: 2, groups: 4}}}}
    e: {{add: {{}}, from: [c, d]}}
    f: {{gelu: {{}}}}
    g: {{avgpool: {{kernel: 3, stride: 2, padding: 1}}}}
    h: {{maxpool: {{kernel: 2, stride: 2}}, from: f}}
    i: {{concat: {{}}, from: [g, h]}}
    j: {{dropout: 0.3}}
    k: {{flatten: {{}}}}
    l: {{linear: 30}}
    m: {{layernorm: {{}}}}
    n: {{tanh: {{}}}}
    o: {{linear: 20}}
    p: {{gelu: tanh}}
    q: {{sigmoid: {{}}}}
    r: {{linear: 10}}
    s: {{log_softmax: {{}}}}
  output: s
loss: nll
optimizer: {{adam: {{lr: 0.001}}}}
batch: 32
epochs: 1
""")
    muster("train", spec, "--out", tmp_path / "run", "--quiet")
    muster("export", tmp_path / "run", "--format", "onnx", "-o", tmp_path / "net.onnx")
    onnx.checker.check_model(onnx.load(str(tmp_path / "net.onnx")), full_check=True)
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "net.onnx"))
    theirs = np.exp(session.run(None, {"image": images.astype(np.float32) / np.float32(255)})[0])
    file = tmp_path / "images.idx"
    write_idx(file, images)
    _, ours, _ = probabilities(muster, tmp_path / "run", file)
    assert np.abs(theirs - np.array(ours)).max() < 2e-6


def test_onnx_of_a_wide_and_deep_model(muster, trained, tmp_path):
    onnx = pytest.importorskip("onnx")
    run = trained("taxi-tabular", "--set", "limit=2000")
    muster("export", run, "--format", "onnx", "-o", tmp_path / "taxi.onnx")
    model = onnx.load(str(tmp_path / "taxi.onnx"))
    onnx.checker.check_model(model, full_check=True)
    assert "numeric" in [i.name for i in model.graph.input]


def test_predictions_are_the_same_in_every_format(muster, trained, tmp_path, data_dir):
    """The same rows as CSV, JSON lines and TFRecord; the same answers as each of them."""
    run = trained("taxi-tabular", "--set", "limit=2000")
    with open(data_dir / "chicago_taxi.csv", newline="") as f:
        rows = [row for row, _ in zip(csv.DictReader(f), range(50))]
    with open(tmp_path / "rows.csv", "w", newline="") as f:
        out = csv.DictWriter(f, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
    with open(tmp_path / "rows.jsonl", "w") as f:
        for row in rows:
            typed = {}
            for key, value in row.items():
                try:
                    typed[key] = float(value)
                except ValueError:
                    typed[key] = value
            f.write(json.dumps({k: v for k, v in typed.items() if v != ""}) + "\n")
    header, ours, labels = probabilities(muster, run, tmp_path / "rows.csv")
    assert len(ours) == 50 and header[:2] == ["label", "probability"]
    assert all(abs(sum(p) - 1) < 1e-6 for p in ours)
    answers = [json.loads(line) for line in
               muster("predict", run, "--input", tmp_path / "rows.jsonl").stdout.splitlines()]
    assert [a["label"] for a in answers] == labels
    for a, p in zip(answers, ours):
        assert list(a["probabilities"].values()) == pytest.approx(p, abs=1e-7)
    muster("predict", run, "--input", tmp_path / "rows.csv", "--as", "tfrecord", "--output",
           tmp_path / "out.tfrecord")
    raw = (tmp_path / "out.tfrecord").read_bytes()
    at = count = 0
    while at < len(raw):
        at += 16 + struct.unpack("<Q", raw[at:at + 8])[0]
        count += 1
    assert count == 50


def test_evaluate_repeats_the_last_test(muster, trained):
    run = trained("fashion-lenet", "--set", "limit=1280", "--set", "data.test.limit=100")
    said = json.loads(muster("evaluate", run, "--json").stdout)
    assert said["loss"] == pytest.approx(
        json.loads((run / "run.json").read_text())["test"]["loss"], rel=1e-7)
