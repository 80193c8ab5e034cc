"""What K-FAC costs in its parts, and what it brings in trainings that end."""
