"""A plugin: trainings of tests that name no device are on a graphics card.

    python -m pytest -p tests.on_cuda tests/training/test_recorded.py tests/training/test_own_loop.py

Without it the same tests are on the processor.  A sabotage of a clipped sum's slabs changes
nothing there: a card has none.
"""

from redactory.training.settings import TrainSettings

TrainSettings.model_fields["device"].default = "cuda"
TrainSettings.model_rebuild(force=True)
