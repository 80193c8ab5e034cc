"""Virtual hosts on one machine, joined by a network whose flows and interfaces are capped."""
