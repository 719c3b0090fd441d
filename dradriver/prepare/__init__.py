"""From an allocated claim to a container with its devices, and back.

`claim` reads what the scheduler decided, `plan` says what is to be done (both pure), `records` keeps what is needed
to undo it and who holds what, `locks` and `patience` say who waits for whom and how long, `partitions` makes and
destroys MIG instances, `containers` says what a container gets, `preparer` puts the steps in order, and `answers` says
the result. `recovery` makes a lost record again, `reconciler` compares everything once a minute, `telling` writes
Events and status. `health_telling` tells those who hold devices how they are, and `eviction` whether pods that should
leave them do; all that tell use one thread, of `errands`.
"""

from dradriver.prepare.errors import PrepareError
from dradriver.prepare.preparer import Preparer

__all__ = ["PrepareError", "Preparer"]
