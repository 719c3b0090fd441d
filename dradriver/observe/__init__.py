"""What others see of our doing: log lines, metrics, health.

Nothing here is needed to answer the kubelet's first call, so it may be imported late: `logs` and `metrics`
load structlog and prometheus_client. Only `early` is light, and bridges the time until `logs` is there.
"""
