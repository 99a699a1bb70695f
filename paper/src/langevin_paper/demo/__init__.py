"""`langevin-paper demo`: six things that the library is for, each with a picture and two sentences, on one page."""

from langevin_paper.demo.parts import PARTS
from langevin_paper.demo.shown import LeftOut, Part, Shown
from langevin_paper.demo.tour import Outcome, tour

__all__ = ["PARTS", "LeftOut", "Outcome", "Part", "Shown", "tour"]
