"""The digits with `model.fit`.

Alone:            python -m submarine_patch.examples.digits_keras --steps 200
Several workers:  the same with tf_keras (TF_USE_LEGACY_KERAS=1)
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

import isonomy
from submarine_patch.examples.digits import arguments, digits


def main() -> None:
    """Training by `fit` with checkpoints."""
    args = arguments()
    (x, y), (test_x, test_y) = digits()
    session = isonomy.keras.session(
        args.steps, checkpoint_steps=args.checkpoint_steps, checkpoint_dir=args.checkpoint_dir, seed=args.seed
    )
    keras: Any = importlib.import_module("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") else "keras")
    with session.scope():
        model = keras.Sequential(
            [
                keras.layers.InputLayer((64,)),
                keras.layers.Dense(args.hidden, activation="relu"),
                keras.layers.Dropout(args.dropout),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(args.learning_rate, momentum=args.momentum),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    session.fit(model, x, y, batch_size=args.batch_size, verbose=0)

    def evaluate() -> dict[str, Any]:
        logits = model(test_x, training=False)
        loss = keras.losses.sparse_categorical_crossentropy(test_y, logits, from_logits=True)
        array = keras.ops.convert_to_numpy if hasattr(keras, "ops") else np.asarray
        return {"loss": array(loss).mean(), "accuracy": (array(logits).argmax(1) == test_y).mean()}

    session.finish(evaluate, export=model)


if __name__ == "__main__":
    main()
