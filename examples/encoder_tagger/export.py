"""Write the encoder folder of the package from trained weights.

    python examples/encoder_tagger/export.py CHECKPOINT VOCABULARY E5_BLOCKS OUT [--layers 6]

CHECKPOINT is from ``train.py``; VOCABULARY and E5_BLOCKS are from ``unpack.py``: the kept pieces with their scores, and
their 4-bit embeddings, which training leaves as they are.
"""
