"""Which gradients to merge and when to send them: trace, cost, plan, simulation. Pure."""
