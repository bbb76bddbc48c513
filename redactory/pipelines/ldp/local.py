"""Local privacy, both sides in one process: an encoder, a service with its card, and how good it is.

The two sides exchange messages alone, each as the line of JSON that would cross a wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError
from redactory.foundation.files import make_private_folder, take_away, write_json
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.ldp.rows import Example, numbered, read_examples, settings_of
from redactory.pipelines.models import require_training_packages

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder
    from redactory.training.ldp.message import Message
    from redactory.training.ldp.settings import LdpSettings
    from redactory.training.ldp.user_budget import BudgetFolder

CARD = "guarantee.json"
LIMIT, DELTA = 8.0, 1e-5
"""What all messages of one user may spend together where nothing else is said."""
Given = Mapping[str, Any] | None
_BATCH = 512


def ldp_encoder(
    public: str | Path, out: str | Path, settings: Given = None, progress: Progress = silent
) -> dict[str, Any]:
    """Train an encoder on the labelled public text ``public`` (JSON lines ``text``, ``label``) into ``out``.

    ``settings`` are keys of :class:`~redactory.training.ldp.encoder_settings.EncoderSettings`.  Nothing is
    noised: what it learns must be public.  Returns {encoder, digest, provenance, ...} of stage 1.
    """
    require_training_packages()
    from redactory.training.ldp.encoder import pretrain_encoder
    from redactory.training.ldp.encoder_settings import EncoderSettings
    from redactory.training.publictext import PublicText

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
    from redactory.pipelines.ldp.accuracy import measured
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
    taught = () if settings.pairs else getattr(source.body.network, "classes", ())
    classes = settings.classes or tuple(taught)
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
    from redactory.training.ldp.user_budget import BudgetFolder

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
