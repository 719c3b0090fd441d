"""What can go wrong between us and the kubelet.

    KubeletError
    ├── SocketPathTooLongError     a path does not fit into an AF_UNIX address
    ├── SocketInUseError           another process serves that path
    ├── SocketPathBlockedError     something that is no socket lies at that path
    ├── RegistryMissingError       there is no plugins_registry folder: no kubelet, or another root
    └── SocketFolderError          a folder or socket cannot be made (permissions, read-only, full)

All are raised while sockets are being set up. A call of the kubelet raises none of them: what goes wrong
with a claim is told in that claim's answer.
"""


class KubeletError(Exception):
    """Base of this room's errors."""


class SocketPathTooLongError(KubeletError):
    """The path is longer than an AF_UNIX address can hold."""


class SocketInUseError(KubeletError):
    """A process that is not us answers at the path."""


class SocketPathBlockedError(KubeletError):
    """A file, folder or link lies where the socket has to be."""


class RegistryMissingError(KubeletError):
    """The kubelet's registry folder does not exist."""


class SocketFolderError(KubeletError):
    """The operating system refused to make a folder or a socket."""
