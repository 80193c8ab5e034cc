"""`aiaccrun`: starts the ranks of a job, here or through mpirun or torchrun."""
