"""Local privacy: an encoder, a service that learns from noisy messages, and the users who send and ask.

What crosses between the two sides is JSON lines of messages and JSON; who carries it is not of concern here
(``examples/ldp_service`` does, over HTTP).  What a service says of itself is not trusted: the user's side
computes what its noise costs, draws from its own entropy whatever seed it names, holds its own budget, and
takes answers of the agreed classes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.utility import accuracy
from redactory.foundation.bounds import format_upper
from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, remove, write_json
from redactory.foundation.keys import forms_of
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.loading import settings_of
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.readers.formats import parsed_object

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder
    from redactory.training.ldp.message import Message
    from redactory.training.ldp.server import ServerSide
    from redactory.training.ldp.settings import LdpSettings
    from redactory.training.ldp.user import BudgetFolder

CARD = "guarantee.json"
LIMIT, DELTA = 8.0, 1e-5
"""What all messages of one user may spend together where nothing else is said."""
ACCEPTED = 8.0
"""Most epsilon that one sentence may cost where nothing else is said."""
ME = ""
"""Whose budget a query is on where no user is named."""
Given = Mapping[str, Any] | None
Texts = Sequence[str | tuple[str, str]]
_BATCH, _SMALLEST = 512, 1e-12
_ONCE = {"query": {"participation": {"kind": "fixed"}}}


def ldp_encoder(
    public: str | Path, out: str | Path, settings: Given = None, progress: Progress = silent
) -> dict[str, Any]:
    """Train an encoder on the labelled public text ``public`` (JSON lines ``text``, ``label``) into ``out``.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.EncoderSettings`.  Nothing is
    noised: what it learns must be public.  Returns {encoder, digest, provenance, ...} of stage 1.
    """
    require_training_packages()
    from redactory.training.data import PublicText
    from redactory.training.ldp.pretraining import pretrain_encoder
    from redactory.training.ldp.settings import EncoderSettings

    folder, chosen = _fresh(Path(out)), settings_of(EncoderSettings, settings)
    return {"encoder": str(folder), **pretrain_encoder(PublicText(Path(public)), chosen, folder, progress)}


def ldp_new_service(
    service: str | Path, encoder: str | Path, settings: Given = None, *, declared_public: bool = False
) -> dict[str, Any]:
    """Make a service that has learnt nothing yet in the empty folder ``service``; its guarantee card.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.LdpSettings`.
    """
    require_training_packages()
    folder = _fresh(Path(service))
    source, own = _settled(settings, encoder, declared_public)
    return _new_service(folder, source, own)


def ldp_service(service: str | Path) -> AbstractContextManager[ServerSide]:
    """The service in a folder: ``with redactory.ldp_service("service") as service: ...``.

    Nobody else can open it meanwhile (``RunStateError``).  Its methods are to be called one at a time:
    ``facts()`` for the users, ``receive_lines(body)`` and ``answer_lines(body)`` for what
    :class:`LdpUser` sends, ``train()``.  What ``receive_lines`` returned from is on the disk.
    """
    require_training_packages()
    from redactory.training.ldp.server import ServerSide

    return ServerSide.opened(Path(service))


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

    folder = _fresh(Path(out))
    source, own = _settled(settings, encoder, declared_public)
    budgets = _budgets(budget, limit, delta, source)
    examples, messages = _training_messages(Path(data), source, own, budgets)

    def shown() -> Iterator[list[Message]]:
        count = 0
        for count, message in enumerate(messages, 1):
            yield [message]
            if count % _BATCH == 0:
                progress("messages", count, None, f"messages, of {len(examples):,} sentences")
        progress("messages", count, count, "messages")

    try:
        card = _new_service(folder, source, own)
        with ServerSide.opened(folder) as server:
            for body in bodies(shown()):
                server.receive_lines(body)
            learnt = server.train(progress)
    except BaseException:
        # nobody but this process sent there: what failed is begun anew in the same place
        remove(folder)
        raise
    users = len({example.user for example in examples})
    return {"service": str(folder), "users": users, **learnt, "guarantee": card}


def ldp_settings(given: Given) -> LdpSettings:
    """Settings of a service from keys; a budget is a user's own, and refused here."""
    from redactory.training.ldp.settings import LdpSettings

    found = settings_of(LdpSettings, given)
    if found.budget is not None:
        raise ConfigurationError("budget: it is each user's own; give a folder with --budget")
    return found


