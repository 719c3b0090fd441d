from collections.abc import Callable

import pytest
from doubles.apiserver import ApiServer

NODE = "node-a"


@pytest.fixture
def label(server: ApiServer) -> Callable[..., None]:
    """Gives the node these labels and this annotation of ours, and makes it where it is not there."""

    def put(*, clear: str | None = None, **labels: str) -> None:
        own = {f"dradriver.dev/{name}": value for name, value in labels.items()}
        annotations = {"much": "x" * 999} | ({} if clear is None else {"dradriver.dev/clear-health": clear})
        metadata = {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, **own}, "annotations": annotations}
        server.put("nodes", {"metadata": metadata, "status": {"images": ["x" * 999]}})

    return put
