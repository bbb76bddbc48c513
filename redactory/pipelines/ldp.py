"""What the commands of local privacy are given: the rows of a file, and settings by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from redactory.evaluation.utility import accuracy
from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.foundation.files import make_private_folder, take_away, write_json
from redactory.foundation.keys import forms_of
from redactory.foundation.progress import Progress, silent
from redactory.foundation.settings import Settings, plainly
from redactory.pipelines.models import require_training_packages

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder
    from redactory.training.ldp.message import Message
    from redactory.training.ldp.server import ServerSide
    from redactory.training.ldp.settings import LdpSettings
    from redactory.training.ldp.user import BudgetFolder


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Example:
    """A row: its text, or its two texts, the name of its class where it has one, and its user."""

    text: str | tuple[str, str]
    label: str | None
    user: str


def read_examples(path: Path, pairs: bool) -> list[Example]:
    """The rows of JSON lines {text, label?, user_id?}, with ``pairs`` also {text_b}; in their order.

    ``InputError`` names file, row and key of a row that is not one, and quotes none of it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            found = [_example(path.name, number, line, pairs) for number, line in _lines(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} cannot be read as JSON lines: {type(error).__name__}") from None
    if not found:
        raise InputError(f"{path.name} holds no rows")
    return found


def numbered(path: Path, examples: Sequence[Example], classes: Sequence[str]) -> list[int]:
    """The number of each row's class; ``InputError`` names the first row without one of ``classes``."""
    numbers = {name: number for number, name in enumerate(classes)}
    for row, example in enumerate(examples, 1):
        if example.label not in numbers:
            raise InputError(f"{path.name}, row {row}: label: none of the service's classes")
    return [numbers[str(example.label)] for example in examples]


def settings_of(kind: type[S], given: Mapping[str, Any] | S | None) -> S:
    """``given`` as settings; ``ConfigurationError`` names the keys that are wrong, and quotes no value."""
    if isinstance(given, kind):
        return given
    try:
        return kind.model_validate(_nested(dict(given or {})))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        problems = [f"{_key(one['loc'])}: {plainly(one)}" for one in found]
        raise ConfigurationError("; ".join(problems)) from None


def _nested(given: dict[str, Any]) -> dict[str, Any]:
    """Keys with dots as sections: ``participation.rate`` below ``participation``."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        *above, last = str(key).split(".")
        section = found
        for name in above:
            below = section.setdefault(name, {})
            if not isinstance(below, dict):
                raise ConfigurationError(f"{key}: {name} is given twice")
            section = below
        section[last] = value
    return found


def _key(location: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in location) or "settings"


def _lines(file: Any) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(file, 1) if line.strip())


def _example(name: str, number: int, line: str, pairs: bool) -> Example:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{name}, row {number}: a JSON object is needed")
    for key in ("text", "text_b") if pairs else ("text",):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise InputError(f"{name}, row {number}: {key}: text is needed")
    text = (row["text"], row["text_b"]) if pairs else row["text"]
    label, user = row.get("label"), row.get("user_id")
    return Example(
        text, None if label is None else str(label), "" if user is None else forms_of(str(user))[0]
    )


# Local privacy, both sides in one process: an encoder, a service with its card, and how good it is.


CARD = "guarantee.json"
LIMIT, DELTA = 8.0, 1e-5
"""What all messages of one user may spend together where nothing else is said."""
Given = Mapping[str, Any] | None
_BATCH = 512


def ldp_encoder(
    public: str | Path, out: str | Path, settings: Given = None, progress: Progress = silent
) -> dict[str, Any]:
    """Train an encoder on the labelled public text ``public`` (JSON lines ``text``, ``label``) into ``out``.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.EncoderSettings`.  Nothing is
    noised: what it learns must be public.  Returns {encoder, digest, provenance, ...} of stage 1.
    """
    require_training_packages()
    from redactory.training.ldp.pretraining import pretrain_encoder
    from redactory.training.ldp.settings import EncoderSettings
    from redactory.training.runinput import PublicText

    folder = fresh(Path(out))
    told = pretrain_encoder(
        PublicText(Path(public)), settings_of(EncoderSettings, settings), folder, progress
    )
    return {"encoder": str(folder), **told}


def ldp_train(
    data: str | Path,
    encoder: str | Path,
    out: str | Path,
    settings: Given = None,
    *,
    budget: str | Path | None = None,
    limit: float = LIMIT,
    delta: float = DELTA,
    declared_public: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Have the users of ``data`` send noisy messages, and a service in ``out`` learn from them.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.LdpSettings`.  ``budget`` is a folder
    that keeps what each user (``user_id``) spent: more than ``limit`` at ``delta`` is refused, and
    nothing is sent then.  Returns {service, messages, slots, epochs, ..., guarantee}.
    """
    require_training_packages()
    from redactory.training.ldp.message import bodies
    from redactory.training.ldp.server import ServerSide

    wanted, folder = ldp_settings(settings), fresh(Path(out))
    source = open_encoder(encoder, wanted, declared_public)
    require_other_text(source, Path(data))
    own = settled(wanted, source)
    examples = read_examples(Path(data), own.pairs)
    labels = numbered(Path(data), examples, own.classes)
    messages = sent(examples, labels, source, own, budget_folder(budget, limit, delta, source))
    try:
        card = new_service(folder, own, source)
        with ServerSide.opened(folder) as server:
            for body in bodies([one] for one in _shown(messages, len(examples), progress)):
                server.receive_lines(body)
            told = server.train(progress)
    except BaseException:
        # nobody but this process sent there: what failed is begun anew in the same place
        take_away(folder)
        raise
    return {"service": str(folder), "users": len({e.user for e in examples}), **told, "guarantee": card}


def ldp_evaluate(
    service: str | Path,
    encoder: str | Path,
    test: str | Path,
    *,
    draws: int = 5,
    limit: int | None = None,
    declared_public: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Accuracy of ``service`` on the rows of ``test``, each asked ``draws`` times with noise of its own.

    ``limit`` takes that many rows.  Returns {service, texts, draws, accuracy: {mean, standard_deviation,
    least, greatest}, accuracy_without_noise, majority_accuracy, by_class, epsilon_sound, noise_multiplier};
    ``by_class`` is of the first draw, the standard deviation over draws.
    """
    require_training_packages()
    from redactory.foundation.files import read_json
    from redactory.training.ldp.server import ServerSide

    if draws < 1:
        raise ConfigurationError("draws: at least one is needed")
    server = ServerSide.load(Path(service))
    source = open_encoder(encoder, server.settings, declared_public)
    require_encoder(server.encoder, source)
    examples = read_examples(Path(test), server.settings.pairs)[:limit]
    card = read_json(Path(service) / CARD)
    found = measured(server, source, examples, draws, progress)
    told = {key: card[key] for key in ("epsilon_sound", "delta", "noise_multiplier")}
    return {"service": str(service), **found, **told}


def ldp_settings(given: Given) -> LdpSettings:
    """Settings of a service from keys; a budget is a user's own, and refused here."""
    from redactory.training.ldp.settings import LdpSettings

    found = settings_of(LdpSettings, given)
    if found.budget is not None:
        raise ConfigurationError("budget: it is each user's own; give a folder with --budget")
    return found


def open_encoder(folder: str | Path, settings: LdpSettings, declared_public: bool) -> SentenceEncoder:
    """The encoder in ``folder``, of the dimension and the length that the service wants."""
    from redactory.training.ldp.encoder import SentenceEncoder

    return SentenceEncoder.load(
        Path(folder),
        declared_public=declared_public,
        dimension=settings.dimension,
        max_tokens=settings.max_tokens,
    )


def settled(settings: LdpSettings, source: SentenceEncoder) -> LdpSettings:
    """``settings`` with the encoder's classes where none are named, and the noise in numbers."""
    # what an encoder was taught to tell; of pairs it knows nothing
    classes = settings.classes or (() if settings.pairs else source.classes)
    if len(classes) < 2:
        raise ConfigurationError("classes: name two at least, for example --set 'classes=[no, yes]'")
    noise = settings.noise(source.spendings)
    return settings_of(type(settings), {**dict(settings), "classes": classes, "noise_multiplier": noise})


def require_encoder(digest: str, source: SentenceEncoder) -> None:
    """``RunStateError`` where a service was made for another encoder."""
    if digest != source.digest:
        raise RunStateError("the service was made for another encoder; give --encoder the one of the service")


def require_other_text(source: SentenceEncoder, data: Path) -> None:
    """``GuaranteeError`` where the encoder's public text is the very file whose rows are to be protected."""
    if data.is_file() and source.provenance.get("text_sha256") == file_sha256(data):
        raise GuaranteeError(
            f"{data.name} is the text that the encoder was trained on, without noise: it is not protected. "
            "Make the encoder of public text that is no user's"
        )


def new_service(folder: Path, settings: LdpSettings, source: SentenceEncoder) -> dict[str, Any]:
    """A service of :func:`settled` settings in ``folder``, which has received nothing; its card."""
    from redactory.training.ldp.server import ServerSide

    card = _card(folder, settings, source)
    write_json(folder / CARD, card)
    shape = source.shape(settings.represent)
    ServerSide(settings, encoder=source.digest, shape=shape).create(folder)
    return card


def budget_folder(
    folder: str | Path | None, limit: float, delta: float, source: SentenceEncoder
) -> BudgetFolder | None:
    """The users' budgets, where there are any."""
    from redactory.training.ldp.user import BudgetFolder

    if folder is None:
        return None
    if source.spendings:
        raise ConfigurationError(
            "budget: this encoder was trained on private text, and how much of a user's is not on record: "
            "take a public encoder; without a budget the card composes it for one sentence"
        )
    if not (limit > 0.0 and 0.0 < delta < 1.0):
        raise ConfigurationError("limit: a positive epsilon, and a delta between 0 and 1, are needed")
    return BudgetFolder(Path(folder), limit, delta)


def sent(
    examples: Sequence[Example],
    labels: Sequence[int],
    source: SentenceEncoder,
    settings: LdpSettings,
    budgets: BudgetFolder | None,
) -> Iterator[Message]:
    """The training messages of all users; with ``budgets`` each user's are booked, or none is sent at all.

    ``BudgetExceeded`` before anything is booked where somebody has no room.
    """
    groups: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        groups.setdefault(example.user if budgets else "", []).append(row)
    if budgets is not None:
        budgets.require_room(settings, {user: len(rows) for user, rows in groups.items()})
    return _sent(groups, examples, labels, source, settings, budgets)


def _sent(
    groups: Mapping[str, Sequence[int]],
    examples: Sequence[Example],
    labels: Sequence[int],
    source: SentenceEncoder,
    settings: LdpSettings,
    budgets: BudgetFolder | None,
) -> Iterator[Message]:
    from redactory.training.ldp.user import UserSide

    for number, (user, rows) in enumerate(groups.items()):
        own = settings.model_copy(update={"seed": _own_seed(settings.seed, number)})
        side = UserSide(source, own, budget=budgets.of(user) if budgets else None)
        texts: Any = [examples[row].text for row in rows]
        yield from side.training_messages(texts, [labels[row] for row in rows])


def _own_seed(seed: int | None, number: int) -> int | None:
    """Test mode: a seed for each user, so that no two draw the same noise."""
    return None if seed is None else int(hash_of([seed, number])[:15], 16)


def _card(folder: Path, settings: LdpSettings, source: SentenceEncoder) -> dict[str, Any]:
    from redactory.training.ldp.card import service_card

    return service_card(
        folder.name,
        settings,
        provenance=source.provenance,
        encoder=source.digest,
        spendings=source.spendings,
        seeded=settings.seed is not None,
    )


def fresh(folder: Path) -> Path:
    """``folder``, made private; ``RunStateError`` where something lies in it."""
    if folder.exists() and any(folder.iterdir()):
        raise RunStateError(f"{folder} is not empty; give another folder with --out")
    return make_private_folder(folder)


def _shown(messages: Iterable[Message], sentences: int, progress: Progress) -> Iterator[Message]:
    count = 0
    for count, message in enumerate(messages, 1):
        yield message
        if count % _BATCH == 0:
            progress("messages", count, None, f"messages, of {sentences:,} sentences")
    progress("messages", count, count, "messages")


# How often a local service names the right class, with fresh noise on every query.


_SMALLEST = 1e-12


@dataclass(frozen=True)
class _Asked:
    """A service as a classifier: every text becomes a query, ``noisy`` or, for comparison, without noise."""

    server: ServerSide
    source: SentenceEncoder
    noisy: bool

    @property
    def classes(self) -> tuple[str, ...]:
        return self.server.settings.classes

    def log_probs(self, texts: Sequence[Any], batch_size: int = 0) -> NDArray[np.float64]:
        """Natural log probability of every class for every text: float64 [texts, classes]."""
        told = self._by_noise(texts) if self.noisy else self._without(texts)
        even = dict.fromkeys(self.classes, 1.0 / len(self.classes))
        rows = [[(one["probabilities"] if one else even)[name] for name in self.classes] for one in told]
        found: NDArray[np.float64] = np.log(np.maximum(np.array(rows), _SMALLEST))
        return found

    def _by_noise(self, texts: Sequence[Any]) -> list[dict[str, Any] | None]:
        from redactory.training.ldp.message import Message
        from redactory.training.ldp.user import UserSide

        # an evaluation promises nothing of its texts, but draws as a user would
        side = UserSide(self.source, self.server.settings.model_copy(update={"seed": None}))
        messages = [Message.from_json(one.to_json()) for one in side.query_messages(texts)]
        return side.read(self.server.answers(messages))

    def _without(self, texts: Sequence[Any]) -> list[dict[str, Any] | None]:
        from redactory.training.ldp.message import Message
        from redactory.training.ldp.user import DPLayer

        settings = self.server.settings
        layer = DPLayer(settings.clip_norm, settings.noise())
        found = self.source.represent(texts, settings.represent)
        clipped = layer.clip(found.flatten(0, 1) if settings.pairs else found).view(found.shape).float()
        queries = [
            Message("query", f"{row:032x}", 0, None, values.numpy(), self.server.encoder)
            for row, values in enumerate(clipped)
        ]
        return [*self.server.answers(queries)]


def measured(
    server: ServerSide, source: SentenceEncoder, examples: Sequence[Example], draws: int, progress: Progress
) -> dict[str, Any]:
    """Accuracy over ``draws`` of the noise of every query, and what no noise on queries would give."""
    texts: Any = [example.text for example in examples]
    classes = [example.label for example in examples]
    noisy: Any = _Asked(server, source, noisy=True)
    plain: Any = _Asked(server, source, noisy=False)
    runs = []
    for draw in range(draws):
        runs.append(accuracy(noisy, texts, classes))
        progress("queries", draw + 1, draws, "draws")
    shares = [1.0 - run["error_rate"] for run in runs]
    return {
        "texts": runs[0]["texts"],
        "draws": draws,
        "accuracy": {
            "mean": fmean(shares),
            "standard_deviation": pstdev(shares),
            "least": min(shares),
            "greatest": max(shares),
        },
        "accuracy_without_noise": 1.0 - accuracy(plain, texts, classes)["error_rate"],
        "majority_accuracy": 1.0 - runs[0]["majority_error_rate"],
        "by_class": runs[0]["by_class"],
        "left_out": runs[0]["left_out"],
    }
