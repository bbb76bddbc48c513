"""The folder of an encoder that stage 1 made: written, sealed, and read again as it was sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from redactory.foundation.errors import CheckFailed, InputError
from redactory.foundation.files import commit, make_folder, read_json, write_json
from redactory.redaction.folder import SealedFolder
from redactory.redaction.sealing import broken_files, seal
from redactory.training.ldp.folder_body import FolderEncoder, read_folder
from redactory.training.ldp.provenance import PUBLIC
from redactory.training.models.build_classifier import rebuilt_classifier
from redactory.training.models.pooled import PooledClassifier
from redactory.training.models.pretrained import FolderTokenizer
from redactory.training.tokenizer import TextCodec, Tokenizer

FORMAT = "redactory-sentence-encoder/1"
CONFIG, WEIGHTS, TOKENIZER, PROVENANCE, BODY = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "provenance.json",
    "body",
)
_BELOW = "encoder."


def is_encoder(folder: Path) -> bool:
    """Whether stage 1 wrote ``folder``."""
    try:
        found = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def write_encoder(
    out: Path, tokenizer: TextCodec, network: PooledClassifier, max_tokens: int, provenance: dict[str, Any]
) -> None:
    """Write and seal ``out``; a frozen folder's weights and tokenizer come to lie in ``out/body``."""
    make_folder(out)
    weights = network.state_dict()
    if isinstance(network.encoder, FolderEncoder):
        assert isinstance(tokenizer, FolderTokenizer)
        weights = {name: value for name, value in weights.items() if not name.startswith(_BELOW)}
        network.encoder.model.save_pretrained(out / BODY)
        tokenizer.save(out / BODY)
    else:
        assert isinstance(tokenizer, Tokenizer)
        write_json(out / TOKENIZER, tokenizer.to_json())
    with commit(out / WEIGHTS) as temporary:
        contiguous = {name: value.contiguous() for name, value in weights.items()}
        save_file(contiguous, temporary, metadata={"format": "pt"})
    write_json(out / CONFIG, {"format": FORMAT, "max_tokens": max_tokens, "network": network.describe()})
    write_json(out / PROVENANCE, provenance)
    seal(SealedFolder(out), {"format": FORMAT}, [path for path in out.rglob("*") if path.is_file()])


def read_encoder(folder: Path) -> tuple[TextCodec, PooledClassifier, int, dict[str, Any]]:
    """Tokenizer, network, ``max_tokens`` and provenance of a folder that :func:`write_encoder` sealed.

    ``RunStateError`` where it is not finished, ``CheckFailed`` where a file is not as it was sealed,
    ``InputError`` where it is of another format.
    """
    if problems := broken_files(SealedFolder(folder)):
        raise CheckFailed(f"the encoder {folder.name} is not as it was sealed: {problems[0]}")
    config, told = read_json(folder / CONFIG), read_json(folder / PROVENANCE)
    if config.get("format") != FORMAT or told.get("kind") != PUBLIC:
        raise InputError(f"{folder.name}/{CONFIG} is not that of an encoder that this version reads")
    network = config["network"]
    tokenizer: TextCodec
    if network["encoder"]["format"] == "folder":
        tokenizer, below = read_folder(folder / BODY)
        found = PooledClassifier(below, tuple(network["classes"]), network["pooling"], network["bottleneck"])
    else:
        tokenizer = Tokenizer.from_json(read_json(folder / TOKENIZER))
        rebuilt = rebuilt_classifier(folder.name, network)
        assert isinstance(rebuilt, PooledClassifier)
        found = rebuilt
    missing, unknown = found.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    elsewhere = isinstance(found.encoder, FolderEncoder)
    if unknown or [name for name in missing if not (elsewhere and name.startswith(_BELOW))]:
        raise InputError(f"{folder.name}: the weights do not fit {CONFIG}")
    return tokenizer, found, int(config["max_tokens"]), told
