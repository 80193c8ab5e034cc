"""For scripts that were written for something else."""
