"""Trains a small convolutional network of Keras on handwritten digits, on any number of ranks.

    aiaccrun -np 2 python examples/keras_digits.py
    mpirun -np 2 python examples/keras_digits.py
    python examples/keras_digits.py

What makes a script for one process a distributed one is marked (1) to (5).
"""

from __future__ import annotations

import argparse
import math

import keras
import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import aiacc.tensorflow.keras as hvd

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


def make_model(seed: int) -> keras.Model:
    """Two convolutions and a linear layer; none depends on how a batch is divided."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


class Part(keras.utils.PyDataset):  # type: ignore[misc]
    """This rank's part of every global batch."""

    def __init__(self, images: Images, labels: Labels, global_batch: int, seed: int) -> None:
        super().__init__()
        self._images, self._labels = images, labels
        self._global_batch = global_batch
        # (2) The same numbers on every rank: all shuffle alike and take different parts.
        self._random = np.random.default_rng(seed)
        self._order = self._random.permutation(len(labels))

    def __len__(self) -> int:
        return len(self._labels) // self._global_batch

    def __getitem__(self, step: int) -> tuple[Images, Labels]:
        batch = self._order[step * self._global_batch : (step + 1) * self._global_batch]
        mine = batch[hvd.rank() :: hvd.size()]
        return self._images[mine], self._labels[mine]

    def on_epoch_end(self) -> None:
        """Shuffle for the next epoch."""
        self._order = self._random.permutation(len(self._labels))


def train(options: argparse.Namespace) -> tuple[keras.Model, float]:
    """Train as ``options`` say; the model and its accuracy. Collective: every rank."""
    train_images, test_images, train_labels, test_labels = load_data()
    global_batch = options.batch_size * hvd.size()
    model = make_model(options.seed + hvd.rank())  # whose parameters rank 0's replace

    # (3) A larger batch deserves larger steps, and the optimizer averages the gradients.
    rate = BASE_LR * math.sqrt(global_batch / 32)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    hvd.broadcast_variables(model.variables, root_rank=0)  # (4) Everybody starts alike.
    model.fit(
        Part(train_images, train_labels, global_batch, options.seed),
        epochs=options.epochs,
        shuffle=False,  # that of Keras would differ between the ranks
        # (5) Metrics of all ranks are averaged, and one rank shows them.
        callbacks=[hvd.callbacks.MetricAverageCallback()],
        verbose=options.verbose if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    return model, accuracy


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", type=int, choices=[0, 1, 2], default=1, help="as of fit")
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
