"""Engines of other packages: installed, held to their promises, and never heard to quote a text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from redactory.detectors import (
    Detection,
    Detector,
    DetectSettings,
    Span,
    compute_policy_hashes,
    describe_label_coverage,
    find_uncovered_kinds,
)
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED
from redactory.detectors.engine_registry import identify_engines, load_engines
from redactory.detectors.external import ENTRY_POINT_GROUP, list_installed_engines
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.curation.policy import Policy
from tests.detectors.support import OFF

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine"
Install = Callable[..., str]

NAMES = """
    import re
    class Engine:
        labels = ("PERSON", "ORG", "CREW")
        def __init__(self, language, score=0.9): self.score = score
        def read(self, texts): return [self.one(text) for text in texts]
        def one(self, text): return [(*m.span(), "PERSON", self.score) for m in re.finditer("Anna", text)]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with a class ``Engine`` there that offers itself under a name, as an installer does."""

    def installed(code: str, name: str = "some-engine", package: str = "some_package") -> str:
        site = tmp_path / package
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (site / f"{package}.py").write_text(dedent(code))
        needs = "Requires-Dist: numpy>=1\nRequires-Dist: torch; extra == 'gpu'\nRequires-Dist: not-here\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{needs}")
        (info / "entry_points.txt").write_text(f"[redactory.engines]\n{name} = {package}:Engine\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, package, raising=False)
        return name

    return installed


def more(code: str) -> str:
    """The engine of names, with something of its class written otherwise."""
    return dedent(NAMES) + "".join(f"    {line}\n" for line in dedent(code).strip().splitlines())


def asked(name: str, **changes: Any) -> DetectSettings:
    options = changes.pop("options", {})
    off = {**OFF, "conservative": {"rules": []}, **changes}
    return DetectSettings.model_validate({**off, "engines": {name: options}})


def test_the_example_is_installed_and_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "-m pip install --quiet --no-index --no-deps --no-build-isolation --disable-pip-version-check"
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("badges.py", "pyproject.toml"):
        (copy / name).write_bytes((EXAMPLE / name).read_bytes())
    site = tmp_path / "site"
    subprocess.run([sys.executable, *command.split(), "--target", str(site), str(copy)], check=True)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "badges", raising=False)
    policy = Policy.load({"detect": {"engines": {"badges": {"letter": "K"}}}})
    assert policy.redact("the badge K-1234 of ours") == "the badge <MASK> of ours"
    assert identify_engines(asked("badges"))["badges"]["package"] == "badge-engine"
    hashes = [compute_policy_hashes(asked("badges", options=o)) for o in ({}, {"letter": "B"}, {"letter": "K"})]
    assert len({h["strict"] for h in hashes}) == 3, "an option is told from none, and from another"


BAD = ["Anna is here", "bad Anna was there", "", "so is Anna"]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ("raise RuntimeError(text)", ENGINE_ERROR),
        ("return None", ENGINE_ERROR),
        ("return [(0, 3, 'PERSON')]", ENGINE_ERROR),
        ("return [(0, 3, text, 0.9)]", ENGINE_ERROR),
        ("return [(0, 3, 'LOC', 0.9)]", ENGINE_ERROR),
        ("return [(0, 3, None, 0.9)]", ENGINE_ERROR),
        ("return [(0, 3, 'PERSON', 1.1)]", ENGINE_ERROR),
        ("return [(0, 3, 'PERSON', float('nan'))]", ENGINE_ERROR),
        ("return [(0.5, 3, 'PERSON', 0.9)]", ENGINE_ERROR),
        ("return [(-1, 3, 'PERSON', 0.9)]", MISALIGNED),
        ("return [(0, len(text) + 1, 'PERSON', 0.9)]", MISALIGNED),
        ("return [(3, 3, 'PERSON', 0.9)]", MISALIGNED),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_a_text_whose_answer_is_none_fails_alone(install: Install, answer: str, failure: str, together: bool) -> None:
    code = f"""
        batch_independent = {together}
        find = one
        def one(self, text):
            if "bad" in text: {answer}
            return self.find(text)
    """
    found = list(Detector(asked(install(more(code)))).detect([*BAD, *BAD]))
    assert [[s[:4] for s in d.strict] for d in found[:4]] == [[(0, 4, "PERSON", 0.9)], [], [], [(6, 10, "PERSON", 0.9)]]
    assert found[1] == Detection(failure=failure)
    assert found[4:] == found[:4]


def test_too_few_answers_to_a_batch_are_none(install: Install) -> None:
    code = """
        batch_independent = True
        def read(self, texts): return [self.one(t) for t in texts if "bad" not in t]
    """
    found = list(Detector(asked(install(more(code)))).detect(BAD))
    assert [d.failure for d in found] == [None, ENGINE_ERROR, None, None]


BROKEN = {
    "cannot be loaded": "labels = property(1)",
    "labels are not a list of names": "labels = ('Some Person',)",
    "no labels": "labels = (None,)",
    r"cannot be created with these options \(TypeError\)": "def __init__(self): pass",
    r"cannot read simple words \(KeyError\)": "def one(self, text): raise KeyError(text)",
    "cannot read simple words: .*not among its labels": "def one(self, text): return [(0, 2, text[:2], 1.0)]",
    "a different result for the same text": """
        seen = 0
        def one(self, text):
            self.seen += 1
            return [(0, 1, "PERSON", 1 / self.seen)]
    """,
    "do not declare batch_independent": """
        batch_independent = True
        def read(self, texts): return [[(0, 1, "PERSON", 1 / len(texts))] for text in texts]
    """,
}


@pytest.mark.parametrize("says", BROKEN)
def test_an_engine_that_keeps_no_promise_is_refused(install: Install, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"detect\.engines\.some-engine: .*{says}") as refused:
        load_engines(asked(install(more(BROKEN[says]))))
    assert "Anna" not in str(refused.value)


def test_a_name_that_nobody_or_several_offer_is_refused(install: Install) -> None:
    install(NAMES)
    with pytest.raises(ConfigurationError, match=r"detect\.engines\.other: .*installed: .*some-engine"):
        compute_policy_hashes(asked("other"))
    install(NAMES, package="another_package")
    with pytest.raises(ConfigurationError, match=r"several .*another_package, some_package"):
        compute_policy_hashes(asked("some-engine"))
    install("import nothing_of_this_name", name="unloadable", package="third_package")
    with pytest.raises(ConfigurationError, match=r"unloadable: its class.*ModuleNotFoundError"):
        compute_policy_hashes(asked("unloadable"))
    for taken in ("tagger", "list", "rule"):
        with pytest.raises(ValueError, match="built-in engine"):
            asked(taken)


FULL = """
    from redactory.detectors.engine import Capability, EngineOutput, Span
    from redactory.foundation.settings import Settings
    class Options(Settings):
        letter: str = "K"
    class Engine:
        settings = Options
        def __init__(self, settings, language): self.letter = settings.letter
        def read(self, texts): return [EngineOutput(self.find(text)) for text in texts]
        def find(self, text):
            place = text.find(self.letter)
            return (Span(place, place + 1, "BADGE", 1.0, "some-engine"),) if place >= 0 else ()
        @classmethod
        def collect_fingerprint(cls, settings, language): return {"letter": settings.letter}
        @classmethod
        def list_capabilities(cls, settings, language):
            return [Capability("badges", frozenset({"BADGE"}), None, frozenset({"BADGE"}), "forms")]
