"""How the GPUs are: from what they report and say when asked, to the taints that they deserve."""
