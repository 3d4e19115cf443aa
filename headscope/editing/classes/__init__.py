"""The classes of an edit: the tensors with a class axis, their rows and names, and the function on their scores."""
