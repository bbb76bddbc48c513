"""Files for people and machines around the package: they say what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from redactory.detectors import patterns
from redactory.detectors.policy import StrictPolicy
from redactory.detectors.recognizers import parse_recognizers
from redactory.detectors.settings import DetectSettings
from redactory.pipelines.curation.loading import load_config
from releasing import licences
from tests.docs.pages import ROOT, anchors, blocks, links, prose

CONTRIBUTING, SECURITY = ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"
SPDX = "Apache-2.0 AND CC-BY-SA-4.0 AND MIT AND LicenseRef-SCOWL"


# ---- contributing, security, changes, citation


def test_the_detector_of_the_contributing_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    (form,) = (block for block in blocks(CONTRIBUTING) if block.language == "yaml")
    test, _ = (block for block in blocks(CONTRIBUTING) if block.language == "python")
    assert form.title == "redactory/detectors/forms/lockers.yaml"
    assert not (ROOT / form.title).exists()
    with pytest.raises(AssertionError):
        exec(compile(test.body, "without it", "exec"), {})
    both = (*patterns.load_builtin_recognizers(), *parse_recognizers(form.body))
    monkeypatch.setattr(patterns, "load_builtin_recognizers", lambda: both)
    exec(compile(test.body, "with it", "exec"), {})
    # and what it finds is masked without further ado
    settings = DetectSettings()
    assert settings.patterns is not None
    engine = patterns.PatternEngine(settings.patterns, "en")
    text = "The pigeonhole: C-12"
    [reading] = engine.read([text])
    marked = StrictPolicy(settings.strict).select_spans(text, reading)
    assert [text[span.start : span.end] for span in marked] == ["C-12"]


def test_the_trainer_of_the_contributing_page_works() -> None:
    _, test = (block for block in blocks(CONTRIBUTING) if block.language == "python")
    done = subprocess.run([sys.executable, "-c", test.body], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", [CONTRIBUTING, SECURITY], ids=lambda page: page.name)
def test_links_of_the_pages_at_the_root_lead_somewhere(page: Path) -> None:
    found = list(links(prose(page)))
    assert len(found) >= 5
    for link in found:
        file, _, anchor = link.partition("#")
        assert (ROOT / file).exists(), link
        assert not anchor or anchor in anchors(ROOT / file), link


def test_the_citation_is_of_this_project() -> None:
    """The schema of the format is not at hand; it was checked with it when it was written."""
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (told["cff-version"], told["title"], told["type"]) == ("1.2.0", "Redactory", "software")
    assert set(told) >= {"message", "authors", "license"}
    # changed with each release, and not to be forgotten
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    [last, *_] = [*re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", changes, re.M), ("None", "None")]
    assert (str(told.get("version")), str(told.get("date-released"))) == last
    assert {*told["license"], "LicenseRef-SCOWL"} == set(SPDX.split(" AND "))


# ---- what is pinned


def test_whatever_is_pinned_has_its_hash_and_is_installed_by_it() -> None:
    """Hashes are checked with ``-r`` alone: given with ``-c`` they would be asked of every other package."""
    for file in (ROOT / "constraints").iterdir():
        text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
        for line in text.splitlines():
            pinned, *hashes = line.split()
            assert re.fullmatch(r"[\w.-]+==[\w.+]+", pinned), pinned
            assert hashes, f"{pinned} has no hash"
            assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pinned
            assert len(set(hashes)) == len(hashes)
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "BY_HASH = $(PIP) install --quiet --require-hashes --no-deps -r\n" in made
    for file in (ROOT / "constraints").iterdir():
        assert f"$(BY_HASH) constraints/{file.name}" in made
    assert not re.search(r"(-c|--constraint)[ =]constraints/", made)


# ---- licences


@pytest.fixture(scope="module")
def listed() -> dict[str, tuple[str, set[str]]]:
    """The page: package to licence and what brings it."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", licences.PAGE.read_text(encoding="utf-8"), re.M)
    found: dict[str, tuple[str, set[str]]] = {}
    for name, licence, extras in rows:
        known = found.get(name, (licence, set[str]()))
        assert known[0] == licence
        found[name] = (licence, known[1] | set(extras.split(", ")))
    return found


