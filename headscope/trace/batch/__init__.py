"""The inputs on which a forward is recorded."""
