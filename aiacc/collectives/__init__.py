"""What every front-end needs, and no framework has a say in."""
