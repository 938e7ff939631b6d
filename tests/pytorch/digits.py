"""The digits with PyTorch: data-parallel over workers, dropout and a schedule, so that nothing may get lost.

Alone:           python -m tests.pytorch.digits --steps 200
Several GPUs:    torchrun -m tests.pytorch.digits
"""

from __future__ import annotations

from typing import Any

import torch

import isonomy
from submarine_patch.examples.digits import arguments, digits


def main() -> None:
    """Synchronous data-parallel training with checkpoints."""
    args = arguments()
    session = isonomy.pytorch.session(
        args.steps, checkpoint_steps=args.checkpoint_steps, checkpoint_dir=args.checkpoint_dir, seed=args.seed
    )
    (x, y), (test_x, test_y) = ([torch.from_numpy(a) for a in arrays] for arrays in digits())
    model = session.wrapped(
        torch.nn.Sequential(
            torch.nn.Linear(64, args.hidden),
            torch.nn.ReLU(),
            torch.nn.Dropout(args.dropout),
            torch.nn.Linear(args.hidden, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, momentum=args.momentum)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    session.restore(model=model, optimizer=optimizer, schedule=schedule)
    loader = session.loader(torch.utils.data.TensorDataset(x, y), args.batch_size)
    for _ in session.steps():
        inputs, labels = next(loader)
        optimizer.zero_grad()
        logits = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        session.report(loss=loss.detach(), accuracy=(logits.argmax(1) == labels).float().mean())

    @torch.no_grad()
    def evaluate() -> dict[str, Any]:
        model.eval()
        logits = model(test_x)
        return {
            "loss": torch.nn.functional.cross_entropy(logits, test_y),
            "accuracy": (logits.argmax(1) == test_y).float().mean(),
        }

    session.finish(evaluate, export=model)


if __name__ == "__main__":
    main()
