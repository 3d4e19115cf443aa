"""What rules look at beside the report: stored numbers, the tokenizer, predictions."""
