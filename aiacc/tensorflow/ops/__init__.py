"""Operations on tensors, a module for each."""
