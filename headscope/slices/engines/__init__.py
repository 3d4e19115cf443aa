"""`engines`: the head that each inference engine runs."""
