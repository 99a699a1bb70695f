"""The six parts, in order."""

from langevin_paper.demo import default_call, landsat, laws, minibatches, one_line, ravines
from langevin_paper.demo.shown import Part

__all__ = ["PARTS"]

PARTS = (
    Part("default call", "A posterior by one call", default_call.show),
    Part("laws", "Which law each sampler has", laws.show),
    Part("minibatches", "Minibatches that leave the posterior as it is", minibatches.show),
    Part("Landsat", "A network that knows where it is wrong", landsat.show),
    Part("ravine", "A ravine that is found", ravines.show),
    Part("one line", "One line changed in a training loop", one_line.show),
)
