"""Which vector to classify: what a real model makes of labelled texts, and how well each candidate predicts them."""
