"""The room that measures: what detection missed, what a model knows, what a run did, reported without text.

Promises: every figure is exact or carries its bound; nothing that is returned or written quotes private
text; importing the room does not import torch.  Ground truth comes from labelled rows, or from the corpus
simulator, whose people are invented.
"""

from redactory.evaluation.canary import canary_copies_left, canary_exposure
from redactory.evaluation.recall import measure_misses, secrets_left
from redactory.evaluation.report import render_report, write_report
from redactory.evaluation.simulator import Simulation, canary_file, simulate, simulate_customersim
from redactory.evaluation.utility import perplexity

__all__ = [
    "Simulation",
    "canary_copies_left",
    "canary_exposure",
    "canary_file",
    "measure_misses",
    "perplexity",
    "render_report",
    "secrets_left",
    "simulate_customersim",
    "write_report",
    "simulate",
]