def _fresh(folder: Path) -> Path:
    if folder.exists() and any(folder.iterdir()):
        raise RunStateError(f"{folder} is not empty; give another folder with --out")
    return make_private_folder(folder)


def _encoder(folder: str | Path, settings: LdpSettings, declared_public: bool) -> SentenceEncoder:
    """The encoder in ``folder``, of the dimension and the length that the service wants."""
    from redactory.training.ldp.encoder import SentenceEncoder

    wanted = {"dimension": settings.dimension, "max_tokens": settings.max_tokens}
    return SentenceEncoder.load(Path(folder), declared_public=declared_public, **wanted)


def _settled(given: Given, encoder: str | Path, declared_public: bool) -> tuple[SentenceEncoder, LdpSettings]:
    """The encoder, and settings with its classes where none are named, and the noise in numbers."""
    settings = ldp_settings(given)
    source = _encoder(encoder, settings, declared_public)
    # the classes of an encoder's training; of pairs it knows nothing
    classes = settings.classes or (() if settings.pairs else source.classes)
    if len(classes) < 2:
        raise ConfigurationError("classes: name two at least, for example --set 'classes=[no, yes]'")
    settled = settings_of(type(settings), {**dict(settings), "classes": classes})
    return source, settled.settled(source.spendings)


def _new_service(folder: Path, source: SentenceEncoder, settings: LdpSettings) -> dict[str, Any]:
    """A service in ``folder`` which has received nothing; its card."""
    from redactory.training.ldp.card import service_card
    from redactory.training.ldp.server import ServerSide

    card = service_card(
        folder.name,
        settings,
        provenance=source.provenance,
        encoder=source.digest,
        spendings=source.spendings,
        seeded=settings.seed is not None,
    )
    write_json(folder / CARD, card)
    ServerSide(settings, encoder=source.digest, shape=source.shape(settings.represent)).create(folder)
    return card


def _require_encoder(digest: str, source: SentenceEncoder) -> None:
    if digest != source.digest:
        raise RunStateError("the service was made for another encoder; give --encoder the one of the service")


# The users' side: rows of a file, their messages, their budgets.


@dataclass(frozen=True)
class Example:
    """A row: its text, or its two texts, the name of its class where it has one, and its user."""

    text: str | tuple[str, str]
    label: str | None
    user: str


def _read_examples(path: Path, pairs: bool) -> list[Example]:
    """The rows of JSON lines {text, label?, user_id?}, with ``pairs`` also {text_b}; in their order.

    ``InputError`` names file, row and key of a row that is invalid, and quotes nothing of it.
    """
    found = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path.name} cannot be read as JSON lines: {type(error).__name__}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row, reason = parsed_object(line)
        if row is None:
            raise InputError(f"{path.name}, row {number}: a JSON object is needed ({reason})")
        for key in ("text", "text_b") if pairs else ("text",):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise InputError(f"{path.name}, row {number}: {key}: text is needed")
        text = (row["text"], row["text_b"]) if pairs else row["text"]
        label, user = row.get("label"), row.get("user_id")
        name = None if label is None else str(label)
        found.append(Example(text, name, "" if user is None else forms_of(str(user))[0]))
    if not found:
        raise InputError(f"{path.name} holds no rows")
    return found


def _budgets(
    folder: str | Path | None, limit: float, delta: float, source: SentenceEncoder
) -> BudgetFolder | None:
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


