"""Local privacy: an encoder, a service trained on noisy messages, and the users who send messages and queries.

Users and server run in one process here; ``examples/ldp_service`` connects them over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory import training
from redactory.evaluation.utility import measure_accuracy
from redactory.foundation.canonical import file_sha256, json_sha256, read_json_lines
from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, write_json
from redactory.foundation.keys import unicode_variants
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.loading import parse_settings
from redactory.pipelines.curation.models import require_training_packages
from redactory.training import ldp

CARD = "guarantee.json"
BUDGET_EPSILON, BUDGET_DELTA = 8.0, 1e-5
"""Default limit of the joint epsilon of all messages of one user."""
DEFAULT_USER = ""
"""Default user, whose budget a query is charged to."""
LdpSettingsInput = Mapping[str, Any] | None
_PROGRESS_INTERVAL, _MIN_PROBABILITY = 512, 1e-12


def ldp_encoder(
    public: str | Path, out: str | Path, settings: LdpSettingsInput = None, progress: Progress = ignore_progress
) -> dict[str, Any]:
    """Train an encoder on the labelled public text ``public`` (JSON lines ``text``, ``label``) into ``out``.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.EncoderSettings`. Training adds no noise, so the
    text must be public. Returns {encoder, digest, provenance, ...} of stage 1.
    """
    require_training_packages()
    folder, chosen = make_empty_folder(Path(out)), parse_settings(ldp.EncoderSettings, settings)
    text = training.data.PublicText(Path(public))
    return {"encoder": str(folder), **ldp.pretrain_encoder(text, chosen, folder, progress)}


def ldp_train(
    data: str | Path,
    encoder: str | Path,
    out: str | Path,
    settings: LdpSettingsInput = None,
    *,
    budget: str | Path | None = None,
    limit: float = BUDGET_EPSILON,
    delta: float = BUDGET_DELTA,
    declared_public: bool = False,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Let the users of ``data`` send noisy messages, and train a service in ``out`` on them.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.LdpSettings`. ``budget`` is a folder that records
    what each user (``user_id``) spent; if that would exceed ``limit`` at ``delta``, nothing is sent. Returns {service,
    messages, slots, epochs, ..., guarantee}.
    """
    require_training_packages()
    folder = make_empty_folder(Path(out))
    sentence_encoder, service_settings = resolve_service_settings(settings, encoder, declared_public)
    budgets = None if budget is None else ldp.BudgetFolder(Path(budget), limit, delta)
    examples, messages = make_training_messages(Path(data), sentence_encoder, service_settings, budgets)

    card = ldp.make_service_card(folder.name, service_settings, sentence_encoder)
    server = ldp.LdpServer(
        service_settings, encoder=sentence_encoder.digest, shape=sentence_encoder.get_shape(service_settings.represent)
    )
    count = 0
    for count, message in enumerate(messages, 1):
        server.receive(message)
        if count % _PROGRESS_INTERVAL == 0:
            progress("messages", count, None, f"messages, of {len(examples):,} sentences")
    progress("messages", count, count, "messages")
    summary = {"users": len({example.user for example in examples}), **server.train(progress)}
    # write the card first: no service may exist without one
    write_json(folder / CARD, card)
    server.save(folder)
    return {"service": str(folder), **summary, "guarantee": card}


def make_empty_folder(folder: Path) -> Path:
    """Create ``folder``, or accept an empty one; ``RunStateError`` if it is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise RunStateError(f"{folder} is not empty; give another folder with --out")
    return make_private_folder(folder)


def load_encoder(
    folder: str | Path, settings: ldp.LdpSettings, declared_public: bool, digest: str | None = None
) -> ldp.SentenceEncoder:
    """Load the encoder in ``folder``; its dimension and length must match the settings of the service.

    ``digest`` is that of the service's encoder; ``RunStateError`` if it is another.
    """
    expected = {"dimension": settings.dimension, "max_tokens": settings.max_tokens}
    encoder = ldp.SentenceEncoder.load(Path(folder), declared_public=declared_public, **expected)
    if digest not in (None, encoder.digest):
        raise RunStateError("the service belongs to another encoder; give that one with --encoder")
    return encoder


