"""The user's side towards a service over a wire; what the service says of itself is not trusted.

It computes what the service's noise costs, draws from its own entropy whatever seed the service names, holds
its own budget, and takes answers of the agreed classes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ldp_wire import FORMAT, format_bodies

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError
from redactory.pipelines.curation.loading import parse_settings
from redactory.pipelines.modeling.ldp import (
    BUDGET_DELTA,
    BUDGET_EPSILON,
    DEFAULT_USER,
    load_encoder,
    make_training_messages,
)
from redactory.training.ldp.accounting import HiddenSampling, confirm_message_epsilon
from redactory.training.ldp.server import Message
from redactory.training.ldp.settings import LdpSettings
from redactory.training.ldp.user import BudgetFolder, LdpClient, TextsOrPairs

ACCEPTED = 8.0
"""Most epsilon that one sentence may cost where nothing else is said."""


class User:
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
        limit: float = BUDGET_EPSILON,
        delta: float = BUDGET_DELTA,
        epsilon: float = ACCEPTED,
        declared_public: bool = False,
    ) -> None:
        given = facts.get("settings")
        try:
            if facts.get("format") != FORMAT or not isinstance(given, dict):
                raise _no_service()
            settings = parse_settings(LdpSettings, given)
        except ConfigurationError:
            raise _no_service() from None
        # a seed that the service names would let it subtract the noise
        self._settings = settings.model_copy(update={"seed": None})
        self._trained = facts.get("trained") is True
        self._source = load_encoder(encoder, settings, declared_public, str(facts.get("encoder")))
        spent = self._source.spendings

        def cost(own: LdpSettings, what: str) -> dict[str, Any]:
            noise = own.resolve_noise(spent)
            found = confirm_message_epsilon(noise, own.vectors, own.sampling, delta, spent).value
            if found is None or found > epsilon:
                much = "no finite epsilon" if found is None else f"epsilon {format_upper(found)}"
                raise GuaranteeError(
                    f"the service's noise costs a {what} {much} at delta {format_upper(delta)}; epsilon "
                    f"accepts {format_upper(epsilon)}. Nothing was sent."
                )
            return {"epsilon_sound": found, "delta": delta, "noise_multiplier": noise}

        self.cost = cost(settings, "sentence")
        if settings.query is not None:
            self.cost["query"] = cost(settings.make_query_settings(spent), "question")
        self._budgets = None if budget is None else BudgetFolder(Path(budget), limit, delta)

    def training(self, data: str | Path) -> Iterator[bytes]:
        """Messages of the rows of ``data`` (JSON lines ``text``, ``label``, ``user_id``, ``text_b``).

        Each piece is for one ``receive_lines``.  A piece whose answer was lost is sent again as it is.
        """
        _, messages = make_training_messages(Path(data), self._source, self._settings, self._budgets)
        return format_bodies([message] for message in messages)

    def ask(
        self, texts: TextsOrPairs, carry: Callable[[bytes], Any], *, user: str = DEFAULT_USER
    ) -> list[dict[str, Any] | None]:
        """{class, probabilities} for each of ``texts`` (pairs: two) in order; None where no coin sent it.

        ``carry`` takes a piece of JSON lines to the service's ``answer_lines`` and brings what that returned.
        All questions are on the budget of ``user``.  Where they hide among fictitious ones an answer is made
        with the user's own coins: whoever learns it learns more than the messages tell.
        """
        if not self._trained:
            raise RunStateError("the service is not trained yet, and could not answer. Nothing was sent.")
        if not texts or any(isinstance(text, str) == self._settings.pairs for text in texts):
            raise ConfigurationError(
                "texts: the service takes pairs of texts" if self._settings.pairs else "texts: none"
            )
        if self._budgets and user == DEFAULT_USER and _has_named_users(self._budgets):
            raise ConfigurationError("user: the budget has named users; say whose queries these are. Nothing was sent.")
        budget, queries = self._budgets.open_budget(user) if self._budgets else None, list[Any](texts)
        side = LdpClient(self._source, self._settings, budget)
        slots: dict[str, list[Message]] = {}
        hidden = isinstance(self._settings.query_participation, HiddenSampling)
        for message in side.make_query_messages(queries):
            # of hidden questions each message has an answer of its own
            slots.setdefault(f"{message.step} {message.slot}" if hidden else message.slot, []).append(message)
        answers = [one for body in format_bodies(slots.values()) for one in self._checked(carry(body))]
        kept = ("class", "probabilities")
        return [one and {key: one[key] for key in kept} for one in side.combine_answers(answers)]

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


def _has_named_users(budgets: BudgetFolder) -> bool:
    return any(path != budgets.get_path(DEFAULT_USER) for path in budgets.folder.glob("*.jsonl"))


def _no_service() -> RunStateError:
    return RunStateError("what answered is no service of this version")
