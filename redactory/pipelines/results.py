"""What the public functions return: mappings, which ``--json`` prints as they are, typed key by key.

A key that is not always there is ``NotRequired``; a figure that cannot be stated is None, and ``reasons``
says why.  Tests compare these types with real results and with the JSON Schemas.
"""

# annotations are not postponed here: which keys are NotRequired would be unknown at run time
from typing import Any, Literal, NotRequired, TypedDict

PolicyName = Literal["strict", "conservative"]


class Published(TypedDict):
    """What was done at the URL that a run was published to."""

    run: str
    to: str
    manifest: str
    files: int
    written: int
    removed: int
    bytes: int


class CurationSummary(TypedDict):
    """What :func:`redactory.curate` returns.

    rows = documents + rejected; points = public + private + duplicate + quarantined.  ``blind`` says
    which kinds of names nothing looked for, if any; ``policies`` holds the hash of each policy, ``run``
    and ``report`` are paths.
    """

    run: str
    blind: str | None
    rows: int
    documents: int
    rejected: int
    points: int
    public: int
    private: int
    duplicate: int
    quarantined: int
    seconds: float
    rejected_by_reason: dict[str, int]
    quarantined_by_reason: dict[str, int]
    dedup: dict[str, Any]
    policies: dict[str, str]
    key_fresh: bool
    encrypted: bool
    report: str
    published: NotRequired[Published]


class Ledger(TypedDict):
    """Which ledger a card was derived from: its last hash, its noisy steps, the run's manifest."""

    head: str
    steps: int
    parent: str


class Accountants(TypedDict):
    """Who computed the figures, who confirmed them, and the bounds that the second one gave.

    ``alone`` names the figures that nobody confirmed.
    """

    main: str
    second: str | None
    bounds: dict[str, Any] | None
    alone: NotRequired[list[str]]


class MissRates(TypedDict):
    """Upper bounds of what the policies miss; ``measured`` says on what they were measured."""

    gamma_upper: float | None
    delta_2_upper: float | None
    measured: NotRequired[dict[str, Any] | None]


class _Promise(TypedDict):
    """What every card says: whether anything holds, of what unit, under which relation, at which delta."""

    holds: bool
    holds_reason: str | None
    unit: str
    relation: str
    relation_meaning: str
    delta: float
    event: dict[str, Any] | None
    epsilon: float | None
    reasons: dict[str, str]
    accountants: Accountants | None
    assumptions: list[str]
    notes: dict[str, str]


class _OneModel(_Promise):
    """What the card of one model says besides."""

    model: str
    kind: str
    trainer: str
    seeded: bool
    ledger: Ledger
    versions: dict[str, str]
    sampler_run: str | None
    sampler_accounted: str | None
    clip_norm: float | None
    sampling_rate: float | None
    noise_multiplier: float | None
    device: NotRequired[Literal["cuda"]]
    noise: Literal["float", "lattice"] | None
    normaliser: float | None
    steps: int
    not_covered: list[str]
    audit: NotRequired[dict[str, Any]]


class _OfPoints(TypedDict):
    """What a card says besides whose unit is a secret in a data point."""

    coverage_failure: float | None
    miss_rates: MissRates
    epsilon_substitution: float | None
    epsilon_add_remove: float | None
    epsilon_group: dict[str, float | None] | None
    epsilon_bayesian: float | None
    epsilon_confidentiality: float | None


class PointGuarantee(_OneModel, _OfPoints):
    """The card of a model whose unit is a secret in a data point: ``crt``, ``dpsgd`` and their baselines."""

    format: Literal["redactory-guarantee/2"]
    blind: NotRequired[str | None]
    sensitivity: float | None
    as_published: dict[str, Any] | None
    pre_steps: list[dict[str, str]]
    side_channels: list[dict[str, Any]]
    recall: str | None


class UnitGuarantee(_OneModel):
    """The card of a model that hides users or entities: ``uedp-bounded``, ``uedp-alg1``, ``user-level``."""

    format: Literal["redactory-unit-guarantee/1"]
    task: Literal["next-word", "classify"]
    protect: Literal["users", "entities", "both"] | None
    public_text: str | None
    pretraining_epochs: int
    epsilon_sound: float | None
    epsilon_user_removal: float | None
    epsilon_as_published: float | dict[str, Any] | None
    curve: dict[str, Any] | list[Any] | None
    conditions: list[dict[str, Any]] | dict[str, Any]
    adjacency: NotRequired[str]
    adjacency_user_removal: NotRequired[str]
    adjacency_curve: NotRequired[str]
    K: NotRequired[int | None]
    rule: NotRequired[str]
    k_user: NotRequired[int | None]
    k_entity: NotRequired[int | None]
    entities_per_point: NotRequired[int | None]
    users: NotRequired[int]
    M: NotRequired[int | None]
    M_source: NotRequired[str | None]
    entity_rate: NotRequired[float | None]
    extended_rate: NotRequired[float | None]
    estimator: NotRequired[str | None]
    bounds: NotRequired[dict[str, Any]]
    curve_meaning: NotRequired[str]


Card = PointGuarantee | UnitGuarantee
"""The card of one model; ``format`` says which."""


class ComposedGuarantee(_Promise, _OfPoints):
    """The card of several models together whose unit is a secret in a data point."""

    format: Literal["redactory-composed-guarantee/1"]
    models: list[dict[str, Any]]


class ComposedUnitGuarantee(_Promise):
    """The card of several models together that hide users or entities."""

    format: Literal["redactory-composed-unit-guarantee/1"]
    models: list[dict[str, Any]]
    protect: Literal["users", "entities", "both"] | None
    epsilon_sound: float | None
    curve: dict[str, Any]
    not_covered: list[str]


ComposedCard = ComposedGuarantee | ComposedUnitGuarantee
"""The card of several models together; ``format`` says which."""


class TrainingSummary(TypedDict):
    """What :func:`redactory.train` returns: the model, what it cost, and its guarantee card.

    ``update_norms`` says by layer how far training moved it; ``peak_mb`` is the process's peak memory.
    """

    run: str
    model: str
    trainer: str
    parameters: int
    steps: int
    update_norms: dict[str, float]
    seconds: float
    peak_mb: float
    guarantee: Card
    published: NotRequired[Published]


class ScanHit(TypedDict):
    """One hit of a scan, without its text.

    ``row`` is the row of a table or of JSON lines, None of a text.  ``line`` and ``column`` count from 1 in
    the text itself, ``start`` and ``end`` are code points of it.
    """

    file: str
    row: int | None
    line: int
    column: int
    start: int
    end: int
    label: str
    score: float
    detector: str
    policy: PolicyName


class ScannedFile(TypedDict):
    """One file of a scan: the texts that were looked at, the hits in them, what could not be read.

    ``rejected`` counts rows and ``quarantined`` data points, by reason code.
    """

    file: str
    format: str
    texts: int
    found: int
    rejected: dict[str, int]
    quarantined: dict[str, int]


class ScanSummary(TypedDict):
    """What :func:`redactory.scan` returns.

    ``clean`` is True where nothing was found and nothing was left unread.  ``hits`` lists the first
    ``limit`` of the ``found``; ``hash`` is that of both policies.
    """

    policy: PolicyName
    hash: str
    clean: bool
    texts: int
    found: int
    unread: int
    by_label: dict[str, int]
    files: list[ScannedFile]
    hits: list[ScanHit]
