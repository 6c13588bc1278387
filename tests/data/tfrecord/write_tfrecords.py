"""Writes the TFRecord files of this folder with TensorFlow's own writer. Run once, in an environment of its own:

python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu==2.21.0 && /tmp/tf/bin/python write_tfrecords.py
"""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

HERE = Path(__file__).parent


def feature(value: object) -> tf.train.Feature:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(one, int) for one in values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if all(isinstance(one, float) for one in values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    data = [one.encode() if isinstance(one, str) else one for one in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=data))


def example(i: int) -> bytes:
    fields = {
        "label": i % 3,
        "text": f"records of TensorFlow, märz {i}",
        "image": bytes(range(i, i + 5)),
        "ids": [(-1) ** k * 7**k for k in range(i)],
        "weights": [k / 4 for k in range(i)],
        "box": [0.25, 0.5, float(i), -1.5],
        "names": [f"n{k}" for k in range(i % 4)],
        "big": [-(1 << 63), (1 << 63) - 1, 0, i],
    }
    made = tf.train.Features(feature={name: feature(value) for name, value in fields.items() if value != []})
    return tf.train.Example(features=made).SerializeToString(deterministic=True)


def sequence(i: int) -> bytes:
    context = tf.train.Features(feature={"id": feature(i), "title": feature(f"clip {i}")})
    lists = {
        "frames": [feature([float(k), k + 0.5]) for k in range(i)],
        "tokens": [feature(100 * i + k) for k in range(i)],
        "words": [feature(f"w{k}") for k in range(i)],
    }
    made = tf.train.FeatureLists(feature_list={n: tf.train.FeatureList(feature=f) for n, f in lists.items()})
    return tf.train.SequenceExample(context=context, feature_lists=made).SerializeToString(deterministic=True)


def write(name: str, records: list[bytes], compression: str = "") -> None:
    with tf.io.TFRecordWriter(str(HERE / name), compression or None) as writer:
        for record in records:
            writer.write(record)


if __name__ == "__main__":
    for compression, name in (("", "plain"), ("GZIP", "gzip"), ("ZLIB", "zlib")):
        write(f"{name}.tfrecord", [example(i) for i in range(12)], compression)
    write("sequence.tfrecord", [sequence(i) for i in range(1, 9)])
    write("other.tfrecord", [b"\xff\xff no example", b"", b"three"])
