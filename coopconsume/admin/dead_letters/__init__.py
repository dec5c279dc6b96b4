"""Dead letters for operators: list, replay and discard them."""
