"""What compression of gradients does to trainings that end."""
