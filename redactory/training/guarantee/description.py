"""Describe a training for its card: what a reviewer asks, and the metadata that the Hugging Face Hub reads.

Every value is a setting, a record of the ledger, a measurement on public text, or a proved bound. The number of private
examples is none of these: a card has the number that the settings assume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redactory.foundation.bounds import format_upper, round_up
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.metrics import EpsilonInputs
from redactory.training.guarantee.remarks import count_noised_examples
from redactory.training.guarantee.spec import LedgerFacts, TrainingSpec
from redactory.training.held_out import find_saved_row
from redactory.training.model import get_library_name
from redactory.training.settings import ENCODER_SOURCE


def describe_training(
    facts: LedgerFacts, spec: TrainingSpec, manifest: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe relation, sampling, steps, optimizer, clipping, parameters and other trainings, by name.

    ``curve`` has the measurements on held-out public text.
    """
    settings, mechanism, trainer, words = facts.settings, spec.mechanism, spec.trainer, WORDS["described"]
    described: dict[str, Any] = {}
    if mechanism is not None:
        relation = spec.relation if trainer.has_units else EpsilonInputs.from_spec(spec).missed_span_relation
        unit, part = ("user", "whole update") if trainer.samples_users else ("example", "gradient")
        rate = mechanism.sampling_rate
        described = {
            "neighbouring_relation": words[relation.value],
            "sampling": f"{mechanism.sampler.replace('_', ' ')}: each {unit} in each step at rate {rate:g}",
            "expected_batch_size": f"{mechanism.normaliser:,g}",
            f"bound_on_{unit}s": settings.federated.users
            if trainer.samples_users
            else _describe_max_examples(spec, manifest),
            f"{unit}s_assumed_by_settings": round(mechanism.normaliser / rate),
            "noisy_steps": spec.steps,
            "clipping": f"each {unit}'s {part} to L2 norm {mechanism.clip_norm:g}",
        }
        if trainer.noise_free_folders and "counts" in manifest:
            in_order = words["sampled" if trainer.samples_public(settings) else "in_order"]
            described["public_examples"] = manifest["counts"]["public"]
            described["public_share_of_examples"] = words["no_share"]
            described["public_share_of_steps"] = settings.public_share or in_order
    if lora := getattr(settings.model, "lora", None):
        described["adapters"] = f"{lora.method}, rank {lora.rank}"
    saved_row = find_saved_row(curve) if settings.keeps_best_weights and curve else None
    saved_weights = str(words["last" if saved_row is None else "best"])
    if saved_row is not None and "temperature" in saved_row:
        saved_weights += str(words["calibrated"]).format(temperature=saved_row["temperature"])
    return {
        **described,
        "optimizer": _describe_optimizer(facts, spec),
        "chosen_by_the_recipe": [] if facts.private_loop else settings.describe_choices(),
        "saved_weights": saved_weights,
        "trainable_parameters": facts.trainable_parameters,
        "trainings_started": 1 + len(facts.other_trainings),
        "other_models_of_the_same_data": list(facts.other_trainings),
    }


def _describe_max_examples(spec: TrainingSpec, manifest: Mapping[str, Any]) -> int | str:
    """Return the declared bound on the examples; in words if nothing compared it with their number."""
    count, words = spec.settings.max_examples, WORDS["described"]
    if count is None:
        return str(words["no_bound"])
    is_checked = count_noised_examples(spec, manifest.get("counts", {})) is not None
    return count if is_checked else str(words["unchecked_bound"]).format(count=f"{count:,}")


def _describe_optimizer(facts: LedgerFacts, spec: TrainingSpec) -> str:
    settings = facts.settings
    if facts.private_loop is not None:
        return str(WORDS["described"]["custom_loop"])
    if spec.trainer.samples_users:
        return f"federated averaging, local SGD at learning rate {settings.federated.local_learning_rate:g}"
    rates = f"{settings.optimizer}, learning rate"
    rates += f" {settings.dp_learning_rate:g} with noise," if spec.mechanism else ""
    if spec.trainer.noise_free_folders or settings.pretraining_epochs:
        rates += f" {settings.learning_rate:g} without noise,"
    return f"{rates} {settings.learning_rate_schedule}, warm-up {settings.warm_up:g}, decay {settings.weight_decay:g}"


def describe_for_hub(
    card: Mapping[str, Any], facts: LedgerFacts, run: str | None, curve: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe the model for the top of its card (https://huggingface.co/docs/hub/model-cards).

    ``run`` is the name of the curated run, and ``curve`` has the measurements on held-out public text.
    """
    is_classifier, base, measured_row = card["task"] == "classify", facts.base or {}, curve[-1] if curve else {}
    if curve and facts.settings.keeps_best_weights:
        measured_row = find_saved_row(curve)
    if "encoder_sha256" in base:
        base = WORDS[ENCODER_SOURCE]["hub"]
    task = "text-classification" if is_classifier else "text-generation"
    error_rate = measured_row.get("error_rate")
    loss = measured_row.get("calibrated_loss", measured_row.get("loss"))
    measured = [("loss", loss), ("accuracy", None if error_rate is None else 1.0 - error_rate)]
    metrics = [{"type": name, "value": value} for name, value in measured if value is not None]
    results = [{"task": {"type": task}, "dataset": {"name": "held-out text", "type": "public"}, "metrics": metrics}]
    if card["holds"] and card["epsilon"] is not None:
        title = f"differential privacy, at delta {format_upper(card['delta'])}"
        proved = {"type": "epsilon", "name": title, "value": round_up(card["epsilon"])}
        dataset = {"name": run or "training text", "type": "private"}
        results.append({"task": {"type": task}, "dataset": dataset, "metrics": [proved]})
    metadata = {
        "library_name": get_library_name(card["kind"]),
        "pipeline_tag": task,
        "base_model": base.get("name"),
        "license": base.get("licence", "unknown"),
        "datasets": [run] if run else None,
        "tags": [card["trainer"], card["kind"], "user-entity-privacy" if "privacy_unit" in card else "confidentiality"],
        "model-index": [{"name": card["model"], "results": results[not metrics :]}] if results[not metrics :] else None,
    }
    return {key: value for key, value in metadata.items() if value is not None}
