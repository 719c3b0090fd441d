"""What can go wrong with telling others how we are.

ObserveError
├── EndpointSyntaxError    the address is none
└── EndpointError          the address cannot be listened at
"""


class ObserveError(Exception):
    """Base of this room's errors."""


class EndpointSyntaxError(ObserveError):
    """An HTTP endpoint that is no `host:port`."""


class EndpointError(ObserveError):
    """The operating system does not let us listen."""