"""


def test_an_engine_of_a_package_may_be_of_our_own_kind(install: Install) -> None:
    name = install(FULL)
    (found,) = Detector(asked(name, options={"letter": "Q"})).detect(["say Q"])
    assert [span[:3] for span in found.strict] == [(4, 5, "BADGE")]
    assert identify_engines(asked(name)) == {name: {"letter": "K"}}
    with pytest.raises(ConfigurationError, match=r"some-engine\.leter: unknown option; did you mean 'letter'\?"):
        load_engines(asked(name, options={"leter": "Q"}))


def test_our_engines_are_offered_as_others_are(install: Install, tmp_path: Path) -> None:
    offered = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    assert offered >= {"tagger", "spacy", "patterns", "presidio", "stanza", "transformers", "lists"}
    assert not offered & {*list_installed_engines()}
    install(NAMES, name="tagger", package="another_package")
    with pytest.raises(ConfigurationError, match=r"detect\.tagger: several .*another_package, redactory"):
        load_engines(DetectSettings())


def test_nothing_that_it_says_is_heard(
    install: Install, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code = """
        find = one
        def one(self, text):
            import logging, sys, warnings
            print(text)
            print(text, file=sys.stderr)
            warnings.warn(text)
            logging.getLogger("some.thing").critical(text)
            return self.find(text)
    """
    found = list(Detector(asked(install(more(code)))).detect(["Anna is here"]))
    assert found[0].strict
    assert ("".join(capfd.readouterr()), caplog.records) == ("", [])
    import logging

    logging.getLogger("some.thing").critical("heard")
    assert len(caplog.records) == 1


def test_it_is_known_by_its_content_wherever_that_lies(install: Install, tmp_path: Path) -> None:
    code = """
        files = ("words",)
        def __init__(self, language, words=None): pass
    """
    name = install(more(code))
    for place, words in (("one", "Anna"), ("two", "Anna"), ("three", "Robert")):
        (tmp_path / place).write_text(words)
    one, two, three = (
        compute_policy_hashes(asked(name, options={"words": str(tmp_path / place)}))
        for place in ("one", "two", "three")
    )
    assert one == two != three
    with pytest.raises(ConfigurationError, match=r"some-engine\.words: there is no such file"):
        compute_policy_hashes(asked(name, options={"words": "gone"}))
    install(more(code) + "\n# changed\n")
    assert compute_policy_hashes(asked(name, options={"words": str(tmp_path / "one")})) != one
    versions = identify_engines(asked(name))[name]["versions"]
    assert versions == {"numpy": np.__version__}, "of what it requires, and nothing else"
    assert asked(name).list_file_keys() == ["detect.engines"], "whose options may name files of this machine"


def test_it_sees_the_kinds_of_names_that_it_says(install: Install) -> None:
    name = install(more("language = 'de'"))
    assert find_uncovered_kinds(asked(name), "de") == ["LOCATION"]
    assert find_uncovered_kinds(asked(name), "fr") == ["PERSON", "LOCATION", "ORGANIZATION"]
    rules = {"conservative": {"rules": ["capital", "word", "name"]}}
    assert find_uncovered_kinds(asked(name, **rules), "en") == []


def test_its_scores_meet_the_bounds_of_labels_and_of_engines(install: Install) -> None:
    name, text = install(NAMES), ["Anna is here"]
    for score, bounds, masked in (
        (0.4, {}, True),
        (0.2, {}, False),
        (0.4, {"extra_labels": {"PERSON": 0.5}}, False),
        (0.4, {"engines": {name: 0.5}}, False),
    ):
        settings = asked(name, options={"score": score}, strict=bounds)
        (found,) = Detector(settings).detect(text)
        assert bool(found.strict) == masked
        assert found.conservative == (Span(0, 4, "PERSON", score, name),)
    least = {row["label"]: row["masks"] for row in describe_label_coverage(settings)}
    assert least["PERSON"] == {f"engine {name}": 0.5}
    assert least["CREW"] == {f"engine {name}": 0.5}, "nothing else could say that it is to be masked"


def test_how_surely_a_word_is_plain_moves_with_the_fitted_bound(install: Install) -> None:
    code = """
        labels = ("PERSON", None)
        def one(self, text): return [(0, len(text), None, 0.8)]
    """
    name = install(more(code))
    for bound, private in ((0.7, False), (0.9, True)):
        settings = asked(name, conservative={"rules": [], "min_non_entity_probability": bound})
        (found,) = Detector(settings).detect(["nobody is here"])
        assert bool(found.conservative) == private


@pytest.mark.parametrize(("score", "opened"), [(0.95, True), (0.6, False)])
def test_a_public_label_opens_only_where_the_score_is_sure(install: Install, score: float, opened: bool) -> None:
    settings = asked(install(NAMES), options={"score": score}, public_labels=["PERSON"])
    (found,) = Detector(settings).detect(["Anna is here"])
    assert bool(found.conservative) != opened


def test_a_mistake_in_its_options_is_named(install: Install) -> None:
    install(NAMES)
    settings = asked("some-engine", options={"scor": 0.5})
    with pytest.raises(ConfigurationError, match=r"engines\.some-engine\.scor: unknown option; did you mean 'score'\?"):
        identify_engines(settings)
    with pytest.raises(ConfigurationError, match=r"detect\.some-engine: unknown key; did you mean detect\.engines\."):
        Policy({"detect": {"some-engine": {}}})
