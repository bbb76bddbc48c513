"""How much room a run is taken to need (section ``disk``)."""

from __future__ import annotations

from pydantic import Field

from redactory.foundation.settings import Settings


class DiskSettings(Settings):
    """What must be free before anything is written; changes no shard."""

    factor: float = Field(
        12.0,
        ge=0,
        description="Bytes on the disk, at the peak, for each byte of the input in the open; 0 asks for "
        "nothing but the reserve.",
    )
    reserve_gb: float = Field(
        0.5, ge=0, description="So many gigabytes (10⁹ bytes) must stay free besides what the run needs."
    )
