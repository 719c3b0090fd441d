"""From an allocated claim to a container with its devices, and back.

`claim` reads what the scheduler decided, `plan` says what is to be done (both pure), `records` keeps what is
needed to undo it, `holders` keeps two claims off one device, `partitions` makes and destroys MIG instances,
`containers` says what a container gets, and `preparer` puts them in order.
"""

from dradriver.prepare.errors import PrepareError
from dradriver.prepare.preparer import Preparer

__all__ = ["PrepareError", "Preparer"]
