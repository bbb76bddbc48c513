"""Local privacy over a wire of one's own: a service, and users who send and ask.

What crosses is what the two sides give and take, JSON lines of messages and JSON; who carries it is not of
concern here (``examples/ldp_service`` does, over HTTP).  What a service says of itself is not trusted: the
user's side computes what its noise costs, draws from its own entropy whatever seed it names, holds its own
budget, and takes answers of the agreed classes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError, upwards
from redactory.pipelines.ldp import (
    DELTA,
    LIMIT,
    Given,
    budget_folder,
    fresh,
    ldp_settings,
    new_service,
    numbered,
    open_encoder,
    read_examples,
    require_encoder,
    require_other_text,
    sent,
    settings_of,
    settled,
)
from redactory.pipelines.models import require_training_packages

if TYPE_CHECKING:
    from redactory.training.ldp.message import Message
    from redactory.training.ldp.server import ServerSide
    from redactory.training.ldp.settings import LdpSettings

ACCEPTED = 8.0
"""Most epsilon that one sentence may cost where nothing else is said."""
ME = ""
"""Whose budget a query is on where no user is named."""


def ldp_new_service(
    service: str | Path, encoder: str | Path, settings: Given = None, *, declared_public: bool = False
) -> dict[str, Any]:
    """Make a service that has learnt nothing yet in the empty folder ``service``; its guarantee card.

    ``settings`` are keys of :class:`~redactory.training.ldp.settings.LdpSettings`.
    """
    require_training_packages()
    wanted, folder = ldp_settings(settings), fresh(Path(service))
    source = open_encoder(encoder, wanted, declared_public)
    return new_service(folder, settled(wanted, source), source)


def ldp_service(service: str | Path) -> AbstractContextManager[ServerSide]:
    """The service in a folder: ``with redactory.ldp_service("service") as service: ...``.

    Nobody else can open it meanwhile (``RunStateError``).  Its methods are to be called one at a time:
    ``facts()`` for the users, ``receive_lines(body)`` and ``answer_lines(body)`` for what
    :class:`LdpUser` sends, ``train()``.  What ``receive_lines`` returned from is on the disk.
    """
    require_training_packages()
    from redactory.training.ldp.server import ServerSide

    return ServerSide.opened(Path(service))


class LdpUser:
    """The user's side towards the service whose ``facts()`` are ``facts``.

    Where a sentence would cost more than ``epsilon`` at ``delta``, or the service was made for another
    encoder, nothing is made (``GuaranteeError``, ``RunStateError``).  ``budget`` is a folder that keeps what
    each user spent: more than ``limit`` is refused (``BudgetExceeded``), and what leaves is booked before.
    ``cost`` is {epsilon_sound, delta, noise_multiplier} of each sentence and question.
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
        self._settings = _taken(facts)
        self._trained = facts.get("trained") is True
        self._source = open_encoder(encoder, self._settings, declared_public)
        require_encoder(str(facts.get("encoder")), self._source)
        self.cost = self._accepted(epsilon, delta)
        self._budgets = budget_folder(budget, limit, delta, self._source)

    def training(self, data: str | Path) -> Iterator[bytes]:
        """Messages of the rows of ``data`` (JSON lines ``text``, ``label``, ``user_id``, ``text_b``).

        Each piece is for one ``receive_lines``.  A piece whose answer was lost is sent again as it is.
        """
        from redactory.training.ldp.message import bodies

        require_other_text(self._source, Path(data))
        examples = read_examples(Path(data), self._settings.pairs)
        labels = numbered(Path(data), examples, self._settings.classes)
        messages = sent(examples, labels, self._source, self._settings, self._budgets)
        return bodies([one] for one in messages)

    def ask(
        self,
        texts: Sequence[str | tuple[str, str]],
        carry: Callable[[bytes], Any],
        *,
        user: str = ME,
    ) -> list[dict[str, Any] | None]:
        """{class, probabilities} for each of ``texts`` (pairs: two) in order; None where no coin sent it.

        ``carry`` takes a piece of JSON lines to the service's ``answer_lines`` and brings what that returned.
        All questions are on the budget of ``user``.
        """
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
        side = UserSide(
            self._source, self._settings, budget=self._budgets.of(user) if self._budgets else None
        )
        queries: Any = list(texts)
        slots: dict[str, list[Message]] = {}
        for message in side.query_messages(queries):
            slots.setdefault(message.slot, []).append(message)
        answers = [one for body in bodies(slots.values()) for one in self._checked(carry(body))]
        kept = ("class", "probabilities")
        return [one and {key: one[key] for key in kept} for one in side.read(answers)]

    def _accepted(self, epsilon: float, delta: float) -> dict[str, Any]:
        """What a sentence costs; ``GuaranteeError`` where that is above ``epsilon``."""
        from redactory.training.ldp.accounting import confirmed_epsilon

        own, spent = self._settings, self._source.spendings
        noise = own.noise(spent)
        found = confirmed_epsilon(noise, own.vectors, own.participation, delta, spent).value
        if found is None or found > epsilon:
            much = "no finite epsilon" if found is None else f"epsilon {upwards(found, 4)}"
            raise GuaranteeError(
                f"the service's noise costs a sentence {much} at delta {delta:g}; epsilon "
                f"accepts {epsilon:g}. Nothing was sent."
            )
        return {"epsilon_sound": found, "delta": delta, "noise_multiplier": noise}

    def _checked(self, answers: Any) -> Iterator[dict[str, Any]]:
        """Slot, class and probabilities of ``answers``; ``RunStateError`` where they are not as agreed."""
        for answer in answers if isinstance(answers, list) else [None]:
            told = answer if isinstance(answer, dict) else {}
            slot, name, shares = (told.get(key) for key in ("slot", "class", "probabilities"))
            if not (isinstance(slot, str) and isinstance(name, str) and isinstance(shares, dict)):
                raise _no_service()
            if name not in shares or set(shares) != set(self._settings.classes):
                raise _no_service()
            if not all(type(share) is float and 0.0 <= share <= 1.0 for share in shares.values()):
                raise _no_service()
            yield {"slot": slot, "class": name, "probabilities": shares}


def _taken(told: Mapping[str, Any]) -> LdpSettings:
    from redactory.training.ldp.message import FORMAT
    from redactory.training.ldp.settings import LdpSettings

    given = told.get("settings")
    if told.get("format") != FORMAT:
        raise _no_service()
    try:
        found = settings_of(LdpSettings, given if isinstance(given, dict) else {})
    except ConfigurationError:
        raise _no_service() from None
    # a seed that the service names would let it subtract the noise
    return found.model_copy(update={"seed": None, "budget": None})


def _no_service() -> RunStateError:
    return RunStateError("what answered is no service of this version")
