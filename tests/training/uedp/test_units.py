"""Users and entities of every point: what is one entity, and what a finished run says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import seal_folder
from redactory.redaction.shards import EXAMPLES, list_parts, read_batches, read_part, write_part
from redactory.training.uedp.entities import LISTED_LABEL, TITLES, EntityNames, Mention, load_high_degree_list
from redactory.training.uedp.incidence import Incidence, IncidenceBuilder, count_degrees, get_columns
from redactory.training.uedp.units import load_entity_names, read_incidence
from redactory.training.unit_settings import UnitSettings
from tests.training.uedp.unit_runs import KEY, UNKNOWN, Row, write_unit_run

WORDS = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8)


def names(**changes: Any) -> EntityNames:
    return EntityNames(KEY, **changes)


def compute_digest(ours: EntityNames, value: str) -> bytes | None:
    mention = ours.make_mention(value, "PERSON")
    return None if mention is None else mention.entity


@pytest.mark.parametrize(
    "same",
    [
        (
            "Ada Lovelace",
            "ADA  lovelace",
            "ada\tLovelace",
            " Ada Lovelace,",
            "Mrs. Ada Lovelace",
            "Prof. Dr. Ada Lovelace",
        ),
        ("Acme Corp", "(Acme Corp)", "ACME CORP.", "“Acme Corp”"),
        ("Straße", "STRASSE", "strasse"),
        ("1234", "１２３４"),
        ("Seán O'Brien", "Sea\u0301n O’Brien", "SEAN O\u2019BRIEN"),
    ],
)
def test_spelling_signs_and_titles_do_not_tell_two_values_apart(same: tuple[str, ...]) -> None:
    assert len({compute_digest(names(), value) for value in same}) == 1


def test_what_is_another_value_is_another_entity() -> None:
    # two names differ in a vowel sign only
    values = ["Ada Lovelace", "Ada", "Ada Byron", "Adalovelace", "Ada-Lovelace", "Lovelace Ada", "Dr", "भारत", "भारती"]
    assert len({compute_digest(names(), value) for value in values}) == len(values)
    assert compute_digest(names(), "Doctor") is not None  # a title alone is a value like any other
    assert compute_digest(names(), " -- ") is None


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=3), st.sampled_from(sorted(TITLES)))
def test_normalising_twice_changes_nothing(words: list[str], title: str) -> None:
    ours = names()
    value = " ".join(words)
    once = ours.normalize(value)
    assert ours.normalize(" ".join(once)) == once
    if once:
        assert compute_digest(ours, f"{title.upper()}. {value}") == compute_digest(ours, value)


@given(st.lists(WORDS, min_size=1, max_size=40))
def test_a_value_of_any_length_is_one_entity_under_its_key_and_another_one_under_another(words: list[str]) -> None:
    value, ours = " ".join(words), names()
    if ours.normalize(value):
        other = compute_digest(EntityNames(DigestKey(b"another key of the tests, as long")), value)
        assert compute_digest(ours, value) == compute_digest(names(), value) != other
        assert compute_digest(ours, value) != compute_digest(ours, f"{value} {value}")


def test_aliases_are_one_entity_through_chains_and_not_in_circles() -> None:
    ours = names(aliases={"IBM": "International Business Machines", "Big Blue": "ibm"})
    assert len({compute_digest(ours, v) for v in ("IBM", "big blue", "International  Business Machines")}) == 1
    with pytest.raises(ConfigurationError, match="cycle") as caught:
        names(aliases={"Secretname": "Other", "Other": "Third", "Third": "Secretname"})
    assert "Secretname" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="entry 2 gives an alias above another value") as caught:
        names(aliases={"JFK": "John Kennedy", "Mr. JFK": "Airport"})
    assert "JFK" not in str(caught.value)
    names(aliases={"JFK": "John Kennedy", "jfk": "john kennedy"})


def test_categories_hubs_and_the_clients_list_decide_what_counts() -> None:
    ours = names(
        categories=frozenset({"PERSON"}),
        hubs={"Paris": None, **dict.fromkeys(load_high_degree_list("months"))},
        listed=("Acme Corp",),
    )
    assert ours.make_mention("Ada", "PERSON") is not None
    assert ours.make_mention("Ada", "LOCATION") is None
    assert ours.make_mention("PARIS", "PERSON") is None
    assert ours.make_mention("acme corp", "ORGANIZATION") is not None
    assert ours.make_mention("January", "PERSON") is None
    for value in ("Mr. January", "Lady Paris"):  # a person, whatever her name is besides
        assert ours.make_mention(value, "PERSON") is not None
        assert ours.make_mention(value, "LOCATION") is None
    assert names(hubs={"Dr. Pepper": None}).make_mention("dr pepper", "PERSON") is None
    only = names(categories=frozenset(), listed=("Acme Corp",))
    assert only.make_mention("Ada", "PERSON") is None


def test_a_ready_made_hub_is_one_under_the_labels_of_its_list_and_the_clients_own_under_every(tmp_path: Path) -> None:
    own = tmp_path / "hubs.txt"
    own.write_text("April\n")
    shipped = load_entity_names(UnitSettings(high_degree_entities=("months", "countries")), KEY)
    theirs = load_entity_names(UnitSettings(high_degree_entities=("months", own)), KEY)
    assert shipped.make_mention("April", "DATE_TIME") is None
    assert shipped.make_mention("Georgia", "LOCATION") is None
    assert shipped.make_mention("April", "LOCATION") is not None
    for value in ("April", "June", "Georgia"):  # untitled people
        assert shipped.make_mention(value, "PERSON") is not None
    assert theirs.make_mention("April", "PERSON") is None
    assert theirs.make_mention("June", "PERSON") is not None
    assert len(load_high_degree_list("months")) == 12
    assert len(load_high_degree_list("countries")) > 190


def test_listed_values_are_found_wherever_they_stand() -> None:
    ours = names(categories=frozenset(), listed=("Acme Corp", "zed"), aliases={"Acme": "Acme Corp"})
    found = list(ours.find_listed_mentions("So ACME  corp, and Acme; zedless."))
    assert {mention.label for mention in found} == {LISTED_LABEL}
    assert {mention.entity for mention in found} == {compute_digest(ours, "Acme Corp")}
    assert not list(ours.find_listed_mentions("nothing of theirs"))
    text = "Straße: A\u0301CME\u200b ｃorp, भारती"
    places = names(listed=("Acme Corp", "भारत")).find_listed_spans(text)
    assert [text[start:end] for start, end in places] == ["A\u0301CME\u200b ｃorp"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"listed": ("Secretname",), "hubs": {"secretname": None}}, "both listed and hubs"),
        ({"hubs": {"--": None}}, "entities.high_degree_entities: entry 1"),
        ({"listed": ("fine", "")}, "entities.listed: entry 2"),
    ],
)
def test_lists_that_contradict_themselves_are_refused_without_quoting(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        names(**wrong)
    assert "secretname" not in str(caught.value).casefold()


def test_points_out_of_order_or_without_an_owner_are_refused() -> None:
    collector = IncidenceBuilder()
    collector.add(2, 0, [bytes(16)], [])
    with pytest.raises(InputError, match="order of their ids"):
        collector.add(1, 0, [bytes(16)], [])
    with pytest.raises(InputError, match="keyed id of 16 bytes"):
        IncidenceBuilder().add(1, 0, [], [Mention(bytes(16), "ORG")])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.lists(st.integers(0, 5), max_size=4)),
        min_size=1,
        max_size=8,
    )
)
def test_the_spread_of_an_entity_is_the_number_of_its_users(rows: list[tuple[list[int], list[int]]]) -> None:
    collector = IncidenceBuilder()
    for point, (holders, entities) in enumerate(rows):
        ids = [bytes([h]) * 16 for h in holders]
        collector.add(point, point, ids, [Mention(bytes([100 + e]) * 16, "X") for e in entities])
    graph = collector.build()
    for number, entity in enumerate(graph.entity_ids[:, 0].tolist()):
        users = {h for holders, entities in rows if entity - 100 in entities for h in holders}
        assert graph.count_entity_users()[number] == len(users)
        assert count_degrees(graph.entities)[number] == sum(entity - 100 in entities for _, entities in rows)


TEXTS = ["Ada met Acme.", "ADA wrote.", "Nothing here.", "Acme again."]


def write_run(
    root: Path, dup_of: Sequence[int | None] = (None, None, None, None), spans: Any = None, rule: str = "S1"
) -> RunFolder:
    """Four points of users a, b, a and c in two partitions, with Ada and Acme where they stand."""
    rows = [Row(user, text, copy_of=of) for user, text, of in zip("abac", TEXTS, dup_of, strict=True)]
    hits = spans or [(0, 0, 3, "PERSON"), (0, 8, 12, "ORG"), (1, 0, 3, "PERSON"), (2**32, 0, 4, "ORG")]
    return write_unit_run(root, rows, rule=rule, ids=[0, 1, 2, 2**32], hits=hits)


def shape(graph: Incidence) -> dict[int, tuple[int, int]]:
    return {
        int(point): (len(get_columns(graph.users, row)), len(get_columns(graph.entities, row)))
        for row, point in enumerate(graph.example_ids)
    }


def test_a_run_becomes_a_hypergraph(tmp_path: Path) -> None:
    graph = read_incidence(write_run(tmp_path / "RUN"), names())
    assert shape(graph) == {0: (1, 2), 1: (1, 1), 2: (1, 0), 2**32: (1, 1)}
    assert count_degrees(graph.users).tolist() == [2, 1, 1]
    assert sorted(count_degrees(graph.entities).tolist()) == [2, 2]
    assert graph.label_names == ("PERSON", "ORG")
    assert np.diff(graph.labels.indptr).tolist() == [2, 1, 0, 1]
    assert graph.extended_mask.tolist() == [False, False, True, False]
    assert graph.count_entity_users().tolist() == [2, 2]
    assert {bytes(row) for row in graph.entity_ids} == {compute_digest(names(), "Ada"), compute_digest(names(), "Acme")}
    assert {bytes(row).hex() for row in graph.user_ids} == {KEY.make_pseudonym("user", user) for user in "abc"}
    assert not any(word in repr(graph) for word in ("Ada", "ada", "Acme", "acme"))


def test_copies_stay_points_or_become_holders(tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN", dup_of=(2**32, 2**32, None, None))
    assert shape(read_incidence(run, names())) == {0: (1, 2), 1: (1, 1), 2: (1, 0), 2**32: (1, 1)}
    merged = read_incidence(run, names(), merge=True)
    assert shape(merged) == {2: (1, 0), 2**32: (3, 1)}  # a, b and c hold it, though only c's text is kept


PEOPLE = ("Ada", "Bob", "Zed", "Acme", "Mia", "Leo")


@pytest.mark.parametrize("seed", [1, 2])
def test_what_stands_in_any_turn_stands_in_its_conversation(seed: int, tmp_path: Path) -> None:
    """Read whole, a conversation has its turns' entities, labels and user, wherever a partition ends."""
    drawn = np.random.default_rng(seed)
    told = [
        (
            f"d{n}",
            drawn.choice([*"abc"]),
            [drawn.choice(PEOPLE, drawn.integers(4), replace=False).tolist() for _ in range(turns)],
        )
        for n, turns in enumerate(drawn.integers(1, 6, 40))
    ]
    rows = [Row(user, " and ".join(turn), document=d) for d, user, turns in told for turn in turns]
    ids = [(n * 3 // len(rows) << 32) + n for n in range(len(rows))]
    kinds = {person: f"K{n % 3}" for n, person in enumerate(PEOPLE)}
    run = write_unit_run(tmp_path / "RUN", rows, names=kinds, ids=ids)
    whole, single = (read_incidence(run, names(), whole_documents=one) for one in (True, False))
    assert units_of(single, kinds) == [({row.user}, *_in(row.text, kinds)) for row in rows]
    assert units_of(whole, kinds) == [
        ({user}, *_in(" and ".join(" and ".join(turn) for turn in turns), kinds)) for _, user, turns in told
    ]
    firsts = [n for n, row in enumerate(rows) if n == 0 or rows[n - 1].document != row.document]
    assert whole.example_ids.tolist() == [ids[n] for n in firsts]
    assert whole.priorities.tolist() == [int(single.priorities[n]) for n in firsts]
    assert len(set(single.priorities.tolist())) == len(rows)


def units_of(graph: Incidence, kinds: Mapping[str, str]) -> list[tuple[set[str], set[str], set[str]]]:
    """Of each point its users, entities and labels by name."""
    users = {bytes.fromhex(KEY.make_pseudonym("user", user)): user for user in "abcd"}
    people = {compute_digest(names(), person): person for person in kinds}
    return [
        (
            {users[bytes(graph.user_ids[one])] for one in get_columns(graph.users, row)},
            {people[bytes(graph.entity_ids[one])] for one in get_columns(graph.entities, row)},
            {graph.label_names[one] for one in get_columns(graph.labels, row)},
        )
        for row in range(len(graph))
    ]


def _in(text: str, kinds: Mapping[str, str]) -> tuple[set[str], set[str]]:
    people = set(text.split()) & set(kinds)
    return people, {kinds[person] for person in people}


def test_copies_whose_holders_are_not_known_cannot_be_merged(tmp_path: Path) -> None:
    with pytest.raises(GuaranteeError, match="rule near-greedy"):
        read_incidence(write_run(tmp_path / "near", rule="near-greedy"), names(), merge=True)
    with pytest.raises(CheckFailed, match="which example 0 repeats"):
        read_incidence(write_run(tmp_path / "bloom", dup_of=(UNKNOWN, None, None, None)), names(), merge=True)


def test_a_repeat_of_an_earlier_run_is_no_copy_in_this_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN", dup_of=(UNKNOWN, None, None, None))
    (path, *_), earlier = list_parts(run.examples), EXAMPLES.field("earlier_run").type
    table = read_part(path)
    values = [None if decision != "duplicate" else "monday" for decision in table["decision"].to_pylist()]
    place = table.schema.get_field_index("earlier_run")
    write_part(path, table.set_column(place, "earlier_run", pa.array(values, earlier)))
    body = {name: value for name, value in json.loads(run.manifest.read_text()).items() if name != "files"}
    folders = (run.vault, run.examples, run.spans)
    seal_folder(run, body, [part for folder in folders for part in list_parts(folder)])
    assert shape(read_incidence(run, names(), merge=True)) == {1: (1, 1), 2: (1, 0), 2**32: (1, 1)}


def test_a_listed_value_that_no_detector_saw_is_found(tmp_path: Path) -> None:
    graph = read_incidence(write_run(tmp_path / "RUN"), names(categories=frozenset(), listed=("wrote", "again")))
    assert shape(graph) == {0: (1, 0), 1: (1, 1), 2: (1, 0), 2**32: (1, 1)}
    assert graph.label_names == (LISTED_LABEL,)


def test_a_run_whose_tables_do_not_fit_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "spans", spans=[(0, 2, 99, "PERSON")])
    with pytest.raises(CheckFailed, match="is outside its text"):
        read_incidence(run, names())
    changed = write_run(tmp_path / "changed")
    write_part(list_parts(changed.spans)[0], next(iter(read_batches(changed.spans, None))).schema.empty_table())
    with pytest.raises(CheckFailed, match="not those in"):
        read_incidence(changed, names())
    short = write_run(tmp_path / "short")
    write_part(list_parts(short.examples)[0], EXAMPLES.empty_table())
    body = {name: value for name, value in json.loads(short.manifest.read_text()).items() if name != "files"}
    seal_folder(
        short, body, [path for folder in (short.vault, short.examples, short.spans) for path in list_parts(folder)]
    )
    with pytest.raises(CheckFailed, match="lacks example 0"):
        read_incidence(short, names())


def test_a_real_run_gives_its_users_and_secrets(tmp_path: Path) -> None:
    """The real engines on simulated dialogues: every point, its owner, repeated values."""
    import redactory

    corpus, root = tmp_path / "corpus.jsonl", tmp_path / "run"
    redactory.simulate(corpus, 8, 7)
    redactory.curate(
        {"input": str(corpus), "segment": {"mode": "turn"}, "partition": {"documents": 5}, "detect": {"tagger": None}},
        output=root,
    )
    run = RunFolder(root)
    graph = read_incidence(run, EntityNames(load_digest_key()))
    rows = sum(batch.num_rows for batch in read_batches(run.vault, ["example_id"]))
    documents = [json.loads(line) for line in corpus.read_text().splitlines()]
    assert len(graph) == rows
    assert graph.users.shape[1] == len({row["user_id"] for row in documents})
    assert graph.entities.shape[1] > 20
    assert int(count_degrees(graph.entities).max()) > 1
    merged = read_incidence(run, EntityNames(load_digest_key()), merge=True)
    assert len(merged) < rows
    assert int(np.diff(merged.users.indptr).max()) > 1
    assert merged.users.shape[1] == graph.users.shape[1]