def _training_messages(
    data: Path, source: SentenceEncoder, settings: LdpSettings, budgets: BudgetFolder | None
) -> tuple[list[Example], Iterator[Message]]:
    """The rows of ``data`` and the messages of all users; with ``budgets`` each user's are booked.

    ``GuaranteeError`` where the encoder's public text is the very file whose rows are to be protected,
    ``BudgetExceeded`` before anything is booked where somebody has no room.
    """
    from redactory.training.ldp.user import UserSide

    if data.is_file() and source.provenance.get("text_sha256") == file_sha256(data):
        raise GuaranteeError(
            f"{data.name} is the text that the encoder was trained on, without noise: it is not protected. "
            "Make the encoder of public text that is no user's"
        )
    examples = _read_examples(data, settings.pairs)
    numbers = {name: number for number, name in enumerate(settings.classes)}
    groups: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        if example.label not in numbers:
            raise InputError(f"{data.name}, row {row + 1}: label: none of the service's classes")
        groups.setdefault(example.user if budgets else ME, []).append(row)
    if budgets is not None:
        budgets.require_room(settings, {user: len(rows) for user, rows in groups.items()})

    def messages() -> Iterator[Message]:
        for number, (user, rows) in enumerate(groups.items()):
            # test mode: a seed for each user, so that no two draw the same noise
            drawn = None if settings.seed is None else int(hash_of([settings.seed, number])[:15], 16)
            own = settings.model_copy(update={"seed": drawn})
            side = UserSide(source, own, budget=budgets.of(user) if budgets else None)
            texts: Any = [examples[row].text for row in rows]
            yield from side.training_messages(texts, [numbers[str(examples[row].label)] for row in rows])

    return examples, messages()


