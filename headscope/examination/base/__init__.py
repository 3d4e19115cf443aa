"""What every examination needs: the request, the cache, the environment, the parts of a report."""
