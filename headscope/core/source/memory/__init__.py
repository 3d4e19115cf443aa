"""Reports and structures that are known before anything is built: in the process, kept, shipped."""
