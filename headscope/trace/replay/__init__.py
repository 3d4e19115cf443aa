"""A recorded head run again on other numbers."""