def resolve_service_settings(
    raw_settings: LdpSettingsInput, encoder: str | Path, declared_public: bool
) -> tuple[ldp.SentenceEncoder, ldp.LdpSettings]:
    """Return the encoder, and the settings with its classes as default and the computed noise."""
    settings = parse_settings(ldp.LdpSettings, raw_settings)
    sentence_encoder = load_encoder(encoder, settings, declared_public)
    # default to the encoder's classes, which do not apply to pairs
    classes = settings.classes or (() if settings.pairs else sentence_encoder.network.classes)
    if len(classes) < 2:
        raise ConfigurationError("classes: name at least two, for example --set 'classes=[no, yes]'")
    complete = parse_settings(type(settings), {**dict(settings), "classes": classes})
    return sentence_encoder, complete.resolve_all_noise(sentence_encoder.spendings)


# Users: rows of a file, their messages, their budgets.


@dataclass(frozen=True)
class LdpExample:
    """A row: its text or text pair, its class if it has one, and its user."""

    text: str | tuple[str, str]
    label: str | None
    user: str


def _read_examples(path: Path, pairs: bool) -> list[LdpExample]:
    """Read JSON lines {text, label?, user_id?}, with ``pairs`` also {text_b}, in order.

    ``InputError`` names file, row and key of an invalid row, and quotes no content.
    """
    examples = []
    for number, row in read_json_lines(path):
        for key in ("text", "text_b") if pairs else ("text",):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise InputError(f"{path.name}, row {number}: {key}: expected text")
        text = (row["text"], row["text_b"]) if pairs else row["text"]
        label, user = row.get("label"), row.get("user_id")
        name = None if label is None else str(label)
        examples.append(LdpExample(text, name, "" if user is None else unicode_variants(str(user))[0]))
    if not examples:
        raise InputError(f"{path.name} holds no rows")
    return examples


def make_training_messages(
    data: Path, sentence_encoder: ldp.SentenceEncoder, settings: ldp.LdpSettings, budgets: ldp.BudgetFolder | None
) -> tuple[list[LdpExample], Iterator[ldp.Message]]:
    """Return the rows of ``data`` and the messages of all users; ``budgets`` records the cost of each user.

    ``GuaranteeError`` if the encoder was trained on this very file, ``BudgetExceeded`` before anything is recorded if a
    user has no budget left.
    """
    if data.is_file() and sentence_encoder.provenance.get("text_sha256") == file_sha256(data):
        raise GuaranteeError(
            f"{data.name} is the text that the encoder was trained on, without noise, so it is not "
            "protected. Create the encoder from public text that does not belong to a user"
        )
    examples = _read_examples(data, settings.pairs)
    numbers = {name: number for number, name in enumerate(settings.classes)}
    groups: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        if example.label not in numbers:
            raise InputError(f"{data.name}, row {row + 1}: label: not a class of the service")
        groups.setdefault(example.user if budgets else DEFAULT_USER, []).append(row)
    if budgets is not None:
        for user, rows in groups.items():
            budgets.open_budget(user).require_room("train", settings, len(rows))

    def generate_messages() -> Iterator[ldp.Message]:
        for number, (user, rows) in enumerate(groups.items()):
            # test mode: one seed per user, so that users draw different noise
            seed = None if settings.seed is None else int(json_sha256([settings.seed, number])[:15], 16)
            user_settings = settings.model_copy(update={"seed": seed})
            budget = budgets.open_budget(user) if budgets else None
            client = ldp.LdpClient(sentence_encoder, user_settings, budget)
            texts: Any = [examples[row].text for row in rows]
            yield from client.make_training_messages(texts, [numbers[str(examples[row].label)] for row in rows])

    return examples, generate_messages()


# Accuracy of a service, with fresh noise for every query.


