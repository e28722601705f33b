"""Bytes to tensors: CSV files for training; CSV, JSON and tf.example instances for serving."""
import io
import json
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from google.cloud import storage
from torch.utils.data import DataLoader, TensorDataset

from trainer import metadata

CATEGORICAL_FEATURE_NAMES = [*metadata.IDENTITY_FEATURES, *metadata.VOCABULARY_FEATURES]


# ------------------------------------------------------------ files, local ones and gs:// ones

def _blob(path):
    bucket, _, name = path[len("gs://"):].partition("/")
    return storage.Client().bucket(bucket).blob(name)


def read_bytes(path):
    if path.startswith("gs://"):
        return _blob(path).download_as_bytes()
    return Path(path).read_bytes()


def write_bytes(path, data):
    if path.startswith("gs://"):
        _blob(path).upload_from_string(data, content_type="application/octet-stream")
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)


# ------------------------------------------------------------ reading

def parse_csv(data):
    """Rows of CSV without a header, as a frame in the columns of metadata.HEADER."""
    return pd.read_csv(io.BytesIO(data), header=None, names=metadata.HEADER, dtype=str,
                       keep_default_na=False, na_values=metadata.MISSING)


def read_csv(paths):
    """One frame out of files, local ones or gs:// ones, separated by commas."""
    return pd.concat([parse_csv(read_bytes(path)) for path in paths.split(",")], ignore_index=True)


def process_features(frame):
    """Where features of your own are made. A frame of texts comes in, with numbers it goes out."""
    frame = frame.copy()
    for name in [*metadata.NUMERIC_FEATURE_NAMES, *metadata.IDENTITY_FEATURES]:
        if name in frame:
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
    frame["speed"] = frame["trip_miles"] / (frame["trip_seconds"] + 1) * 3600
    for name in metadata.LOG_FEATURE_NAMES:
        frame[name] = np.log1p(frame[name].clip(lower=0))
    return frame


# ------------------------------------------------------------ features

class Features:
    """What is learnt from the training rows about the columns; saved with the model."""

    def __init__(self, numeric, vocabulary):
        self.numeric = numeric          # {name: (mean, deviation)}
        self.vocabulary = vocabulary    # {name: [word, ...]}

    @classmethod
    def of(cls, frame):
        numeric = {}
        for name in metadata.NUMERIC_FEATURE_NAMES:
            column = frame[name].dropna()
            numeric[name] = (float(column.mean()), float(column.std()) or 1.0)
        return cls(numeric, {name: sorted(frame[name].dropna().unique())
                             for name in metadata.VOCABULARY_FEATURES})

    def sizes(self):
        """How many ids each categorical feature has: one more than it has values."""
        return [*(n + 1 for n in metadata.IDENTITY_FEATURES.values()),
                *(len(self.vocabulary[name]) + 1 for name in metadata.VOCABULARY_FEATURES)]

    def tensors(self, frame):
        """(rows, numeric features) of floats and (rows, categorical features) of ids."""
        numbers = [((frame[name] - mean) / deviation).fillna(0)
                   for name, (mean, deviation) in self.numeric.items()]
        ids = []
        for name, n in metadata.IDENTITY_FEATURES.items():
            column = frame[name].fillna(-1)
            ids.append(column.where((column >= 0) & (column < n), n))
        for name in metadata.VOCABULARY_FEATURES:
            words = {word: i for i, word in enumerate(self.vocabulary[name])}
            ids.append(frame[name].map(words).fillna(len(words)))
        return (torch.tensor(np.stack(numbers, 1), dtype=torch.float32),
                torch.tensor(np.stack(ids, 1).astype(np.int64)))

    def as_dict(self):
        return {"numeric": self.numeric, "vocabulary": self.vocabulary}


def target(frame):
    """The class of each row, or its number where the task is a regression."""
    if metadata.TASK_TYPE == "classification":
        known = {label: i for i, label in enumerate(metadata.TARGET_LABELS)}
        return torch.tensor(frame[metadata.TARGET_NAME].map(known).to_numpy(np.int64))
    return torch.tensor(pd.to_numeric(frame[metadata.TARGET_NAME]).to_numpy(np.float32))


def load_data(paths, batch_size, features=None, shuffle=False, device="cpu"):
    """Batches of ((numbers, ids), target), and the features: those given, or learnt here."""
    frame = process_features(read_csv(paths).dropna(subset=[metadata.TARGET_NAME]))
    features = features or Features.of(frame)
    tensors = [t.to(device) for t in (*features.tensors(frame), target(frame))]
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle), features


# ------------------------------------------------------------ serving

def instances_from_csv(data):
    """Lines of CSV as in training, without the target."""
    names = [name for name in metadata.HEADER if name != metadata.TARGET_NAME]
    return pd.read_csv(io.BytesIO(data), header=None, names=names, dtype=str,
                       keep_default_na=False, na_values=metadata.MISSING)


def instances_from_json(data):
    """A list of objects, or {"instances": [...]}."""
    rows = json.loads(data)
    frame = pd.DataFrame(rows["instances"] if isinstance(rows, dict) else rows)
    return frame.reindex(columns=metadata.HEADER).astype(object)


def instances_from_examples(examples):
    """Serialised tf.example messages; read here, so that TensorFlow is not needed."""
    rows = [{name: values[0] for name, values in _example(e).items() if values} for e in examples]
    return pd.DataFrame(rows).reindex(columns=metadata.HEADER).astype(object)


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data):
    """(number, bytes or int) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def _example(data):
    """{name: [value, ...]}: Example.features.feature is a map of Feature, one of three lists."""
    out = {}
    for _, features in _fields(data):
        for _, entry in _fields(features):
            name, feature = (value for _, value in sorted(_fields(entry)))
            values = []
            for kind, items in _fields(feature):
                for _, item in _fields(items):
                    values += _list_items(kind, item)
            out[name.decode()] = values
    return out


def _list_items(kind, item):
    """One field of a BytesList, a FloatList (packed or not), an Int64List (packed or not)."""
    if kind == 1:
        return [item.decode()]
    if kind == 2:
        return list(struct.unpack(f"<{len(item) // 4}f", item))
    if isinstance(item, int):
        return [item - (item >> 63 << 64)]
    values, at = [], 0
    while at < len(item):
        value, at = _varint(item, at)
        values.append(value - (value >> 63 << 64))
    return values
