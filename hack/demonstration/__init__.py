"""`make demo`: a real Kubernetes node, the plugin on eight simulated H100 GPUs, pods that get what they ask for."""
