"""What is kept on a disk: reports in the user's folder, and the facts that are shipped."""
