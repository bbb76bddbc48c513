"""The modules of UeDP: lazy_loader imports each when it is asked for."""

from . import bounded_accounting as bounded_accounting
from . import units as units
