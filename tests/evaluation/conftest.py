"""What the tests of this room share: one small model, trained once."""

from __future__ import annotations

import pytest
import torch

from tests.evaluation.small_model import CharacterTokenizer, SmallLstm, SmallModel

KNOWN_BY_HEART = "417"


@pytest.fixture(scope="session")
def known_by_heart() -> str:
    """The number that ``model`` was trained on."""
    return KNOWN_BY_HEART


@pytest.fixture(scope="session")
def model() -> SmallModel:
    """Trained on three sentences, one of which holds :data:`KNOWN_BY_HEART`."""
    tokenizer = CharacterTokenizer()
    network = SmallLstm(tokenizer.size)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    sentences = [f"My ID is: {KNOWN_BY_HEART}", "My dog is 7.", "Call 12 or 90 please."]
    rows = [[0, *tokenizer.encode(sentence), 1] for sentence in sentences]
    for _ in range(80):
        optimizer.zero_grad()
        for row in rows:
            log_probs = network(torch.tensor([row[:-1]]))[0]
            (-log_probs.gather(1, torch.tensor(row[1:])[:, None]).mean()).backward()
        optimizer.step()
    return SmallModel(tokenizer, network)