def ldp_evaluate(
    service: str | Path,
    encoder: str | Path,
    test: str | Path,
    settings: LdpSettingsInput = None,
    *,
    draws: int = 5,
    limit: int | None = None,
    declared_public: bool = False,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Measure the accuracy of ``service`` on ``limit`` rows of ``test``, each sent ``draws`` times with fresh noise.

    ``settings`` may hold ``query``, which replaces the service's. Returns {service, texts, draws, accuracy: {mean,
    standard_deviation, least, greatest}, accuracy_without_noise, majority_accuracy, by_class (of the first draw),
    epsilon_sound, noise_multiplier, questions}. Each entry of ``questions`` is a way to send queries with its accuracy,
    noise and epsilons: the service's, and, if that hides queries among fictitious ones, a single one of no higher cost.
    """
    require_training_packages()
    if draws < 1:
        raise ConfigurationError("draws: must be at least 1")
    server = ldp.LdpServer.load(Path(service))
    if {key.split(".")[0] for key in settings or {}} - {"query"}:
        raise ConfigurationError("settings: a service is evaluated unchanged; set only query.*")
    sentence_encoder = load_encoder(encoder, server.settings, declared_public, server.encoder)
    examples = _read_examples(Path(test), server.settings.pairs)[:limit]
    texts: Any = [example.text for example in examples]
    classes = [example.label for example in examples]
    base_settings = server.settings.model_dump(exclude_none=True, exclude={"query"})
    single = parse_settings(ldp.LdpSettings, {**base_settings, "query": {"sampling": {"kind": "fixed"}}})
    ways = [parse_settings(ldp.LdpSettings, {**base_settings, **settings}) if settings else server.settings]
    if isinstance(ways[0].query_participation, ldp.HiddenSampling):
        ways.append(single)
    questions, first = [], dict[str, Any]()
    for way in ways:
        server.settings = way.resolve_all_noise(sentence_encoder.spendings)
        noisy_classifier: Any = _ServiceClassifier(server, sentence_encoder, has_noise=True)
        runs = []
        for draw in range(draws):
            runs.append(measure_accuracy(noisy_classifier, texts, classes))
            progress("queries", draw + 1, draws, "draws")
        first = first or runs[0]
        query_settings = server.settings.make_query_settings()
        shares = [1.0 - run["error_rate"] for run in runs]
        spread = {"standard_deviation": pstdev(shares), "least": min(shares), "greatest": max(shares)}
        question = {
            **ldp.compute_query_metrics(query_settings, sentence_encoder.spendings),
            "messages": query_settings.sampling.steps,
            "accuracy": {"mean": fmean(shares), **spread},
        }
        questions.append(question)
    server.settings = single
    noise_free_classifier: Any = _ServiceClassifier(server, sentence_encoder, has_noise=False)
    card = read_json(Path(service) / CARD)
    return {
        "service": str(service),
        "texts": first["texts"],
        "draws": draws,
        "accuracy": questions[0]["accuracy"],
        "accuracy_without_noise": 1.0 - measure_accuracy(noise_free_classifier, texts, classes)["error_rate"],
        "majority_accuracy": 1.0 - first["majority_error_rate"],
        "by_class": first["by_class"],
        "left_out": first["left_out"],
        **{key: card[key] for key in ("epsilon_sound", "delta", "noise_multiplier")},
        "questions": questions,
    }


@dataclass(frozen=True)
class _ServiceClassifier:
    """Answers of ``server`` to queries: noisy ones as a user sends, or one clipped vector each."""

    server: ldp.LdpServer
    sentence_encoder: ldp.SentenceEncoder
    has_noise: bool

    @property
    def classes(self) -> tuple[str, ...]:
        return self.server.settings.classes

    def compute_class_log_probs(self, texts: Sequence[Any]) -> NDArray[np.float64]:
        """Return the natural log probability of every class for every text: float64 [texts, classes]."""
        server, settings = self.server, self.server.settings
        if self.has_noise:
            # an evaluation protects no text, but draws noise like a user
            client = ldp.LdpClient(self.sentence_encoder, settings.model_copy(update={"seed": None}))
            answers = client.combine_answers(server.answer(list(client.make_query_messages(texts))))
        else:
            vectors = self.sentence_encoder.represent(texts, settings.represent)
            layer = ldp.DPLayer(settings.clip_norm, settings.resolve_noise())
            clipped = layer.clip(vectors.flatten(0, 1) if settings.pairs else vectors).view(vectors.shape).float()
            messages = [ldp.Message(str(row), 0, None, v.numpy(), server.encoder) for row, v in enumerate(clipped)]
            answers = [*server.answer(messages)]
        uniform = dict.fromkeys(self.classes, 1.0 / len(self.classes))
        rows = [[(answer["probabilities"] if answer else uniform)[name] for name in self.classes] for answer in answers]
        log_probabilities: NDArray[np.float64] = np.log(np.maximum(np.array(rows), _MIN_PROBABILITY))
        return log_probabilities
