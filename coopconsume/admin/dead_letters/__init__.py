"""What operators do with dead letters: look at them, replay them, discard them."""
