"""A Kubernetes DRA driver for NVIDIA GPUs: the kubelet plugin and what it is made of."""
