"""A kubelet over real sockets: registration, calls, restarts. It holds plugins to the kubelet's rules.

It finds plugins in a registry folder, asks and tells them as the kubelet does, chooses the version, and
calls the endpoint they name. It can listen to their health. Containers, pods and the API server are not its business.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dradriver.kubelet import ClaimReference
from dradriver.kubelet._grpc import grpc
from dradriver.proto import dra_health_v1_pb2, dra_v1_pb2, registration_v1_pb2

CALL_SECONDS: Final = 45.0
INFO_SECONDS: Final = 10.0  # The kubelet's 1 s is too short for a busy test machine.
V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"
HEALTH_V1: Final = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"
_REGISTRATION: Final = "/pluginregistration.Registration/"
_PACKAGES: Final = {V1: "k8s.io.kubelet.pkg.apis.dra.v1", V1BETA1: "k8s.io.kubelet.pkg.apis.dra.v1beta1"}


class KubeletDoubleError(Exception):
    """The kubelet would refuse the plugin, or fail the pod."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    driver: str
    endpoint: Path
    version: str
    health_version: str = ""


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What the kubelet writes into its own state file for a prepared claim."""

    claim: ClaimReference
    driver: str
    devices: tuple[Mapping[str, Any], ...]

    @property
    def cdi_device_ids(self) -> tuple[str, ...]:
        return tuple(cdi for device in self.devices for cdi in device["cdi_device_ids"])


@dataclass(kw_only=True)
class Kubelet:
    """A kubelet that knows `versions` and `health_versions`, best first, and watches `registry`.

    `scan` is one look into the registry; `start` looks every `interval` seconds until `stop`.
    """

    registry: Path
    versions: tuple[str, ...] = (V1, V1BETA1)
    health_versions: tuple[str, ...] = (HEALTH_V1, HEALTH_V1ALPHA1)
    interval: float = 0.05
    plugins: dict[Path, Registered] = field(default_factory=dict)
    refused: dict[Path, str] = field(default_factory=dict)
    prepared: dict[str, Remembered] = field(default_factory=dict)
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    # --- registration ---

    def scan(self) -> None:
        found = {path: _identity(path) for path in self._sockets()}
        present = {path: identity for path, identity in found.items() if identity is not None}
        for path in self._seen.keys() - present.keys():
            self._forget(path)
        for path, identity in present.items():
            if self._seen.get(path) != identity:
                self._forget(path)
                self._register(path, identity)

    def start(self) -> "Kubelet":
        self._stopping.clear()
        self._thread = threading.Thread(target=self._watch, name="kubelet-double", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(30)
            self._thread = None

    def restart(self) -> None:
        """Come up again: plugins are forgotten and found anew, prepared claims are remembered."""
        watching = self._thread is not None
        self.stop()
        self._seen.clear()
        self.plugins.clear()
        self.refused.clear()
        if watching:
            self.start()
        else:
            self.scan()

    def wait_for(self, condition: Callable[["Kubelet"], object], limit: float = 60.0) -> None:
        """Wait until something about the registrations holds."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), limit):
                raise TimeoutError(f"registered {self.plugins}, refused {self.refused}")

    def plugin(self, driver: str) -> Registered:
        """The instance that would be called: the one registered last."""
        found = [plugin for plugin in self.plugins.values() if plugin.driver == driver]
        if not found:
            raise KubeletDoubleError(f"DRA driver {driver} is not registered")
        return found[-1]

    # --- claims ---

    def prepare(
        self, driver: str, claims: Sequence[ClaimReference], *, timeout: float = CALL_SECONDS
    ) -> dict[str, Remembered]:
        """Prepare a pod's claims; all of them or an error, as for the pod.

        Raises:
            KubeletDoubleError: an entry is missing, unknown, or says what went wrong.
            grpc.RpcError: the call itself failed.
        """
        fresh = [claim for claim in claims if claim.uid not in self.prepared]
        response = self.call(driver, "NodePrepareResources", fresh, timeout=timeout) if fresh else None
        entries = {} if response is None else dict(response.claims)
        names = {claim.uid: claim for claim in fresh}
        _check("NodePrepareResources", names, entries)
        for uid, entry in entries.items():
            devices = tuple(_device(device) for device in entry.devices)
            self.prepared[uid] = Remembered(claim=names[uid], driver=driver, devices=devices)
        return {claim.uid: self.prepared[claim.uid] for claim in claims}

    def unprepare(self, driver: str, claims: Sequence[ClaimReference], *, timeout: float = CALL_SECONDS) -> None:
        """Release claims that no pod uses any more. Raises as `prepare` does."""
        response = self.call(driver, "NodeUnprepareResources", claims, timeout=timeout)
        _check("NodeUnprepareResources", {claim.uid: claim for claim in claims}, response.claims)
        for claim in claims:
            self.prepared.pop(claim.uid, None)

    def call(self, driver: str, method: str, claims: Iterable[ClaimReference], *, timeout: float = CALL_SECONDS) -> Any:
        """Make a call and return the response as it is."""
        plugin = self.plugin(driver)
        return call(plugin.endpoint, plugin.version, method, claims, timeout=timeout)

    # --- inside ---

    def _watch(self) -> None:
        while not self._stopping.wait(self.interval):
            self.scan()

    def _sockets(self) -> list[Path]:
        found = [path for path in self.registry.iterdir() if not path.name.startswith(".")]
        return sorted(path for path in found if path.is_socket())

    def _register(self, path: Path, identity: tuple[int, int]) -> None:
        self._seen[path] = identity
        try:
            with _channel(path) as channel:
                info = _unary(channel, "GetInfo", registration_v1_pb2.PluginInfo)(
                    registration_v1_pb2.InfoRequest(), timeout=INFO_SECONDS
                )
                problem, plugin = self._judge(info)
                status = registration_v1_pb2.RegistrationStatus(plugin_registered=not problem, error=problem)
                _unary(channel, "NotifyRegistrationStatus", registration_v1_pb2.RegistrationStatusResponse)(
                    status, timeout=INFO_SECONDS
                )
        except grpc.RpcError as error:
            # As the kubelet does: try again at the next look.
            del self._seen[path]
            problem, plugin = str(error), None
        with self._changed:
            if plugin is None:
                self.refused[path] = problem
            else:
                self.refused.pop(path, None)
                self.plugins[path] = plugin
            self._changed.notify_all()

    def _judge(self, info: Any) -> tuple[str, Registered | None]:
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type}", None
        version = next((offered for offered in info.supported_versions if offered in self.versions), None)
        if version is None:
            return f"none of {list(info.supported_versions)} is supported", None
        endpoint = Path(info.endpoint)
        if any((old.driver, old.endpoint) == (info.name, endpoint) for old in self.plugins.values()):
            return f"{info.name} is already registered with {endpoint}", None
        health = next((known for known in self.health_versions if known in info.supported_versions), "")
        return "", Registered(driver=info.name, endpoint=endpoint, version=version, health_version=health)

    def _forget(self, path: Path) -> None:
        with self._changed:
            self._seen.pop(path, None)
            self.plugins.pop(path, None)
            self.refused.pop(path, None)
            self._changed.notify_all()


