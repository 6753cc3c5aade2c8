"""Files made for training."""