class LdpUser:
    """The user's side towards the service whose ``facts()`` are ``facts``.

    Where a sentence would cost more than ``epsilon`` at ``delta``, or the service was made for another
    encoder, nothing is made (``GuaranteeError``, ``RunStateError``).  ``budget`` is a folder that keeps what
    each user spent: more than ``limit`` is refused (``BudgetExceeded``), and what leaves is booked before.
    ``cost`` is {epsilon_sound, delta, noise_multiplier} of each sentence and question, with ``query`` a
    question's own where it is sent otherwise.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        encoder: str | Path,
        *,
        budget: str | Path | None = None,
        limit: float = LIMIT,
        delta: float = DELTA,
        epsilon: float = ACCEPTED,
        declared_public: bool = False,
    ) -> None:
        require_training_packages()
        from redactory.training.ldp.accounting import confirmed_epsilon
        from redactory.training.ldp.message import FORMAT
        from redactory.training.ldp.settings import LdpSettings

        given = facts.get("settings")
        try:
            if facts.get("format") != FORMAT or not isinstance(given, dict):
                raise _no_service()
            settings = settings_of(LdpSettings, given)
        except ConfigurationError:
            raise _no_service() from None
        # a seed that the service names would let it subtract the noise
        self._settings = settings.model_copy(update={"seed": None, "budget": None})
        self._trained = facts.get("trained") is True
        self._source = _encoder(encoder, settings, declared_public)
        _require_encoder(str(facts.get("encoder")), self._source)
        spent = self._source.spendings

        def cost(own: LdpSettings, what: str) -> dict[str, Any]:
            noise = own.noise(spent)
            found = confirmed_epsilon(noise, own.vectors, own.participation, delta, spent).value
            if found is None or found > epsilon:
                much = "no finite epsilon" if found is None else f"epsilon {format_upper(found)}"
                raise GuaranteeError(
                    f"the service's noise costs a {what} {much} at delta {format_upper(delta)}; epsilon "
                    f"accepts {format_upper(epsilon)}. Nothing was sent."
                )
            return {"epsilon_sound": found, "delta": delta, "noise_multiplier": noise}

        self.cost = cost(settings, "sentence")
        if settings.query is not None:
            self.cost["query"] = cost(settings.asked(spent), "question")
        self._budgets = _budgets(budget, limit, delta, self._source)

    def training(self, data: str | Path) -> Iterator[bytes]:
        """Messages of the rows of ``data`` (JSON lines ``text``, ``label``, ``user_id``, ``text_b``).

        Each piece is for one ``receive_lines``.  A piece whose answer was lost is sent again as it is.
        """
        from redactory.training.ldp.message import bodies

        _, messages = _training_messages(Path(data), self._source, self._settings, self._budgets)
        return bodies([message] for message in messages)

    def ask(
        self, texts: Texts, carry: Callable[[bytes], Any], *, user: str = ME
    ) -> list[dict[str, Any] | None]:
        """{class, probabilities} for each of ``texts`` (pairs: two) in order; None where no coin sent it.

        ``carry`` takes a piece of JSON lines to the service's ``answer_lines`` and brings what that returned.
        All questions are on the budget of ``user``.  Where they hide among fictitious ones an answer is made
        with the user's own coins: whoever learns it learns more than the messages tell.
        """
        from redactory.training.ldp.accounting import HiddenCoins
        from redactory.training.ldp.message import bodies
        from redactory.training.ldp.user import UserSide

        if not self._trained:
            raise RunStateError("the service is not trained yet, and could not answer. Nothing was sent.")
        if not texts or any(isinstance(text, str) == self._settings.pairs for text in texts):
            raise ConfigurationError(
                "texts: the service takes pairs of texts" if self._settings.pairs else "texts: none"
            )
        if self._budgets and user == ME and self._budgets.others_than(ME):
            raise ConfigurationError(
                "user: the budget has named users; say whose queries these are. Nothing was sent."
            )
        budget, queries = self._budgets.of(user) if self._budgets else None, list[Any](texts)
        side = UserSide(self._source, self._settings, budget=budget)
        slots: dict[str, list[Message]] = {}
        hidden = isinstance(self._settings.questions, HiddenCoins)
        for message in side.query_messages(queries):
            # of hidden questions each message has an answer of its own
            slots.setdefault(f"{message.step} {message.slot}" if hidden else message.slot, []).append(message)
        answers = [one for body in bodies(slots.values()) for one in self._checked(carry(body))]
        kept = ("class", "probabilities")
        return [one and {key: one[key] for key in kept} for one in side.read(answers)]

    def _checked(self, answers: Any) -> Iterator[dict[str, Any]]:
        """Slot, class and probabilities of ``answers``; ``RunStateError`` where they are not as agreed."""
        for answer in answers if isinstance(answers, list) else [None]:
            given = answer if isinstance(answer, dict) else {}
            slot, name, shares = (given.get(key) for key in ("slot", "class", "probabilities"))
            step = given.get("step", 0)
            if not (isinstance(slot, str) and isinstance(name, str) and isinstance(shares, dict)):
                raise _no_service()
            if type(step) is not int:
                raise _no_service()
            if name not in shares or set(shares) != set(self._settings.classes):
                raise _no_service()
            if not all(type(share) is float and 0.0 <= share <= 1.0 for share in shares.values()):
                raise _no_service()
            yield {"slot": slot, "step": step, "class": name, "probabilities": shares}


def _no_service() -> RunStateError:
    return RunStateError("what answered is no service of this version")


# How often a service names the right class, with fresh noise on every query.


def ldp_evaluate(
    service: str | Path,
    encoder: str | Path,
    test: str | Path,
    settings: Given = None,
    *,
    draws: int = 5,
    limit: int | None = None,
    declared_public: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Accuracy of ``service`` on ``limit`` rows of ``test``, each asked ``draws`` times with fresh noise.

    ``settings`` may hold ``query``, which stands in the place of the service's own.  Returns {service, texts,
    draws, accuracy: {mean, standard_deviation, least, greatest}, accuracy_without_noise, majority_accuracy,
    by_class (of the first draw), epsilon_sound, noise_multiplier, questions}.  Each of ``questions`` is a way
    to send them with its accuracy, noise and epsilons: the service's, and, where that has fictitious ones
    among them, a single send that costs no more.
    """
    require_training_packages()
    from redactory.training.ldp.server import ServerSide

    if draws < 1:
        raise ConfigurationError("draws: at least one is needed")
    server = ServerSide.load(Path(service))
    if {key.split(".")[0] for key in settings or {}} - {"query"}:
        raise ConfigurationError("settings: a service is evaluated as it is, but for query.*")
    source = _encoder(encoder, server.settings, declared_public)
    _require_encoder(server.encoder, source)
    examples = _read_examples(Path(test), server.settings.pairs)[:limit]
    texts: Any = [example.text for example in examples]
    classes = [example.label for example in examples]
    questions, first = [], None
    for way in _ways(server.settings, settings):
        server.settings = way.settled(source.spendings)
        noisy: Any = _Asked(server, source, _noisy_answers)
        runs = []
        for draw in range(draws):
            runs.append(accuracy(noisy, texts, classes))
            progress("queries", draw + 1, draws, "draws")
        first = first or runs[0]
        questions.append(_told(server.settings.asked(source.spendings), source, runs))
    assert first is not None
    once = {**server.settings.model_dump(exclude_none=True), **_ONCE}
    server.settings = settings_of(type(server.settings), once)
    plain: Any = _Asked(server, source, _plain_answers)
    card = read_json(Path(service) / CARD)
    return {
        "service": str(service),
        "texts": first["texts"],
        "draws": draws,
        "accuracy": questions[0]["accuracy"],
        "accuracy_without_noise": 1.0 - accuracy(plain, texts, classes)["error_rate"],
        "majority_accuracy": 1.0 - first["majority_error_rate"],
        "by_class": first["by_class"],
        "left_out": first["left_out"],
        **{key: card[key] for key in ("epsilon_sound", "delta", "noise_multiplier")},
        "questions": questions,
    }


