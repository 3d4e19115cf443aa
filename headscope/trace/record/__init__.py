"""The forward run and recorded, operation by operation."""
