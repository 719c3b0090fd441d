"""GPUs as plain data: what a node has, and which devices it offers under which names."""
