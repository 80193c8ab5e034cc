"""What optimizers cost: LARS and LAMB beside torch's and timm's, Muon divided among ranks."""
