"""The pretrained multilingual encoder: texts to contextual vectors, with ONNX Runtime and without PyTorch.

One encoder serves every model that reads text: the tagger has a head on it, and classifiers use its sentence vectors.
"""

from redactory.encoder.model import DEFAULT_FOLDER as DEFAULT_FOLDER
from redactory.encoder.model import SENTENCE_FOLDER as SENTENCE_FOLDER
from redactory.encoder.model import EncodedText as EncodedText
from redactory.encoder.model import TextEncoder as TextEncoder
from redactory.encoder.model import load_encoder as load_encoder
from redactory.encoder.model import read_encoder_facts as read_encoder_facts
