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

from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.files import read_json
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.sealing import broken_files
from redactory.training.accounting import Spending, Spendings
from redactory.training.ledgerfacts import LedgerFacts, ledger_facts

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
