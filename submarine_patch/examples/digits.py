"""Trains a small network on scikit-learn's digits: real TensorFlow, real data, hyper-parameters as arguments.

Alone:           python -m submarine_patch.examples.digits --steps 60
Under Submarine: --worker_launch_cmd "python -m submarine_patch.examples.digits"
"""

from __future__ import annotations

import argparse

from submarine_patch.worker import training


def arguments() -> argparse.Namespace:
    """The hyper-parameters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning-rate", "--learning_rate", type=float, default=0.02)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100, help="global steps, where no Agent says")
    parser.add_argument("--checkpoint-every", type=int, default=20)
    return parser.parse_args()


def main() -> None:
    """Synchronous data-parallel training with checkpoints."""
    args = arguments()
    session = training.session(args.steps, args.checkpoint_every)

    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = (data.data / 16.0).astype("float32"), data.target.astype("int64")
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1400], order[1400:]
    rng = np.random.default_rng(args.seed)

    def weights(*shape: int) -> tf.Variable:
        return tf.Variable(rng.normal(0, shape[0] ** -0.5, shape).astype("float32"))

    model = [weights(64, args.hidden), tf.Variable(tf.zeros(args.hidden)), weights(args.hidden, 10),
             tf.Variable(tf.zeros(10))]  # fmt: skip
    speed = [tf.Variable(tf.zeros_like(v)) for v in model]

    def logits(inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(inputs @ model[0] + model[1]) @ model[2] + model[3]

    @tf.function
    def gradients(inputs: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        def replica(inputs: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(inputs))
                loss = tf.reduce_mean(losses)
            return session.mean([loss, *tape.gradient(loss, model)])

        return session.strategy.run(replica, args=(inputs, labels))

    @tf.function
    def update(grads: list[tf.Tensor]) -> None:
        for v, m, g in zip(model, speed, grads, strict=True):
            m.assign(0.9 * m + g)
            v.assign_sub(args.learning_rate * m)

    @tf.function
    def test_accuracy() -> tf.Tensor:
        guess = tf.argmax(logits(tf.constant(x[test])), axis=1)
        return tf.reduce_mean(tf.cast(guess == tf.constant(y[test]), tf.float32))

    session.restore(model=model, momentum=speed)
    for step in session.steps():
        batch = np.random.default_rng([args.seed, step]).choice(train, args.batch_size, replace=False)
        results = gradients(*session.shard(x[batch], y[batch]))
        loss, *grads = [session.strategy.experimental_local_results(r)[0] for r in results]
        update(grads)
        session.report(loss, test_accuracy())
    session.finish()


if __name__ == "__main__":
    main()
