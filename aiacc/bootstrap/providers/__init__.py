"""Ways in which ranks find each other, a module for each."""
