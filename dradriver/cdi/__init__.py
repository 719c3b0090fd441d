"""Container Device Interface: what a container is given, and the spec files that tell the runtime so."""
