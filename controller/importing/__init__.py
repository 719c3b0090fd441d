"""From a device plugin's configuration to bridges, node configurations, quotas, and what will not be as it was.

Pure: plain data comes in, plain data goes out; whoever calls knows where it comes from.
"""

from controller.importing.assigned import Installation
from controller.importing.choice import Choice, choose
from controller.importing.cluster import Cluster, ClusterError, read_cluster
from controller.importing.deviceplugin import Config, Reading, read
from controller.importing.gaps import Gap, Weight
from controller.importing.plan import Plan, make_plan, plan_all
from controller.importing.sources import Source, SourceError, read_source

__all__ = [
    "Choice",
    "Cluster",
    "ClusterError",
    "Config",
    "Gap",
    "Installation",
    "Plan",
    "Reading",
    "Source",
    "SourceError",
    "Weight",
    "choose",
    "make_plan",
    "plan_all",
    "read",
    "read_cluster",
    "read_source",
]
