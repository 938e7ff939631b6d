"""The session for PyTorch, alone or over several workers and GPUs (DistributedDataParallel):

    import isonomy
    session = isonomy.pytorch.session(steps=1000, checkpoint_steps=50)
    model = session.wrapped(Net()); optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session.restore(model=model, optimizer=optimizer)     # and schedulers, scalers: what has state_dict()
    loader = iter(session.loader(dataset, batch_size=64)) # from the restored step on
    for step in session.steps():
        x, y = next(loader)
        ...; loss.backward(); optimizer.step()
        session.report(loss=loss.detach())
    session.finish(evaluate, export=model)

A checkpoint has the named states, each worker's random generators, and, through its step, the loader's position.
A model that FSDP shards (`fully_shard`, in place of `wrapped`) is gathered for it, with its optimizer, on the chief.
One process drives one GPU: a worker with several GPUs runs `torchrun train.py`, configured by the environment.
"""

from __future__ import annotations

import io
import os
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from submarine_patch.worker import session as base
from submarine_patch.worker.batches import Batches
from submarine_patch.worker.rank import Agreement, Rank
from submarine_patch.worker.session import SessionError

STATE = "state.pt"
MODEL = "model.pt"
_RANDOM = "random"


class ProcessGroup(Agreement):
    """torch.distributed's process group; agreement always uses gloo, on CPU tensors."""

    def __init__(self, place: Rank, threads: int) -> None:
        super().__init__(place)
        if threads:
            torch.set_num_threads(threads)
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        if place.workers > 1 and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")

    def sum(self, values: Sequence[float]) -> list[float]:
        total = torch.tensor([float(v) for v in values], dtype=torch.float64)
        if self.place.workers > 1:
            dist.all_reduce(total)
        return [float(v) for v in total]

    def gathered(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Every worker's byte tensor, by rank; lengths may differ."""
        if self.place.workers == 1:
            return [own]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.place.workers)]
        dist.all_gather(lengths, torch.tensor([own.numel()]))
        longest = max(int(n) for n in lengths)
        padded = torch.nn.functional.pad(own, (0, longest - own.numel()))
        all_of = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(all_of, padded)
        return [part[: int(n)] for part, n in zip(all_of, lengths, strict=True)]


class PyTorchSession(base.Session):
    """A session of PyTorch."""

    state_part = STATE
    gang: ProcessGroup

    def _join(self, threads: int) -> ProcessGroup:
        place = Rank.of_ranks(os.environ)
        self._owners: dict[str, Any] = {}
        torch.manual_seed(self._seed)
        return ProcessGroup(place, threads)

    def wrapped(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """The model, moved to this process's GPU if it has one; with several workers in DistributedDataParallel."""
        if torch.cuda.is_available():
            model = model.to("cuda")
        if self.gang.place.workers == 1:
            return model
        wrapped: torch.nn.Module = torch.nn.parallel.DistributedDataParallel(model, **options)
        return wrapped

    def loader(self, dataset: Any, batch_size: int, **options: Any) -> Iterator[Any]:
        """Endless batches from the session's present step on, this worker's part of each.

        `batch_size` counts all workers; `options` are DataLoader's. The examples of a step depend only on the step.
        """
        place = self.gang.place
        order = Batches((np.arange(len(dataset)),), batch_size, self._seed, place.workers, place.index, self.replicas)
        indices = (order[step][0].tolist() for step in count(self.step))
        # its own generator, so that the loader's draws do not change the training's random numbers
        drawing = torch.Generator().manual_seed(self._seed + self.step)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=indices, **{"generator": drawing, **options})
        return iter(loader)

    def _declare(self, owners: Sequence[Any], named: Mapping[str, Any]) -> None:
        if owners or not named:
            raise SessionError("session.restore(model=model, optimizer=optimizer, ...): give each a name")
        for name, owner in named.items():
            if not hasattr(owner, "load_state_dict"):
                raise SessionError(f"session.restore({name}=...): {type(owner).__name__} has no state_dict()")
        self._owners = {name: getattr(owner, "module", owner) for name, owner in named.items()}

    def _captured(self) -> Callable[[], bytes]:
        model = self._sharded()
        state: dict[str, Any] = {name: _copied(_state_of(owner, model)) for name, owner in self._owners.items()}
        own = torch.frombuffer(bytearray(_bytes(_random_state())), dtype=torch.uint8)
        state[_RANDOM] = self.gang.gathered(own)
        return lambda: _bytes(state)

    def _assign(self, name: str, state: bytes) -> None:
        model = self._sharded()
        try:
            found = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
            for key, owner in self._owners.items():
                _set_state(owner, model, found[key])
        except (KeyError, RuntimeError, ValueError) as e:
            first = str(e).strip().splitlines()[0]
            raise SessionError(f"{self._where}/{name} does not fit this script: {first}") from e
        except pickle.UnpicklingError as e:
            raise SessionError(f"{self._where}/{name} has other values than tensors, numbers and text") from e
        drawn, rank = found.get(_RANDOM, []), self.gang.place.index
        if rank < len(drawn):
            _set_random(torch.load(io.BytesIO(bytes(drawn[rank].tolist())), weights_only=True))

    def _export(self, model: Any) -> dict[str, bytes]:
        inner = getattr(model, "module", model)
        return {MODEL: _bytes(_copied(_state_of(inner, inner if _is_sharded(inner) else None)))}

    def _sharded(self) -> torch.nn.Module | None:
        """The model that FSDP shards, if any; its optimizer's state is sharded, too."""
        return next((owner for owner in self._owners.values() if _is_sharded(owner)), None)


def _is_sharded(owner: Any) -> bool:
    if not (dist.is_available() and dist.is_initialized() and isinstance(owner, torch.nn.Module)):
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in owner.parameters())


def _state_of(owner: Any, sharded: torch.nn.Module | None) -> Any:
    """The owner's state; what is sharded is gathered on the chief, by calls that all workers make."""
    if sharded is None or not (owner is sharded or isinstance(owner, torch.optim.Optimizer)):
        return owner.state_dict()
    import torch.distributed.checkpoint.state_dict as dcp

    whole = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
    if owner is sharded:
        return dcp.get_model_state_dict(owner, options=whole)
    return dcp.get_optimizer_state_dict(sharded, owner, options=whole)


def _set_state(owner: Any, sharded: torch.nn.Module | None, state: Any) -> None:
    """The inverse of _state_of; each worker has the whole state and takes its shards."""
    if sharded is None or not (owner is sharded or isinstance(owner, torch.optim.Optimizer)):
        owner.load_state_dict(state)
        return
    import torch.distributed.checkpoint.state_dict as dcp

    whole = dcp.StateDictOptions(full_state_dict=True)
    if owner is sharded:
        dcp.set_model_state_dict(owner, state, options=whole)
    else:
        dcp.set_optimizer_state_dict(sharded, owner, state, options=whole)


def _random_state() -> dict[str, Any]:
    """The random generators' states of PyTorch, NumPy and Python, as plain values."""
    _, keys, at, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": [torch.from_numpy(np.asarray(keys, np.int64)), int(at), int(has_gauss), float(gauss)],
        "python": [version, list(words), next_gauss],
    }


def _set_random(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    keys, at, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), at, has_gauss, gauss))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words), next_gauss))


def _copied(value: Any) -> Any:
    """A deep copy on the CPU, which further training does not change, without what `weights_only` refuses."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    return type(value)(_copied(v) for v in value) if isinstance(value, list | tuple) else value


def _bytes(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


session = PyTorchSession.of
