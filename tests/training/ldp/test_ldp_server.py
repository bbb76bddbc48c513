"""The server's side: it learns from noise alone, counts a message once, and has no way to a text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ldp_store
import numpy as np
import pytest

from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.training.ldp.server import LdpServer, _add_messages, compute_slot_means
from tests.training.ldp.ldp_sides import NO, YES, a_message, labelled_rows, settings_with, sides

FORBIDDEN = (
    "redactory.training.tokenizer",
    "redactory.training.data",
    "redactory.training.ldp.encoder",
    "redactory.training.ldp.user",
    "redactory.training.model",
    "redactory.training.models.recurrent",
    "redactory.detectors",
    "transformers",
    "tokenizers",
)


def _accuracy(user: Any, server: LdpServer, texts: Any, labels: list[int]) -> float:
    answers = user.combine_answers(server.answer(list(user.make_query_messages(texts))))
    return float(np.mean([a["class"] == ("no", "yes")[y] for a, y in zip(answers, labels, strict=True)]))


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.5},
        {"noise_multiplier": 1.0, "sampling": {"kind": "fixed", "sends": 4}},
        {"noise_multiplier": 0.6, "sampling": {"kind": "secret_bernoulli", "rate": 0.7, "steps": 5}},
        {"noise_multiplier": 0.5, "sampling": {"kind": "secret_bernoulli", "rate": 0.5, "steps": 6, "classes": 2}},
        {"query": {"sampling": {"kind": "secret_bernoulli", "rate": 0.5, "steps": 9}, "noise_multiplier": 0.5}},
        {"noise_multiplier": 0.3, "represent": "token", "head": {"epochs": 8, "hidden_size": 8}},
        {"noise_multiplier": 0.2, "pairs": True, "head": {"epochs": 30}},
    ],
    ids=["one send", "four sends", "hidden coins", "classes too", "fictitious questions", "tokens", "pairs"],
)
def test_classes_are_learnt_from_noisy_messages_and_asked_about_with_noise(changes: dict[str, Any]) -> None:
    user, server = sides(**{"head": {"epochs": 8}, **changes})
    texts, labels = labelled_rows(400)
    if server.settings.pairs:
        texts = [((YES, NO)[n % 2], (YES, NO)[(n + (n // 2) % 2) % 2]) for n in range(400)]  # type: ignore[misc]
        labels = [int(a == b) for a, b in texts]  # type: ignore[misc]
    for message in user.make_training_messages(texts, labels):
        server.receive(message)
    summary = server.train()
    assert summary["slots"] == 400
    assert summary["loss"] < 0.5
    assert _accuracy(user, server, texts[:200], labels[:200]) > 0.85


def test_with_labels_at_random_nothing_is_learnt_and_shares_sum_to_one() -> None:
    user, server = sides(head={"epochs": 8})
    texts, labels = labelled_rows(400)
    shuffled = list(np.random.default_rng(0).permutation(labels))
    server.receive(*user.make_training_messages(texts, shuffled))
    assert server.train()["loss"] > 0.6
    assert 0.2 < _accuracy(user, server, texts[:200], labels[:200]) < 0.8
    question = next(user.make_query_messages([YES]))
    answer = server.answer([question])[0]
    assert answer["slot"] == question.slot
    assert answer["class"] == max(answer["probabilities"], key=answer["probabilities"].get)
    assert list(answer["probabilities"]) == ["no", "yes"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert user.combine_answers([answer]) == [answer]
    assert server.answer([]) == []


def test_of_a_slot_the_mean_counts() -> None:
    slots: dict[str, Any] = {}
    _add_messages(slots, [a_message(step=step, values=np.full(4, step + 1, np.float32)) for step in (2, 0)])
    means, labels = compute_slot_means(slots)
    np.testing.assert_array_equal(means, np.full((1, 4), 2.0))
    assert labels == [1]


def test_of_hidden_classes_the_one_that_most_messages_carry_counts() -> None:
    slots: dict[str, Any] = {}
    for step, label, value in ((0, 2, 4.0), (1, 1, 9.0), (2, 2, 6.0), (3, 0, 9.0)):
        _add_messages(slots, [a_message(step=step, label=label, values=np.full(4, value, np.float32))])
    means, labels = compute_slot_means(slots)
    assert (means.tolist(), labels) == ([[5.0] * 4], [2])
    _add_messages(slots, [a_message(step=4, label=1, values=np.full(4, 1.0, np.float32))])
    assert compute_slot_means(slots)[1] == [2, 1]


def test_a_hidden_question_is_answered_by_message_and_its_user_knows_which_count() -> None:
    way = {"sampling": {"kind": "secret_bernoulli", "rate": 0.5, "steps": 4}, "noise_multiplier": 0.2}
    user, server = sides(head={"epochs": 8}, query=way)
    server.receive(*user.make_training_messages(*labelled_rows(400)))
    server.train()
    sent = list(user.make_query_messages([YES, NO] * 20))
    answers = server.answer(sent)
    assert [(a["slot"], a["step"]) for a in answers] == [(m.slot, m.step) for m in sent]
    # what the server says is of the messages alone: it does not know which are true
    assert server.answer(sent[:1])[0] == answers[0]
    told = user.combine_answers(answers)
    right = [one["class"] == name for one, name in zip(told, ["yes", "no"] * 20, strict=True) if one]
    unknown = int((~user._query_coins.any(axis=0)).sum())
    assert sum(right) >= 38 - unknown
    assert len(right) == 40
    # what is missing, or is no answer to any message, is refused whether that message was true or not
    for number in range(8):
        for left in (answers[:number], [*answers[:number], {**answers[number], "step": 9}]):
            with pytest.raises(RunStateError, match="did not answer"):
                user.combine_answers([*left, *answers[number + 1 :]])


@pytest.mark.parametrize("content", [None, "{}", "[]", "text", '{"format": "redactory-ldp-service/3"}'])
def test_what_is_no_service_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "service.json").write_text(content)
    with pytest.raises(InputError, match="service"):
        LdpServer.load(tmp_path)


def test_a_service_needs_classes_and_their_names_cannot_write_to_a_terminal() -> None:
    with pytest.raises(ConfigurationError, match="classes"):
        LdpServer(settings_with(classes=()), encoder="00" * 32, shape=(4,))
    for name in ("\x1b]0;owned\x07", "a\nb", "\x9b2J", "\u202eevil", "\x00"):
        with pytest.raises(ValueError, match="control characters are not allowed"):
            settings_with(classes=("no", name))
    assert settings_with(classes=("nein, danke", "نمی\u200cخواهم")).classes[1]


def test_the_servers_code_cannot_reach_a_tokenizer_or_an_encoder() -> None:
    example = Path(ldp_store.__file__).parent
    code = (
        f"import sys, json; sys.path.insert(0, {str(example)!r}); import ldp_store; "
        "from pathlib import Path; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "redactory.training.ldp.server" in loaded
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{one}." for one in FORBIDDEN))] == []
