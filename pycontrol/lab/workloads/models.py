"""The models that apps train, their mix and how much they suffer from a spread placement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from pycontrol.lab.workloads.building import Slowdown

VGG16_S = 103.6 / 80.4
"""S of VGG16 on 4 P100 of two servers: images per second on one over those on two (Themis, Table 1).

The same table has Inception-v3 at 242 on one server and 243 on two: no slowdown."""
RACKS = 1.3 / 1.1
"""S anywhere over S in one rack: that of the priors 1.0, 1.1, 1.3 (4.3.1), the paper measures no third level."""


@dataclass(frozen=True)
class Model:
    """A model of Table 4."""

    name: str
    kind: str
    slowdown: Slowdown


def _model(name: str, kind: str, across: float) -> Model:
    """`across`: S over two machines of a rack. Racks add to it in proportion to what machines cost."""
    excess = (across - 1) * (RACKS * VGG16_S - 1) / (VGG16_S - 1)
    return Model(name, kind, (1.0, across, 1 + excess))


MODELS = (
    _model("inception-v3", "CV", 1.0),
    _model("alexnet", "CV", VGG16_S),
    _model("resnet50", "CV", 1.05),
    _model("vgg16", "CV", VGG16_S),
    _model("vgg19", "CV", VGG16_S),
    _model("bi-att-flow", "NLP", 1.05),
    _model("langmodel", "NLP", VGG16_S),
    _model("gnmt", "NLP", 1.1),
    _model("transformer", "NLP", 1.1),
    _model("wavenet", "Speech", 1.05),
    _model("deepspeech", "Speech", VGG16_S),
)
"""The models of Themis' Table 4 (HiveD's Table 3 has the same).

The paper measures S of two: VGG16 (1.29 across machines) and Inception-v3 (none); of ResNet50 it says that it does not
prefer a place. Chosen here: models of many parameters for their computation (AlexNet, VGG19, LangModel, DeepSpeech)
as VGG16, the others 1.05 to the prior 1.1.
"""
MIX = {"CV": 0.1, "NLP": 0.6, "Speech": 0.3}
"""Share of apps by kind (8.1; HiveD's 5.2.1 has the same)."""
BY_NAME = {m.name: m for m in MODELS}


def draw(rng: Generator, n: int, network_share: float | None = None) -> list[Model]:
    """A model for each of n apps, kinds in exact proportion.

    `network_share`: that share of the apps trains VGG16, the others Inception-v3 (the paper's sweep from 0 to 100 %,
    Figures 15 and 16); the network-intensive apps of a share are also those of a larger one. None: Table 4's mix.
    """
    order = rng.permutation(n)
    if network_share is not None:
        few = BY_NAME["vgg16"], BY_NAME["inception-v3"]
        return [few[0] if place < round(network_share * n) else few[1] for place in np.argsort(order).tolist()]
    shares = [MIX[m.kind] / sum(x.kind == m.kind for x in MODELS) for m in MODELS]
    edges = np.rint(np.cumsum(shares) * n).astype(int)
    which = np.searchsorted(edges, np.argsort(order), side="right")
    return [MODELS[i] for i in which]
