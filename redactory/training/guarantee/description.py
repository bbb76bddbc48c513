"""Describe a training for its card: what a reviewer asks, and the metadata that the Hugging Face Hub reads.

Every value is a setting, recorded in the ledger, measured on public text, or equal in neighbouring corpora by the
card's own relation. The number of private examples is none of these: a card has the number that the settings assume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from redactory.foundation.bounds import format_upper, round_up
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.spec import LedgerFacts, TrainingSpec
from redactory.training.model import get_library_name
from redactory.training.settings import ENCODER_SOURCE


def describe_training(facts: LedgerFacts, spec: TrainingSpec, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Describe sampling, steps, optimizer, clipping, parameters and other trainings, by name."""
    settings, mechanism, users = facts.settings, spec.mechanism, spec.trainer.samples_users
    described: dict[str, Any] = {}
    if mechanism is not None:
        rate, unit = mechanism.sampling_rate, "user" if users else "example"
        described |= {
            "neighbouring_relation": spec.relation.standard_name,
            "sampling": f"{mechanism.sampler.replace('_', ' ')}: each {unit} in each step at rate {rate:g}",
            "expected_batch_size": f"{mechanism.normaliser:,g}",
            f"bound_on_{unit}s": settings.federated.users if users else WORDS["described"]["no_bound"],
            f"{unit}s_assumed_by_settings": round(mechanism.normaliser / rate),
            "noisy_steps": spec.steps,
            "clipping": f"each {unit}'s {'whole update' if users else 'gradient'} to L2 norm {mechanism.clip_norm:g}",
        }
    described["optimizer"] = _describe_optimizer(facts, spec)
    described["trainable_parameters"] = facts.trainable_parameters
    if lora := getattr(settings.model, "lora", None):
        place = "" if settings.task == "classify" else ", also in adapter/, to load with peft"
        described["adapters"] = f"{lora.method}, rank {lora.rank}{place}"
    if spec.trainer.noise_free_folders[:1] == ("public",) and mechanism is not None and "counts" in manifest:
        words = WORDS["described"]
        in_order = words["sampled" if spec.trainer.samples_public(settings) else "in_order"]
        described |= {
            "public_examples": manifest["counts"]["public"],
            "public_share_of_examples": words["no_share"],
            "public_share_of_steps": settings.public_share or in_order,
        }
    return {
        **described,
        "trainings_started": 1 + len(facts.other_trainings),
        "other_models_of_the_same_data": list(facts.other_trainings),
    }


def _describe_optimizer(facts: LedgerFacts, spec: TrainingSpec) -> str:
    settings = facts.settings
    if facts.private_loop is not None:
        return "of the loop around the steps, which is not Redactory's"
    if spec.trainer.samples_users:
        return f"federated averaging, local SGD at learning rate {settings.federated.local_learning_rate:g}"
    rates = [f"learning rate {settings.dp_learning_rate:g} with noise"] if spec.mechanism else []
    if spec.trainer.noise_free_folders or settings.pretraining_epochs:
        rates.append(f"learning rate {settings.learning_rate:g} without noise")
    warm_up = f", warm-up {settings.warm_up:g}" if settings.warm_up else ""
    decay = f", weight decay {settings.weight_decay:g}" if settings.weight_decay else ""
    return f"{settings.optimizer}, {', '.join(rates)}, {settings.learning_rate_schedule} schedule{warm_up}{decay}"


def describe_for_hub(
    facts: LedgerFacts, manifest: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe ``base_model``, ``license``, ``datasets`` and the results on held-out public text, as far as known."""
    base = facts.base or {}
    if "encoder_sha256" in base:
        base = WORDS[ENCODER_SOURCE]["hub"]
    metrics = {"loss": curve[-1]["loss"]} if curve else {}
    if curve and "error_rate" in curve[-1]:
        metrics["accuracy"] = 1.0 - curve[-1]["error_rate"]
    return {
        "base_model": base.get("name"),
        "license": base.get("licence", "unknown"),
        "datasets": [manifest["run"]] if "run" in manifest else [],
        "held_out_metrics": metrics,
    }


def render_hub_metadata(card: Mapping[str, Any]) -> str:
    """Render the YAML at the top of a model card (https://huggingface.co/docs/hub/model-cards)."""
    hub: Mapping[str, Any] = card.get("hub", {})
    task = "text-classification" if card["task"] == "classify" else "text-generation"
    measured = [{"type": name, "value": value} for name, value in hub.get("held_out_metrics", {}).items()]
    results = [("held-out public text", "public", measured)]
    if card["holds"] and card["epsilon"] is not None:
        title = f"differential privacy, at delta {format_upper(card['delta'])}"
        proved = [{"type": "epsilon", "name": title, "value": round_up(card["epsilon"])}]
        results.append(((hub.get("datasets") or ["training text"])[0], "private", proved))
    index = [
        {"task": {"type": task}, "dataset": {"name": name, "type": kind}, "metrics": metrics}
        for name, kind, metrics in results
        if metrics
    ]
    unit_tag = "user-entity-privacy" if "epsilon_sound" in card else "confidentiality"
    metadata = {
        "library_name": get_library_name(card["kind"]),
        "pipeline_tag": task,
        **{key: hub[key] for key in ("base_model", "license", "datasets") if hub.get(key)},
        "tags": [
            card["trainer"],
            card["kind"],
            "user-entity-privacy" if "epsilon_sound" in card else "confidentiality",
        ],
        **({"model-index": [{"name": card["model"], "results": index}]} if index else {}),
    }
    return yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
