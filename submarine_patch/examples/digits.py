"""Trains a small network on scikit-learn's digits: real TensorFlow, real data, hyper-parameters as arguments.

Alone:           python -m submarine_patch.examples.digits --steps 200
Under Submarine: --worker_launch_cmd "python -m submarine_patch.examples.digits"
"""

from __future__ import annotations

import argparse
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np

from submarine_patch.worker import training

TEST_EXAMPLES = 360


def arguments() -> argparse.Namespace:
    """The hyper-parameters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning-rate", "--learning_rate", type=float, default=0.05)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dropout", type=float, default=0.0, help="not of the plain TensorFlow loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200, help="global steps, where no Agent says")
    parser.add_argument("--checkpoint-steps", "--checkpoint_steps", type=int, default=20)
    parser.add_argument("--log-steps", "--log_steps", type=int, default=10)
    parser.add_argument("--checkpoint-dir", "--checkpoint_dir", default="", help="where no Agent says")
    return parser.parse_args()


def digits() -> tuple[tuple[np.ndarray[Any, Any], ...], tuple[np.ndarray[Any, Any], ...]]:
    """Training and test examples: 8x8 pixels in 0..1 and labels, read from scikit-learn's own file.

    Importing scikit-learn would cost more CPU time than the training, and so would what Keras imports for its plots and
    its scikit-learn wrappers: called before Keras is imported, this hides them from it.
    """
    found = PathFinder.find_spec("sklearn")  # also where this has hidden it from Keras before
    if found is None or not found.submodule_search_locations:
        raise SystemExit("digits: install scikit-learn (pip install scikit-learn), which ships the data")
    file = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    sys.modules.update(dict.fromkeys(("sklearn", "matplotlib", "pandas")))  # type: ignore[arg-type]
    table = table[np.random.default_rng(0).permutation(len(table))]
    x, y = table[:, :64] / 16.0, table[:, 64].astype(np.int64)
    return (x[TEST_EXAMPLES:], y[TEST_EXAMPLES:]), (x[:TEST_EXAMPLES], y[:TEST_EXAMPLES])


def main() -> None:
    """Synchronous data-parallel training with checkpoints."""
    args = arguments()
    train_set, (test_x, test_y) = digits()
    session = training.session(
        args.steps,
        checkpoint_steps=args.checkpoint_steps,
        log_steps=args.log_steps,
        checkpoint_dir=args.checkpoint_dir,
        seed=args.seed,
    )
    import tensorflow as tf

    with session.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((64,)),
                tf.keras.layers.Dense(args.hidden, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        optimizer = tf.keras.optimizers.SGD(args.learning_rate, momentum=args.momentum)
        optimizer.build(model.trainable_variables)

    def measured(x: Any, y: Any) -> dict[str, Any]:
        logits = model(x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        right = tf.equal(tf.argmax(logits, axis=1), y)
        return {"loss": tf.reduce_mean(losses), "accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}

    def train_step(x: Any, y: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            values = measured(x, y)
            share = values["loss"] / session.replicas  # Keras' optimizers add the replicas' gradients up
        optimizer.apply(tape.gradient(share, model.trainable_variables), model.trainable_variables)
        return values

    session.restore(model, optimizer)
    batches = session.batches(train_set, args.batch_size)
    train = session.replicated(train_step)
    for step in session.steps():
        session.report(**train(*batches[step]))
    session.finish(lambda: measured(tf.constant(test_x), tf.constant(test_y)), export=model)


if __name__ == "__main__":
    main()
