"""Sparse networks (section 5.2 of the paper), for any module: train in stages, count, prune, save.

stages -> train -> sparsity, inclusion -> sparsify -> shrink, save -> plots
"""

from langevin.nn.sparse.files import load, save
from langevin.nn.sparse.plots import connection_map, input_map, layer_bars
from langevin.nn.sparse.pruning import Pruned, Units, shrink, sparsify
from langevin.nn.sparse.training import Epoch, History, Run, Stage, anneal, train
from langevin.nn.sparse.weights import Inclusion, Layer, Sparsity, inclusion, slab_share, sparsity

__all__ = [
    "Epoch",
    "History",
    "Inclusion",
    "Layer",
    "Pruned",
    "Run",
    "Sparsity",
    "Stage",
    "Units",
    "anneal",
    "connection_map",
    "inclusion",
    "input_map",
    "layer_bars",
    "load",
    "save",
    "shrink",
    "slab_share",
    "sparsify",
    "sparsity",
    "train",
]
