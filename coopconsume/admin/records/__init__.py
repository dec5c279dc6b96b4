"""Failed records for operators: list them, and retry, park or skip them."""
