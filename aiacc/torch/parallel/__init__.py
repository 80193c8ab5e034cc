"""Work on tensors that all ranks have alike, divided among them."""
