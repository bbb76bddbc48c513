"""Where an encoder comes from, and which encoders no figure can be stated of.

An encoder that was updated on users' raw text is a function of that text, and so is every message it makes
afterwards: one exchanged sentence may move all later messages by 2C each.  So an encoder is public, or it
was trained with DP-SGD, whose mechanism is composed with the messages' (``docs/guarantees.md``, "Local
differential privacy").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError
from redactory.foundation.files import commit, make_folder, read_json, write_json
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.sealing import broken_files, seal
from redactory.training.accounting import Spending, Spendings
from redactory.training.ldp.bodies import FolderEncoder, read_folder
from redactory.training.ledgerfacts import LedgerFacts, ledger_facts
from redactory.training.models.build import rebuilt_classifier
from redactory.training.models.pooled import PooledClassifier
from redactory.training.models.pretrained import FolderTokenizer
from redactory.training.tokenizer import TextCodec, Tokenizer

PUBLIC, DECLARED, DPSGD = "public", "declared public", "dpsgd"
UPDATED = (
    "an encoder that was updated on private text without noise is a function of that text, so exchanging one "
    "sentence may move every later message by 2C: no figure of a message holds (docs/guarantees.md, 'Local "
    "differential privacy'). Use an encoder that is public, or one trained with trainer dpsgd"
)
OTHER_UNIT = (
    "its figures are about another unit or relation than one sentence exchanged for another, and do not "
    "compose with those of messages. Use an encoder that is public, or one trained with trainer dpsgd"
)


@dataclass(frozen=True)
class Provenance:
    """What is on record of an encoder: ``told`` as JSON, and what making it ``spent``, ``()`` if public."""

    told: dict[str, Any]
    spent: Spendings = ()


def provenance_of_model(folder: Path) -> Provenance:
    """That of ``RUN/models/NAME``, from its ledger and its card, both checked.

    ``GuaranteeError`` with the reason where it was not trained with DP-SGD, was seeded, states no epsilon, is
    not as it was sealed, or lies outside of its run, which its ledger is checked against.
    """
    model, run = ModelFolder(folder), RunFolder(folder.resolve().parent.parent)
    if folder.resolve().parent != run.models or not run.manifest.is_file():
        raise GuaranteeError(
            f"{folder.name}: a trained model is checked against its run: give RUN/models/NAME"
        )
    if problems := broken_files(model):
        raise GuaranteeError(f"{folder.name} is not as it was sealed: {problems[0]}")
    facts = ledger_facts(run, model)
    if (refusal := _refusal(facts)) is not None:
        raise GuaranteeError(f"{folder.name}: {refusal}")
    card = read_json(model.guarantee)
    if card.get("epsilon_substitution") is None or card.get("holds") is not True:
        raise GuaranteeError(f"{folder.name}: its card states no epsilon (guarantee.json), so none composes")
    assert facts.mechanism is not None
    told = {
        "kind": DPSGD,
        "ledger": facts.chain_head,
        "unit": card["unit"],
        "relation": facts.relation.value,
        "epsilon": card["epsilon_substitution"],
        "delta": card["delta"],
        "base": facts.base,
    }
    return Provenance(told, (Spending(facts.mechanism, facts.steps),))


def _refusal(facts: LedgerFacts) -> str | None:
    trainer = facts.settings.trainer
    if facts.noised is None:
        return f"trained with {trainer}: {UPDATED}"
    if trainer != "dpsgd" or facts.mechanism is None:
        return f"trained with {trainer}: {OTHER_UNIT}"
    if facts.seeded:
        return "trained with a seed: whoever knows it can subtract the noise. Train it without train.seed"
    return None


def declared(folder: Path, declared_public: bool) -> Provenance:
    """That of a Hugging Face folder which the user declares public; ``ConfigurationError`` where not so."""
    require_silent(folder)
    if not declared_public:
        raise ConfigurationError(
            f"{folder.name}: nothing in it proves what it was trained on. Declare it public if it is, or "
            "make an encoder from public text (redactory ldp encoder)"
        )
    return Provenance({"kind": DECLARED, "folder_sha256": folder_sha256(folder)})


def require_silent(folder: Path) -> None:
    """``GuaranteeError`` where the folder itself says that it was trained on a corpus.

    No declaration outweighs that.
    """
    for name in ("ledger.jsonl", "guarantee.json", "fit.json", SealedFolder(folder).success.name):
        if (folder / name).exists():
            raise GuaranteeError(f"{folder.name} ({name}) says that it was trained on a corpus: {UPDATED}")


# The folder of an encoder that stage 1 made: written, sealed, and read again as it was sealed.


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
