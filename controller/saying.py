"""What is told of bridges, classes and pods, as Events."""

from controller.acting import Clash
from controller.api import BRIDGES, Bridge
from controller.bridges import Notice, Telling
from controller.pending import Explanation
from controller.watching import SeenPod
from dradriver.kube import DEVICE_CLASSES, PODS, EventType, Happening, Regarding


def happening(telling: Telling) -> Happening:
    """Tell something of a bridge."""
    return Happening(
        regarding=Regarding(api_version=BRIDGES.api_version, kind=BRIDGES.kind, name=telling.bridge, uid=telling.uid),
        type=EventType.WARNING if telling.is_warning else EventType.NORMAL,
        reason=telling.reason,
        action=telling.action,
        note=telling.note,
    )


def noticed(notice: Notice) -> Happening:
    """Tell something of a class that has no bridge."""
    return Happening(
        regarding=Regarding(
            api_version=DEVICE_CLASSES.api_version, kind=DEVICE_CLASSES.kind, name=notice.name, uid=notice.uid
        ),
        type=EventType.WARNING if notice.is_warning else EventType.NORMAL,
        reason=notice.reason,
        action="Keep",
        note=notice.note,
    )


def explained(pod: SeenPod, explanation: Explanation) -> Happening:
    """Tell why a pod waits."""
    return Happening(
        regarding=Regarding(
            api_version=PODS.api_version, kind=PODS.kind, name=pod.name, namespace=pod.namespace, uid=pod.uid
        ),
        type=EventType.WARNING,
        reason=explanation.reason,
        action="Explain",
        note=explanation.message,
    )


def in_the_way(bridge: Bridge, clash: Clash) -> Happening:
    """Tell that a bridge's name is needed for one that cannot be made."""
    return happening(
        Telling(
            bridge=bridge.name,
            uid=bridge.uid,
            is_warning=True,
            reason="NameTaken",
            action="Discover",
            note=clash.note,
        )
    )
