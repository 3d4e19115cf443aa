"""The classes of an edit: the tensors with an axis of them, their rows and names, and the function on their scores."""
