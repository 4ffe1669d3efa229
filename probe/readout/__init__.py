"""Linear readouts: logistic regression on the last tokens of a frozen model.

They give a model without a head (DINOv2, MAE, CLIP, SigLIP) classes, hence accuracy and fragility.
What is measured then is the model and the readout together, so every record says how it was fitted.
"""

from probe.readout.features import Pool, choose_pool, pooled_features, read_features
from probe.readout.file import Readout, load_readout, save
from probe.readout.fit import GRID, fit_readout
from probe.readout.head import with_readout
from probe.readout.score import Score, score

__all__ = [
    "GRID",
    "Pool",
    "Readout",
    "Score",
    "choose_pool",
    "fit_readout",
    "load_readout",
    "pooled_features",
    "read_features",
    "save",
    "score",
    "with_readout",
]
