"""What a dataset is made of, as parts that a fingerprint is made of."""
