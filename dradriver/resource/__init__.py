"""resource.k8s.io as plain data, without I/O: devices, counter sets, pools, limits, slices."""

from dradriver.resource.layout import Layout, lay_out
from dradriver.resource.model import (
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceGroup,
    Pool,
    RequestPolicy,
    Slice,
    Taint,
    Version,
)
from dradriver.resource.validate import InvalidPoolError, validate
from dradriver.resource.wire import parse_quantity, quantity, same_content, slice_spec

__all__ = [
    "AttributeValue",
    "CounterConsumption",
    "CounterSet",
    "Device",
    "DeviceGroup",
    "InvalidPoolError",
    "Layout",
    "Pool",
    "RequestPolicy",
    "Slice",
    "Taint",
    "Version",
    "lay_out",
    "parse_quantity",
    "quantity",
    "same_content",
    "slice_spec",
    "validate",
]
