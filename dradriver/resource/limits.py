"""The limits of resource.k8s.io/v1 objects, as the API server enforces them from Kubernetes 1.35 on."""

from typing import Final

DEVICES_PER_SLICE: Final = 128
DEVICES_PER_SLICE_RESTRICTED: Final = 64
"""As soon as any device of the slice has taints or consumes counters."""
COUNTER_SETS_PER_SLICE: Final = 8
COUNTERS_PER_SET: Final = 32
COUNTERS_PER_CONSUMPTION: Final = 32
CONSUMPTIONS_PER_DEVICE: Final = 2
ATTRIBUTES_AND_CAPACITIES_PER_DEVICE: Final = 32
TAINTS_PER_DEVICE: Final = 16
NAME_LENGTH: Final = 63
"""Device, counter set and counter names are DNS labels."""
POOL_NAME_LENGTH: Final = 253
IDENTIFIER_LENGTH: Final = 32
"""The part of an attribute or capacity name behind the domain, a C identifier."""
DOMAIN_LENGTH: Final = 63
VALUE_BYTES: Final = 64
"""Length of a string or version attribute in UTF-8."""
