"""Generated messages of the kubelet's wire contracts. Sources: proto/; made by `make proto`."""
