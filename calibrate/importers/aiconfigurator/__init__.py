"""NVIDIA aiconfigurator's kernel tables as profiles, the shipped ones among them."""
