"""Local privacy over a wire: a service that listens, and users who send and ask.

What a service says of itself is not trusted: the user's side computes what its noise costs, draws from
its own entropy whatever seed it names, and holds its own budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.wording import upwards
from redactory.pipelines.ldp.local import (
    DELTA,
    LIMIT,
    Given,
    budget_folder,
    ldp_settings,
    new_service,
    open_encoder,
    require_encoder,
    require_other_text,
    sent,
)
from redactory.pipelines.ldp.rows import numbered, read_examples, settings_of
from redactory.pipelines.models import require_training_packages

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder
    from redactory.training.ldp.settings import LdpSettings
    from redactory.training.ldp.wire_client import Client
    from redactory.training.ldp.wire_server import WireServer

ACCEPTED = 8.0
"""Most epsilon that one sentence may cost where nothing else is said."""
ME = ""
"""Whose budget a query is on where no user is named."""


def ldp_serve(
    service: str | Path,
    *,
    port: int = 8780,
    encoder: str | Path | None = None,
    settings: Given = None,
    declared_public: bool = False,
    ready: Callable[[str], None] = lambda url: None,
) -> dict[str, Any]:
    """Serve ``service`` on 127.0.0.1 until interrupted; what came is saved then, and after each training.

    With ``encoder``, a new service is made in an empty folder, from ``settings``.  ``port`` 0 is any free
    one; ``ready`` is told the address.  Returns {service, url, trained}.
    """
    server = _server(Path(service), port, encoder, settings, declared_public)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        ready(url)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        server.service.save(Path(service))
    return {"service": str(service), "url": url, "trained": server.service.trained}


def ldp_send(
    data: str | Path,
    encoder: str | Path,
    url: str,
    *,
    budget: str | Path | None = None,
    limit: float = LIMIT,
    delta: float = DELTA,
    epsilon: float = ACCEPTED,
    train: bool = False,
    declared_public: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Send the rows of ``data`` to the service at ``url`` as noisy messages; with ``train`` it then learns.

    Where a sentence would cost more than ``epsilon`` at ``delta``, or a user's budget does not allow hers,
    nothing is sent.  Returns {messages, sentences, epsilon_sound, delta, noise_multiplier, trained}.
    """
    client, settings, source, cost, _ = _agreed(url, encoder, epsilon, delta, declared_public)
    require_other_text(source, Path(data))
    examples = read_examples(Path(data), settings.pairs)
    labels = numbered(Path(data), examples, settings.classes)
    budgets = budget_folder(budget, limit, delta, source)
    count = client.send(sent(examples, labels, source, settings, budgets))
    progress("messages", count, count, "messages")
    told = client.train() if train else None
    return {"messages": count, "sentences": len(examples), **cost, "trained": told}


def ldp_ask(
    texts: Sequence[str | tuple[str, str]],
    encoder: str | Path,
    url: str,
    *,
    budget: str | Path | None = None,
    limit: float = LIMIT,
    delta: float = DELTA,
    epsilon: float = ACCEPTED,
    user: str = ME,
    declared_public: bool = False,
) -> dict[str, Any]:
    """What the service at ``url`` answers to each of ``texts`` (pairs: two), of which it sees noisy vectors.

    All of them are on the budget of ``user``.  Returns {answers, epsilon_sound, delta, noise_multiplier}:
    {class, probabilities} for each text, in their order; None where no coin sent it.
    """
    from redactory.training.ldp.user import UserSide

    client, settings, source, cost, trained = _agreed(url, encoder, epsilon, delta, declared_public)
    if not trained:
        raise RunStateError("the service is not trained yet, and could not answer. Nothing was sent.")
    if not texts or any(isinstance(text, str) == settings.pairs for text in texts):
        raise ConfigurationError(
            "texts: the service takes pairs of texts" if settings.pairs else "texts: none"
        )
    budgets = budget_folder(budget, limit, delta, source)
    if budgets and user == ME and budgets.others_than(ME):
        raise ConfigurationError(
            "user: the budget has named users; say whose queries these are. Nothing was sent."
        )
    side = UserSide(source, settings, budget=budgets.of(user) if budgets else None)
    queries: Any = list(texts)
    answers = side.read(client.ask(side.query_messages(queries)))
    kept = ("class", "probabilities")
    return {"answers": [one and {key: one[key] for key in kept} for one in answers], **cost}


def _server(
    folder: Path, port: int, encoder: str | Path | None, settings: Given, declared_public: bool
) -> WireServer:
    require_training_packages()
    from redactory.training.ldp.server import ServerSide
    from redactory.training.ldp.wire_server import make_server

    if encoder is None:
        if settings:
            raise ConfigurationError("set: the settings of a service that is there are fixed; leave them out")
        service = ServerSide.load(folder)
    else:
        wanted = ldp_settings(settings)
        service = new_service(folder, wanted, open_encoder(encoder, wanted, declared_public))
    return make_server(service, port, saved_to=folder)


def _agreed(
    url: str, encoder: str | Path, epsilon: float, delta: float, declared_public: bool
) -> tuple[Client, LdpSettings, SentenceEncoder, dict[str, Any], bool]:
    """The service's settings as the user's side takes them, after it has computed what they cost.

    With them the service, the encoder, the cost as JSON, and whether the service says that it is trained.
    """
    require_training_packages()
    from redactory.training.ldp.second import confirmed_epsilon
    from redactory.training.ldp.wire_client import Client

    client = Client(url)
    told = client.schema()
    settings = _taken(told)
    source = open_encoder(encoder, settings, declared_public)
    require_encoder(str(told.get("encoder")), source)
    noise = settings.noise(source.spendings)
    found = confirmed_epsilon(noise, settings.vectors, settings.participation, delta, source.spendings).value
    if found is None or found > epsilon:
        much = "no finite epsilon" if found is None else f"epsilon {upwards(found, 4)}"
        raise GuaranteeError(
            f"the service's noise costs a sentence {much} at delta {delta:g}; --epsilon accepts {epsilon:g}. "
            "Nothing was sent."
        )
    cost = {"epsilon_sound": found, "delta": delta, "noise_multiplier": noise}
    return client, settings, source, cost, told.get("trained") is True


def _taken(told: dict[str, Any]) -> LdpSettings:
    from redactory.training.ldp.message import FORMAT
    from redactory.training.ldp.settings import LdpSettings

    given = told.get("settings")
    if told.get("format") != FORMAT:
        raise RunStateError("what answers at --url is no service of this version")
    try:
        found = settings_of(LdpSettings, given if isinstance(given, dict) else {})
    except ConfigurationError:
        raise RunStateError("what answers at --url is no service of this version") from None
    # a seed that the service names would let it subtract the noise
    return found.model_copy(update={"seed": None, "budget": None})