def _ways(own: LdpSettings, given: Given) -> Iterator[LdpSettings]:
    """The service's settings with the questions of ``given``; where those hide among fictitious ones, also
    with a single send of each."""
    from redactory.training.ldp.accounting import HiddenCoins
    from redactory.training.ldp.settings import LdpSettings

    kept = own.model_dump(exclude_none=True, exclude={"query"})
    asked = settings_of(LdpSettings, {**kept, **given}) if given else own
    yield asked
    if isinstance(asked.questions, HiddenCoins):
        yield settings_of(LdpSettings, {**kept, **_ONCE})


def _told(own: LdpSettings, source: SentenceEncoder, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One way to ask: how often, at what noise and epsilons, and how accurate the answers were."""
    from redactory.training.ldp.accounting import steps_of
    from redactory.training.ldp.card import figures_of_questions

    shares = [1.0 - run["error_rate"] for run in runs]
    return {
        "participation": own.participation.model_dump(exclude_none=True),
        "messages": steps_of(own.participation),
        **figures_of_questions(own, source.spendings),
        "accuracy": {
            "mean": fmean(shares),
            "standard_deviation": pstdev(shares),
            "least": min(shares),
            "greatest": max(shares),
        },
    }


@dataclass(frozen=True)
class _Asked:
    """A service as a classifier: every text becomes a query."""

    server: ServerSide
    source: SentenceEncoder
    answers: Callable[[ServerSide, SentenceEncoder, Any], Iterable[dict[str, Any] | None]]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.server.settings.classes

    def log_probs(self, texts: Sequence[Any]) -> NDArray[np.float64]:
        """Natural log probability of every class for every text: float64 [texts, classes]."""
        even = dict.fromkeys(self.classes, 1.0 / len(self.classes))
        answers = self.answers(self.server, self.source, texts)
        rows = [[(one["probabilities"] if one else even)[name] for name in self.classes] for one in answers]
        found: NDArray[np.float64] = np.log(np.maximum(np.array(rows), _SMALLEST))
        return found


def _noisy_answers(
    server: ServerSide, source: SentenceEncoder, texts: Any
) -> Iterable[dict[str, Any] | None]:
    from redactory.training.ldp.message import Message
    from redactory.training.ldp.user import UserSide

    # an evaluation promises nothing of its texts, but draws as a user would
    side = UserSide(source, server.settings.model_copy(update={"seed": None}))
    return side.read(server.answers([Message.from_json(one.to_json()) for one in side.query_messages(texts)]))


def _plain_answers(server: ServerSide, source: SentenceEncoder, texts: Any) -> Iterable[dict[str, Any]]:
    from redactory.training.ldp.message import Message
    from redactory.training.ldp.user import DPLayer

    settings = server.settings
    found = source.represent(texts, settings.represent)
    clipped = DPLayer(settings.clip_norm, settings.noise()).clip(
        found.flatten(0, 1) if settings.pairs else found
    )
    rows = enumerate(clipped.view(found.shape).float())
    return server.answers(
        [Message("query", f"{row:032x}", 0, None, values.numpy(), server.encoder) for row, values in rows]
    )
