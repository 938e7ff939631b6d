"""A training script that knows nothing of Isonomy: logistic regression with NumPy, a folder of its own checkpoints, and
log lines as anybody writes them."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np

EPOCHS = 24
EPOCH_S = 0.5
"""As if there were more data."""
CHECKPOINT = Path("ckpt/weights.npz")

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 20))
y = (x @ rng.normal(size=20) + rng.normal(scale=2.0, size=2000) > 0).astype(float)
weights, begin = np.zeros(20), 0
if CHECKPOINT.exists():
    saved = np.load(CHECKPOINT)
    weights, begin = saved["weights"], int(saved["epoch"])
    print(f"goes on after epoch {begin}", flush=True)


def save(epoch: int) -> None:
    """All of it, or what was there before."""
    CHECKPOINT.parent.mkdir(exist_ok=True)
    part = CHECKPOINT.with_name("part.npz")
    np.savez(part, weights=weights, epoch=epoch)
    part.replace(CHECKPOINT)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for epoch in range(begin + 1, EPOCHS + 1):
    time.sleep(EPOCH_S)
    guess = 1.0 / (1.0 + np.exp(-(x @ weights)))
    weights = weights - 0.5 * x.T @ (guess - y) / len(y)
    loss = -np.mean(y * np.log(guess + 1e-9) + (1 - y) * np.log(1 - guess + 1e-9))
    right, said = (guess > 0.5) & (y > 0.5), guess > 0.5
    f1 = 2 * right.sum() / max(1, said.sum() + (y > 0.5).sum())
    print(f"Epoch {epoch}/{EPOCHS}, loss: {loss:.4f}, f1: {f1:.4f}", flush=True)
    save(epoch)
