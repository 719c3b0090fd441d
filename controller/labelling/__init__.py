"""Labels of nodes as GPU feature discovery would have written them, from slices, where nobody else writes them."""

from controller.labelling.features import Publication, features
from controller.labelling.labeller import Labeller
from controller.labelling.names import LABEL_MANAGER
from controller.labelling.planning import plan
from controller.labelling.projections import Facts, HeldLabels, project_facts, project_labels

__all__ = [
    "LABEL_MANAGER",
    "Facts",
    "HeldLabels",
    "Labeller",
    "Publication",
    "features",
    "plan",
    "project_facts",
    "project_labels",
]