def test_every_dependency_is_on_the_page(listed: dict[str, tuple[str, set[str]]]) -> None:
    declared = licences.declared()
    assert {"", "train", "flows", "dev", "build"} < set(declared)
    for extra, requirements in declared.items():
        for name in (canonicalize_name(requirement.name) for requirement in requirements):
            assert name in listed, f"{name} ({extra}): make licences"
            assert listed[name][1] & {extra or "base", "base"}, f"{name} ({extra}): make licences"


def test_every_licence_may_be_combined_with_ours(listed: dict[str, tuple[str, set[str]]]) -> None:
    others = {name: extras for name, (told, extras) in listed.items() if not licences.accepted(told)}
    assert others == {name: {extra} for name, extra in licences.EXCEPTIONS.items()}
    # none of which a container image is made with
    assert re.search(r"^ARG EXTRAS=flows$", (ROOT / "Containerfile").read_text(encoding="utf-8"), re.M)


def test_the_page_says_what_installed_packages_say(listed: dict[str, tuple[str, set[str]]]) -> None:
    here = {canonicalize_name(d.metadata["Name"]) for d in metadata.distributions()}
    compared = sorted(here & listed.keys())
    assert len(compared) > 50
    assert {name: licences.licence_of(name) for name in compared} == {n: listed[n][0] for n in compared}


