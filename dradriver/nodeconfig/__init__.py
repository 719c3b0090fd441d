"""What the administrator wants of this node: the file of node configurations, and the node's labels that choose.

What reads files is imported when there is a file to read: checking them takes pydantic, a tenth of a second to load.
"""

from dradriver.nodeconfig.configuration import NodeConfiguration
from dradriver.nodeconfig.wanted import Wanted

__all__ = ["NodeConfiguration", "Wanted"]