def call(
    endpoint: Path,
    version: str,
    method: str,
    claims: Iterable[ClaimReference],
    *,
    timeout: float | None = CALL_SECONDS,
) -> Any:
    """Call a DRA socket with genuine messages of the version."""
    messages = dra_v1_messages() if version == V1 else dra_v1beta1_messages()
    package = _PACKAGES[version]
    request, response = messages[f"{package}.{method}Request"], messages[f"{package}.{method}Response"]
    claim_type = messages[f"{package}.Claim"]
    body = request(claims=[claim_type(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims])
    with _channel(endpoint) as channel:
        invoke = channel.unary_unary(
            f"/{package}.DRAPlugin/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return invoke(body, timeout=timeout, wait_for_ready=False)


class HealthStream:
    """One stream of health, read in the background with genuine messages of the version until it ends."""

    def __init__(self, endpoint: Path, version: str = HEALTH_V1) -> None:
        messages = health_messages(version)
        package = version.partition(".")[0]
        self.lists: list[Any] = []
        self.code: Any = None
        self._changed = threading.Condition()
        self._channel = _channel(endpoint)
        watch = self._channel.unary_stream(
            f"/{version}/NodeWatchResources",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=messages[f"{package}.NodeWatchResourcesResponse"].FromString,
        )
        self.call = watch(messages[f"{package}.NodeWatchResourcesRequest"]())
        self._thread = threading.Thread(target=self._read, name="health-stream", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self._thread.join(60)
        self._channel.close()

    @property
    def newest(self) -> dict[str, Any]:
        """The devices of the newest list, by name."""
        return {device.device.device_name: device for device in self.lists[-1]} if self.lists else {}

    def wait_for(self, condition: Callable[["HealthStream"], object], limit: float = 60.0) -> None:
        """Wait until something about what was read holds."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), limit):
                raise TimeoutError(f"{len(self.lists)} lists, ended with {self.code}")

    def wait_for_end(self) -> Any:
        """Return the status code that the stream has ended with."""
        self.wait_for(lambda stream: stream.code is not None)
        return self.code

    def _read(self) -> None:
        try:
            for message in self.call:
                self._note(lambda message=message: self.lists.append(list(message.devices)))
        except grpc.RpcError:
            pass
        self._note(lambda: setattr(self, "code", self.call.code()))

    def _note(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


@functools.cache
def dra_v1_messages() -> dict[str, Any]:
    types = [getattr(dra_v1_pb2, name) for name in dra_v1_pb2.DESCRIPTOR.message_types_by_name]
    return {message.DESCRIPTOR.full_name: message for message in types}


@functools.cache
def dra_v1beta1_messages() -> dict[str, Any]:
    """v1beta1 as it was: v1 under its own package, without share_id."""
    source = _copied(dra_v1_pb2.DESCRIPTOR, "dra_v1beta1", _PACKAGES[V1BETA1])
    device = next(message for message in source.message_type if message.name == "Device")
    del device.field[4], device.oneof_decl[:]
    return _classes(source)


@functools.cache
def health_messages(version: str) -> dict[str, Any]:
    """The health service's messages; v1alpha1 as it was in 1.34, without time-out and message."""
    if version == HEALTH_V1:
        return _classes(_copied(dra_health_v1_pb2.DESCRIPTOR, "dra_health_v1", "v1"))
    source = _copied(dra_health_v1_pb2.DESCRIPTOR, "dra_health_v1alpha1", "v1alpha1")
    device = next(message for message in source.message_type if message.name == "DeviceHealth")
    del device.field[3:]
    return _classes(source)


def _copied(descriptor: Any, name: str, package: str) -> descriptor_pb2.FileDescriptorProto:
    source = descriptor_pb2.FileDescriptorProto()
    descriptor.CopyToProto(source)
    source.name = f"kubelet-double/{name}.proto"
    _rename(source, source.package, package)
    return source


def _classes(source: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(source)
    return message_factory.GetMessageClassesForFiles([source.name], pool)


def _rename(source: descriptor_pb2.FileDescriptorProto, old: str, new: str) -> None:
    source.package = new
    messages = list(source.message_type)
    while messages:
        message = messages.pop()
        messages.extend(message.nested_type)
        for entry in filter(lambda entry: entry.HasField("type_name"), message.field):
            entry.type_name = entry.type_name.replace(f".{old}.", f".{new}.")
    for service in source.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{old}.", f".{new}.")
            method.output_type = method.output_type.replace(f".{old}.", f".{new}.")


def _channel(path: Path) -> grpc.Channel:
    # Go's client says "localhost"; without this ours says the path, %-encoded.
    return grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")])


def _unary(channel: grpc.Channel, method: str, response: Any) -> Any:
    return channel.unary_unary(
        _REGISTRATION + method,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )


def _check(method: str, claims: Mapping[str, ClaimReference], entries: Mapping[str, Any]) -> None:
    for uid, entry in entries.items():
        if uid not in claims:
            raise KubeletDoubleError(f"{method} returned result for unknown claim UID {uid}")
        if entry.error:
            raise KubeletDoubleError(f"{method} failed for ResourceClaim {claims[uid].name}: {entry.error}")
    if missing := claims.keys() - entries.keys():
        raise KubeletDoubleError(f"{method} skipped {len(missing)} ResourceClaims")


def _device(device: Any) -> Mapping[str, Any]:
    share = device.share_id if "share_id" in device.DESCRIPTOR.fields_by_name else ""
    return {
        "request_names": tuple(device.request_names),
        "pool_name": device.pool_name,
        "device_name": device.device_name,
        "cdi_device_ids": tuple(device.cdi_device_ids),
        "share_id": share or None,
    }


def _identity(path: Path) -> tuple[int, int] | None:
    """Which socket it is; None where it has gone since it was listed."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
