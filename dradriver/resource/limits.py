"""The limits of resource.k8s.io/v1 objects, as the API server enforces them; the only place that knows the numbers.

Source: the API's validation, compared with what real API servers of 1.34 to 1.37 refuse. Where 1.34 differs, the name
says so; everything else holds from 1.34 on.
"""

from typing import Final

# --- ResourceSlice --------------------------------------------------------------------------------

DEVICES_PER_SLICE: Final = 128
DEVICES_PER_SLICE_RESTRICTED: Final = 64
"""From 1.35 on, as soon as any device of the slice has taints or consumes counters."""
COUNTER_SETS_PER_SLICE: Final = 8
COUNTERS_PER_SET: Final = 32
COUNTERS_PER_CONSUMPTION: Final = 32
CONSUMPTIONS_PER_DEVICE: Final = 2
COUNTERS_PER_SLICE_1_34: Final = 32
"""Over all counter sets of the slice; and over all consumptions of one device."""
COUNTER_REFERENCES_PER_SLICE_1_34: Final = 1024
"""Counters in all consumptions of all devices."""
ATTRIBUTES_AND_CAPACITIES_PER_DEVICE: Final = 32
TAINTS_PER_DEVICE: Final = 16
TAINTS_PER_DEVICE_1_34: Final = 4
NAME_LENGTH: Final = 63
"""Device, counter set and counter names are DNS labels; a driver's name is a DNS subdomain."""
POOL_NAME_LENGTH: Final = 253
IDENTIFIER_LENGTH: Final = 32
"""The part of an attribute or capacity name behind the domain, a C identifier."""
DOMAIN_LENGTH: Final = 63
VALUE_BYTES: Final = 64
"""Length of a string or version attribute in UTF-8."""
INTEGER_BOUND: Final = 1 << 63
"""An integer attribute lies below it, and not below its negative."""
LABEL_PREFIX_LENGTH: Final = 253
LABEL_LENGTH: Final = 63
"""The part of a taint's key behind the slash, and its value."""

# --- ResourceClaim --------------------------------------------------------------------------------

DEVICES_PER_CLAIM: Final = 32
"""In one allocation."""
CONDITIONS_PER_DEVICE_STATUS: Final = 8
DEVICE_STATUS_DATA_BYTES: Final = 10 << 10
OPAQUE_PARAMETERS_BYTES: Final = 10 << 10
"""In a claim or DeviceClass."""
