"""Which vector to classify: what a real model makes of labeled texts, and how well each candidate predicts them."""
