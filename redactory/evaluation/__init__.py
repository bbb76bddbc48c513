"""The room that measures: what detection missed, what a model knows, what a run did, reported without text.

Promises: every figure is exact or carries its bound; nothing that is returned or written quotes private
text; importing the room does not import torch.  Ground truth comes from labelled rows, or from the corpus
simulator, whose people are invented.
"""
