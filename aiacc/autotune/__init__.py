"""Parameters that a running job finds by itself."""