@pytest.mark.parametrize(
    ("expression", "yes"),
    [
        ("MIT", True),
        ("GPL-3.0-or-later", False),
        ("Artistic-1.0 OR GPL-2.0-or-later", True),
        ("MIT AND GPL-3.0-only", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("MIT AND (GPL-2.0-only OR AGPL-3.0-only)", False),
        ("Apache-2.0 WITH LLVM-exception AND BSL-1.0", True),
        ("Apache", False),
    ],
)
def test_licences_are_told_apart(expression: str, yes: bool) -> None:
    assert licences.accepted(expression) is yes


# ---- the container


def _instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [(first, rest) for first, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def test_the_image_is_an_ordinary_users_and_is_named_by_its_base() -> None:
    instructions = _instructions()
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.1[123]-slim-\w+", instructions[0][1])
    stages = [rest for name, rest in instructions if name == "FROM"]
    assert stages == ["${BASE} AS build", "${BASE}"]
    last = instructions[max(i for i, (name, _) in enumerate(instructions) if name == "FROM") :]
    assert [rest for name, rest in last if name == "USER"] == ["10001:10001"]
    assert not [rest for name, rest in last if name == "RUN" and "pip" in rest]
    assert {"HEALTHCHECK", "ENTRYPOINT", "LABEL"} <= dict(last).keys()
    # the wheel is all that is copied in, and a key cannot be: the context has nothing else
    assert [rest.split()[0] for name, rest in instructions if name in ("COPY", "ADD")] == [
        "dist/redactory-${VERSION}-py3-none-any.whl",
        "--from=build",
    ]
    assert (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[-2:] == ["*", "!dist/*.whl"]


def test_no_secret_is_in_a_layer() -> None:
    for name, rest in _instructions():
        if name in ("ENV", "ARG", "LABEL"):
            assert not re.search(r"KEY|PASSWORD|TOKEN|AUTH|SECRET|INDEX_URL", rest), rest
    [install] = [rest for name, rest in _instructions() if name == "RUN" and "pip install" in rest]
    assert install.startswith("--mount=type=secret,id=pip,target=/etc/pip.conf")
    assert "--no-cache-dir" in install


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """``compose.yaml``."""
    told: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return told


def test_every_service_is_kept_in(compose: dict[str, Any]) -> None:
    dask = {"scheduler", "dask-worker-1", "dask-worker-2"}
    assert set(compose["services"]) == {"database", "server", "deploy", "worker", *dask}
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        user, group = service["user"].split(":")
        assert int(user) > 0, name
        assert int(group) > 0, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc"} & service.keys(), name
        assert all(str(place).startswith("/tmp") or "/run/" in place for place in service["tmpfs"]), name
        assert ":latest" not in service["image"], name
        assert re.search(r":(\d+-\w+|\$\{REDACTORY_VERSION:\?.+\})$", service["image"]), name
        assert "healthcheck" in service or service["restart"] == "no", name
        for source, *rest in (volume.split(":") for volume in service.get("volumes", ())):
            assert source in compose["volumes"] or rest[-1] == "ro", source


def test_only_the_loopback_address_leads_in_and_only_the_server_out(compose: dict[str, Any]) -> None:
    services = compose["services"]
    published = {name: s["ports"] for name, s in services.items() if "ports" in s}
    assert published == {"server": ["127.0.0.1:4200:4200"]}
    assert compose["networks"]["inside"]["internal"] is True
    outside = {name for name, s in services.items() if s["networks"] != ["inside"]}
    assert outside == {"server"}


def test_keys_and_passwords_are_secrets_and_go_only_where_they_are_needed(compose: dict[str, Any]) -> None:
    services, tls = compose["services"], {"dask_certificate", "dask_key"}
    assert {name: set(s["secrets"]) for name, s in services.items()} == {
        "database": {"database_password"},
        "server": {"prefect_server"},
        "deploy": {"prefect_client"},
        "worker": {"prefect_client", "redactory_key", "redactory_encryption_key", *tls},
        "scheduler": tls,
        **{f"dask-worker-{number}": {"redactory_encryption_key", *tls} for number in (1, 2)},
    }
    for name, file in compose["secrets"].items():
        assert file["file"].startswith("./container/secrets/"), name
    for name, value in _environment(compose):
        if re.search("KEY|PASSWORD|PROFILES|AUTH", name):
            assert str(value).startswith("/run/secrets/"), name
            assert str(value).removeprefix("/run/secrets/") in compose["secrets"], name
        assert "://" not in str(value) or "@" not in str(value), name
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/container/secrets/", "/container/corpus/"} <= set(ignored)


def test_the_page_makes_every_secret_and_says_no_other(compose: dict[str, Any]) -> None:
    page = ROOT / "docs" / "how-to" / "container.md"
    [made] = [block.body for block in blocks(page) if "container/secrets" in block.body and block.runs]
    for file in (Path(secret["file"]).name for secret in compose["secrets"].values()):
        assert file in made
    text = page.read_text(encoding="utf-8")
    named = {Path(secret["file"]).name for secret in compose["secrets"].values()}
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", text, re.MULTILINE)) == named


def test_the_job_of_the_container_is_one(compose: dict[str, Any]) -> None:
    settings = load_config(ROOT / "container" / "config" / "nightly.yaml")
    mounts = {v.split(":")[1] for v in compose["services"]["worker"]["volumes"]}
    assert Path(settings.output).as_posix() in mounts
    assert all(Path(path).parent.as_posix() in mounts for path in settings.input.path)
    command = compose["services"]["deploy"]["command"]
    assert f"--out={settings.output}" in command
    assert command[:2] == ["schedule", "--deploy"]


def _environment(compose: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for service in compose["services"].values():
        yield from service["environment"].items()


def test_every_test_is_in_one_of_two_tiers() -> None:
    """``make test`` leaves out what is marked slow and nothing else, ``make test-all`` nothing."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^\t@exec \$\(PYTEST\)(.*)$", makefile, re.M)
    assert commands == [' -m "not slow"', ""]
    assert "-m " not in makefile.partition("PYTEST = ")[2].partition("\n\n")[0].replace("python -m pytest", "")
