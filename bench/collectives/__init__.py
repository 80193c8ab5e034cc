"""Collectives of aiacc against torch's gloo, in the same processes and the same run."""
