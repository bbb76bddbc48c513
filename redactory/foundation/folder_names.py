"""The names by which a folder is known from outside, for what looks at names alone (shell completion).

Everything else that lies in a run or a job is declared in ``redaction/folder.py`` and ``job_folder.py``,
which take these names from here.
"""

from __future__ import annotations

SUCCESS = "_SUCCESS"
"""In a folder that is finished: a run, a model, an export."""
MODELS = "models"
"""In a run: one folder a trained model."""
JOB = "_job"
"""In the folder of a nightly job."""
