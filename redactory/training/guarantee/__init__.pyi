"""The modules of the guarantee: lazy_loader imports each when it is asked for."""

import typing

from . import budget as budget
from . import compose as compose
from . import plan as plan
from . import remarks as remarks
from . import spec as spec

WORDS: dict[str, typing.Any]
