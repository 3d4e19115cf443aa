"""The operations of one forward, recorded."""
