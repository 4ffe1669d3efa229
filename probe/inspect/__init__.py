"""What a model looks like in one traced forward pass, and the inline anatomy that follows."""
