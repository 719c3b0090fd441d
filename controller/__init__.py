"""The cluster's side of dradriver: bridges from extended resource names to DeviceClasses."""
