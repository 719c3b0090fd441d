"""What others see of our doing: log lines, metrics, health.

May be imported late: nothing here is needed to answer the kubelet's first call.
"""

from dradriver.observe.errors import EndpointError, EndpointSyntaxError, ObserveError
from dradriver.observe.metrics import Metrics
from dradriver.observe.readiness import Readiness
from dradriver.observe.web import Endpoint, WebServer, parse_endpoint

__all__ = [
    "Endpoint",
    "EndpointError",
    "EndpointSyntaxError",
    "Metrics",
    "ObserveError",
    "Readiness",
    "WebServer",
    "parse_endpoint",
]
