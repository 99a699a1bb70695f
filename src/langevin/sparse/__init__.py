"""Sparse networks, section 5.2 of the paper, for any module: train in stages, count, prune, remove what is dead, save, look.

stages -> train -> sparsity, inclusion -> sparsify -> shrink, save -> pictures
"""

from langevin.sparse.chain import Units, shrink
from langevin.sparse.files import load, save
from langevin.sparse.inclusion import Inclusion, inclusion, slab_share
from langevin.sparse.measure import Layer, Sparsity, sparsity
from langevin.sparse.pictures import connection_map, input_map, layer_bars
from langevin.sparse.prune import Pruned, sparsify
from langevin.sparse.stages import Stage, anneal
from langevin.sparse.training import Epoch, History, Run, train

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
