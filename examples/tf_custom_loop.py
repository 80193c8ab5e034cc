"""Trains a small convolutional network on handwritten digits in a loop of its own, with a tape.

    aiaccrun -np 2 python examples/tf_custom_loop.py
    mpirun -np 2 python examples/tf_custom_loop.py
    python examples/tf_custom_loop.py

What makes a script for one process a distributed one is marked (1) to (6).
"""

from __future__ import annotations

import argparse
import math

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import aiacc.tensorflow as hvd

#: Learning rate for a global batch of 32 images.
BASE_LR = 0.004

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def load_data() -> tuple[Images, Images, Labels, Labels]:
    """1437 images of shape (8, 8, 1) to learn from and 360 to test with, and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32).reshape(-1, 8, 8, 1) / 16
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    return tuple(parts)


def make_model() -> keras.Model:
    """Convolutions that are normalised over the batches of all ranks, and a linear layer."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            hvd.SyncBatchNormalization(momentum=0.9),  # (2) As if one process had the whole batch.
            layers.ReLU(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


class Trainer:
    """Model and optimizer, and a step of them that TensorFlow compiles."""

    def __init__(self, global_batch: int, seed: int) -> None:
        keras.utils.set_random_seed(seed + hvd.rank())
        self.model = make_model()
        # (3) A larger batch deserves larger steps; its noise shrinks with the root of its size.
        self.optimizer = keras.optimizers.Adam(BASE_LR * math.sqrt(global_batch / 32))
        self.optimizer.build(self.model.trainable_variables)
        # (4) Everybody starts alike.
        hvd.broadcast_variables([*self.model.variables, *self.optimizer.variables], root_rank=0)

    @tf.function(reduce_retracing=True)
    def learn(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One step; the mean loss of this rank's part."""
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        # (5) Gradients are averaged over the ranks, while others are computed.
        tape = hvd.DistributedGradientTape(tape)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def accuracy(self, images: Images, labels: Labels) -> float:
        """Share of the images that the model knows; every rank tests its part."""
        part = slice(hvd.rank(), None, hvd.size())
        guesses = tf.argmax(self.model(images[part], training=False), 1)
        right = tf.reduce_sum(tf.cast(guesses == labels[part], tf.int64))
        # (6) Counts are added up over the ranks.
        return int(hvd.allreduce(right, op=hvd.Sum)) / len(labels)


def train(options: argparse.Namespace) -> tuple[Trainer, float]:
    """Train as ``options`` say; the trainer and its accuracy. Collective: every rank."""
    train_images, test_images, train_labels, test_labels = load_data()
    global_batch = options.batch_size * hvd.size()
    trainer = Trainer(global_batch, options.seed)
    random = np.random.default_rng(options.seed)  # the same on every rank: all shuffle alike
    for epoch in range(options.epochs):
        order = random.permutation(len(train_labels))
        for begin in range(0, len(order) - global_batch + 1, global_batch):
            mine = order[begin : begin + global_batch][hvd.rank() :: hvd.size()]
            loss = trainer.learn(tf.constant(train_images[mine]), tf.constant(train_labels[mine]))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {float(loss):.4f}", flush=True)
    return trainer, trainer.accuracy(test_images, test_labels)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main() -> None:
    """Train as the command line says."""
    options = parse()
    hvd.init()  # (1) Find the other ranks; without a launcher there are none.
    _, accuracy = train(options)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} rank(s)")
    hvd.shutdown()


if __name__ == "__main__":
    main()
