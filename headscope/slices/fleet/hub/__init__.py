"""Lists of the Hub's models, and the budget of requests."""
