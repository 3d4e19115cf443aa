"""Asking a running server for the scores of texts: its protocol, the requests, and strict reading of the answers."""
