"""Layers with an explicit backward pass, which tell a recorder what each example's gradient is made of.

Without a recorder they are ordinary differentiable layers, in plain training as in prediction.
"""

from redactory.training.layers.lstm import Lstm
from redactory.training.layers.vocabulary import vocabulary_losses

__all__ = ["Lstm", "vocabulary_losses"]
