"""A training that keeps a GPU busy: about 1.6 TFLOP a step in FP32, dropout, and a checkpoint of 135 MB."""

from __future__ import annotations

import torch

import isonomy

WIDTH, LAYERS, TOKENS, BATCH = 2048, 4, 256, 64


def main() -> None:
    """Trains on the GPU by deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    session = isonomy.pytorch.session(checkpoint_steps=100)
    layers: list[torch.nn.Module] = [torch.nn.Linear(64, WIDTH)]
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    model = session.wrapped(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    session.restore(model=model, optimizer=optimizer)
    x = torch.randn(1024, TOKENS, 64, generator=torch.Generator().manual_seed(3)).to("cuda")
    wanted = x.sum(2)
    loader = session.loader(torch.utils.data.TensorDataset(torch.arange(len(x))), BATCH)
    for _ in session.steps():
        at = next(loader)[0].to("cuda", non_blocking=True)  # so that nothing in a step waits for the GPU
        loss = (model(x[at]).squeeze(-1) - wanted[at]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.detach())
    model.eval()
    with torch.no_grad():
        last = (model(x[:BATCH]).squeeze(-1) - wanted[:BATCH]).pow(2).mean()
    session.finish(lambda: {"loss": last})


if __name__ == "__main__":
    main()
